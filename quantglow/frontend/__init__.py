"""ONNX import and export: the only rooms that know ``onnx``.

- ``source``: the way in, for any number of shapes.  ``loading`` makes a checked model of untrusted
  bytes, ``external_data`` reads the weights beside it, ``inlining`` counts the nodes of its local
  functions; ``input_shapes`` gives concrete shapes, ``source_hash`` the name of what it computes;
  ``budget`` limits what one import takes; ``proto`` walks over nodes and tensors.
- ``importer``: nodes, one by one, by the tables of ``operators``; ``context`` is what an importer
  sees, ``values`` what a name stands for.  Nodes without an importer: ``expansion`` by the
  standard's definition, else ``external``, for onnxruntime (``ml_types``: its types);
  ``folding`` and ``evaluation`` of known values.
- ``split``: a model cut where shapes stop being known, or types are none of ours
  (``label_codes``: not for the strings of classifiers); ``opset_downgrade``: under an older
  opset; ``stored_weights``: in a saved file, each by its ``weight_places``, some as factors:
  ``scaled_weights``; ``ort_quantizer_input``: for onnxruntime's quantizer.
- ``export``: the way out.
"""

from quantglow.frontend.export.model import export_onnx
from quantglow.frontend.source import Source, import_model, open_model
from quantglow.frontend.split import Split, reasons, split
from quantglow.frontend.stored_weights import restored, stored
from quantglow.frontend.weight_places import Places

__all__ = [
    "Places",
    "Source",
    "Split",
    "export_onnx",
    "import_model",
    "open_model",
    "reasons",
    "restored",
    "split",
    "stored",
]
