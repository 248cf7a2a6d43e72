"""ONNX models to typed graphs.  README.md has the guide."""

from quantglow.importer.onnx.importer import knows_operator
from quantglow.importer.onnx.resolvers.late_loops import ExternalLoop, LateLoop, loop_name
from quantglow.importer.onnx.source import Source, import_model, open_model
from quantglow.importer.onnx.steps import with_steps
from quantglow.importer.onnx.weights.locations import Places
from quantglow.importer.onnx.weights.packing import (
    WeightProduct,
    WeightTable,
    weight_products,
    weight_tables,
    with_packed_weights,
)
from quantglow.importer.onnx.weights.storage import (
    may_show_rounding,
    own_constants,
    restore,
    store,
)

__all__ = [
    "ExternalLoop",
    "LateLoop",
    "Places",
    "Source",
    "WeightProduct",
    "WeightTable",
    "import_model",
    "knows_operator",
    "loop_name",
    "may_show_rounding",
    "open_model",
    "own_constants",
    "restore",
    "store",
    "weight_products",
    "weight_tables",
    "with_packed_weights",
    "with_steps",
]
