"""Code generators: ``llvm`` for this processor; ``reference``, the same program in NumPy;
``onnxruntime``, for what quantglow does not compile.  None of them sees the high-level graph: they
take a planned program, or an ONNX model."""
