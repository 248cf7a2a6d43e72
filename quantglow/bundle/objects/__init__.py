"""Facts in the symbol tables of objects, of each format.  README.md has the guide."""
