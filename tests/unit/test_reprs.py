"""Laws: the ``repr`` of every object that a user can reach from a real model is short, and that of
an object whose ``__init__`` raised does not raise again.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.cli.demo import data_folder
from quantglow.support import errors

MAX_CHARACTERS = 1_000
MAX_ITEMS = 100
"""Items looked at of each list, tuple or mapping."""


def ours(root: object) -> Iterator[object]:
    """All objects of quantglow's classes that are reachable from ``root`` by their fields."""
    waiting, known = [root], dict[int, object]()
    while waiting:
        value = waiting.pop()
        if id(value) in known:
            continue
        known[id(value)] = value
        if type(value).__module__.startswith("quantglow"):
            yield value
        waiting += inside(value)


def inside(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*list(value)[:MAX_ITEMS], *list(value.values())[:MAX_ITEMS]]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)[:MAX_ITEMS]
    names = [field.name for field in fields(value)] if is_dataclass(value) else []
    return [getattr(value, name, None) for name in {*names, *getattr(value, "__dict__", {})}]


def samples() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 3, 48, 192)).astype(np.float32) for _ in range(2)]


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """One of each public class, of a real network."""
    model = data_folder() / "ppocr_cls.onnx"
    config = qg.QuantizationConfig(
        equalization=(), recovery=(), nodes_to_exclude=[f"re:^{i}$|conv" for i in range(500)]
    )
    profile = qg.profile(model, samples())
    compiled = qg.quantize_and_compile(model, profile, num_threads=2)
    return {
        "model": compiled,
        "build": compiled.build,
        "report": compiled.report,
        "profile": compiled.profile,
        "graph": compiled.graph,
        "batches": qg.compile(model, num_threads=2, input_shapes={"x": (8, 3, 48, 192)}),
        "free": qg.compile(model, num_threads=1),
        "config": config,
        "scope": qg.IgnoredScope(names=tuple(map(str, range(500)))),
        "diagnosis": qg.diagnose(
            data_folder() / "mnist_cnn.onnx",
            [np.random.default_rng(0).random((1, 1, 28, 28), np.float32)],
            sensitivity=False,
        ),
    }


def test_every_repr_is_short(objects: dict[str, Any]) -> None:
    long = {
        type(value).__qualname__: len(repr(value))
        for root in objects.values()
        for value in ours(root)
        if len(repr(value)) >= MAX_CHARACTERS
    }
    assert not long


def test_the_walk_reaches_programs_and_types(objects: dict[str, Any]) -> None:
    actual = {type(value).__name__ for value in ours(objects["model"])}
    assert actual >= {"Build", "LlvmExecutable", "Compute", "QuantParams", "Histogram"}


def test_the_repr_of_a_build_names_its_fields(objects: dict[str, Any]) -> None:
    assert repr(objects["build"]).startswith("Build(executable=")


ASSIGNING = {"Expression", "Size"}
"""Classes whose ``__init__`` assigns its arguments, and cannot raise."""


def classes() -> Iterator[type[Any]]:
    """The classes of quantglow, but for modules whose packages are not installed."""
    for module in pkgutil.walk_packages(qg.__path__, "quantglow."):
        if module.name.endswith("__main__"):
            continue
        with suppress(ImportError, errors.OptionError):
            actual = vars(import_module(module.name)).values()
            yield from (c for c in actual if inspect.isclass(c) and c.__module__ == module.name)


def unset_fields(kind: type[Any]) -> list[str]:
    """Fields that the ``repr`` of a dataclass shows, and that ``__init__`` does not set."""
    shown = [f for f in fields(kind) if f.repr and not f.init]
    return [f.name for f in shown if f.default is MISSING and f.default_factory is MISSING]


def makes_itself(kind: type[Any]) -> bool:
    """Whether a class has an ``__init__`` and a ``__repr__`` written here."""
    ours = getattr(kind.__repr__, "__module__", None) or ""
    return "__init__" in vars(kind) and not is_dataclass(kind) and ours.startswith("quantglow")


def test_the_repr_of_an_object_whose_init_raised_does_not_raise() -> None:
    actual = list(classes())
    assert len(actual) > 500
    for kind in actual:
        if is_dataclass(kind) and hasattr(kind.__repr__, "__wrapped__"):  # made by dataclass
            assert not unset_fields(kind), kind
        if makes_itself(kind) and kind.__name__ not in ASSIGNING:
            assert repr(kind.__new__(kind)), kind


def test_the_repr_of_a_queue_that_was_refused() -> None:
    queue = qg.InferQueue.__new__(qg.InferQueue)
    with pytest.raises(qg.OptionError):
        queue.__init__(None)  # type: ignore[misc, arg-type]
    assert repr(queue) == "<InferQueue, not ready>"
