"""Preparation: the decisions of ``auto`` before anything is rounded."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.interpreter.executor import Execution
from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Constant, Node
from quantglow.ir.ops import (
    Add,
    Concat,
    Conv,
    HardSwish,
    Mul,
    Reciprocal,
    ReduceMean,
    Reshape,
    Softmax,
)
from quantglow.ir.ops.arithmetic import quantization
from quantglow.profiling import Range, profile
from quantglow.quantization.equalize.channel_groups import channel_groups
from quantglow.quantization.equalize.equalization import equalization_factors
from quantglow.quantization.options import EQUALIZATIONS, QuantizationConfig
from quantglow.quantization.plan import tensor_ranges
from quantglow.quantization.plan.params import activation_element
from quantglow.quantization.plan.plan import Plan, make_plan
from quantglow.quantization.quantizer import quantize, quantize_for_all_shapes
from quantglow.quantization.rounding.sampling import SampleEvaluator
from quantglow.quantization.search import levers, range_choice, reader_errors, trials
from quantglow.quantization.search import range_choice as range_trial
from quantglow.quantization.search.fake_quantization import compared_nodes, relative_noise
from quantglow.quantization.search.levers import prepare
from quantglow.quantization.search.range_choice import Pair, RangeTrial, RangeVerdict, choose_ranges
from quantglow.quantization.search.reader_errors import ReaderErrors
from quantglow.quantization.search.trials import Candidate, split
from quantglow.support.arrays import Array
from quantglow.support.errors import OptionError
from quantglow.support.processes.interrupts import Deadline, check_interrupt, keeping_best
from tests.unit.quantization.quantization_networks import (
    compared_values,
    constant,
    conv,
    graph_of,
    image,
    reach_of,
    samples_for,
    small_cnn,
    sqnr,
)

AUTO = QuantizationConfig()


def uneven() -> Graph:
    """Conv -> Relu -> depthwise -> Conv, whose channels differ by a factor of a thousand."""
    x = image(8, 6)
    first = conv("first", x, 8, low=0.0)
    factors = np.logspace(-2, 1, 8)
    first = replace(
        first,
        w=constant("first_w", first.w.value * factors),
        b=constant("first_b", first.b.value * factors),
    )
    w = np.random.default_rng(3).normal(size=(3, 3, 1, 8)) / factors
    middle = Conv(
        name="middle", x=first, w=constant("middle_w", w), pads=(1, 1, 1, 1), group=8, low=0.0
    )
    return graph_of(conv("last", middle, 16, kernel=1), inputs=(x,))


def prepared_of(graph: Graph, config: QuantizationConfig = AUTO, **options: object) -> Candidate:
    data = samples_for(graph, 12)
    return prepare(graph, profile(graph, data, progress=False), config, data, **options)


def noise(actual: Candidate, config: QuantizationConfig, data: list[dict[str, Array]]) -> float:
    plan = make_plan(actual.graph, actual.profile, config, actual.ranges)
    return relative_noise(
        plan, data, [compared_values(actual.graph, feeds) for feeds in data], True
    )


def test_uneven_channels_are_equalized() -> None:
    graph, data = uneven(), samples_for(uneven(), 12, seed=4)
    profiled = profile(graph, data, progress=False)
    plain, auto = (
        quantize(graph, profiled, QuantizationConfig(recovery=(), equalization=e), data=data)
        for e in ((), "auto")
    )
    assert sqnr(graph, auto) > sqnr(graph, plain) + 6


def test_techniques_are_chosen_by_name() -> None:
    assert prepared_of(uneven(), QuantizationConfig(equalization="equalize-channels")).factors
    assert not prepared_of(uneven(), QuantizationConfig(equalization="smooth-activations")).factors
    with pytest.raises(OptionError, match="did you mean 'equalize-channels'"):
        QuantizationConfig(equalization="equalise-channels")


def test_the_result_is_never_worse_than_min_max_on_held_back_samples() -> None:
    graph, data = small_cnn(), samples_for(small_cnn(), 12)
    profiled = profile(graph, data, progress=False)
    actual = prepare(graph, profiled, AUTO, data)
    held = split(data, AUTO.seed)[1]
    assert noise(actual, AUTO, held) <= noise(Candidate(graph, profiled), AUTO, held)


def test_ranges_that_are_asked_for_by_name_stay() -> None:
    actual = prepared_of(small_cnn(), QuantizationConfig(calibrate_method="mse", equalization=()))
    assert not actual.ranges
    assert not actual.factors


@pytest.mark.parametrize(("few", "is_chosen"), [(tensor_ranges.FEW, False), (0, True)])
def test_ranges_of_values_that_were_seen_too_rarely_are_not_chosen(
    few: int, is_chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = image(8, 6)
    mean = ReduceMean(name="mean", x=conv("first", x, 8), axes=(1, 2))
    graph = graph_of(conv("last", mean, 4, kernel=1), inputs=(x,))
    data = samples_for(graph, 16)
    monkeypatch.setattr(tensor_ranges, "FEW", few)
    chosen = choose_ranges(graph, profile(graph, data, progress=False), AUTO, data)
    assert ("mean" in chosen) == is_chosen


def test_a_value_whose_rounding_gives_infinities_keeps_its_range() -> None:
    """Rounded to 0, a small value has no reciprocal: no candidate's error is a number."""
    x = image(8, 6)
    small = conv("first", x, 8, low=1e-6, high=100.0)
    last = conv("last", Reciprocal(name="reciprocal", x=small), 4, kernel=1)
    graph = graph_of(last, inputs=(x,))
    data = samples_for(graph, 12)
    with np.errstate(all="ignore"):
        chosen = choose_ranges(graph, profile(graph, data, progress=False), AUTO, data)
    assert "first" not in chosen


