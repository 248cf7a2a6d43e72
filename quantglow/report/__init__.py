"""The report: figures of a compilation, in words, tables and pages.

``Report`` and its figures come from ``evaluation``; they are shown by the views that
``quantglow.support.arrays`` names.
"""

from quantglow.evaluation.accuracy import LayerAccuracy, OutputAccuracy
from quantglow.evaluation.metrics import CodeUse
from quantglow.evaluation.report import MemoryFigures, Report

__all__ = ["CodeUse", "LayerAccuracy", "MemoryFigures", "OutputAccuracy", "Report"]
