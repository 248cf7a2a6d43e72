"""States: a decoder whose cache grows in place computes what the plain calls compute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnxruntime
import pytest

import quantglow as qg
from quantglow.runtime.compiled import CompiledModel
from quantglow.runtime.native.executable import LlvmExecutable
from quantglow.runtime.native.threads import run_table
from quantglow.runtime.states import state_programs
from quantglow.runtime.states.state import State
from quantglow.support.errors import FileFormatError, InputError, OptionError, StateFullError
from tests.support.combinations import covering, mark_slow
from tests.support.decoder import Decoder, Feeds, decoder_model
from tests.support.free_network import free_model
from tests.unit.forking import exit_code_of_child

CONFIGS = {False: Decoder(), True: Decoder(fused=True)}


@pytest.fixture(scope="module")
def models() -> dict[bool, CompiledModel]:
    """The decoder of standard operators, and that of onnxruntime's."""
    return {fused: compiled_of(config) for fused, config in CONFIGS.items()}


def compiled_of(config: Decoder, **options: str) -> CompiledModel:
    compiled = qg.compile(decoder_model(config), num_threads=1, **options)
    assert isinstance(compiled, CompiledModel)
    return compiled


def prompt(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (batch, length))


def fed(config: Decoder, tokens: np.ndarray, past: int) -> Feeds:
    """Feeds for tokens behind so many rows, without the cache."""
    cache = {"past_key_values.0.key": np.empty((len(tokens), 1, past, 1))}
    feeds = config.feeds(tokens, cache)
    return {name: array for name, array in feeds.items() if name not in cache}


def assert_equal(state: State, cache: Feeds) -> None:
    assert state.arrays.keys() == cache.keys()
    for name, rows in state.arrays.items():
        np.testing.assert_array_equal(rows, cache[name])


@pytest.mark.slow_variants
@pytest.mark.parametrize(("fused", "batch"), covering([False, True], [1, 3]))
def test_a_state_computes_what_plain_calls_compute(fused: bool, batch: int) -> None:
    """Bit for bit, while its capacity grows from 16 to 64 rows; few programs serve all."""
    config = CONFIGS[fused]
    compiled = compiled_of(config)
    state, cache = compiled.new_state(batch, capacity=16), config.empty_cache(batch)
    tokens = prompt(batch, 6)
    for _ in range(40):
        expected = compiled.run(None, config.feeds(tokens, cache))
        (logits,) = state.run(None, fed(config, tokens, state.length))
        cache = config.next_cache(expected)
        np.testing.assert_array_equal(logits, expected[0])
        assert_equal(state, cache)
        tokens = logits[:, -1:].argmax(-1)
    assert state.capacity == 64
    assert 0 < len(state.programs.served()) <= 4 + 2 * (batch > 1)


@pytest.mark.slow
@pytest.mark.parametrize("fused", mark_slow([False, True], {True}))
def test_a_prompt_may_come_in_parts(models: dict[bool, CompiledModel], fused: bool) -> None:
    config, tokens = CONFIGS[fused], prompt(1, 30)
    whole, parts = (models[fused].new_state() for _ in range(2))
    (expected,) = whole.run(None, fed(config, tokens, 0))
    actual = [
        parts.run(None, fed(config, tokens[:, begin:end], begin))[0]
        for begin, end in ((0, 9), (9, 20), (20, 30))
    ]
    np.testing.assert_allclose(np.concatenate(actual, axis=1), expected, atol=2e-5)


