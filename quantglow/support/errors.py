"""Every error quantglow raises on purpose.

::

    QuantglowError
    ├── ModelError                a model that is corrupt, unsafe or ill-typed
    │   ├── ConversionError       a model of another framework that has no ONNX form
    │   ├── ImportBudgetError     importing it takes more memory or time than is allowed
    │   └── UnsupportedOpError    valid ONNX that quantglow does not compile; lists all nodes
    │       └── UndecidedError    the values of small inputs decide what a model computes
    ├── TypeRuleError             an operator applied to operands it does not accept
    ├── CalibrationError          calibration data that cannot be used
    │   └── ProfileMismatchError  a profile recorded on another model
    ├── OptionError               an option with a value that does not exist
    ├── IgnoredScopeError         a name or an op type in an option that matches nothing
    ├── AccuracyDropError         the accuracy contract could not be met
    ├── InputError                arguments of ``run`` that do not fit the model
    │   ├── StateFullError        a state has no room for more rows
    │   └── OutOfRangeError       an index that was computed is outside of its axis
    ├── QueueError                a call that an InferQueue cannot take or finish
    │   └── QueueFullError        more calls wait than max_waiting allows
    ├── FileFormatError           a saved file that is truncated, altered or of another version
    └── BackendError              a target or code-generation problem
        ├── CompileBudgetError    compiling all kernels takes longer than is allowed
        ├── OutOfMemoryError      no memory for what a program needs
        ├── WrongResultError      a code generator gives arrays of other types than it should
        └── FallbackError         onnxruntime refuses what was handed to it

Each message names the node or tensor, the cause and the remedy.
"""

from __future__ import annotations

from typing import Any


class QuantglowError(Exception):
    """Root of the tree: ``except QuantglowError`` catches every deliberate error."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes: Exception's own would call ``__init__`` with the message."""
        return _again, (type(self), self.args, self.__dict__)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The problems, one line for each node where the error is about several."""
        return (str(self),)


def _again(kind: type[QuantglowError], args: tuple[Any, ...], facts: Any) -> QuantglowError:
    error = BaseException.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class ModelError(QuantglowError):
    """The model is corrupt, refers to files outside its folder, or is ill-typed."""


class ConversionError(ModelError):
    """A model of another framework, or this form of it, cannot be written as ONNX."""


class ImportBudgetError(ModelError):
    """Importing takes more memory, work, nodes or seconds than ``QUANTGLOW_IMPORT_…`` allow."""


class UnsupportedOpError(ModelError):
    """Valid ONNX that quantglow does not compile; ``problems`` has one line for each node."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        lines = "\n".join(f"  {line}" for line in problems)
        super().__init__(
            f"{len(problems)} node(s) are not supported:\n{lines}\nRemedy: {self.remedy}."
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """A line for each node."""
        return tuple(self.problems)

    @property
    def remedy(self) -> str:
        """The way out for the user."""
        return "rewrite these nodes in the exporter, or cut the model before them"


class UndecidedError(UnsupportedOpError):
    """Shapes or branches depend on the values of ``inputs``, which were not given."""

    def __init__(self, problems: list[str], inputs: tuple[str, ...]) -> None:
        self.inputs = inputs
        super().__init__(problems)

    @property
    def remedy(self) -> str:
        """The way out for the user."""
        return f"give the values of {list(self.inputs)} as input_values, or compile the model"


class TypeRuleError(QuantglowError):
    """An operator's type rule refused its operands."""


class CalibrationError(QuantglowError):
    """Calibration data is missing, misnamed, misshapen, or holds NaN or Inf."""


class ProfileMismatchError(CalibrationError):
    """The profile was recorded on another model, or lacks a tensor."""


class OptionError(QuantglowError, ValueError):
    """An option has a value that does not exist."""


class IgnoredScopeError(QuantglowError):
    """An entry of ``ignored_scope``, ``nodes_to_exclude`` or ``op_types_to_quantize`` matches no
    node of the model."""


class AccuracyDropError(QuantglowError):
    """The accuracy contract could not be met; ``best`` holds the best compiled model."""

    def __init__(self, message: str, best: object = None) -> None:
        self.best = best
        super().__init__(message)


class InputError(QuantglowError):
    """The feeds of a run do not fit the model's inputs."""


class StateFullError(InputError):
    """A call would add more rows to a state than it may have."""

    def __init__(self, rows: int, most: int) -> None:
        super().__init__(
            f"the state would have {rows} rows, but max_length is {most}. "
            "Remedy: truncate or reset it, or make one with a larger max_length."
        )


class OutOfRangeError(InputError, IndexError):
    """An index that a model computed, or was fed, lies outside of its axis."""

    def __init__(self, node: str, index: int, length: int) -> None:
        self.node, self.index, self.length = node, index, length
        super().__init__(
            f"node {node!r}: index {index} is out of range for an axis of length {length}. "
            "Remedy: feed indices that fit; onnxruntime refuses these, too."
        )


class QueueError(QuantglowError):
    """A queue is closed, or the process forked while a call waited."""


class QueueFullError(QueueError):
    """As many calls wait as may: the caller sends more than the model can serve."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} calls wait, as many as max_waiting allows. Remedy: try again later, or tell "
            "those who ask to (HTTP 429 or 503)."
        )


class FileFormatError(QuantglowError):
    """A saved file is truncated, altered, or written by an unknown version."""


class BackendError(QuantglowError):
    """The target is unknown, or code for it could not be generated."""


class CompileBudgetError(BackendError):
    """Compiling the kernels of a program takes more processor time than
    ``QUANTGLOW_COMPILE_SECONDS`` allows."""


class OutOfMemoryError(BackendError, MemoryError):
    """The system has no memory for the values, the constants or the code of a program."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(
            f"the system has no memory for {nbytes / 1e6:.1f} MB of a program. Remedy: run smaller "
            "batches or shapes, or fewer models at a time; look at the limits of the process."
        )


class WrongResultError(BackendError):
    """A segment of a graph gave an array of another shape or type than its graph says."""


class FallbackError(BackendError):
    """onnxruntime cannot load or run what quantglow handed to it."""
