"""Random ONNX models, graphs and programs: one generator for each level of the compiler."""
