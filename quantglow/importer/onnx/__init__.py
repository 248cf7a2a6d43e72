"""ONNX models to typed graphs.  README.md has the guide."""

from quantglow.importer.onnx.cutting.deferred_loops import ExternalLoop, LateLoop, loop_name
from quantglow.importer.onnx.cutting.split import Split, node_reason, reasons, split
from quantglow.importer.onnx.cutting.tail import Behind, divide
from quantglow.importer.onnx.importer import knows_operator
from quantglow.importer.onnx.reading.light_models import weights_nbytes
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
    names_of_weights,
    own_constants,
    restore,
    store,
    stored_tail,
)

__all__ = [
    "Behind",
    "ExternalLoop",
    "LateLoop",
    "Places",
    "Source",
    "Split",
    "WeightProduct",
    "WeightTable",
    "divide",
    "import_model",
    "knows_operator",
    "loop_name",
    "names_of_weights",
    "node_reason",
    "open_model",
    "own_constants",
    "reasons",
    "restore",
    "split",
    "store",
    "stored_tail",
    "weight_products",
    "weight_tables",
    "weights_nbytes",
    "with_packed_weights",
    "with_steps",
]
