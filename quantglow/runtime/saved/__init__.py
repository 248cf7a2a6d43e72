"""Saved models: ``.qgm`` files.  README.md has the guide."""
