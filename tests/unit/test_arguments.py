"""Every argument of the public functions with values of wrong types and out of range: an error of
the package that names the argument, and what was given.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow import steps
from quantglow.profiling import Profile
from quantglow.support.arguments import brief, integer, number, strings
from tests.support.small_network import small_model, small_samples

MODEL, SAMPLES = small_model(), small_samples(2)
GRAPH = qg.import_model(MODEL)
PROFILE = qg.profile(GRAPH, SAMPLES, progress=False)
COMPILED = qg.compile(GRAPH, num_threads=1)


class Rude:
    """An object that raises in every method."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __bool__(self) -> bool:
        raise RuntimeError("no condition")

    __hash__ = object.__hash__


HUGE = 10**5000
NOTHING = [None]
OBJECTS = [Rude(), object(), int, 1j, b"a"]
ARRAYS = [np.array([1.0, 2.0]), np.zeros((2, 0)), np.array(1.0), np.array("a")]
TEXTS = ["a", "", "\0"]
LISTS = [[], [1], [None], [[1]], (), set()]
MAPPINGS = [{}, {"x": 1}]
INTEGERS = [-1, 0, HUGE, np.int64(2)]
REALS = [1.5, float("nan"), float("inf"), np.float32(2)]
FLAGS = [True, np.bool_(True)]
COLLECTIONS = [*ARRAYS, *LISTS, *MAPPINGS]
NUMBERS = [*INTEGERS, *REALS]

NO_FLAG = [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS]
NO_COUNT = [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *REALS, *FLAGS, -1, HUGE]
NO_FLOAT = [*OBJECTS, *TEXTS, *COLLECTIONS, *FLAGS, float("nan"), HUGE]
NO_NUMBER = [*NO_FLOAT, -1]
NO_STRINGS = [*OBJECTS, *ARRAYS, [1], [None], [[1]], *MAPPINGS, *NUMBERS, *FLAGS]
NO_NAME = [*OBJECTS, *TEXTS, *COLLECTIONS, *REALS, -1, HUGE, *FLAGS]
NO_PATH = [*NOTHING, *OBJECTS, "", "\0", *COLLECTIONS, *NUMBERS, *FLAGS]
NO_SHAPES = [*OBJECTS, *TEXTS, *ARRAYS, *LISTS, *NUMBERS, *FLAGS]
NO_SHAPES += [{1: [1]}, {"x": 1}, {"x": "12"}, {"x": [1.0]}, {"x": [0]}, {"x": [True]}]
NO_PROGRESS = [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS]
NO_BACKENDS = [*NOTHING, *OBJECTS, "a", *ARRAYS, [1], [None], {"x": 1}, *NUMBERS, True]
NO_FUNCTION = [*[o for o in OBJECTS if o is not int], *TEXTS, *COLLECTIONS, *NUMBERS, *FLAGS]

NO_STEPS = [*(o for o in OBJECTS), "a", *ARRAYS, [1], [None], [[1]], {1: []}, *NUMBERS, True]

