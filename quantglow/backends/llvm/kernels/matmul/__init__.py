"""Products of two activations: see README.md."""
