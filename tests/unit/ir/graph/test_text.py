"""The text of graphs: what it looks like, and how bad text is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from quantglow.ir.graph.attributes import encode, parse_call
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.graph.text import parse_graph, print_graph, print_with_arrays, text_constants
from quantglow.ir.ops import Conv, Relu
from quantglow.ir.types import f32
from quantglow.support.errors import FileFormatError
from tests.generators.texts import edited, edits


def small_graph() -> Graph:
    x = Input(name="x", tensor=f32(1, 3, 3, 2))
    w = Constant(name="w", value=np.ones((2, 2, 2, 1), np.float32))
    conv = Conv(name="conv", x=x, w=w, pads=(0, 1, 1, 0), low=0.0)
    return Graph((x,), (("y", Relu(name="r", x=conv)),), "abc")


GRAPH = small_graph()
TEXT = print_graph(GRAPH)


def test_the_text_has_one_line_for_each_node() -> None:
    assert TEXT == (
        "graph 'abc'\n"
        "'x': f32[1x3x3x2] = Input(tensor=TensorType('f32', (1, 3, 3, 2)))\n"
        "'w': f32[2x2x2x1] = Constant(value=ArrayMark('f32', (2, 2, 2, 1), '4f05df05f8da'))\n"
        "'conv': f32[1x3x3x1] = Conv(x='x', w='w', pads=(0, 1, 1, 0), low=0.0)\n"
        "'r': f32[1x3x3x1] = Relu(x='conv')\n"
        "output 'y' = 'r'\n"
    )


BAD = {
    "header": ("graph 'abc'", "grph", "line 1: expected"),
    "operator": ("Relu(", "Rleu(", "line 5: there is no operator 'Rleu'"),
    "attribute": ("pads=", "pad=", "line 4: Conv has no attribute 'pad'"),
    "value": ("(0, 1, 1, 0)", "(0, 1, 1)", "attribute 'pads' of Conv cannot be"),
    "number": ("low=0.0", "low='0.0'", "attribute 'low' of Conv cannot be"),
    "type": ("'r': f32[1x3x3x1]", "'r': f32[1x3x3x2]", "'r' is of type"),
    "operand": ("Relu(x='conv')", "Relu(x='cnv')", "node 'cnv' is not defined above"),
    "missing": ("Relu(x='conv')", "Relu()", "Relu 'r'"),
    "twice": ("'r': f32[1x3x3x1]", "'x': f32[1x3x3x1]", "node 'x' is defined twice"),
    "array": ("4f05df05f8da", "000000000000", "the array of constant 'w' is"),
    "call": ("low=0.0", "low=open('f')", "is not an attribute value"),
    "expression": ("low=0.0", "low=1+1", "is not an attribute value"),
    "star": ("x='conv'", "**{}", "is not allowed"),
    "rule": ("pads=(0, 1, 1, 0)", "strides=(0, 1)", "Conv 'conv'"),
    "junk": ("output 'y'", "outptu 'y'", "line 6: expected"),
    "nesting": ("low=0.0", "low=" + "(" * 5000 + ")" * 5000, "cannot read"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_text_is_refused_with_line_cause_and_remedy(case: str) -> None:
    old, new, message = BAD[case]
    assert old in TEXT
    with pytest.raises(FileFormatError) as caught:
        parse_graph(TEXT.replace(old, new), text_constants(GRAPH))
    assert message in str(caught.value)


BAD_ARRAYS = {
    "number": ("(2, 2, 2, 1), (1.0,)", "(2, 2, 2, 1), (1.0, 2.0)", "2 values for an array of"),
    "bomb": ("(2, 2, 2, 1), (1.0,)", "(99999, 99999), (1.0,)", "1 values for an array of"),
    "shape": ("(2, 2, 2, 1), (1.0,)", "(-2, -4), (1.0,)", "needs a shape and a tuple"),
    "values": ("(1.0,)", "1.0", "needs a shape and a tuple"),
    "text": ("(1.0,)", "('1',)", "others than numbers"),
    "flag": ("(1.0,)", "(True,)", "others than numbers"),
    "dtype": ("'f32', (2, 2, 2, 1), (", "'f64', (2, 2, 2, 1), (", "not a valid DType"),
    "range": ("'f32', (2, 2, 2, 1), (1.0,)", "'i8', (8,), (200,)", "a value of an array is no i8"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_a_bad_array_is_refused_with_its_cause(case: str) -> None:
    old, new, message = BAD_ARRAYS[case]
    text = print_with_arrays(GRAPH, 8)
    assert old in text
    with pytest.raises(FileFormatError, match=f"line 3: .*{message}"):
        parse_graph(text.replace(old, new), {})


def test_large_arrays_are_written_out_where_all_elements_are_equal() -> None:
    assert print_with_arrays(GRAPH, 1) == print_with_arrays(GRAPH, 8)
    c = Constant(name="c", value=np.arange(8, dtype=np.float32))
    graph = Graph((), (("y", Relu(name="r", x=c)),))
    assert print_with_arrays(graph, 7) == print_graph(graph)


def test_a_missing_array_is_named() -> None:
    with pytest.raises(FileFormatError, match=r"(?s)constant 'w' is missing.*save it again"):
        parse_graph(TEXT, {"other": np.zeros(1, np.float32)})


def test_a_text_without_its_arrays_is_refused_with_the_way_to_print_them() -> None:
    with pytest.raises(
        FileFormatError, match=r"(?s)constant 'w' was not printed.*Remedy"
    ) as caught:
        parse_graph(TEXT, {})
    assert "quantglow opt MODEL --max-elements N" in str(caught.value)
    assert "altered" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "graph", "\0", "program\n"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError):
        parse_graph(text, {})


@given(edits)
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_an_altered_graph_is_read_or_refused(changes: list[tuple[int, int, str]]) -> None:
    try:
        graph = parse_graph(edited(TEXT, changes), text_constants(GRAPH))
    except FileFormatError:
        return
    graph.verify()
    text = print_graph(graph)
    assert print_graph(parse_graph(text, text_constants(graph))) == text


def test_numbers_of_numpy_are_written_as_python_numbers() -> None:
    assert encode((np.int64(3), np.float32(0.5), np.bool_(True))) == "(3, 0.5, True)"


def test_a_value_without_text_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no text form"):
        encode(object())


def test_not_a_number_is_read_back() -> None:
    value = parse_call(f"Op(key={encode(float('nan'))})")[1]["key"]
    assert value != value
