"""Accuracy recovery: weights and biases chosen by the errors they make on calibration data.

Plain rounding moves every weight to the nearest integer.  With calibration samples the quantizer
does better, layer by layer, without labels and without training; the int8 graph keeps its operators
and its speed.

=============== ============================================================== ===============
technique       change                                                         source
=============== ============================================================== ===============
adapt-weights   the real weights, to correct errors of the layers before       GPTAQ, 2025
round-weights   integers: each makes up for the rounding of those before       GPTQ, 2023
search-scales   the step of each output channel                                ACIQ, 2019
correct-bias    the bias, so that no channel has a mean error                  DFQ, 2019
=============== ============================================================== ===============

Each is a function from ``Layer`` to ``Layer`` in the file of its name, with its equation.  They
need only the moments of the layer's input and wanted result (``moments``), which ``layerwise``
collects (``layer_data``) while it runs the float and the int8 graph side by side.  ``sampling``
chooses samples and rows, and ``cache`` keeps layers for the next quantization.

Laws: no channel's error on the calibration data is larger than plain rounding makes it; the
int32 accumulator cannot overflow; the same data gives the same model.
"""

from quantglow.quantization.recovery.cache import Cache
from quantglow.quantization.recovery.layerwise import TECHNIQUES, recover
from quantglow.quantization.recovery.sampling import (
    MAX_NBYTES,
    Reservoir,
    capacity,
    sample_nbytes,
)

__all__ = [
    "MAX_NBYTES",
    "TECHNIQUES",
    "Cache",
    "Reservoir",
    "capacity",
    "recover",
    "sample_nbytes",
]
