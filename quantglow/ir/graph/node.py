"""Nodes: one immutable class for each operator, and the nodes that others are computed from.

A node names the value that it computes.  Names are ONNX value names wherever the node computes an
ONNX value; they key the profile, survive rewriting and are unique in a graph.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from quantglow.ir.graph.kinds import Kind, Trait, element_kind, taking, words
from quantglow.ir.symbolic.size import Shape, is_free, likely, symbols_in
from quantglow.ir.types import DType, ElementType, TensorType
from quantglow.support.arrays import Array
from quantglow.support.classes import cached_property
from quantglow.support.errors import FileFormatError, TypeRuleError

if TYPE_CHECKING:
    from quantglow.ir.graph.graph import Graph


OPS: dict[str, type[Node]] = {}
"""Every operator by its class name."""

OPERAND_ANNOTATIONS = ("Node", "Node | None", "tuple[Node, ...]", "Constant", "Constant | None")
"""Annotations of the fields that hold operands, as text; other fields are attributes."""

_OPERAND_FIELDS: dict[type[Node], tuple[str, ...]] = {}
_ATTRIBUTE_FIELDS: dict[type[Node], tuple[str, ...]] = {}

MOST_ELEMENTS = 2**31
"""Maximum number of elements of a value in a text, and maximum size of its axes."""

MOST_TABLE_ENTRIES = 2**26
"""Maximum number of entries of the tables of a node in a text."""

AnyNode = TypeVar("AnyNode", bound="Node")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Node:
    """An operator applied to operands.  ``infer`` runs at construction, so every node is well
    typed.
    """

    name: str
    type: TensorType = field(init=False)

    traits: ClassVar[frozenset[Trait]] = frozenset()
    takes: ClassVar[Mapping[str, Kind]] = taking()
    """Kinds of elements of operands and of element types, by the names of fields."""
    takes_objects: ClassVar[bool] = False
    """Whether operands and results may be strings and opaque values."""
    in_place: ClassVar[tuple[str, ...]] = ()
    """Fields of operands whose memory the result may take over: they are read element by element,
    just before the result is written."""

    @property
    def stored_operands(self) -> tuple[str, ...]:
        """Fields of operands that must be Constants: kernels read them in a form of their own."""
        return ()

    @property
    def table_entries(self) -> int:
        """Number of entries of tables that are made of sizes and attributes at compile time."""
        return 0

    @property
    def bodies(self) -> tuple[Graph, ...]:
        """Graphs among the attributes, which the operator runs."""
        return ()

    def with_bodies(self, change: Callable[[Graph], Graph]) -> Node:
        """The same operator with changed bodies; ``self`` if all are the same objects."""
        return self

    def has(self, trait: Trait) -> bool:
        """Whether a fact holds for the node: its operator declares it, unless attributes decide."""
        return trait in self.traits

    def permute(self, perm: tuple[int, ...]) -> dict[str, Any] | None:
        """The attributes that differ where the axes of the result and of its operands are taken in
        another order: axis i is then ``perm[i]`` of now.  None where there is no such form.
        """
        return None

    def for_samples(self, shape: Shape) -> dict[str, Any] | None:
        """The attributes that differ where the operator computes a part of the batch, a result of
        this shape; None where samples along axis 0 may depend on each other."""
        return None

    def infer(self) -> TensorType:
        """The type of the result.  Raises ``TypeRuleError`` for operands that the operator
        refuses.
        """
        raise NotImplementedError

    def reference(self, *arrays: Any) -> Array:
        """The meaning of the operator on NumPy arrays, in the order of ``operands``."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        _check_kinds(self)
        object.__setattr__(self, "type", self.infer())
        if not self.takes_objects and any(n.type.dtype.is_object for n in (self, *self.operands)):
            raise self.refuse("strings and opaque values are for other runtimes only")

    @property
    def op(self) -> str:
        return type(self).__name__

    @cached_property
    def operands(self) -> tuple[Node, ...]:
        """Operand nodes in declaration order; absent optional operands are left out."""
        operands: list[Node] = []
        for name in operand_fields(type(self)):
            value = getattr(self, name)
            if isinstance(value, tuple):
                operands.extend(value)
            elif value is not None:
                operands.append(value)
        return tuple(operands)

    @property
    def operand_labels(self) -> tuple[str, ...]:
        """Name of the field that holds each of ``operands``."""
        labels: list[str] = []
        for name in operand_fields(type(self)):
            value = getattr(self, name)
            labels += [name] * (len(value) if isinstance(value, tuple) else value is not None)
        return tuple(labels)

    def evaluate(self, *arrays: Array) -> Array:
        """``reference`` with absent optional operands passed as None, and tuples kept together.

        NumPy returns scalars for arrays without dimensions; here every result is an array.
        Infinities and NaN are values, as in compiled code, and cause no warnings.
        """
        supply: Iterator[Array] = iter(arrays)
        arguments: list[Any] = []
        for name in operand_fields(type(self)):
            value = getattr(self, name)
            if isinstance(value, tuple):
                arguments.append(tuple(next(supply) for _ in value))
            else:
                arguments.append(None if value is None else next(supply))
        with np.errstate(all="ignore"):
            return np.asarray(self.reference(*arguments))

    def with_operands(self, operands: tuple[Node, ...], **attributes: Any) -> Node:
        """The same operator on other operands, with other ``attributes``; ``self`` if all are the
        same objects."""
        if not attributes and all(a is b for a, b in zip(self.operands, operands, strict=True)):
            return self
        supply = iter(operands)
        fields: dict[str, Any] = {}
        for name in operand_fields(type(self)):
            value = getattr(self, name)
            if isinstance(value, tuple):
                fields[name] = tuple(next(supply) for _ in value)
            else:
                fields[name] = None if value is None else next(supply)
        if attributes or not all(map(_alike, self.operands, operands)):
            return dataclasses.replace(self, **{**attributes, **fields})
        # The type follows from those of the operands: it would be inferred in vain.
        node = object.__new__(type(self))
        node.__dict__.update(self.attributes(), name=self.name, type=self.type, **fields)
        return node

    def attributes(self) -> dict[str, Any]:
        """Fields that are neither operands nor the name nor the type."""
        return {name: getattr(self, name) for name in attribute_fields(type(self))}

    @cached_property
    def has_free_sizes(self) -> bool:
        """Whether its shape or an attribute depends on free dimensions: no array has its value."""
        return any(map(_depends, (self.type.shape, *self.attributes().values())))

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of the free dimensions on which its shape and attributes depend."""
        if not self.has_free_sizes:
            return frozenset()
        return symbols_in((self.type.shape, *self.attributes().values()))

    @cached_property
    def settled(self) -> set[Callable[..., Any]]:
        """Local rules that have nothing to rewrite here, whatever reads its operands."""
        return set()

    def refuse(self, cause: str) -> TypeRuleError:
        """The error of a type rule, for the caller to raise."""
        operands = ", ".join(f"{o.name}: {getattr(o, 'type', '?')}" for o in self.operands)
        return TypeRuleError(f"{self.op} {self.name!r}: {cause}; operands ({operands})")

    def __repr__(self) -> str:
        return f"<{self.op} {self.name}: {getattr(self, 'type', '?')}>"


def _alike(one: Node, other: Node) -> bool:
    """Whether no type rule can tell two operands apart: it may ask for the values of constants."""
    return one is other or (
        not isinstance(one, Constant)
        and not isinstance(other, Constant)
        and one.type.surely_equals(other.type)
    )


def _depends(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_depends, value))
    return is_free(value) or getattr(value, "has_free_sizes", False)


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
def share_fields(cls: type[AnyNode]) -> type[AnyNode]:
    """Make a base class of operators, whose fields they inherit."""
    return dataclass(frozen=True, eq=False, kw_only=True, repr=False)(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False)
def op(cls: type[AnyNode]) -> type[AnyNode]:
    """Make an operator: a frozen keyword-only dataclass, registered under its class name.

    Raises ``TypeError`` if another operator has the name, or a field is an operand by its type but
    not annotated by one of ``OPERAND_ANNOTATIONS``.
    """
    other = OPS.get(cls.__name__)
    if other is not None and other.__module__ != cls.__module__:  # else a notebook's cell ran again
        raise TypeError(
            f"there is an operator {cls.__name__} already, in {other.__module__}. "
            "Remedy: give the class another name."
        )
    kind = share_fields(cls)
    _OPERAND_FIELDS[kind] = tuple(f.name for f in dataclasses.fields(kind) if _is_operand(kind, f))
    OPS[kind.__name__] = kind
    return kind


def _is_operand(cls: type[Node], field: dataclasses.Field[Any]) -> bool:
    """Whether a field holds operands.  Raises ``TypeError`` if only its type says so."""
    kind = str(field.type)
    if kind in OPERAND_ANNOTATIONS:
        return True
    namespace = {**OPS, **vars(sys.modules[cls.__module__])}
    named = map(namespace.get, re.findall(r"\w+", kind))
    if any(isinstance(word, type) and issubclass(word, Node) for word in named):
        raise TypeError(
            f"{cls.__name__}.{field.name}: {kind} is no annotation of an operand. Remedy: one of "
            f"{', '.join(OPERAND_ANNOTATIONS)}, below `from __future__ import annotations`; "
            "infer() may refuse other nodes."
        )
    return False


def operand_fields(cls: type[Node]) -> tuple[str, ...]:
    """Names of the fields that hold operands, in declaration order."""
    return _OPERAND_FIELDS[cls]


def attribute_fields(cls: type[Node]) -> tuple[str, ...]:
    """Names of the fields that are neither operands nor the name nor the type."""
    names = _ATTRIBUTE_FIELDS.get(cls)
    if names is None:
        skip = {"name", "type", *operand_fields(cls)}
        names = tuple(f.name for f in dataclasses.fields(cls) if f.name not in skip)
        _ATTRIBUTE_FIELDS[cls] = names
    return names


@op
class Input(Node):
    """A tensor that the caller supplies."""

    takes_objects = True

    tensor: TensorType

    def infer(self) -> TensorType:
        return self.tensor


@op
class Constant(Node):
    """A tensor known at compile time.  ``element`` gives its quantization, if any."""

    value: Array
    element: ElementType | None = None

    def infer(self) -> TensorType:
        from_array = TensorType(_constant_dtype(self), self.value.shape)
        return from_array if self.element is None else from_array.with_element(self.element)

    def reference(self) -> Array:
        return self.value

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest number; NaN if one is NaN, or if the array is empty."""
        if not self.value.size:
            return math.nan, math.nan
        return float(self.value.min()), float(self.value.max())


