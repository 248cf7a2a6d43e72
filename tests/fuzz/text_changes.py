"""Random changes of the texts of graphs: attributes, types, operands, operators, expressions."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quantglow.ir.graph.node import OPS, attribute_fields, operand_fields
from quantglow.ir.ops.functions import BINARY, SELECT, UNARY
from quantglow.ir.ops.resize import COORDINATES, ROUNDINGS
from quantglow.ir.types import DType
from tests.fuzz.text_lines import Line, nodes_of

Random = np.random.Generator

SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 16)
HUGE = (-1, -2, 63, 64, 255, 256, 2**16, 2**20, 2**26, 2**31 - 1, 2**31, 2**33, 2**62, 2**64)
FLOATS = ("0.0", "1.0", "-1.0", "0.5", "-0.0", "2.5", "1e-38", "1e-45", "3e38", "1e308")
ODD_FLOATS = ("inf", "-inf", "nan", "1", "-127.0", "1e-5")
SCALES = ("0.05", "0.5", "1.0", "1e-38", "1e-45", "3e38", "0.0078125")
ZERO_POINTS = (0, 0, 0, 3, -3, 127, -128, 255, 32767)
WORDS = (
    *("nearest", "linear", *COORDINATES, *ROUNDINGS),
    *("none", "add", "mul", "max", "min", "", "x", "HardSwish", "\\ud800", "\\x00", "a" * 300),
)
DTYPES = tuple(str(dtype) for dtype in DType)
NULLARY = (
    "$0",
    "$1",
    "$2",
    "1.0",
    "-0.5",
    "nan",
    "inf",
    "1e-38",
    "3i",
    "0i",
    "-1i",
    "5l",
    "0l",
    "9999999999i",
)
EXPRESSION_DEPTH = 3
FREE = ("floor({0},2)", "{0}*{0}", "{0}-1", "{0}+3", "max({0},4)", "2*{0}", "-{0}", "floor({0},-3)")
FREE_MORE = ("floor({0},{0}-4)", "floor({0}-5,{0})", "{0}*{0}-9*{0}", "{0}-{0}", "max(3-{0},0)")


def pick(rng: Random, choices: Sequence[Any]) -> Any:
    """One of some choices."""
    return choices[int(rng.integers(len(choices)))]


def whole(rng: Random, symbols: Sequence[str] = ()) -> str:
    """An integer, small ones mostly, or the expression of a free size."""
    if symbols and rng.random() < 0.4:
        return size(rng, symbols)
    return str(pick(rng, SMALL if rng.random() < 0.7 else HUGE))


def size(rng: Random, symbols: Sequence[str]) -> str:
    """An expression of free sizes."""
    form = str(pick(rng, FREE if rng.random() < 0.7 else FREE_MORE))
    inner = str(pick(rng, symbols))
    if rng.random() < 0.3:
        inner = str(pick(rng, FREE)).format(inner)
    return "{" + form.format(inner) + "}"


def real(rng: Random) -> str:
    return str(pick(rng, FLOATS if rng.random() < 0.7 else ODD_FLOATS))


def word(rng: Random) -> str:
    return f"'{pick(rng, WORDS)}'"


def several(rng: Random, one: Callable[[Random], str], count: int | None = None) -> str:
    """A tuple."""
    length = int(rng.integers(0, 5)) if count is None else count
    return "(" + "".join(f"{one(rng)}, " for _ in range(length)) + ")"


def quantization(rng: Random) -> str:
    """Further arguments of a type: none, one scale, or a scale for each index of an axis."""
    how = rng.random()
    if how < 0.3:
        return ""
    if how < 0.75:
        return f", {pick(rng, SCALES)}, {pick(rng, ZERO_POINTS)}"
    count = int(pick(rng, (1, 2, 3, 4, 8)))
    zeros = several(rng, lambda r: str(pick(r, ZERO_POINTS)), count)
    if rng.random() < 0.5:
        zeros = several(rng, lambda r: "0", count)
    scales = several(rng, lambda r: str(pick(r, SCALES)), count)
    return f", {scales}, {zeros}, {pick(rng, (0, 1, 2, 3, -1, 7))}"


def element(rng: Random) -> str:
    if rng.random() < 0.1:
        return "None"
    return f"ElementType('{pick(rng, DTYPES)}'{quantization(rng)})"


def tensor(rng: Random, symbols: Sequence[str] = ()) -> str:
    shape = several(rng, lambda r: whole(r, symbols))
    return f"TensorType('{pick(rng, DTYPES)}', {shape}{quantization(rng)})"


def dense(rng: Random) -> str:
    dtype, count = str(pick(rng, DTYPES)), int(rng.integers(0, 5))
    shape = several(rng, lambda r: str(pick(r, SMALL[1:5])), count)
    value = real(rng) if dtype == "f32" else whole(rng)
    if dtype == "bool":
        value = str(pick(rng, ("True", "False")))
    return f"Dense('{dtype}', {shape}, ({value},))"


def expression(rng: Random, depth: int = EXPRESSION_DEPTH) -> str:
    """The text of a scalar expression."""
    if depth == 0 or rng.random() < 0.25:
        return str(pick(rng, NULLARY))
    how = rng.random()
    names, count = ((*UNARY,), 1) if how < 0.4 else ((*BINARY,), 2) if how < 0.9 else ((SELECT,), 3)
    inside = ", ".join(expression(rng, depth - 1) for _ in range(count))
    return f"{pick(rng, names)}({inside})"


def activation(rng: Random) -> str:
    numbers = several(rng, real)
    op = pick(rng, ("HardSigmoid", "HardSwish", "LeakyRelu", "Relu"))
    return f"Activation('{op}', {numbers}, {real(rng)}, {real(rng)})"


def value(rng: Random, annotation: str, symbols: Sequence[str]) -> str:
    """The source of a value for a field of this annotation."""
    if "None" in annotation and rng.random() < 0.2:
        return "None"
    for kind, draw in (
        ("ElementType", element),
        ("TensorType", lambda r: tensor(r, symbols)),
        ("Activation", activation),
        ("Expr", lambda r: f"Expr('{expression(r)}')"),
        ("bool", lambda r: str(bool(r.integers(2)))),
        ("str", word),
        ("bytes", lambda r: "bytes('aGk=')"),
        ("Array", dense),
    ):
        if kind in annotation:
            return draw(rng)
    inner = (lambda r: whole(r, symbols)) if "float" not in annotation else real
    count = {"Pair": 2, "Pads": 4}.get(
        annotation, annotation.count("int") + annotation.count("float")
    )
    if annotation in ("Pair", "Pads") or "tuple" in annotation:
        return several(rng, inner, None if "..." in annotation else count)
    return inner(rng)


# -- changes of lines


def change_attribute(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """An attribute of a node drawn anew."""
    number, line = pick(rng, [*nodes_of(lines)])
    cls = OPS.get(line.op)
    if cls is None or not attribute_fields(cls):
        return
    key = str(pick(rng, attribute_fields(cls)))
    annotation = {f.name: str(f.type) for f in dataclasses.fields(cls)}[key]
    lines[number] = str(line.with_argument(key, value(rng, annotation, symbols)))


def change_leaf(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A number or a word inside of an argument replaced."""
    actual = [(n, line) for n, line in nodes_of(lines) if line.arguments]
    if not actual:
        return
    number, line = pick(rng, actual)
    key = str(pick(rng, [*line.arguments]))
    tree = ast.parse(line.arguments[key], mode="eval")
    leaves = [leaf for leaf in ast.walk(tree) if isinstance(leaf, ast.Constant)]
    if not leaves:
        return
    leaf = leaves[int(rng.integers(len(leaves)))]
    marked = "MARKED_LEAF"
    old, leaf.value = leaf.value, marked
    new = whole(rng, symbols) if type(old) is int else real(rng) if type(old) is float else None
    if new is None:
        if isinstance(old, bool):
            new = str(not old)
        elif isinstance(old, str):
            new = _other_word(rng, old)
        else:
            new = element(rng)
    lines[number] = str(line.with_argument(key, ast.unparse(tree).replace(f"'{marked}'", new)))


