"""onnxruntime, for models that quantglow does not compile.

``session`` runs a model here, ``apart`` in a child process.
"""
