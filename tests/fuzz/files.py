"""Damaged model files: bytes and fields altered at random, or on purpose, see ``attacks``.

Whatever the damage, loading and running ends in a result or in one of quantglow's own errors.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message

import quantglow as qg
from tests.fuzz.attacks import attack, made_for_attack
from tests.fuzz.compare import Difference
from tests.generators.onnx_models.models import drawn

SHARED = 40
"""Number of seeds whose graphs the files are made from."""

ATTACKED = 0.4
"""Share of files with malicious numbers; half as many are built for the purpose."""


def damaged(seed: int) -> bytes:
    """The file of a seed."""
    rng = np.random.default_rng(seed)
    if rng.random() < ATTACKED / 2:
        return bytes(made_for_attack(rng).SerializeToString())
    model = drawn(int(rng.integers(SHARED))).model
    if rng.random() < ATTACKED:
        attack(model, rng)
        return bytes(model.SerializeToString())
    if rng.random() < 0.4:
        return altered_bytes(bytearray(model.SerializeToString()), rng)
    for _ in range(int(rng.integers(1, 4))):
        alter_field(model, rng)
    return bytes(model.SerializeToString())


def altered_bytes(data: bytearray, rng: np.random.Generator) -> bytes:
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(len(data))) if data else 0
        how = int(rng.integers(4)) if data else 2
        if how == 0:
            data[at] = int(rng.integers(256))
        elif how == 1:
            del data[at : at + int(rng.integers(1, 9))]
        elif how == 2:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        else:
            del data[at + 1 :]
    return bytes(data)


def alter_field(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Set one field, chosen among all that are present, to another value."""
    places = list(fields(model))
    message, field = places[int(rng.integers(len(places)))]
    value = getattr(message, field.name)
    if field.is_repeated:
        change_list(value, rng)
    elif field.cpp_type == field.CPPTYPE_MESSAGE or rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.cpp_type == field.CPPTYPE_STRING:
        old = value.encode() if isinstance(value, str) else bytes(value)
        new = altered_bytes(bytearray(old), rng)
        setattr(message, field.name, new.decode("latin-1") if isinstance(value, str) else new)
    elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        setattr(message, field.name, float(rng.choice([0.0, -1.0, np.nan, np.inf, 1e30])))
    elif field.cpp_type == field.CPPTYPE_ENUM:
        setattr(message, field.name, int(rng.choice(list(field.enum_type.values_by_number))))
    else:
        setattr(message, field.name, number(field, rng))


def number(field: Any, rng: np.random.Generator) -> int:
    wide = field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64)
    low = 0 if field.cpp_type in (field.CPPTYPE_UINT64, field.CPPTYPE_UINT32) else -(2**31)
    extremes = [0, 1, 2, 7, 2**31 - 1, max(low, -1), low, *([2**40, 2**62] if wide else [])]
    return int(extremes[int(rng.integers(len(extremes)))])


def change_list(values: Any, rng: np.random.Generator) -> None:
    """Drop, repeat or exchange elements of a repeated field."""
    at, other = (int(rng.integers(len(values))) for _ in range(2))
    how = int(rng.integers(3))
    if how == 0:
        del values[at]
    elif isinstance(values[at], Message):
        copy = type(values[at])()
        copy.CopyFrom(values[at])
        values.append(copy) if how == 1 else values[other].CopyFrom(copy)
    elif isinstance(values[at], str | bytes):
        values[at] = values[other] if how == 1 else values[at][:-1]
    else:
        values[at] = (
            values[other] if how == 1 else type(values[at])(rng.choice([0, -1, 3, 2**31 - 1]))
        )


def fields(message: Message) -> Iterator[tuple[Any, Any]]:
    """Every field that is present, in a message and in nested ones."""
    for field, value in message.ListFields():
        yield message, field
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from fields(inner)


MOST_ELEMENTS = 10**6
"""Maximum size of an input; a damaged model with larger ones is not run."""


RUN_SECONDS = 20.0
"""After so long Ctrl-C ends a run: a damaged Loop may have no end, as its file says."""


def check_file(data: bytes) -> Difference | None:
    """None if the file ran, was refused with an error of quantglow's own, or ran until Ctrl-C."""
    try:
        compiled = qg.compile(data, num_threads=1)
        inputs = compiled.get_inputs()
        if all(math.prod(shape_of(info)) <= MOST_ELEMENTS for info in inputs):
            feeds = {i.name: np.zeros(shape_of(i), i.dtype) for i in inputs}
            with interrupted_after(RUN_SECONDS):
                compiled.run(None, feeds)
    except (qg.QuantglowError, KeyboardInterrupt):
        return None
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        return Difference(f"raises {type(error).__name__}", str(error)[:300])
    return None


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Inside, ``KeyboardInterrupt`` is raised after so many seconds."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again: Python may drop one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def shape_of(info: Any) -> list[int]:
    """The shape of an input, with 1 for free dimensions."""
    return [dim if isinstance(dim, int) else 1 for dim in info.shape]
