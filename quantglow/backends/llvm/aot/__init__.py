"""Code ahead of time: an emitted program as one object, for a linker.  README.md has the guide."""
