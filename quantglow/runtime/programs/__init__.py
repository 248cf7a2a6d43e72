"""A graph to an executable, and the calls of it.  README.md has the guide."""
