"""Random ONNX models: operators and whole networks."""
