"""Classifiers whose labels are strings, as classifiers of numbers and a table of strings.

So the scores, and the number of the label, can be compiled; only the table is left to onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from quantglow.importer.onnx.domains import ML
from quantglow.importer.onnx.reading.proto import all_nodes, opset_versions

STRINGS = "classlabels_strings"
NUMBERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""The attribute of each classifier that holds integer labels."""


def with_label_codes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with numbers for the strings of its classifiers; itself if it has none."""
    if not any(_string_attributes(node) for node in proto.graph.node):
        return proto
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.node[:]
    used = {name for node in all_nodes(proto.graph.node) for name in (*node.input, *node.output)}
    version = opset_versions(proto).get(ML, 1)
    for node in proto.graph.node:
        model.graph.node.extend(code(node, used, version) if _string_attributes(node) else [node])
    return model


def _string_attributes(node: onnx.NodeProto) -> list[bytes]:
    """The labels of a classifier of strings whose label has a name; else nothing."""
    if node.domain != ML or node.op_type not in NUMBERS or not any(node.output[:1]):
        return []
    return [label for a in node.attribute if a.name == STRINGS for label in a.strings]


def code(node: onnx.NodeProto, used: set[str], version: int) -> Iterator[onnx.NodeProto]:
    """The classifier of numbers, and the table."""
    strings = _string_attributes(node)
    code = f"{node.output[0]}:code"
    while code in used:
        code += "'"
    used.add(code)
    classifier = onnx.NodeProto()
    classifier.CopyFrom(node)
    del classifier.attribute[:]
    classifier.attribute.extend(a for a in node.attribute if a.name != STRINGS)
    numbers = list(range(len(strings)))
    classifier.attribute.append(onnx.helper.make_attribute(NUMBERS[node.op_type], numbers))
    classifier.output[0] = code
    yield classifier
    table = {"keys_int64s": numbers, "values_strings": strings}
    yield onnx.helper.make_node(
        "LabelEncoder",
        [code],
        [node.output[0]],
        domain=ML,
        **(table if version > 1 else {"classes_strings": strings}),
    )
