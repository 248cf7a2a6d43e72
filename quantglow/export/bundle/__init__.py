"""Bundles: a model as an object, a C header and its weights, for programs without Python."""

from quantglow.export.bundle.contents import BundleCode, BundledModel
from quantglow.export.bundle.linking import Library
from quantglow.export.bundle.writer import BundleLimits, build_contents, write_bundle

__all__ = [
    "BundleCode",
    "BundleLimits",
    "BundledModel",
    "Library",
    "build_contents",
    "write_bundle",
]
