"""Attributes as text: Python literals, and calls of registered classes.

``3``, ``(1, 2)``, ``-inf``, ``'nearest'``, ``None``, ``ElementType('i8', 0.05, 3)``,
``bytes('aGk=')`` in base 64, ``Dense('f32', (2,), (0.5, -1.0))``, ``{384*T}`` for a size that
depends on free dimensions.  A class joins with ``register``.
Nothing is ever executed: the text is parsed to a syntax tree, and only the forms above are read
from it.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from quantglow.ir.symbolic.size import Dim, decide, is_free
from quantglow.ir.symbolic.text import parse_tree, size_from, size_text
from quantglow.ir.types import DType, ElementType, QuantParams, TensorType, shortest
from quantglow.support.arrays import Array
from quantglow.support.pages import LEAST_NBYTES, release_pages

NO_SIZES: Mapping[str, int] = {}


@dataclass(frozen=True)
class Codec:
    """Text form of a class: ``name(*encode(value))``, which ``decode(*arguments)`` reads back."""

    name: str
    encode: Callable[[Any], tuple[object, ...]]
    decode: Callable[..., object]


_encoders: dict[type, Codec] = {}
_decoders: dict[str, Codec] = {}


def register(cls: type, encode: Callable[[Any], tuple[object, ...]], decode: Any) -> None:
    """Give an attribute class its text form, a call of its name with literal arguments."""
    codec = Codec(cls.__name__, encode, decode)
    _encoders[cls] = _decoders[codec.name] = codec


@dataclass(frozen=True)
class ArrayMark:
    """Text form of an array: its type, and a hash of its contents."""

    dtype: str
    shape: tuple[int, ...]
    digest: str

    @staticmethod
    def of(array: Array) -> ArrayMark:
        return ArrayMark(str(DType.of(array)), tuple(map(int, array.shape)), _content_hash(array))


@dataclass(frozen=True)
class BodyMark:
    """Text form of a graph among the attributes: the label of the lines that have it."""

    label: str


@dataclass(frozen=True)
class Dense:
    """An array written out: all values in row-major order, or the one that all are equal to."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[float, ...]

    @staticmethod
    def of(array: Array) -> Dense:
        flat = np.ascontiguousarray(array).reshape(-1)
        values = (flat[:1] if is_uniform(array) else flat).tolist()
        shown = map(shortest, values) if DType.of(array).is_float else values
        return Dense(str(DType.of(array)), tuple(map(int, array.shape)), tuple(shown))

    def array(self) -> Array:
        """The array.  Raises ``ValueError`` for values of other types or of another number."""
        kind, size = DType(self.dtype), math.prod(self.shape)
        if len(self.values) not in (size, 1) or size > MAX_DENSE_ELEMENTS:
            raise ValueError(f"{len(self.values)} values for an array of shape {self.shape}")
        allowed = {int, float} if kind.is_float else {bool if kind is DType.BOOL else int}
        if not {*map(type, self.values)} <= allowed:
            raise ValueError(f"values of an array of {kind} are others than numbers of that type")
        try:
            values = np.array(self.values, kind.numpy)
        except OverflowError as error:
            raise ValueError(f"a value of an array is no {kind}: {error}") from None
        return np.broadcast_to(values, size).reshape(self.shape).copy()


def is_uniform(array: Array) -> bool:
    """Whether an array of several elements has the same bits in each of them."""
    if array.size < 2:
        return False
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((codes == codes[0]).all())


MAX_DENSE_ELEMENTS = 1 << 24
"""Maximum number of elements of an array whose values are in a text."""


def _content_hash(array: Array) -> str:
    """12 hexadecimal digits of the array's little-endian row-major bytes."""
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    digest = hashlib.sha256(little.reshape(-1).view(np.uint8).data).hexdigest()[:12]
    if array.nbytes >= LEAST_NBYTES:
        release_pages()
    return digest


