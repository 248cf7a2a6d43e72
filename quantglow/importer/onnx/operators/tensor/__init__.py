"""Importers of operators that move elements.  README.md has the table."""
