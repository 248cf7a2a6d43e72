"""Bundles: a model as an object, a C header and its weights, for programs without Python."""

from quantglow.bundle.write import write_bundle

__all__ = ["write_bundle"]