@pytest.mark.slow
def test_rows_of_an_int8_decoder_stay_as_they_are() -> None:
    """Each call copies the rows before it, in place in a state, which gives the same integers."""
    config = CONFIGS[False]
    tokens, cache = prompt(1, 6), config.empty_cache(1)
    first = config.feeds(tokens, cache)
    (_, *rows) = qg.compile(decoder_model(config), num_threads=1).run(None, first)
    samples = [config.feeds(tokens[:, :1], config.next_cache([None, *rows]))]
    compiled = qg.quantize_and_compile(
        decoder_model(config), samples, num_threads=1, effort="fast", progress=False
    )
    state = compiled.new_state(1, capacity=16)
    for _ in range(4):
        expected = compiled.run(None, config.feeds(tokens, cache))
        (logits,) = state.run(None, fed(config, tokens, state.length))
        np.testing.assert_array_equal(logits, expected[0])
        before, cache = cache, config.next_cache(expected)
        for name, past in before.items():
            np.testing.assert_array_equal(cache[name][:, :, : past.shape[2]], past)
        assert_equal(state, cache)
        tokens = logits[:, -1:].argmax(-1)
    assert state.programs.served()


@pytest.mark.slow
def test_a_copy_goes_its_own_way(models: dict[bool, CompiledModel]) -> None:
    config, state = CONFIGS[False], models[False].new_state(capacity=8)
    state.run(None, fed(config, prompt(1, 5), 0))
    other = state.copy()
    (first,) = state.run(None, fed(config, np.array([[7]]), 5))
    (second,) = other.run(None, fed(config, np.array([[7]]), 5))
    np.testing.assert_array_equal(first, second)
    other.reset()
    assert (state.length, other.length) == (6, 0)
    assert_equal(state, {name: array.copy() for name, array in state.arrays.items()})


def test_rows_may_be_taken_back(models: dict[bool, CompiledModel]) -> None:
    config, state = CONFIGS[False], models[False].new_state()
    state.run(None, fed(config, prompt(1, 5), 0))
    (first,) = state.run(None, fed(config, np.array([[7]]), 5))
    state.truncate(5)
    (second,) = state.run(None, fed(config, np.array([[7]]), 5))
    np.testing.assert_array_equal(first, second)
    for wrong in (7, -1, 3.0, True, None, "2"):
        with pytest.raises(OptionError, match="length must be"):
            state.truncate(wrong)
    assert state.length == 6


@pytest.mark.slow
def test_a_state_is_saved_and_restored(models: dict[bool, CompiledModel], tmp_path: Path) -> None:
    config, state = CONFIGS[False], models[False].new_state(batch=2)
    state.run(None, fed(config, prompt(2, 5), 0))
    state.save(tmp_path / "state.npz")
    other = models[False].new_state(batch=2, capacity=2)
    other.restore(tmp_path / "state.npz")
    assert_equal(other, state.arrays)
    tokens = np.array([[3], [4]])
    actual, expected = (s.run(None, fed(config, tokens, 5))[0] for s in (other, state))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:200]), "is no saved state"),
        (lambda path: np.savez(path, x=np.zeros(3)), "has nothing for 'past_key_values.0.key'"),
        (lambda path: None, r"the state has float32 of shape \(1, 2, 5, 16\)"),
    ],
)
def test_other_files_are_refused(
    models: dict[bool, CompiledModel],
    tmp_path: Path,
    damage: Callable[[Path], object],
    message: str,
) -> None:
    path, state = tmp_path / "state.npz", models[False].new_state(batch=2)
    state.run(None, fed(CONFIGS[False], prompt(2, 5), 0))
    state.save(path)
    damage(path)
    other = models[False].new_state()
    with pytest.raises(FileFormatError, match=message):
        other.restore(path)
    assert other.length == 0


@pytest.mark.slow_variants
@pytest.mark.parametrize("fused", [False, True])
def test_a_full_state_says_so_and_stays(models: dict[bool, CompiledModel], fused: bool) -> None:
    config, state = CONFIGS[fused], models[fused].new_state(capacity=4, max_length=10)
    state.run(None, fed(config, prompt(1, 8), 0))
    before = {name: array.copy() for name, array in state.arrays.items()}
    with pytest.raises(StateFullError, match="would have 12 rows, but max_length is 10"):
        state.run(None, fed(config, prompt(1, 4), 8))
    assert_equal(state, before)
    state.run(None, fed(config, prompt(1, 2), 8))
    assert (state.length, state.capacity) == (10, 10)


