"""Providers of onnxruntime, beside each other."""
