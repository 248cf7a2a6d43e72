"""onnxruntime, for models that quantglow does not compile.  README.md has the guide."""
