"""Sessions of onnxruntime's Python package: the one that is being made, and the model of one."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from quantglow.support.errors import OptionError

CONSTRUCTOR = "_create_inference_session"
"""The method of ``InferenceSession`` below which onnxruntime asks a provider about a graph."""


def session_in_the_making() -> Any | None:
    """The session that this thread makes; None below no constructor of one.

    onnxruntime does not tell a provider for which session it asks.  It asks on the thread that
    makes the session, so the frames below a hook have it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != CONSTRUCTOR:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("self")


def is_session(value: object) -> bool:
    """Whether this is a session of onnxruntime."""
    return hasattr(type(value), CONSTRUCTOR)


def model_of(session: Any) -> str | bytes:
    """The path or the bytes that a session was made from, which it keeps.

    Raises ``OptionError`` for a session that has neither, as one of a model package.
    """
    model = getattr(session, "_model_path", None) or getattr(session, "_model_bytes", None)
    if model is None:
        raise OptionError(
            "the session does not know the model that it was made from. Remedy: pass the path of "
            "the model, or its ModelProto."
        )
    return model  # type: ignore[no-any-return]  # onnxruntime says no types of its own fields
