"""Importers of layers.  README.md has the table."""
