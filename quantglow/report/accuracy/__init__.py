"""The error of int8: figures of outputs and layers.  README.md has the guide."""