@share_fields
class StoredConstant(Constant):
    """Real numbers that a model has as integers, which the quantizer must not round again.

    ``integers``: int8 of zero point 0 that equal them, if there are any; a Constant with their
    scales.
    """

    integers: Constant | None = None

    @property
    def op(self) -> str:
        return Constant.__name__


# For text and for programs it is a Constant.
_OPERAND_FIELDS[StoredConstant] = operand_fields(Constant)
_ATTRIBUTE_FIELDS[StoredConstant] = attribute_fields(Constant)


def may_change(node: Node) -> bool:
    """Whether the node is a Constant whose numbers may be replaced by similar ones."""
    return isinstance(node, Constant) and not isinstance(node, StoredConstant)


def _constant_dtype(node: Constant) -> DType:
    try:
        dtype = DType.of(node.value)
    except TypeError as error:
        raise node.refuse(str(error)) from None
    if node.element is not None and node.element.dtype is not dtype:
        raise node.refuse(f"the array is {dtype} but the element type {node.element.dtype}")
    return dtype


def _check_kinds(node: Node) -> None:
    """Raise ``TypeRuleError`` if a field is of another kind than the operator takes."""
    for name, kinds in node.takes.items():
        value = getattr(node, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each is None:
                continue
            if not element_kind(each if isinstance(each, ElementType) else each.type) & kinds:
                raise node.refuse(f"{name} must be {words(kinds)}")


def check_stated(node: Node) -> None:
    """Raise ``TypeRuleError`` for parameters that do not fit the shape, and for sizes that no
    program has: tables are made of them before anything else asks."""
    if node.table_entries > MOST_TABLE_ENTRIES:
        raise node.refuse(f"its tables would have more than {MOST_TABLE_ENTRIES} entries")
    shape, quant = node.type.shape, node.type.quant
    sizes = [max(1, likely(size)) for size in shape]
    if math.prod(sizes) > MOST_ELEMENTS:
        raise node.refuse(f"a value has {MOST_ELEMENTS} elements at most, not {node.type}")
    if quant is not None and not element_kind(node.type):
        raise node.refuse(f"{node.type.dtype} has no quantization parameters")
    if quant is None or quant.axis is None:
        return
    axis = quant.axis
    if not 0 <= axis < len(shape) or is_free(shape[axis]) or shape[axis] != len(quant.scales):
        raise node.refuse(f"{len(quant.scales)} scales do not fit axis {axis}")


def check_stored(nodes: Iterable[Node]) -> None:
    """Raise ``FileFormatError`` for operands that programs are made of and that a graph computes.

    Saved graphs have Constants there; lowering may put a change of type in front of them.
    """
    for node in nodes:
        for name in node.stored_operands:
            operand = getattr(node, name)
            if operand is not None and operand.op != "Constant":
                raise FileFormatError(
                    f"{node!r}: {name} must be a Constant. Remedy: save the model again."
                )


def ancestors(
    ends: Iterable[Node], read: Mapping[Node, tuple[Node, ...]] | None = None
) -> set[Node]:
    """The nodes and all nodes they are computed from; ``read``: node -> the operands that count, if
    these are not all.
    """
    waiting, counted = list(ends), read or {}
    nodes = set(waiting)
    while waiting:
        node = waiting.pop()
        new = set(counted.get(node, node.operands)) - nodes
        nodes |= new
        waiting.extend(new)
    return nodes
