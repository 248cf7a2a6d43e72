"""Bundles: a model as an object, a C header and its weights, for programs without Python."""

from quantglow.bundle.contents import Model
from quantglow.bundle.shared import Library
from quantglow.bundle.write import write_bundle

__all__ = ["Library", "Model", "write_bundle"]
