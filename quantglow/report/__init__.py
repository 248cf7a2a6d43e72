"""The report: the steps of a compilation, and the accuracy of its result.

``metrics``, ``codes``, ``layers``, ``sensitivity``, ``outputs`` and ``verification`` measure
accuracy, ``speed`` and ``call_report`` time; ``accuracy``, ``precision_overrides``, ``fallback``,
``report`` and ``diagnosis`` hold the figures, ``tables`` draws them, ``headline`` puts them into
words, ``data_warnings`` and ``input_scale`` judge the calibration data; ``onnxruntime_check`` and
``onnxruntime_quantizer`` run the models to compare with.
"""

from quantglow.report.accuracy import LayerAccuracy, OutputAccuracy
from quantglow.report.codes import CodeUse
from quantglow.report.diagnosis import Diagnosis
from quantglow.report.report import MemoryFigures, Report

__all__ = ["CodeUse", "Diagnosis", "LayerAccuracy", "MemoryFigures", "OutputAccuracy", "Report"]
