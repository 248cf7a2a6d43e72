"""Choices that are tried on calibration samples before weights are rounded."""
