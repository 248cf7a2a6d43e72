"""A Graph as an ONNX model; importing a family enters its operators in ``export_rules``."""

from quantglow.frontend.export import (
    contraction,
    elementwise,
    expressions,
    external,
    indexing,
    loop,
    pooling,
    shape,
    weight_groups,
)
