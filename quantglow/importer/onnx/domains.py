"""Names of the domains of operators."""

from __future__ import annotations

ML = "ai.onnx.ml"
MICROSOFT = "com.microsoft"
PREVIEW = "ai.onnx.preview"

DOMAINS = frozenset({"", ML, PREVIEW, MICROSOFT})
"""Domains of operators that are imported: the standard ones, those of classical machine learning,
those that may become standard (FlexAttention, imported by ONNX's definition), and those that
onnxruntime's tools write."""

RUNTIME_DOMAINS = frozenset({"", "ai.onnx", ML, MICROSOFT})
"""Domains of operators that onnxruntime has."""
