"""ONNX import and export: the only folders that know ``onnx``.  README.md has the guide."""

from quantglow.frontend.cutting.behind import Behind, divided
from quantglow.frontend.cutting.late_loops import LateLoop
from quantglow.frontend.cutting.split import Split, reason_of, reasons, split
from quantglow.frontend.importer import knows_operator
from quantglow.frontend.reading.light_models import weights_nbytes
from quantglow.frontend.source import Source, import_model, open_model
from quantglow.frontend.steps import with_steps
from quantglow.frontend.weights.packed_weights import with_packed_weights
from quantglow.frontend.weights.stored_weights import (
    names_of_weights,
    own_constants,
    restored,
    stored,
    stored_tail,
)
from quantglow.frontend.weights.weight_places import Places
from quantglow.frontend.weights.weight_products import (
    WeightProduct,
    WeightTable,
    weight_products,
    weight_tables,
)

__all__ = [
    "Behind",
    "LateLoop",
    "Places",
    "Source",
    "Split",
    "WeightProduct",
    "WeightTable",
    "divided",
    "import_model",
    "knows_operator",
    "names_of_weights",
    "open_model",
    "own_constants",
    "reason_of",
    "reasons",
    "restored",
    "split",
    "stored",
    "stored_tail",
    "weight_products",
    "weight_tables",
    "weights_nbytes",
    "with_packed_weights",
    "with_steps",
]
