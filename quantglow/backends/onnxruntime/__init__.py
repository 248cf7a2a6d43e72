"""onnxruntime, for what quantglow does not compile."""
