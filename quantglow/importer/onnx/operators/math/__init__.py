"""Importers of arithmetic.  README.md has the table."""
