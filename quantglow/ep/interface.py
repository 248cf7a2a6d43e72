"""The structs that the plug-in's C code shares with Python: ``src/quantglow_ep.h``."""

from __future__ import annotations

import ctypes
from typing import Any

VERSION = 4
"""Version of the structs, as ``QG_INTERFACE`` says."""

MESSAGE_NBYTES = 4096
"""Room for a message of a hook, with the 0 at its end."""

COUNTS = ("claims", "compiles", "prepares", "contexts", "native", "python", "onnxruntime")
"""Names of what the plug-in counts, in its order."""

IN_PYTHON, IN_MACHINE_CODE, IN_ONNXRUNTIME = range(3)
"""Ways to answer a call, ``QgWay``."""

Word = ctypes.c_int64
Words = ctypes.POINTER(Word)
Pointer = ctypes.c_void_p


class CWeight(ctypes.Structure):
    """A weight of a graph, whose elements stay where onnxruntime has them."""

    _fields_ = [("name", ctypes.c_char_p), ("data", Pointer), ("nbytes", Word)]


class CModel(ctypes.Structure):
    """The bytes of an ONNX model, and the weights whose data is not in it."""

    _fields_ = [
        ("model", Pointer),
        ("nbytes", Word),
        ("weights", ctypes.POINTER(CWeight)),
        ("weight_count", Word),
    ]


class CTensor(ctypes.Structure):
    """An input of a call; ``type`` is that of a ``TensorProto``."""

    _fields_ = [
        ("data", Pointer),
        ("dims", Words),
        ("rank", Word),
        ("type", Word),
        ("value", Pointer),
    ]


class CProgram(ctypes.Structure):
    """The answer to calls of one combination of input shapes; see ``NativeCall``."""

    _fields_ = [
        ("way", Word),
        ("is_due", Pointer),
        ("most_calls", Word),
        ("walk", Pointer),
        ("rows", Word),
        ("threads", Word),
        ("begin", Pointer),
        ("join", Pointer),
        ("pointer_count", Word),
        ("positions", Pointer),
        ("ends", Pointer),
        ("offsets", Pointer),
        ("output_count", Word),
        ("ranks", Pointer),
        ("dims", Pointer),
        ("check_count", Word),
        ("number", Word),
        ("calls", Pointer),
    ]


class CContext(ctypes.Structure):
    """Memory of one running call."""

    _fields_ = [
        ("arguments", Pointer),
        ("table", Pointer),
        ("outside", Pointer),
        ("state", Pointer),
    ]


class CSaved(ctypes.Structure):
    """The code of a node as onnxruntime stores it."""

    _fields_ = [("data", Pointer), ("nbytes", Word)]


_Tensors, _Model = ctypes.POINTER(CTensor), ctypes.POINTER(CModel)
Status = ctypes.c_int32

FUNCTIONS: dict[str, Any] = {
    "claim": ctypes.CFUNCTYPE(
        Status, _Model, ctypes.c_char_p, Word, ctypes.POINTER(Status), Pointer
    ),
    "compile": ctypes.CFUNCTYPE(Word, _Model, ctypes.c_char_p, Pointer),
    "prepare": ctypes.CFUNCTYPE(
        Status, Word, _Tensors, Word, Status, Word, ctypes.POINTER(CProgram), Pointer
    ),
    "context": ctypes.CFUNCTYPE(Status, Word, ctypes.POINTER(CContext), Pointer),
    "give_back": ctypes.CFUNCTYPE(Status, Word, ctypes.POINTER(CContext), Pointer),
    "load": ctypes.CFUNCTYPE(Status, Word, Pointer, Status, Pointer),
    "run": ctypes.CFUNCTYPE(Status, Word, Pointer, _Tensors, Word, Pointer),
    "save": ctypes.CFUNCTYPE(
        Status,
        Word,
        ctypes.c_char_p,
        Status,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.POINTER(CSaved),
        Pointer,
    ),
    "drop": ctypes.CFUNCTYPE(None, Word, ctypes.POINTER(CProgram)),
    "release": ctypes.CFUNCTYPE(None, Word),
}
"""Types of the hooks, in the order of the struct."""


class CHooks(ctypes.Structure):
    """Quantglow's side: functions that the plug-in calls."""

    _fields_ = [("interface", Word), *FUNCTIONS.items()]
