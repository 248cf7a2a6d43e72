"""ONNX import and export: the only rooms that know ``onnx``.

- ``source``: the way in, for any number of shapes.  ``loading`` makes a checked model of untrusted
  bytes, ``input_shapes`` concrete shapes, ``source_hash`` the name of what it computes.
- ``importer``: nodes, one by one, by the tables of ``operators``; ``context`` is what an importer
  sees, ``values`` what a name stands for.  What has no importer: ``expansion`` by the standard's
  definition, else ``external``, for onnxruntime; ``folding`` and ``evaluation`` of known values.
- ``split``: a model cut where shapes stop being known; ``restamping``: under an older opset;
  ``stored_weights``: in a saved file; ``peer_model``: for onnxruntime's quantizer.
- ``export``: the way out.
"""

from quantglow.frontend.export.model import export_onnx
from quantglow.frontend.source import Source, import_model, open_model
from quantglow.frontend.split import Split, split
from quantglow.frontend.stored_weights import restored, stored

__all__ = [
    "Source",
    "Split",
    "export_onnx",
    "import_model",
    "open_model",
    "restored",
    "split",
    "stored",
]
