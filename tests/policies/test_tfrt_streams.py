"""The streams that TFRT's compiler assigns: its own tests, and what they change in a run.

The graphs, costs and streams are those of mlir_tests/compiler/stream_analysis.mlir in
github.com/tensorflow/runtime; streams are compared by who shares one.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from policies.issue.work_queues import INPUT, StreamStacks, assigned_streams
from sim import Device, GraphBuilder, Machine
from sim.base.errors import InputError
from sim.job.build_job import make_job


def shared(streams: list[int]) -> list[list[int]]:
    """Return the ops of each stream, in the order of their first ones."""
    rows: dict[int, list[int]] = {}
    for op, stream in enumerate(streams):
        rows.setdefault(stream, []).append(op)
    return list(rows.values())


def test_two_chains_that_meet() -> None:
    operands = [[], [INPUT, 0], [INPUT, 1], [], [INPUT, 3], [INPUT, 4], [2, 5]]
    assert shared(assigned_streams(operands, [5] * 7, 5)) == [[0, 1, 2, 6], [3, 4, 5]]


def test_expensive_ops_are_apart() -> None:
    assert shared(assigned_streams([[], [], []], [10] * 3, 10)) == [[0], [1], [2]]


def test_cheap_ops_share_a_stream_until_it_is_worth_a_thread() -> None:
    operands = [[INPUT]] * 5 + [[0, 1, 2, 3, 4]]
    streams = assigned_streams(operands, [4, 4, 11, 4, 4, 1], 10)
    assert shared(streams) == [[0, 1, 3], [2, 4, 5]]


def test_the_threshold_is_the_longest_path_if_none_is_given() -> None:
    chain = [[INPUT], [0], [1], [2], [3]]
    operands = [*chain, *[[INPUT]] * 4, [5, 7, 8, 4]]
    streams = assigned_streams(operands, [4] * 9 + [100])
    assert shared(streams) == [[0, 1, 2, 3, 4, 9], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("operands", "cost", "streams"),
    [
        # 4 and 5 together are worth more than 6, with which they would go on if it were not the return's
        ([[], [], []], [4, 5, 6], [[0, 1], [2]]),
        # 3 and the others are worth a thread, so 1 and the return's 5 share the next
        ([[], [], [], [], [INPUT]], [3, 4, 1, 1, 5], [[0, 1, 2], [3, 4]]),
    ],
)
def test_the_root_is_on_the_stream_of_the_return(
    operands: list[list[int]], cost: list[int], streams: list[list[int]]
) -> None:
    assert shared(assigned_streams(operands, cost, 8)) == streams


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 30), max_size=3), st.integers(1, 9)), min_size=1, max_size=30)
)
def test_without_merging_a_stream_is_a_chain(rows: list[tuple[set[int], int]]) -> None:
    """Every stream is worth a thread of its own if 1 is enough: then each op follows the one before it."""
    operands = [sorted(maker for maker in makers if maker < op) for op, (makers, _) in enumerate(rows)]
    for ops in shared(assigned_streams(operands, [cost for _, cost in rows], 1)):
        assert all(before in operands[op] for before, op in itertools.pairwise(ops))


def fan_out(**attributes: int) -> int:
    builder = GraphBuilder("fan-out")
    builder.op("root", duration_ns=1000, attributes=dict(attributes))
    for k in range(6):
        builder.op(f"leaf{k}", inputs=["root"], duration_ns=1000, attributes=dict(attributes))
    machine = Machine((Device("cpu0", "cpu", workers=4),))
    trace = checked(builder.build(), machine, StreamStacks())
    return trace.makespan_ns


def test_a_fan_out_uses_the_cores() -> None:
    """Six ops on four cores take two rounds; on one stream, as nobody but the scenario says, six."""
    assert fan_out() == 3000
    assert fan_out(stream_id=0) == 7000


def test_streams_that_are_given_stay_and_the_others_are_numbered_behind() -> None:
    builder = GraphBuilder("some")
    builder.op("a", duration_ns=1, attributes={"stream_id": 5})
    builder.op("b", inputs=["a"], duration_ns=1)
    builder.op("c", inputs=["b"], duration_ns=1)
    order = StreamStacks().as_data(make_job(builder.build(), Machine((Device("cpu0", "cpu", workers=2),))))
    assert order.label is not None
    assert order.label.tolist() == [5, 6, 6]


def test_a_threshold_is_a_whole_number() -> None:
    with pytest.raises(InputError, match="cost_threshold: tfrt: "):
        StreamStacks(cost_threshold_ns=-1)
