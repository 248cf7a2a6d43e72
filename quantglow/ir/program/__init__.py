"""The low-level IR: instructions over typed views of buffers.  README.md has the guide."""
