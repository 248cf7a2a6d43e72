"""Bundles: a model as an object, a C header and its weights, for programs without Python."""

from quantglow.export.bundle.contents import Code, Model
from quantglow.export.bundle.linking import Library
from quantglow.export.bundle.writer import Limits, contents_of, write_bundle

__all__ = ["Code", "Library", "Limits", "Model", "contents_of", "write_bundle"]
