"""Sizes that depend on free dimensions: see README.md."""
