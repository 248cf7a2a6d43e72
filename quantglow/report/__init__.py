"""The report: the steps of a compilation, and the accuracy of its result."""

from quantglow.report.accuracy import LayerAccuracy, OutputAccuracy
from quantglow.report.codes import CodeUse
from quantglow.report.diagnosis import Diagnosis
from quantglow.report.report import MemoryFigures, Report

__all__ = ["CodeUse", "Diagnosis", "LayerAccuracy", "MemoryFigures", "OutputAccuracy", "Report"]
