"""Models made ready for onnxruntime, without an import of it.

README.md lists the modules.
"""
