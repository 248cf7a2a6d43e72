"""Bundles: a model as an object, a C header and its weights, for programs without Python."""

from quantglow.bundle.code import Code
from quantglow.bundle.contents import Model
from quantglow.bundle.limits import Limits
from quantglow.bundle.shared import Library
from quantglow.bundle.write import contents_of, write_bundle

__all__ = ["Code", "Library", "Limits", "Model", "contents_of", "write_bundle"]
