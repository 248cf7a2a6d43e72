"""The report: the steps of a compilation, and the accuracy of its result.

``diagnosis`` is not imported here: it needs the quantizer, a process that runs a saved model does
not.
"""

from quantglow.evaluation.accuracy import LayerAccuracy, OutputAccuracy
from quantglow.evaluation.metrics import CodeUse
from quantglow.report.report import MemoryFigures, Report

__all__ = ["CodeUse", "LayerAccuracy", "MemoryFigures", "OutputAccuracy", "Report"]