def encode(value: object) -> str:
    """The text of an attribute value.  Raises ``TypeError`` for a class that is not registered."""
    kind = type(value)
    if kind is float or kind is int:  # scales and zero points of channels: most values by far
        return repr(value)
    if is_free(value):
        return size_text(value)
    codec = _encoders.get(kind)
    if codec is not None:
        return f"{codec.name}({', '.join(map(encode, codec.encode(value)))})"
    if isinstance(value, np.ndarray):
        return encode(ArrayMark.of(value))
    if isinstance(value, tuple):
        inside = ", ".join(map(encode, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if value is None or isinstance(value, bool | np.bool_):
        return repr(value if value is None else bool(value))
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    raise TypeError(f"{type(value).__name__} has no text form; see graph.attributes.register")


def decode(tree: ast.expr, sizes: Mapping[str, Dim] = NO_SIZES) -> Any:
    """The value of a syntax tree; ``sizes``: free dimensions by their names.

    Raises ``ValueError`` for forms that ``encode`` never writes.
    """
    match tree:
        case ast.Constant(value=bool() | int() | float() | None as value):
            return value
        case ast.Constant(value=str() as value):
            return encodable(value)
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id="nan"):
            return math.nan
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = decode(operand, sizes)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return -value
        case ast.Tuple(elts=elements):
            return tuple(decode(element, sizes) for element in elements)
        case ast.Set(elts=[size]):
            return size_from(size, sizes)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _decoders:
            return _construct(_decoders[name], tuple(decode(a, sizes) for a in arguments))
    raise ValueError(f"{ast.unparse(tree)[:60]!r} is not an attribute value")


def encodable(text: str) -> str:
    """A string that files and other programs can have: without half a character.

    Raises ``ValueError``.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[:60]!a} is not text: {error.reason}") from None
    return text


def _construct(codec: Codec, arguments: tuple[object, ...]) -> object:
    try:
        return codec.decode(*arguments)
    except TypeError as error:
        raise ValueError(f"wrong arguments of {codec.name}: {error}") from None


def parse_call(text: str, sizes: Mapping[str, Dim] = NO_SIZES) -> tuple[str, dict[str, Any]]:
    """``Name(key=value, …)`` as the name and the decoded values; ``sizes`` as for ``decode``.

    Raises ``ValueError``.
    """
    tree = parse_tree(text.strip())
    match tree:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            return name, {_keyword(k): decode(k.value, sizes) for k in keywords}
    raise ValueError(f"expected Name(key=value, …), got {text[:60]!r}")


def _keyword(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("`**` is not allowed")
    return keyword.arg


def _encode_quant(quant: QuantParams | None) -> tuple[object, ...]:
    if quant is None:
        return ()
    if quant.axis is None:
        return (shortest(quant.scale), quant.zero_point)
    return (tuple(map(shortest, quant.scales)), quant.zero_points, quant.axis)


def _decode_quant(quant: tuple[Any, ...]) -> QuantParams | None:
    match quant:
        case ():
            return None
        case (int() | float() as scale, int() as zero_point):
            return QuantParams((float(scale),), (zero_point,))
        case (tuple() as scales, tuple() as zero_points, int() as axis):
            return QuantParams(tuple(map(float, scales)), tuple(map(int, zero_points)), axis)
    raise ValueError(f"{quant} are not quantization parameters")


def _decode_tensor_type(dtype: str, shape: Any, *quant: Any) -> TensorType:
    if not _is_shape(shape):
        raise ValueError(f"{shape!r} is not a shape")
    return TensorType(DType(dtype), shape, _decode_quant(quant))


def _decode_dense(dtype: str, shape: Any, values: Any) -> Dense:
    if not _is_shape(shape) or not isinstance(values, tuple):
        raise ValueError("an array needs a shape and a tuple of values")
    return Dense(dtype, shape, values)


def _is_shape(value: Any) -> bool:
    """Whether a value is a tuple of sizes."""
    return isinstance(value, tuple) and all(is_integer(d) and decide(d >= 0) for d in value)


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, free or not; conditions are none."""
    return type(value) is int or is_free(value)


register(
    ElementType,
    lambda e: (str(e.dtype), *_encode_quant(e.quant)),
    lambda dtype, *quant: ElementType(DType(dtype), _decode_quant(quant)),
)
register(
    TensorType, lambda t: (str(t.dtype), t.shape, *_encode_quant(t.quant)), _decode_tensor_type
)
register(ArrayMark, lambda a: (a.dtype, a.shape, a.digest), ArrayMark)
register(Dense, lambda a: (a.dtype, a.shape, a.values), _decode_dense)
register(
    bytes,
    lambda data: (base64.b64encode(data).decode(),),
    lambda text: base64.b64decode(text, validate=True),
)
