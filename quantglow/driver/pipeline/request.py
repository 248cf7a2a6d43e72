"""Options of ``quantize_and_compile``, checked, as every stage sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quantglow.driver.models import InputShapes
from quantglow.options import QuantizationConfig
from quantglow.quantization.accuracy_control.control import Contract


@dataclass(frozen=True)
class AccuracyContract:
    """``max_drop`` and its companions, before there is a model to measure.

    Raises ``OptionError`` for values that make no contract.
    """

    max_drop: float
    drop_type: str = "absolute"
    validation_fn: Callable[..., float] | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        checked = self.measured_by(lambda model: 0.0)
        object.__setattr__(self, "max_drop", checked.max_drop)
        object.__setattr__(self, "max_minutes", checked.max_minutes)

    def measured_by(self, figure: Callable[[Any], float]) -> Contract[Any]:
        """The contract on ``validation_fn``, without it on another figure."""
        metric = figure if self.validation_fn is None else self.validation_fn
        return Contract(self.max_drop, metric, self.drop_type, self.max_minutes)


@dataclass(frozen=True)
class QuantizationRequest:
    """How a model is to be quantized; the fields are the options of ``quantize_and_compile``.

    ``holds_out``: some samples are kept from calibration for the check.  ``depth``: number of
    models that the model is a part of.
    """

    config: QuantizationConfig = field(default_factory=QuantizationConfig)
    subset_size: int = 300
    progress: bool | str = "auto"
    input_shapes: InputShapes | None = None
    validation_data: Any = None
    verify: bool = False
    holds_out: bool = False
    max_minutes: float | None = None
    contract: AccuracyContract | None = None
    measure_speed: bool = False
    measure_latency: bool = False
    depth: int = 0