def test_each_sample_tells_of_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first rows only values that no weight reads are large; in the last row the
    others are.
    """
    monkeypatch.setattr(reader_errors, "WORK", 1)
    x = image(2, 16)
    w = np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    last = Conv(name="last", x=x, w=constant("w", w), b=constant("b", np.zeros(1)))
    graph = graph_of(last, inputs=(x,))
    data = samples_for(graph, 16)
    for sample in data:
        signs = np.sign(sample["x"])
        sample["x"] *= 0.01
        sample["x"][:, :-1, :, 1] = signs[:, :-1, :, 1]
        sample["x"][:, -1, :, 0] = signs[:, -1, :, 0]
    chosen = choose_ranges(graph, profile(graph, data, progress=False), AUTO, data)
    assert chosen.get("x", Range(-1.0, 1.0)).high > 0.99


def test_each_sample_tells_of_other_lines_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values are multiplied by 0 in the first three quarters."""
    monkeypatch.setattr(reader_errors, "LIGHT_WORK", 1)
    x, y = image(2, 16), replace(image(2, 16), name="y")
    last = conv("last", Mul(name="product", x=x, y=y), 4, kernel=1)
    graph = graph_of(last, inputs=(x, y))
    data = samples_for(graph, 4)
    for sample in data:
        np.clip(sample["x"], -1.0, 1.0, out=sample["x"])
        sample["x"][..., 0] = -4.0
        sample["y"][:, :12, :, 0] = 0.0
    chosen = choose_ranges(graph, profile(graph, data, progress=False), AUTO, data)
    assert chosen.get("x", Range(-4.0, 1.0)).low < -3.99


def test_a_result_that_is_known_does_not_disturb() -> None:
    known = constant("known", np.ones(3))
    plain = uneven()
    graph = Graph(plain.inputs, (*plain.outputs, ("known", known)))
    assert prepared_of(graph).factors


