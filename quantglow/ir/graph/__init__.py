"""The high-level IR: immutable, typed nodes of named values.  README.md has the guide."""
