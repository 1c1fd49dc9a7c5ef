"""The simulated pipeline against the independent evaluation of the same orders: equal to the nanosecond."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from policies.issue.program_order import InOrder
from policies.pipeline.evaluate import StageActivations, StageTimes, evaluate, peak_activations
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import generate
from scenarios.builders.pipeline_graph import AsWritten, pipeline_graph, plain_machine
from scenarios.builders.pipeline_stage import PipelineStage
from sim import Trace, simulate
from sim.explain.memory_use import peak_bytes

FAMILIES = [
    ("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("looped-bfs", 2), ("zb-h1", 1), ("zb-h2", 1),
    ("interleaved-zb", 2), ("zb-v", 2), ("v-half", 2), ("v-min", 2), ("dualpipe-v", 2), ("chimera", 1),
]  # fmt: skip


def run(schedule: Schedule, stages: list[PipelineStage], transfer_ns: int) -> Trace:
    graph, machine = pipeline_graph(schedule, stages), plain_machine(schedule.ranks, transfer_ns)
    return simulate(graph, machine, InOrder(), linearize=AsWritten())


@pytest.mark.parametrize(("name", "chunks"), FAMILIES)
@examples(20)
@given(
    ranks=st.sampled_from([2, 4]),
    rounds=st.integers(1, 3),
    times=st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=8, max_size=8),
    transfer=st.integers(0, 5),
)
def test_every_slot_runs_when_the_evaluation_says(
    name: str, chunks: int, ranks: int, rounds: int, times: list[tuple[int, int, int]], transfer: int
) -> None:
    schedule = generate(name, ranks=ranks, micro_batches=2 * ranks * rounds, chunks=chunks)
    each = [StageTimes(forward=f, input_grad=i, weight_grad=w) for f, i, w in times[: schedule.stages]]
    trace = run(schedule, [PipelineStage(t, boundary_nbytes=1) for t in each], transfer)
    expected = evaluate(schedule, each, transfer=transfer)
    names = trace.job.graph.op_names
    starts = {
        names[op]: start
        for op, start in zip(trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist(), strict=True)
    }
    for program, times_of_rank in zip(schedule.programs, expected.starts, strict=True):
        assert [starts["+".join(map(str, slot.parts))] for slot in program] == list(times_of_rank)
    assert trace.makespan_ns == expected.makespan
    trace.check()


@pytest.mark.parametrize(("name", "chunks"), FAMILIES)
def test_memory_is_what_the_order_says(name: str, chunks: int) -> None:
    """Activations of 3 bytes, 2 of them left after I, as tensors of the graph."""
    schedule = generate(name, ranks=4, micro_batches=8, chunks=chunks)
    stage = PipelineStage(
        StageTimes(forward=2, input_grad=2, weight_grad=2), activation_nbytes=3, weight_grad_nbytes=2
    )
    trace = run(schedule, [stage] * schedule.stages, 0)
    peaks = peak_bytes(trace)
    assert list(peaks.values()) == list(
        peak_activations(schedule, StageActivations(full=3, kept_for_weight_grad=2))
    )


def test_recompute_keeps_the_stage_input_only() -> None:
    schedule = generate("gpipe", ranks=2, micro_batches=4, checkpoint="always")
    stage = PipelineStage(StageTimes(forward=2, backward=4), activation_nbytes=10, checkpoint_nbytes=1)
    trace = run(schedule, [stage] * 2, 0)
    # Four stage inputs, and one recomputed micro-batch at a time: its input is released when R has ended.
    held = StageActivations(full=10, stage_input=1)
    assert list(peak_bytes(trace).values()) == list(peak_activations(schedule, held))


def test_a_forward_and_a_backward_together_take_less_of_a_smaller_micro_batch() -> None:
    """F 200, B 400, together 300; of micro-batch 2 half: 300 (100 + 400) / 600, 300 (200 + 200) / 600."""
    times = StageTimes(forward=200, input_grad=200, weight_grad=200, overlapped=300)
    schedule = generate("dualpipe-v", ranks=2, micro_batches=6)
    shares = [(1 + (k != 2), 2) for k in range(6)]
    graph = pipeline_graph(schedule, [PipelineStage(times)] * 4, shares=shares)
    took = dict(zip(graph.op_names, graph.duration_ns.tolist(), strict=True))
    pairs = {name: ns for name, ns in took.items() if "+" in name}
    for name, ns in pairs.items():
        forward, backward = name.split("+")
        assert ns == (250 if forward.endswith("2") else 200 if backward.endswith("2") else 300), name
    assert sorted({*pairs.values()}) == [200, 250, 300]
