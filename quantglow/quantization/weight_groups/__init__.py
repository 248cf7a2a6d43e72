"""Weights of 4 and 8 bits in groups along the inner dimension.

``packing``: weights to packed codes; ``scales``: the search for scales and zero points;
``feedback``: GPTQ, for the second ``moments`` of the inputs.
"""

from quantglow.quantization.weight_groups.feedback import rounded_by_moments
from quantglow.quantization.weight_groups.moments import input_moments
from quantglow.quantization.weight_groups.packing import packed_weights
from quantglow.quantization.weight_groups.scales import Grid, searched_grid

__all__ = ["Grid", "input_moments", "packed_weights", "rounded_by_moments", "searched_grid"]
