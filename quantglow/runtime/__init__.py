"""Programs that run: executables, their shapes, saved models.  README.md has the guide."""
