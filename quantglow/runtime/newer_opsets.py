"""Sessions of models with newer opsets than onnxruntime's, converted to older ones."""

from __future__ import annotations

from functools import lru_cache

from quantglow.backends.onnxruntime.session import Session
from quantglow.errors import FallbackError
from quantglow.foreign_types import Array

UNSAFE = (
    *(b"DFT", b"GridSample", b"Multinomial", b"Resize", b"ReverseSequence", b"RoiAlign"),
    *(b"STFT", b"Upsample", b"GRU", b"LSTM", b"FeatureVectorizer"),
    *(b"SequenceAt", b"SequenceErase", b"SequenceInsert"),
    *(b"If", b"Loop", b"Scan", b"SequenceMap"),
    *(b"BatchNormalization", b"Split"),
)
"""Operators for which ``frontend.onnxruntime.rank_guards`` has checks, and those whose results
``frontend.onnxruntime.left_out_results`` changes."""

OPERATORS = tuple(b"\x22" + bytes([len(name)]) + name for name in UNSAFE)
"""As they stand in a file: the tag of ``NodeProto.op_type``, a length and the name."""


def opened(model: bytes, num_threads: int = 1) -> Session:
    """The session of a model.  Raises ``FallbackError`` with onnxruntime's message.

    If onnxruntime refuses the model, older opsets are tried in which every operator means the same.

    Wrong ranks raise, also those that end the process otherwise.
    """
    model = safe(model)
    try:
        return Session(model, num_threads)
    except FallbackError as error:
        # Imported here because a process without nodes of the fallback needs no onnx.
        from quantglow.frontend.onnxruntime.opset_downgrade import downgraded, foreign_nodes

        for older in downgraded(model):
            try:
                return Session(older, num_threads)
            except FallbackError:
                continue
        if not (foreign := foreign_nodes(model)):
            raise
        raise FallbackError(
            f"{error}. Neither ONNX nor quantglow defines {', '.join(foreign)}. Remedy: export "
            "the model with ONNX's operators, or compile it with a code generator of yours, see "
            "examples/README.md."
        ) from error


def safe(model: bytes) -> bytes:
    """The model without what may end the process in kernels of onnxruntime."""
    if not any(operator in model for operator in OPERATORS):
        return model
    # Imported here because a process without nodes of the fallback needs no onnx.
    from quantglow.frontend.onnxruntime.rank_guards import guarded

    return guarded(model)


SESSIONS = 64
"""Models of single nodes that stay loaded for the interpreter."""


@lru_cache(SESSIONS)
def session_of(model: bytes) -> Session:
    """The session of a model, loaded once."""
    return opened(model)


def outputs_of(model: bytes, arrays: tuple[Array, ...]) -> list[Array]:
    """Every output of a model whose inputs are ``arrays``, in order."""
    session = session_of(model)
    return session.run(dict(zip(session.input_names, arrays, strict=True)))
