"""A batch in pieces gives the results of the whole batch, for any outputs of the graph."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import quantglow as qg
from quantglow.interpreter import interpret
from quantglow.ir.graph.graph import Graph
from quantglow.memory.plans import divisors
from quantglow.transforms.split_batch import batch_size, split_batch
from tests.generators.quantized_graphs.graphs import mixed_graphs
from tests.support.effort import moderate
from tests.support.equality import assert_equal_values
from tests.support.feeds import feeds_of
from tests.support.harsh import harsh

batched = mixed_graphs(most=4, batches=tuple(range(2, 9)))


@given(batched)
def test_the_pieces_of_a_batch_make_up_its_outputs(graph: Graph) -> None:
    feeds, batch = feeds_of(graph, spread=2.0), batch_size(graph)
    whole = interpret(graph, feeds)
    for pieces in divisors(batch or 1):
        part = split_batch(graph, pieces)
        if part is None:
            continue
        cut = {name: np.split(array, pieces) for name, array in feeds.items()}
        runs = [interpret(part, {name: cut[name][i] for name in cut}) for i in range(pieces)]
        assert_equal_values([np.concatenate(parts) for parts in zip(*runs, strict=True)], whole)


@moderate
@given(batched, st.sampled_from([1, 2, 3]))
def test_threads_that_share_a_batch_give_its_outputs(graph: Graph, threads: int) -> None:
    feeds = feeds_of(graph, spread=2.0)
    with harsh():
        compiled = qg.compile(graph, num_threads=threads).run(None, feeds)
    assert_equal_values(compiled, interpret(graph, feeds))