CONFIG: dict[str, list[Any]] = {
    "preset": [*NOTHING, *NO_NAME, 0],
    "calibrate_method": [*NOTHING, *NO_NAME],
    "percentile": [*NOTHING, *NO_NUMBER, 50, 101, HUGE],
    "per_channel": NO_FLAG,
    "ignored_scope": NO_STRINGS,
    "nodes_to_exclude": NO_STRINGS,
    "op_types_to_quantize": NO_STRINGS,
    "quantize_output": NO_FLAG,
    "int16_activations": NO_STRINGS,
    "recovery": [*NO_STRINGS, *TEXTS],
    "equalization": [*NO_STRINGS, *TEXTS],
    "effort": [*NOTHING, *NO_NAME, 0],
    "profile_with": [*NOTHING, *NO_NAME, 0],
    "weights": [*NO_NAME, 4],
    "group_size": [*NOTHING, *NO_NAME, 0, 24],
    "activations": [*NOTHING, *NO_NAME, 0],
    "symmetric_weights": NO_FLAG,
    "seed": [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *REALS, *FLAGS, -1],
}
SEARCH = {
    "max_drop": NO_NUMBER,
    "drop_type": [*NOTHING, *NO_NAME, 0],
    "validation_fn": NO_FUNCTION,
    "max_minutes": [*NO_NUMBER, 0],
}
MACHINE = {
    "target": [*NOTHING, *OBJECTS, *COLLECTIONS, *NUMBERS, *FLAGS],
    "num_threads": [*NO_NAME, 0],
    "schedule": [*NOTHING, *NO_NAME, 0],
    "backends": NO_BACKENDS,
}
MEANWHILE = {"while_compiling": [*NOTHING, *NO_NAME, 0]}
NO_SAMPLES = [*OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS, *FLAGS]
STEPS = {"before": NO_STEPS, "after": NO_STEPS}
DATA = {"subset_size": [*NO_COUNT, 0], "progress": NO_PROGRESS, "input_shapes": NO_SHAPES}
MAIN = {
    **{
        name: wrong
        for name, wrong in CONFIG.items()
        if name in inspect.signature(qg.quantize_and_compile).parameters
    },
    **SEARCH,
    **MACHINE,
    **DATA,
    "model_type": [*OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS, *FLAGS],
    "verify": NO_FLAG,
    "measure_speed": NO_FLAG,
    "measure_latency": NO_FLAG,
    **STEPS,
    **MEANWHILE,
}


def is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


def is_step(kind: Any) -> bool:
    """Whether it is a class of steps with a name of its own."""
    bases = (steps.Step, steps.Before, steps.After)
    return isinstance(kind, type) and issubclass(kind, steps.Step) and kind not in bases


def quantized_and_compiled(**options: Any) -> object:
    return qg.quantize_and_compile(MODEL, SAMPLES, **options)


def contract(**options: Any) -> object:
    return qg.quantize_and_compile(MODEL, SAMPLES, **{"max_drop": 1.0, **options})


def compiled(**options: Any) -> object:
    return qg.compile(MODEL, **options)


def profiled(**options: Any) -> object:
    return qg.profile(GRAPH, SAMPLES, **options)


def diagnosed(**options: Any) -> object:
    return qg.diagnose(GRAPH, SAMPLES, **options)


def bisected(**options: Any) -> object:
    return qg.bisect(MODEL, SAMPLES, **options)


def beside_others(**options: Any) -> object:
    return qg.compare(MODEL, SAMPLES, **options)


def imported(**options: Any) -> object:
    return qg.import_model(MODEL, **options)


def quantized(**options: Any) -> object:
    return qg.quantize(**{"graph": GRAPH, "profile": PROFILE, **options})


def interpreted(graph: Any) -> object:
    return qg.interpret(graph, {"x": SAMPLES[0]})


def scoped(**options: Any) -> object:
    return qg.QuantizationConfig(ignored_scope=qg.IgnoredScope(**options))


def loaded(**options: Any) -> object:
    return qg.load("model.qgm", **options)


def saved(**options: Any) -> object:
    return COMPILED.save("model.qgm", **options)  # type: ignore[func-returns-value]


