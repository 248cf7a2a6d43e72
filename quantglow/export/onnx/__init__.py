"""A Graph as an ONNX model; importing a family enters its operators in ``export_rules``."""

from quantglow.export.onnx import contraction, elementwise, external, pooling, shape
