"""Products of two activations, or of activations with weights in groups.  See README.md."""
