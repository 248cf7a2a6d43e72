"""Tests that run on emulated processors, installed by ``make cross-setup``."""
