"""What happens at an instant depends on what happened before, never on how it was computed.

Each way of computing a run below adds something that does nothing: an observer that looks away, noise
without spread, a log of memory of which there is enough, processors that share nothing, a policy that asks
another one. The engine may take another path for it, and every row of the trace must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from triple_helpers import Op, Run, runs

from devices.memory.run_memory import tensor_memory
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Issuer, Job, Machine, Policy, Task, Trace
from sim.job.context import Context
from sim.job.noise import Noise
from sim.job.places import PinnedPlacement

MEMORIES = [(lives, full) for lives in ("execution", "issue") for full in ("error", "wait")]


class LooksAway:
    """An observer that does nothing."""

    def started(self, task: Task) -> None:
        """Look away."""

    def ended(self, task: Task) -> None:
        """Look away."""


class SharesNothing:
    """A processor on which every task takes as long as it takes alone."""

    end = None

    def __init__(self, device: Device, context: Context) -> None:
        self.start: Callable[[Task], int] = context.duration_of


class Asks(Policy):
    """A policy that does what another one says."""

    def __init__(self, other: Policy) -> None:
        self.other = other
        self.synchronisation = other.synchronisation
        self.scope = other.scope

    def prepare(self, job: Job) -> None:
        self.other.prepare(job)

    def ready(self, task: Task) -> None:
        self.other.ready(task)

    def next(self, issuer: Issuer) -> Task | None:
        return self.other.next(issuer)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        self.other.ended(task, now_ready, issuer)


class GivenStreams:
    """Puts each op on the stream that was drawn for it, by its place in the graph."""

    def __init__(self, streams: Sequence[int]) -> None:
        self.streams = streams

    def __repr__(self) -> str:
        return f"GivenStreams({list(self.streams)})"

    def assign(self, job: Job) -> list[int]:
        lanes = [job.machine.devices[d].lanes for d in job.device_of]
        return [self.streams[op % len(self.streams)] % n for op, n in enumerate(lanes)]


def shared_by_none(run: Run) -> Run:
    """Return `run` with a processor on every device that has none."""
    devices = tuple(d if d.processor else replace(d, processor=SharesNothing) for d in run.machine.devices)
    return run._replace(machine=replace(run.machine, devices=devices))


WAYS: dict[str, Callable[[Run], Trace]] = {
    "observer": lambda run: run.trace(observers=[LooksAway()]),
    "noise": lambda run: run.trace(noise=Noise(sigma=0)),
    "processors": lambda run: shared_by_none(run).trace(),
    "policy": lambda run: run._replace(policy=Asks(run.policy)).trace(),
    "all": lambda run: shared_by_none(run).trace(
        observers=[LooksAway()], noise=Noise(), memory=tensor_memory()
    ),
    **{
        f"memory {lives} {full}": lambda run, lives=lives, full=full: run.trace(
            memory=tensor_memory(lifetime=lives, when_full=full)
        )
        for lives, full in MEMORIES
    },
}
"""How else the same run may be computed."""


def same(mine: Trace, other: Trace) -> None:
    """Fail unless every column of both traces is equal."""
    for ours, theirs in ((mine.tasks, other.tasks), (mine.transfers, other.transfers)):
        assert list(ours) == list(theirs)
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def chain(kind: str = "matmul", **options: Any) -> Op:
    """Return one op of a written example."""
    plain = {
        "outputs": (0,),
        "inputs": (),
        "after": (),
        "from_before": (),
        "reads_x": False,
        "colocate": None,
    }
    return Op(kind, **{**plain, **options})


# o4 and o2 are heads of two streams at the same instant, which the one reached by its launch and the other
# by the end of a task.
TWO_HEADS = Run(
    ops=(
        chain(duration_ns=4, pin="g1"),
        chain(duration_ns=2, pin="g0", inputs=((0, 0),)),
        chain(duration_ns=0, pin="g0", inputs=((1, 0),)),
        chain(duration_ns=4, pin="g1", inputs=((0, 0),)),
        chain(duration_ns=6, pin="g0", inputs=((3, 0),)),
    ),
    x_lies_on=None,
    machine=Machine((Device("g0", streams=2, launch_latency_ns=2), Device("g1", streams=2))),
    policy=ReadyQueue(),
    placement=PinnedPlacement(),
    streams=GivenStreams((1, 1, 1, 0, 1)),
    linearize=None,
    iterations=1,
)


@st.composite
def ties(draw: st.DrawFn) -> Run:
    """Draw a run of few different durations, so that much happens at the same instant."""
    run = draw(runs(longest_ns=draw(st.sampled_from((2, 4, 20)))))
    if draw(st.booleans()):
        return run
    streams = draw(st.lists(st.integers(0, 2), min_size=len(run.ops), max_size=len(run.ops)))
    return run._replace(streams=GivenStreams(streams))


@pytest.mark.parametrize("way", WAYS)
@given(run=ties())
@example(run=TWO_HEADS)
@examples(30)
def test_what_does_nothing_changes_nothing(way: str, run: Run) -> None:
    same(run.trace(), WAYS[way](run))