def _other_word(rng: Random, old: str) -> str:
    if old in DTYPES:
        return f"'{pick(rng, DTYPES)}'"
    if "(" in old or old.startswith("$"):
        return repr(changed_expression(rng, old))
    return word(rng)


def changed_expression(rng: Random, text: str) -> str:
    """An expression with a function, an operand or a constant replaced."""
    how = rng.random()
    if how < 0.2:
        return expression(rng)
    names = [name for name in (*UNARY, *BINARY) if f"{name}(" in text]
    if names and how < 0.7:
        old = str(pick(rng, names))
        others = [*UNARY] if old in UNARY else [*BINARY]
        return text.replace(f"{old}(", f"{pick(rng, others)}(", 1)
    leaf = str(pick(rng, NULLARY))
    return text.replace(leaf, expression(rng, 1), 1)


def change_operand(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A node reads another one, or an optional operand is left out."""
    actual = [(n, line) for n, line in nodes_of(lines) if OPS.get(line.op) and operands_of(line)]
    if not actual:
        return
    number, line = pick(rng, actual)
    key = str(pick(rng, operands_of(line)))
    names = names_above(lines, number, line.indent)
    if not names or rng.random() < 0.1:
        lines[number] = str(line.with_argument(key, None))
        return
    source = line.arguments[key]
    if source.startswith("("):
        lines[number] = str(line.with_argument(key, several(rng, lambda r: str(pick(r, names)))))
    else:
        lines[number] = str(line.with_argument(key, str(pick(rng, names))))


def operands_of(line: Line) -> list[str]:
    return [key for key in operand_fields(OPS[line.op]) if key in line.arguments]


def names_above(lines: list[str], number: int, indent: str) -> list[str]:
    """The names of nodes before a line of that indentation."""
    return [line.name for at, line in nodes_of(lines) if at < number and line.indent == indent]


def change_operator(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A node of another operator with the same operands, or some of them."""
    number, line = pick(rng, [*nodes_of(lines)])
    op = str(pick(rng, [*OPS]))
    fields = {*operand_fields(OPS[op]), *attribute_fields(OPS[op])}
    kept = {key: source for key, source in line.arguments.items() if key in fields}
    lines[number] = str(dataclasses.replace(line, op=op, arguments=kept))


def insert_node(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A new node of any operator, all of whose arguments are drawn, and an output for it."""
    ends = [n for n, text in enumerate(lines) if text.startswith("output ")]
    if not ends:
        return
    names = names_above(lines, ends[0], "")
    op = str(pick(rng, [*OPS]))
    arguments = {}
    for field in dataclasses.fields(OPS[op]):
        annotation, has_default = str(field.type), field.default is not dataclasses.MISSING
        if field.name in ("name", "type") or (has_default and rng.random() < 0.6):
            continue
        if field.name not in operand_fields(OPS[op]):
            arguments[field.name] = value(rng, annotation, symbols)
        elif names and annotation.startswith("tuple"):
            arguments[field.name] = several(rng, lambda r: str(pick(r, names)))
        elif names:
            arguments[field.name] = str(pick(rng, names))
    name = f"'new{len(lines)}'"
    lines[ends[0] : ends[0]] = [str(Line("", name, "f32[1]", op, arguments))]
    lines.append(f"output {name} = {name}")


def insert_input(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A new input of any type, before everything else."""
    name = f"'in{len(lines)}'"
    lines[1:1] = [str(Line("", name, "f32[1]", "Input", {"tensor": tensor(rng, symbols)}))]


def move_output(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """Another node is an output, too."""
    names = names_above(lines, len(lines), "")
    if names:
        name = str(pick(rng, names))
        lines.append(f"output 'out{len(lines)}' = {name}")


def copy_line(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A line stands twice: a node mostly under another name."""
    old, new = (int(rng.integers(1, len(lines))) for _ in range(2))
    line = Line.of(lines[old])
    if line is not None and rng.random() < 0.8:
        line = dataclasses.replace(line, name=f"'copy{len(lines)}'")
    lines.insert(new, lines[old] if line is None else str(line))


def drop_line(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A line is missing."""
    if len(lines) > 3:
        del lines[int(rng.integers(1, len(lines)))]


CHANGES = (
    *(change_attribute, change_attribute, change_attribute),
    *(change_leaf, change_leaf, change_leaf, change_operand),
    *(change_operator, insert_node, insert_node, insert_input, move_output),
    *(copy_line, drop_line),
)
MOST_CHANGES = 4


def change(rng: Random, lines: list[str], symbols: Sequence[str]) -> None:
    """A few changes."""
    for _ in range(1 + int(math.floor(rng.exponential(1.0)) % MOST_CHANGES)):
        CHANGES[int(rng.integers(len(CHANGES)))](rng, lines, symbols)


def conditions(rng: Random, old: Sequence[str], symbols: Sequence[str]) -> list[str]:
    """The conditions of a graph for all shapes, one left out, replaced or added."""
    actual, how = list(old), rng.random()
    if actual and how < 0.7:
        del actual[int(rng.integers(len(actual)))]
    if how > 0.3:
        relation = pick(rng, (">=", "==", "!=", ">", "<"))
        actual.append(f"{size(rng, symbols)[1:-1]} {relation} 0")
    return actual
