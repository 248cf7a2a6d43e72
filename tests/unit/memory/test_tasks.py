"""Tasks of graphs in which one node computes what others need."""

from __future__ import annotations

from functools import partial

from quantglow.ir.graph.graph import Graph
from quantglow.ir.graph.node import Input, Node
from quantglow.ir.ops import Abs, Add, Loop, Pad, Relu, Reshape, Tanh
from quantglow.ir.types import f32
from quantglow.memory.schedule import best_order, peak_bound
from quantglow.memory.tasks import Tasks, build_tasks, members
from quantglow.transforms.program.generate import generate_by_node
from tests.support.builder import Builder


def tasks(inputs: tuple[Input, ...], *outputs: Node) -> Tasks:
    """The tasks of a graph in its order."""
    graph = Graph(inputs, tuple((node.name, node) for node in outputs))
    return build_tasks(graph, generate_by_node(graph))


def needed(actual: Tasks, name: str) -> set[str]:
    """Names of the tasks that the one of a name needs."""
    number = next(i for i, node in enumerate(actual.nodes) if node.name == name)
    return {actual.nodes[task].name for task in members(actual.before[number])}


X = Input(name="x", tensor=f32(1, 16))


def test_views_are_no_tasks_and_tasks_need_what_lies_behind_them() -> None:
    a = Relu(name="a", x=X)
    turned = Reshape(name="turned", x=Reshape(name="flat", x=a, shape=(16,)), shape=(16, 1))
    task_list = tasks((X,), Abs(name="b", x=turned))
    assert [node.name for node in task_list.nodes] == ["a", "b"]
    assert needed(task_list, "b") == {"a"}


def test_the_last_task_needs_all_others() -> None:
    task_list = tasks((X,), Relu(name="a", x=X), Abs(name="b", x=X))
    assert task_list.before[-1] == 0b11


def test_readers_of_a_narrower_pad_need_the_wider_one_that_holds_it() -> None:
    a = Relu(name="a", x=X)
    wide = Pad(name="wide", x=a, before=(0, 2), after=(0, 2))
    narrow = Pad(name="narrow", x=a, before=(0, 1), after=(0, 1))
    task_list = tasks((X,), Abs(name="b", x=wide), Abs(name="c", x=narrow))
    assert needed(task_list, "c") == {"a", "wide"}


def test_results_of_a_loop_need_the_first_one_that_is_met() -> None:
    carried = Input(name="carried", tensor=f32(1, 16))
    ends = (("next", Tanh(name="next", x=carried)), ("seen", Abs(name="seen", x=carried)))
    body = Graph((carried,), ends)
    start = Relu(name="start", x=X)
    loop = partial(Loop, carried=(start,), sliced=(), captured=(), body=body, trips=3)
    last, observed = loop(name="last", output=0), loop(name="stack", output=1)
    task_list = tasks((X,), Abs(name="a", x=last), Abs(name="b", x=observed))
    assert "last" in needed(task_list, "a") & needed(task_list, "b")


def test_a_bound_counts_what_every_order_keeps() -> None:
    """The first value is read last, so it is alive beside the two in the middle."""
    b = Builder(channels_last=True)
    kept = b.conv(b.input(1, 4, 4, 4), 4)
    end = b.make(Add, x=b.conv(b.conv(kept, 8), 4), y=kept)
    task_list = tasks(tuple(b.inputs), b.conv(end, 4))
    assert peak_bound(task_list) == best_order(task_list, 0).bound == 256 + 512 + 256
