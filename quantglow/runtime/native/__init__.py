"""Compiled programs at run time.  README.md has the guide."""