Function = Callable[..., object]
FUNCTIONS: dict[Function, dict[str, list[Any]]] = {
    qg.QuantizationConfig: CONFIG,
    scoped: {"names": NO_STRINGS, "patterns": NO_STRINGS, "types": NO_STRINGS, "validate": NO_FLAG},
    quantized_and_compiled: MAIN,
    contract: {name: SEARCH[name] for name in ("drop_type", "validation_fn", "max_minutes")},
    compiled: {
        **MACHINE,
        **MEANWHILE,
        "backend": [*NOTHING, *NO_NAME, 0],
        "input_shapes": NO_SHAPES,
        "samples": NO_SAMPLES,
        **STEPS,
        "tune": NO_NAME,
        "max_minutes": [*NO_NUMBER, 0],
        "client": [*OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS],
    },
    qg.load: {"path": NO_PATH},
    loaded: {"code": [*NOTHING, *NO_NAME, 0], "tune": [*NO_NAME, "measure"], **MEANWHILE},
    COMPILED.save: {"path": NO_PATH},
    saved: {"include_code": NO_STRINGS},
    COMPILED.export_onnx: {"path": NO_PATH},
    PROFILE.save: {"path": NO_PATH},
    Profile.load: {"path": NO_PATH},
    PROFILE.merge: {"other": [*NOTHING, *OBJECTS, *COLLECTIONS, 1]},
    Profile.merged: {"profiles": [*NOTHING, *OBJECTS, *COLLECTIONS, 1]},
    profiled: {
        **DATA,
        **STEPS,
        "client": [*OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS],
        "profile_with": [*NOTHING, *NO_NAME, 0],
    },
    bisected: {
        **STEPS,
        "target": MACHINE["target"],
        "num_threads": MACHINE["num_threads"],
        "backends": MACHINE["backends"],
        "tolerance": [*NOTHING, *NO_FLOAT],
    },
    beside_others: {
        **MAIN,
        "quantizers": [*NO_STRINGS, *TEXTS],
        "seconds": [*NOTHING, *NO_NUMBER, 0],
        "peer_minutes": [*NOTHING, *NO_NUMBER, 0],
        "verify": [*NO_FLAG, True],
    },
    diagnosed: {
        **DATA,
        **STEPS,
        "config": [*OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS],
        "samples": [*NO_COUNT, 0],
        "worst": [*NO_COUNT, 0],
        "sensitivity": NO_FLAG,
        "measure_speed": NO_FLAG,
    },
    imported: {
        "input_shapes": NO_SHAPES,
        "input_values": [*OBJECTS, *TEXTS, *ARRAYS, *LISTS, *NUMBERS, {"x": "1"}, {"x": [1.5]}],
        "fallback": NO_FLAG,
        "samples": NO_SAMPLES,
        **STEPS,
    },
    quantized: {
        "profile": [*NOTHING, *OBJECTS, *COLLECTIONS, *NUMBERS],
        "config": [*OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS],
    },
    interpreted: {"graph": [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS]},
    qg.register_target: {"family": [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS]},
}
CASES = [
    pytest.param(function, option, wrong, id=f"{function.__name__}-{option}")
    for function, options in FUNCTIONS.items()
    for option, wrong in options.items()
]


def label(value: Any) -> str:
    """``brief`` without addresses, so that processes that share the tests give them one name."""
    return re.sub(" at 0x[0-9a-f]+", "", brief(value))


def refusal(function: Function, **options: Any) -> str:
    """The message of the ``OptionError``; empty if there is none."""
    try:
        function(**options)
    except qg.OptionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("function", "option", "wrong"), CASES)
def test_a_wrong_argument_is_named(function: Function, option: str, wrong: Iterable[Any]) -> None:
    for value in wrong:
        message = refusal(function, **{option: value})
        assert (option in message, "\n" in message) == (True, False), brief(value)


NO_OPTIONS = {
    "Graph",
    "Profile",
    "Report",
    "Diagnosis",
    "Backend",
    "Executable",
    "TimedBackend",
    "CompiledModel",
}
"""Public names without options of their own."""
NO_OPTIONS |= {"FallbackModel", "PlannedProgram", "ProgramGenerator"}
NO_OPTIONS |= {"State", "tracing"}

CALLED = [
    *(
        getattr(qg, name)
        for name in sorted({*qg.__all__} - NO_OPTIONS)
        if callable(getattr(qg, name)) and not is_error(getattr(qg, name))
    ),
    *(kind for kind in vars(steps).values() if is_step(kind)),
    qg.data.ImageFolder,
    COMPILED.save,
    COMPILED.export_onnx,
    COMPILED.export_bundle,
]


