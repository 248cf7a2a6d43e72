"""General programs of Resize: images of any size."""

from __future__ import annotations

import pytest

from quantglow.codegen.llvm.targets import resolve
from quantglow.ir.graph.graph import Graph
from quantglow.ir.ops import Relu, Resize
from quantglow.ir.types import DType, ElementType
from tests.generators.quantized_graphs.convolutions import element, tensor
from tests.matrix.general import LEVELS, Make, Sizes, assert_serves, general
from tests.matrix.harness import TARGETS
from tests.support.combinations import covering

HINT = {"N": 2, "H": 5, "W": 18}
OTHERS = [{"N": n, "H": h, "W": w} for n, h, w in ((3, 2, 3), (2, 6, 17), (4, 9, 33), (2, 4, 129))]
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


def resize(channels: int, factors: tuple[int, int], integer: bool, **fields: str) -> Make:
    kind = element(DType.I8, 0.05, -3) if integer else ElementType(DType.F32)

    def make(sizes: Sizes) -> Graph:
        x = tensor("x", (sizes["N"], sizes["H"], sizes["W"], channels), kind)
        resized = (sizes["H"] * factors[0], sizes["W"] * factors[1])
        scales = (float(factors[0]), float(factors[1]))
        y = Resize(name="y", x=x, sizes=resized, scales=scales, **fields)
        return Graph((x,), (("y", y),))

    return make


@pytest.mark.parametrize(
    ("coordinates", "integer", "target"), covering([*COORDINATES], [False, True], TARGETS)
)
def test_linear(coordinates: str, integer: bool, target: str) -> None:
    make = resize(24, (2, 3), integer, mode="linear", coordinates=coordinates)
    assert_serves(make, HINT, OTHERS, resolve(target))


@pytest.mark.slow_variants(2)
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest(coordinates: str, rounding: str) -> None:
    for factors, integer in (((2, 2), True), ((1, 8), False), ((3, 7), True)):
        make = resize(7, factors, integer, coordinates=coordinates, rounding=rounding)
        assert_serves(make, HINT, OTHERS, resolve(TARGETS[0]))


@pytest.mark.parametrize("target", LEVELS)
def test_one_channel(target: str) -> None:
    assert_serves(resize(1, (4, 4), False), HINT, OTHERS, resolve(target))


def test_smaller_images() -> None:
    """Half as many rows and columns, of odd numbers, too."""

    def make(sizes: Sizes) -> Graph:
        shape = (sizes["N"], sizes["H"], sizes["W"], 24)
        x = tensor("x", shape, element(DType.I8, 0.05, -3))
        halves = (sizes["H"] // 2, sizes["W"] // 2)
        y = Resize(name="y", x=x, sizes=halves, scales=(0.5, 0.5), mode="linear")
        return Graph((x,), (("y", y),))

    assert_serves(make, HINT, OTHERS[1:], resolve(TARGETS[0]))


def test_fixed_columns() -> None:
    """Rows of a free number, columns by tables."""

    def make(sizes: Sizes) -> Graph:
        return resize(24, (2, 2), True, mode="linear")({"N": 1, "W": 9, **sizes})

    assert_serves(make, {"H": 5}, [{"H": h} for h in (2, 8, 31)], resolve(TARGETS[0]))


@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
def test_repeated_pixels(coordinates: str) -> None:
    """Element-wise operators read pixels that are repeated where they are."""

    def make(sizes: Sizes) -> Graph:
        small = resize(24, (2, 2), False, coordinates=coordinates)(sizes)
        (resized,) = (node for _, node in small.outputs)
        return Graph(small.inputs, (("y", Relu(name="positive", x=resized)),))

    program = general(make, HINT, resolve(TARGETS[0])).loaded.emitted
    assert program is not None
    assert [call.kernel.label for call in program.calls] == ["map"]
    assert_serves(make, HINT, OTHERS, resolve(TARGETS[0]))
