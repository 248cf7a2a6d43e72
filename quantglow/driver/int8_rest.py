"""Int8 for the part of a model behind operators that decide shapes.

Calibration samples run through the float model up to that part in onnxruntime; the arrays that
arrive are its samples.  It stays float where none arrive (a profile instead of samples, nothing
chosen in any), under an accuracy contract, whose search does not reach it, and where options name
operators that it does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantglow.driver.parts import declared_by, staged_tail
from quantglow.driver.pipeline.imported import Cut
from quantglow.driver.pipeline.request import QuantizationRequest
from quantglow.errors import QuantglowError
from quantglow.frontend import Behind, Split
from quantglow.runtime.build import Compiler
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.fallback_model import FallbackModel, PartlyCompiledModel
from quantglow.runtime.newer_opsets import opened
from quantglow.runtime.shapes.free_shapes import FreeShapes
from quantglow.runtime.staged_tails import AnyModel, StagedTail
from quantglow.types import Array

Quantize = Callable[[Any, Any, QuantizationRequest], CompiledModel | FallbackModel]
"""Makes an int8 model of an ONNX model, samples and a request."""

UNDER_CONTRACT = "the search of accuracy control ends before it"
UNREACHED = "no calibration sample leads to values of it"
"""Why the rest stays float."""


def int8_tail(
    cut: Cut,
    samples: Sequence[Mapping[str, Array]],
    request: QuantizationRequest,
    compiler: Compiler,
    quantize: Quantize,
) -> StagedTail | None:
    """The tail of a model, int8 where it can be; None where nothing of it is compiled."""
    own = replace(
        request,
        input_shapes=None,
        validation_data=None,
        verify=False,
        holds_out=False,
        measure_speed=False,
        measure_latency=False,
        progress=False,
    )

    def int8(behind: Behind) -> AnyModel | str:
        if request.contract is not None:
            return UNDER_CONTRACT
        reached = list(reaching(cut.parts, behind, samples, compiler.num_threads))
        return quantized_rest(behind, reached, own, quantize) if reached else UNREACHED

    parts = cut.parts
    return staged_tail(parts.tail, parts.late, parts.reasons, compiler, int8)


def quantized_rest(
    behind: Behind,
    samples: Sequence[Mapping[str, Array]],
    request: QuantizationRequest,
    quantize: Quantize,
) -> AnyModel | str:
    """The int8 model of the rest, or why there is none: it cannot be made, or each value of an
    input would make a program.
    """
    try:
        found = quantize(behind.rest, samples, request)
    except QuantglowError as error:
        return str(error)
    if not isinstance(found, CompiledModel | PartlyCompiledModel):
        return "nothing of it is compiled with its int8 form"
    programs = found.specialisations
    decides = isinstance(programs, FreeShapes) and bool(programs.deciding)
    return "its shapes depend on values of its inputs" if decides else found


def reaching(
    parts: Split, behind: Behind, samples: Sequence[Mapping[str, Array]], threads: int
) -> Iterator[dict[str, Array]]:
    """The inputs of the rest that samples of the model lead to, but for those without elements."""
    stages = [opened(bytes(m.SerializeToString()), threads) for m in (parts.head, behind.first)]
    names = [info.name for info in behind.rest.graph.input]
    for sample in samples:
        values = dict(sample)
        for stage in stages:
            reads = {name: values[name] for name in stage.input_names}
            given = stage.run(declared_by(stage, reads))
            values |= dict(zip([info.name for info in stage.outputs], given, strict=True))
        if all(values[name].size for name in names):
            yield {name: values[name] for name in names}