@pytest.mark.parametrize("function", CALLED, ids=lambda f: f.__qualname__)
def test_a_misspelled_option_is_named_with_the_nearest(function: Function) -> None:
    names = [name for name in inspect.signature(function).parameters if len(name) > 1]
    for name in names:
        message = refusal(function, **{f"{name}x": 1})
        assert f"has no option '{name}x'; did you mean '{name}'? Remedy: help(" in message
    assert "has no option 'zzzz'. Remedy" in refusal(function, zzzz=1)


PUBLIC: dict[Function, Function] = {
    quantized_and_compiled: qg.quantize_and_compile,
    compiled: qg.compile,
    profiled: qg.profile,
    diagnosed: qg.diagnose,
    beside_others: qg.compare,
    bisected: qg.bisect,
    imported: qg.import_model,
}


@pytest.mark.parametrize("function", PUBLIC)
def test_every_option_is_tried(function: Function) -> None:
    parameters = inspect.signature(PUBLIC[function]).parameters.keys()
    data = {"model", "calibration_data", "validation_data", "data"}
    assert parameters - data == FUNCTIONS[function].keys()


@pytest.mark.parametrize("wrong", [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS], ids=label)
def test_objects_that_are_no_models_are_refused(wrong: Any) -> None:
    with pytest.raises(qg.ModelError):
        qg.compile(wrong)
    with pytest.raises(qg.ModelError):
        qg.quantize_and_compile(wrong, SAMPLES)


@pytest.mark.parametrize("wrong", [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS], ids=label)
def test_objects_that_are_no_calibration_data_are_refused(wrong: Any) -> None:
    with pytest.raises(qg.CalibrationError):
        qg.quantize_and_compile(MODEL, wrong, num_threads=1)
    with pytest.raises(qg.CalibrationError):
        qg.profile(GRAPH, wrong)


@pytest.mark.parametrize("wrong", [*OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS], ids=label)
def test_invalid_validation_data_is_refused(wrong: Any) -> None:
    with pytest.raises(qg.CalibrationError):
        qg.quantize_and_compile(MODEL, SAMPLES, num_threads=1, validation_data=wrong)


@pytest.mark.parametrize("wrong", [*NOTHING, *OBJECTS, *TEXTS, *COLLECTIONS, *NUMBERS], ids=label)
def test_objects_that_are_no_feeds_are_refused(wrong: Any) -> None:
    with pytest.raises(qg.InputError):
        COMPILED.run(None, wrong)
    with pytest.raises(qg.InputError):
        COMPILED.run(None, {"x": wrong})
    with pytest.raises(qg.InputError):
        qg.interpret(GRAPH, wrong)
    with pytest.raises(qg.InputError):
        qg.interpret(GRAPH, {"x": wrong})


@pytest.mark.parametrize("write", [COMPILED.save, COMPILED.export_onnx, PROFILE.save])
@pytest.mark.parametrize("place", [".", "/", "missing/file"])
def test_a_path_that_cannot_be_written_is_named(
    write: Function, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(qg.FileFormatError, match="cannot write"):
        write(place)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read", [qg.compile, qg.load, qg.Profile.load, qg.import_model])
@pytest.mark.parametrize("content", [None, b"", b"something else", "folder"], ids=label)
def test_a_file_that_is_none_is_named_with_a_remedy(
    read: Function, content: bytes | str | None, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(qg.QuantglowError, match=r"file(.|\n)*Remedy: "):
        read(str(path))


def test_numbers_of_numpy_are_numbers() -> None:
    config = qg.QuantizationConfig(
        seed=np.int64(3), percentile=np.float32(99.5), per_channel=np.bool_(False)
    )
    assert (type(config.seed), type(config.percentile)) == (int, float)
    assert config.per_channel is False
    assert integer("seed", np.uint8(7)) == 7
    assert number("max_drop", np.int64(1)) == 1.0


def test_the_order_of_a_set_does_not_matter() -> None:
    assert strings({"b", "a", "c"}, "nodes_to_exclude") == ("a", "b", "c")


def test_messages_stay_short() -> None:
    assert len(brief("a" * 10_000)) < 100
    assert brief(HUGE) == "an integer of more than 40 digits"
    assert brief(Rude()) == "an object (Rude)"