@pytest.mark.parametrize("capacity", [1, 2, 8])
@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_state_holds_at_most_max_length_rows(
    models: dict[bool, CompiledModel], capacity: int, most: int, rows: int
) -> None:
    """Whatever memory it has: the capacity is at least 2, because sizes of 1 are broadcast."""
    config, state = CONFIGS[False], models[False].new_state(capacity=capacity, max_length=most)
    while state.length + rows <= most:
        state.run(None, fed(config, prompt(1, rows), state.length))
    before = state.length
    with pytest.raises(StateFullError, match=f"max_length is {most}"):
        state.run(None, fed(config, prompt(1, rows), before))
    assert state.length == before


@pytest.mark.slow_variants
@pytest.mark.parametrize("fused", [False, True])
def test_an_interrupted_call_changes_nothing(
    models: dict[bool, CompiledModel], fused: bool
) -> None:
    config, state = CONFIGS[fused], models[fused].new_state()
    state.run(None, fed(config, prompt(1, 5), 0))
    state.run(None, fed(config, np.array([[1]]), 5))
    before = {name: array.copy() for name, array in state.arrays.items()}
    feeds = fed(config, np.array([[7]]), 6)
    expected = state.copy().run(None, feeds)[0]

    def half(self: LlvmExecutable, table: np.ndarray, contexts: object, crew: int) -> None:
        run_table(self.target, crew, table[: len(table) * 2 // 3])
        raise KeyboardInterrupt

    with patch.object(LlvmExecutable, "walk", half), pytest.raises(KeyboardInterrupt):
        state.run(None, feeds)
    assert_equal(state, before)
    np.testing.assert_array_equal(state.run(None, feeds)[0], expected)


@pytest.mark.slow
def test_samples_have_lengths_of_their_own(models: dict[bool, CompiledModel]) -> None:
    """A prompt that is padded behind; then tokens, each behind its own rows."""
    config, state = CONFIGS[True], models[True].new_state(batch=2)
    session = onnxruntime.InferenceSession(decoder_model(config).SerializeToString())
    feeds = fed(config, prompt(2, 6), 0)
    feeds["attention_mask"][1, 4:] = 0
    expected = session.run(None, {**feeds, **config.empty_cache(2)})
    (logits,) = state.run(None, feeds)
    for sample, length in enumerate((6, 4)):
        mine, its = logits[sample, :length], expected[0][sample, :length]
        np.testing.assert_allclose(mine, its, atol=2e-5)
    feeds = fed(config, np.array([[3], [5]]), 6)
    feeds["attention_mask"][1, 5:] = 0
    expected = session.run(None, {**feeds, **config.next_cache(expected)})
    (logits,) = state.run(None, feeds)
    np.testing.assert_allclose(logits, expected[0], atol=2e-5)


def test_a_state_works_without_programs_in_place() -> None:
    """The reference backend has none: caches are copied."""
    config = CONFIGS[False]
    state = compiled_of(config, backend="reference").new_state(capacity=8)
    ours = compiled_of(config).new_state()
    for tokens in (prompt(1, 6), np.array([[3]]), np.array([[4]])):
        actual, expected = (s.run(None, fed(config, tokens, s.length))[0] for s in (state, ours))
        np.testing.assert_allclose(actual, expected, atol=2e-5)
    assert state.length == ours.length == 8


@pytest.mark.slow
def test_an_int8_model_has_states(models: dict[bool, CompiledModel]) -> None:
    """Its cache is quantized in every call, so it is copied: the same integers all the same."""
    config, samples = CONFIGS[False], []
    for seed in range(3):
        tokens = np.random.default_rng(seed).integers(0, 256, (1, 12))
        outputs = models[False].run(None, config.feeds(tokens[:, :8], config.empty_cache(1)))
        samples.append(config.feeds(tokens[:, 8:], config.next_cache(outputs)))
    compiled = qg.quantize_and_compile(
        decoder_model(config), samples, verify=False, progress=False, num_threads=1
    )
    state, cache = compiled.new_state(capacity=8), config.empty_cache(1)
    for tokens in (prompt(1, 7), np.array([[1]]), np.array([[2]])):
        expected = compiled.run(None, config.feeds(tokens, cache))
        (logits,) = state.run(None, fed(config, tokens, state.length))
        cache = config.next_cache(expected)
        np.testing.assert_array_equal(logits, expected[0])
        assert_equal(state, cache)


def test_threads_take_turns(models: dict[bool, CompiledModel]) -> None:
    config, state = CONFIGS[False], models[False].new_state()
    state.run(None, fed(config, prompt(1, 5), 0))
    errors = []

    def call() -> None:
        try:
            state.run(["logits"], fed(config, np.array([[1]]), 5))
        except InputError as error:  # the second one has a mask that is too short
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(errors), state.length) == (1, 6)


def test_wrong_states_are_refused(models: dict[bool, CompiledModel]) -> None:
    compiled = models[False]
    with pytest.raises(OptionError, match=r"pairs must map inputs .*Remedy: name the caches"):
        compiled.new_state(pairs={"past": "present"})
    for wrong in (5, [1], "x", {}, {"input_ids": ["logits"]}):
        with pytest.raises(OptionError, match="pairs must map inputs"):
            compiled.new_state(pairs=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"output 'logits' of f32.* is not input 'input_ids'"):
        compiled.new_state(pairs={"input_ids": "logits"})
    with pytest.raises(OptionError, match="2 free dimensions behind the batch"):
        qg.compile(free_model()).new_state(pairs={"x": "features"})
    with pytest.raises(OptionError, match="batch must be at least 1"):
        compiled.new_state(batch=0)
    state = compiled.new_state()
    with pytest.raises(InputError, match="unknown output"):
        state.run(["present.0.key"], fed(CONFIGS[False], prompt(1, 3), 0))
    with pytest.raises(InputError, match="missing input"):
        state.run(None, {"input_ids": prompt(1, 3)})


@pytest.mark.slow
def test_calls_at_once_take_one_place_among_the_growths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A template is read before the lock is taken: here by both threads, before either has it."""
    config, model = CONFIGS[False], compiled_of(CONFIGS[False])
    usual, built = state_programs.case_template, state_programs.Growth
    together, growths, states = threading.Barrier(2, timeout=60), [], []
    callers = threading.local()

    def met(*arguments: Any) -> Any:
        if not getattr(callers, "have_met", False):
            callers.have_met = True
            together.wait()
        return usual(*arguments)

    def counted(*arguments: Any) -> Any:
        growths.append(arguments)
        return built(*arguments)

    def call() -> None:
        state = model.new_state()
        state.run(None, fed(config, prompt(1, 4), 0))
        states.append(state.length)

    monkeypatch.setattr(state_programs, "case_template", met)
    monkeypatch.setattr(state_programs, "Growth", counted)
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(growths), states) == (1, [4, 4])


@pytest.mark.slow_variants
@pytest.mark.parametrize("is_same", [False, True])
def test_a_forked_child_waits_for_no_thread_of_its_parent(
    is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the parent makes the program of a call; the child calls the same state, or
    another one."""
    config, model = CONFIGS[False], compiled_of(CONFIGS[False])
    state, usual = model.new_state(), state_programs.general_program
    entered, end = threading.Event(), threading.Event()
    feeds = fed(config, prompt(1, 4), 0)
    caller = threading.Thread(target=state.run, args=(None, feeds))

    def held(*arguments: Any) -> Any:
        if threading.current_thread() is caller:
            entered.set()
            assert end.wait(60)
        return usual(*arguments)

    def runs() -> bool:
        ours = state if is_same else model.new_state()
        return len(ours.run(None, feeds)) == 1 and ours.length == 4

    monkeypatch.setattr(state_programs, "general_program", held)
    caller.start()
    assert entered.wait(60)
    code = exit_code_of_child(runs)
    end.set()
    caller.join()
    assert (code, state.length) == (0, 4)
