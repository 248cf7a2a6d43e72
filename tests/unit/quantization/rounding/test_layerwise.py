"""Recovery on whole graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Input
from quantglow.ir.ops import Conv, Gemm
from quantglow.ir.ops.contraction import Contraction
from quantglow.ir.types import DType, TensorType
from quantglow.profiling import profile
from quantglow.quantization.options import RECOVERIES, QuantizationConfig
from quantglow.quantization.quantizer import quantize
from quantglow.quantization.rounding import (
    TECHNIQUES,
    RoundingCache,
    capacity,
    layer_data,
    round_layers,
    sampling,
)
from quantglow.quantization.rounding.layer import LayerProduct
from quantglow.quantization.rounding.sampling import peak_nbytes, row_stride
from quantglow.support.errors import OptionError
from tests.unit.quantization.quantization_networks import (
    constant,
    conv,
    graph_of,
    image,
    samples_for,
    small_cnn,
    sqnr,
)


def recovered(graph: Graph, data: Any, recovery: Any = "auto", **options: Any) -> Graph:
    profiled = profile(graph, samples_for(graph, 24, seed=2), progress=False)
    plain: dict[str, Any] = {"calibrate_method": "minmax", "equalization": ()}
    config = QuantizationConfig(recovery=recovery, **{**plain, **options})
    result = quantize(graph, profiled, config, data=data)
    result.verify()
    return result


def constants(graph: Graph) -> list[bytes]:
    layers = [node for node in graph.nodes if isinstance(node, Contraction)]
    return [o.evaluate().tobytes() for node in layers for o in (node.w, node.b) if o is not None]


def test_options_name_the_techniques() -> None:
    assert tuple(TECHNIQUES) == RECOVERIES


def test_a_network_comes_closer_to_float_on_unseen_data() -> None:
    graph = small_cnn()
    data = samples_for(graph, 24, seed=2)
    assert sqnr(graph, recovered(graph, data)) > sqnr(graph, recovered(graph, None)) + 2


def test_the_number_of_threads_changes_nothing() -> None:
    graph, actual = small_cnn(), []
    data = samples_for(graph, 24, seed=2)
    for threads in (1, 2, 3):
        with threadpool_limits(threads, user_api="blas"):
            actual.append(constants(recovered(graph, data, calibrate_method="auto")))
    assert actual[0] == actual[1] == actual[2]


@pytest.mark.parametrize("technique", RECOVERIES)
def test_every_technique_works_alone_and_keeps_the_operators(technique: str) -> None:
    graph = small_cnn()
    data = samples_for(graph, 24, seed=2)
    plain, actual = recovered(graph, None), recovered(graph, data, technique)
    assert [(n.name, n.type.shape) for n in plain.compute_nodes()] == [
        (n.name, n.type.shape) for n in actual.compute_nodes()
    ]


def test_a_profile_alone_gives_plain_rounding() -> None:
    graph = small_cnn()
    data = samples_for(graph, 8)
    assert constants(recovered(graph, None)) == constants(recovered(graph, data, ()))


def test_the_same_data_give_the_same_integers_however_batched() -> None:
    graph = small_cnn()
    data = samples_for(graph, 12)
    joined = [{"x": np.concatenate([s["x"] for s in data[i : i + 4]])} for i in (0, 4, 8)]
    assert constants(recovered(graph, data)) == constants(recovered(graph, joined))


def test_a_layer_without_bias_gets_one() -> None:
    x = image(4)
    first = conv("first", x, 8)
    bare = Conv(name="bare", x=first, w=constant("w", np.full((1, 1, 8, 3), 0.37)))
    graph = graph_of(bare, inputs=(x,))
    actual = recovered(graph, samples_for(graph, 8)).by_name("bare")
    assert isinstance(actual, Conv) and actual.b is not None


def test_a_layer_too_large_for_moments_gets_its_bias_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_data, "GRAM_NBYTES", 0)
    graph = small_cnn()
    data = samples_for(graph, 8)
    assert constants(recovered(graph, data)) == constants(recovered(graph, data, "correct-bias"))


def test_channels_without_weights_or_without_input_survive() -> None:
    x = image(4)
    first = conv("first", x, 8, low=0.0, high=0.0)
    second = conv("second", first, 8)
    w = np.random.default_rng(0).normal(size=(1, 1, 8, 5))
    w[..., 2] = 0
    last = Conv(name="last", x=second, w=constant("w", w), b=constant("b", np.full(5, 1e4)))
    graph = graph_of(last, inputs=(x,))
    out = interpret(recovered(graph, samples_for(graph, 8)), samples_for(graph, 1)[0])[0]
    np.testing.assert_allclose(out, 1e4, rtol=1e-2)


def test_one_sample_is_enough() -> None:
    graph = small_cnn()
    assert np.isfinite(sqnr(graph, recovered(graph, samples_for(graph, 1))))


def test_an_unknown_technique_is_refused_with_a_hint() -> None:
    with pytest.raises(OptionError, match="did you mean 'round-weights'"):
        QuantizationConfig(recovery=("round-weight",))


def test_more_memory_for_each_sample_means_fewer_samples() -> None:
    graph = small_cnn()
    assert peak_nbytes(graph) >= 2 * 8 * 8 * 8 * 4
    assert 1 <= capacity(graph) <= sampling.MEMORY_NBYTES // peak_nbytes(graph)


def test_few_samples_may_take_more_memory_but_not_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = small_cnn()
    monkeypatch.setattr(sampling, "MEMORY_NBYTES", 1)
    assert capacity(graph) == sampling.FEW_SAMPLES
    monkeypatch.setattr(sampling, "MAX_NBYTES", 1)
    assert capacity(graph) == 1


def test_a_gemm_is_a_layer() -> None:
    graph = small_cnn()
    data = samples_for(graph, 24, seed=2)
    plain, actual = (recovered(graph, d).by_name("fc") for d in (None, data))
    assert isinstance(plain, Gemm) and isinstance(actual, Gemm)
    assert (plain.w.evaluate() != actual.w.evaluate()).any()


def test_layers_known_from_before_are_taken_over() -> None:
    graph = small_cnn()
    data = samples_for(graph, 8)
    int8 = recovered(graph, None)
    cache = RoundingCache()
    techniques = ("adapt-weights", "round-weights", "correct-bias")
    first = round_layers(graph, int8, data, techniques, cache=cache).graph
    known = cache.lookup(int8)
    again = round_layers(graph, int8, data, techniques, cache=cache).graph
    assert constants(again) == constants(first)
    assert known.keys() == {n.name for n in first.nodes if isinstance(n, Contraction)}
    assert all(again.by_name(name).w is layer["w"] for name, layer in known.items())


def test_a_layer_in_float_leaves_those_before_it_as_they_were() -> None:
    graph = small_cnn()
    data = samples_for(graph, 8)
    cache = RoundingCache()
    techniques = ("adapt-weights", "round-weights", "correct-bias")
    round_layers(graph, recovered(graph, None), data, techniques, cache=cache)
    other = recovered(graph, None, nodes_to_exclude=["c3"])
    # c2 is read as float now, so that it is another layer.
    assert cache.lookup(other).keys() == {"c1"}
    actual = round_layers(graph, other, data, techniques, cache=cache).graph
    fresh = round_layers(graph, other, data, techniques).graph
    assert constants(actual) == constants(fresh)


def test_results_do_not_depend_on_the_batch_split() -> None:
    graph = small_cnn()
    data = samples_for(graph, 8)
    together = {"x": np.concatenate([feeds["x"] for feeds in data])}
    assert constants(recovered(graph, together)) == constants(recovered(graph, data))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_constant_that_a_layer_adds_is_added_for_every_sample(batch: int) -> None:
    rng = np.random.default_rng(6)
    x = Input(name="x", tensor=TensorType(DType.F32, (batch, 4, 4, 3)))
    w = Constant(name="w", value=rng.standard_normal((1, 1, 3, 8)).astype(np.float32))
    added = Constant(name="added", value=rng.standard_normal((batch, 4, 4, 8)).astype(np.float32))
    graph = Graph((x,), (("y", Conv(name="y", x=x, w=w, residual=added)),))
    data = [{"x": rng.standard_normal(x.type.shape).astype(np.float32)} for _ in range(6)]
    quantized = quantize(graph, profile(graph, data, progress=False), data=data)
    (expected,), (actual,) = interpret(graph, data[0]), interpret(quantized, data[0])
    assert np.linalg.norm(actual - expected) < 0.02 * np.linalg.norm(expected)


def test_where_some_lines_are_looked_at_samples_tell_of_different_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observed: dict[tuple[str, int], set[int]] = {}
    bands = LayerProduct.bands

    def noted(self: Any, x: Any, *results: Any, every: int = 1, first: int = 0) -> Any:
        if every > 1:
            kinds = min(every, results[0].shape[1])
            observed.setdefault((self.node.name, kinds), set()).add(first % kinds)
        return bands(self, x, *results, every=every, first=first)

    monkeypatch.setattr(LayerProduct, "bands", noted)
    monkeypatch.setattr(sampling, "MOMENTS_WORK", 1)
    graph = small_cnn()
    recovered(graph, samples_for(graph, 16))
    assert observed
    for (_, kinds), value in observed.items():
        assert value == set(range(min(kinds, 8)))


def test_few_samples_tell_of_all_lines_of_a_depthwise_layer() -> None:
    rows, group, k = 125_440, 144, 9
    assert row_stride(rows, group, k, 40) == 5  # by its copying 6
    assert row_stride(rows, group, k, 7) == 1
    assert row_stride(rows, group, 25, 7) == 11  # the products alone are too much work
