"""What is put down and done later, many tasks at once, against what is done at once, task by task."""

from __future__ import annotations

import random
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.memory.allocators.bfc import BfcAllocator
from devices.memory.allocators.caching import CachingAllocator
from devices.memory.allocators.pool import PoolAllocator
from devices.memory.memory_description import MemorySpec
from devices.memory.run.tensor_lifetimes import Lifetimes
from devices.memory.run.tensors import tensor_memory
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Job, Machine, simulate
from sim.words.errors import OutOfMemoryError, StuckError

ALLOCATORS = {"pool": PoolAllocator, "bfc": BfcAllocator, "caching": CachingAllocator}

SIZES = (0, 1 << 18, 1 << 19, 1 << 20, 3 << 20, 12 << 20)


def drawn(seed: int, n: int) -> list[tuple[bool, int, list[int], int, list[int], bool]]:
    """Draw ops.

    Of each: whether it is launched, its stream, outputs, ns, how far before it stands what it reads, and
    whether it reads what it wrote in the iteration before.
    """
    draw = random.Random(seed)
    return [
        (
            draw.random() < 0.8,
            draw.randrange(3),
            [draw.choice(SIZES) for _ in range(draw.randint(1, 2))],
            draw.randrange(30),
            [draw.randint(1, 6) for _ in range(draw.randrange(3))],
            draw.random() < 0.2,
        )
        for _ in range(n)
    ]


class GivenStreams:
    """Put each op on its stream."""

    def __init__(self, streams: list[int]) -> None:
        self._streams = streams

    def assign(self, job: Job) -> list[int]:
        return self._streams


def made(ops: list[Any]) -> Graph:
    """Return a graph whose launched ops and whose others have nothing to do with each other."""
    b = GraphBuilder("random")
    for i, (launched, _, outputs, duration_ns, back, again) in enumerate(ops):
        inputs: list[Any] = [f"op{i - d}" for d in back if d <= i and ops[i - d][0] == launched]
        if again:
            inputs.append((f"op{i}", 1))
        device = "gpu0" if launched else "cpu0"
        b.op(f"op{i}", inputs=inputs, outputs=outputs, duration_ns=duration_ns, device=device)
    return b.build()


def outcome(ops: list[Any], allocator: str, iterations: int, capacity: int | None, issue_ns: int) -> Any:
    """Return the log, the tasks, and every address that was handed out, in order."""
    machine = Machine(
        (
            Device("gpu0", streams=3, issue_ns=issue_ns, memory_bytes=capacity),
            Device("cpu0", "cpu", workers=2, memory_bytes=capacity),
        )
    )
    addresses: list[tuple[str, Any, int]] = []
    kind: Any = ALLOCATORS[allocator]
    try_alloc = kind.try_alloc

    def noted(self: Any, nbytes: int, stream: int = 0, owner: Any = None) -> Any:
        block = try_alloc(self, nbytes, stream, owner)
        addresses.append((self.name, owner, -1 if block is None else block.address))
        return block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "try_alloc", noted)
        try:
            trace = simulate(
                made(ops),
                machine,
                ReadyQueue(synchronisation="issue"),
                streams=GivenStreams([stream if launched else 0 for launched, stream, *_ in ops]),
                iterations=iterations,
                memory=tensor_memory(
                    {name: MemorySpec(allocator) for name in ("gpu0", "cpu0")},
                    lifetime="issue",
                    when_full="wait",
                ),
            )
        except (OutOfMemoryError, StuckError) as error:
            return addresses, str(error)
    assert trace.memory is not None
    return addresses, [[c.tolist() for c in table.values()] for table in (trace.memory, trace.tasks)]


@examples(80)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 120),
    allocator=st.sampled_from(["pool", "bfc", "caching", "caching"]),
    iterations=st.integers(1, 3),
    at_once=st.sampled_from([0, 1, 5, 1000]),
    capacity=st.sampled_from([None, 600 << 20, 300 << 20, 150 << 20]),
    issue_ns=st.sampled_from([2, 15]),
)
def test_done_later_is_done_the_same(
    seed: int, n: int, allocator: str, iterations: int, at_once: int, capacity: int | None, issue_ns: int
) -> None:
    ops = drawn(seed, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("devices.memory.run.tensors.AT_ONCE", at_once)
        later = outcome(ops, allocator, iterations, capacity, issue_ns)
        patch.setattr(Lifetimes, "room", lambda self: None)
        at_once_ = outcome(ops, allocator, iterations, capacity, issue_ns)
    assert later == at_once_
