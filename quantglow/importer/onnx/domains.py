"""Names of the domains of operators."""

from __future__ import annotations

ML = "ai.onnx.ml"
MICROSOFT = "com.microsoft"

DOMAINS = frozenset({"", ML, MICROSOFT})
"""Domains of operators that are imported: the standard ones, those of classical machine learning,
and those that onnxruntime's tools write."""

RUNTIME_DOMAINS = frozenset({"", "ai.onnx", ML, MICROSOFT})
"""Domains of operators that onnxruntime has."""
