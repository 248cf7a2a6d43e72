"""What a compilation did and how exact its result is.

``metrics``, ``layers`` and ``outputs`` measure, ``report`` holds the figures, ``tables`` draws
them; ``onnxruntime_check`` runs the float model.
"""

from quantglow.report.report import LayerAccuracy, MemoryFigures, OutputAccuracy, Report

__all__ = ["LayerAccuracy", "MemoryFigures", "OutputAccuracy", "Report"]