def test_channels_that_were_seen_too_rarely_are_not_equalized() -> None:
    names = [group[0].name for group in channel_groups(uneven())]
    reach = reach_of(uneven(), samples_for(uneven()))
    actual = equalization_factors(uneven(), reach, AUTO.equalization, frozenset(names[:1]))
    assert names[0] not in actual
    assert set(names[1:]) <= actual.keys()


def test_ranges_refused_on_the_whole_are_kept_in_a_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = {"first": Range(0.0, 1e-3), "middle": Range(0.0, 1e-3)}

    def noise_of(plan: Plan, *arguments: object) -> float:
        actual = {n.name for n, e in plan.element_types.items() if quantization(e).scale < 1e-5}
        return 10.0 if "first" in actual else 0.5 if "middle" in actual else 1.0

    monkeypatch.setattr(levers, "choose_ranges", lambda *arguments: narrow)
    monkeypatch.setattr(trials, "relative_noise", noise_of)
    actual = prepared_of(uneven(), QuantizationConfig(equalization=()))
    assert actual.ranges == {"middle": narrow["middle"]}


def test_clipping_counts_more_than_rounding() -> None:
    graph, data = small_cnn(), samples_for(small_cnn(), 2)
    plan = make_plan(graph, profile(graph, data, progress=False), AUTO)
    root = graph.inputs[0]
    types = [{root: activation_element(Range(0.0, high))} for high in (1.0, 0.5, 0.5)]
    errors = {root: np.array([[1.0, 0.25, 0.35], [1.0, 0.2, 0.25]])}
    readers = ReaderErrors(SampleEvaluator(graph, data), {})
    weighted = RangeTrial(plan, types, readers, errors=errors).weighted_errors(root)
    cut_off = 0.1 * range_trial.COHERENCE
    np.testing.assert_allclose(weighted, [[1, 0.25, 0.25 + cut_off], [1, 0.2, 0.25]], rtol=1e-5)


def test_the_same_seed_decides_the_same() -> None:
    one, other = prepared_of(small_cnn()), prepared_of(small_cnn())
    assert one.ranges == other.ranges
    assert one.factors.keys() == other.factors.keys()
    assert all(np.array_equal(one.factors[name], other.factors[name]) for name in one.factors)


def test_a_deadline_ends_the_search_with_the_best_so_far() -> None:
    actual = prepared_of(uneven(), deadline=Deadline(time.monotonic()))
    assert not actual.factors
    assert not actual.ranges


def test_an_interrupt_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)
        check_interrupt()

    monkeypatch.setattr(levers, "plain_in", interrupted)
    with keeping_best():
        assert prepared_of(uneven()).factors


def test_a_probability_is_judged_by_the_features_of_its_logits() -> None:
    assert [node.name for node in compared_nodes(small_cnn())] == ["mean"]


def classifier(classes: int) -> Graph:
    """Conv -> Softmax over the last axis -> a view."""
    x = image(8, 6)
    scores = Softmax(name="scores", x=conv("logits", x, classes, kernel=1))
    return graph_of(Reshape(name="flat", x=scores, shape=(1, 36 * classes)), inputs=(x,))


def test_a_probability_behind_a_view_is_judged_by_its_logits() -> None:
    assert [node.name for node in compared_nodes(classifier(5))] == ["logits"]


def test_a_shift_that_a_softmax_ignores_is_no_noise() -> None:
    graph, data = classifier(5), samples_for(classifier(5), 2)
    plan = make_plan(graph, profile(graph, data, progress=False), AUTO)
    expected = [compared_values(graph, feeds) for feeds in data]
    moved = [[logits + np.float32(100)] for (logits,) in expected]
    assert relative_noise(plan, data, moved, True) == pytest.approx(
        relative_noise(plan, data, expected, True), rel=1e-3
    )


def test_decisions_hold_for_the_graph_made_again() -> None:
    graph, data = uneven(), samples_for(uneven(), 8)
    profiled = profile(graph, data, progress=False)
    quantized = quantize_for_all_shapes(graph, profiled, AUTO, data)
    assert quantized.decisions.factors
    again = quantized.decisions.apply(uneven())
    assert sqnr(quantized.graph, again) > 200


