"""Ways to import a node that has no importer of its own.  README.md has the guide."""
