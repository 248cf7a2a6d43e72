"""Programs of a model for several shapes of its inputs.  README.md has the guide."""
