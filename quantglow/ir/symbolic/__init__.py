"""Sizes that depend on free dimensions.  README.md has the guide."""
