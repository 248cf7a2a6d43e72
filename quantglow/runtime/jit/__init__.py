"""From IR text to the address of a function.  README.md has the guide."""