def test_the_compiled_program_gives_the_integers_of_the_graph() -> None:
    graph, data = uneven(), samples_for(uneven(), 8)
    profiled = profile(graph, data, progress=False)
    int8 = quantize(graph, profiled, QuantizationConfig(quantize_output=True), data=data)
    compiled = qg.compile(int8, num_threads=1)
    for feeds in samples_for(graph, 3, seed=9):
        np.testing.assert_array_equal(compiled.run(None, feeds)[0], interpret(int8, feeds)[0])


def test_names_of_the_techniques_are_options() -> None:
    assert AUTO.equalization == EQUALIZATIONS


def test_some_lines_of_a_function_represent_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x = image(4, 48)
    first, second = conv("first", x, 8), conv("second", x, 8)
    both = Add(name="both", x=HardSwish(name="curved", x=first), y=second)
    joined = Concat(name="joined", parts=(both, first), axis=3)
    graph = graph_of(conv("last", joined, 4, kernel=1), inputs=(x,))
    data = samples_for(graph, 8)
    profiled = profile(graph, data, progress=False)
    plan = make_plan(graph, profiled, AUTO)
    candidates = range_choice.candidate_ranges(plan, profiled, AUTO)
    types = [range_choice.group_types(ranges, AUTO) for ranges in candidates]

    def errors() -> dict[str, Array]:
        trial = RangeTrial(
            plan, types, ReaderErrors(SampleEvaluator(graph, data), profiled.histograms)
        )
        Execution(graph, (), trial.values).run()
        return {root.name: value for root, value in trial.errors.items()}

    whole = errors()
    monkeypatch.setattr(reader_errors, "LIGHT_WORK", 3 * 10**5)
    some = errors()
    assert any((some[name] != value).any() for name, value in whole.items())
    for name, value in whole.items():
        np.testing.assert_allclose(some[name], value, rtol=0.3, err_msg=name)


def test_equal_values_and_readers_of_two_candidates_are_judged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second has other weights in one layer, and another histogram of its result."""
    x = image(4, 8)
    layers = [conv("first", x, 8), conv("second", x, 8)]
    graph = graph_of(Add(name="sum", x=layers[0], y=layers[1]), inputs=(x,))
    data = samples_for(graph, 8)
    profiled = profile(graph, data, progress=False)
    calls: list[Pair] = []
    usual = ReaderErrors.of

    def noted(self: ReaderErrors, operand: Node, reader: Node, *remaining: Any) -> Array:
        calls.append((operand.name, reader.name))
        return usual(self, operand, reader, *remaining)

    monkeypatch.setattr(ReaderErrors, "of", noted)
    judged: dict[Pair, RangeVerdict] = {}
    chosen = choose_ranges(graph, profiled, AUTO, data, judged)
    pairs = {("x", "first"), ("x", "second"), ("first", "sum"), ("second", "sum")}
    assert set(calls) == pairs
    calls.clear()
    assert choose_ranges(graph, profiled, AUTO, data, judged) == chosen
    assert calls == []

    def doubled(node: Node) -> Node:
        is_changed = isinstance(node, Constant) and node.name == layers[1].w.name
        return replace(node, value=2 * node.value) if is_changed else node

    other = graph.rebuild(doubled)
    changed = profile(other, data, progress=False).histograms
    histograms = {**profiled.histograms, **{name: changed[name] for name in ("second", "sum")}}
    choose_ranges(other, replace(profiled, histograms=histograms), AUTO, data, judged)
    assert set(calls) == pairs - {("x", "first")}


def test_a_graph_of_constants_has_nothing_to_prepare() -> None:
    graph = Graph((), (("y", Constant(name="y", value=np.ones((2, 3), np.float32))),))
    quantized = qg.quantize(graph, qg.profile(graph, [{}]), data=[{}] * 12)
    assert quantized.outputs == graph.outputs
