"""Memory on the kernel: the log of the engine on SimPy where nobody waits for memory, else a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from examples import examples
from hypothesis import event, given
from hypothesis import strategies as st
from test_kernel import job_of, runs

from devices.memory.registry import MemorySpec
from devices.memory.run_memory import TensorMemories, tensor_memory
from devices.memory.tensor_lifetimes import TensorMemory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.errors import InputError, OutOfMemoryError, SimError, StuckError
from sim.job.build_job import make_job
from sim.kernel.run import DEADLOCK, NotOnKernelError, run
from tests.kernel_helpers import KERNELS, same

COUNTED = MemorySpec("counted", options={"asynchronous": True})
SPECS = [
    COUNTED,
    MemorySpec("counted", options={"asynchronous": True, "rounding": 16}),
    MemorySpec("counted"),
    MemorySpec("pool", options={"alignment": 8}),
    MemorySpec("bfc"),
    MemorySpec("planned"),
]


@st.composite
def runs_with_memory(draw: st.DrawFn) -> tuple[dict[str, Any], TensorMemories]:
    """Draw the arguments of `simulate` with memories, of which some suffice."""
    given = draw(runs())
    of = st.none() | st.sampled_from((100, 300, 1000, 10_000))
    devices = [replace(device, memory_bytes=draw(of)) for device in given["machine"].devices]
    given["machine"] = replace(given["machine"], devices=tuple(devices))
    specs = {device.name: draw(st.sampled_from(SPECS)) for device in devices}
    lifetime, when_full = (
        draw(st.sampled_from(words)) for words in (("execution", "issue"), ("error", "wait"))
    )
    return given, tensor_memory(specs, lifetime=lifetime, when_full=when_full)


def agree(given: dict[str, Any], memory: TensorMemories) -> str:
    """Assert that all engines do the same, or that SimPy refused somebody memory; return what happened."""
    job, policy = job_of(given)
    try:
        policy.prepare(job)
    except InputError:
        return "the policy refuses the job"  # and the memory may, too: then it does not matter who is heard
    refused: list[object] = []
    expected: Trace | SimError
    with pytest.MonkeyPatch.context() as patch:
        full = TensorMemory._wait_or_refuse

        def noted(self: TensorMemory, *of: Any) -> int:
            refused.append(of)
            return full(self, *of)

        patch.setattr(TensorMemory, "_wait_or_refuse", noted)
        try:
            expected = simulate(**given, memory=memory, engine="simpy")
        except SimError as error:
            expected = error
    for pure in KERNELS:
        found: Trace | SimError | str
        try:
            found = run(job, policy, memory=memory, pure=pure)
        except SimError as error:
            found = error
        if isinstance(found, SimError):
            assert str(found) == str(expected)
        elif isinstance(found, Trace):
            assert not refused
            assert isinstance(expected, Trace)
            assert expected.memory is not None
            assert found.memory is not None
            same(expected.tasks, found.tasks)
            same(expected.transfers, found.transfers)
            same(expected.memory, found.memory)
        elif found == DEADLOCK:
            assert isinstance(expected, StuckError | OutOfMemoryError)
        elif "runs short" in found:
            assert refused
        else:
            reasons = ("until it is idle", "asked task by task", "a connection carries more", "that steal")
            assert any(reason in found for reason in reasons), found
    return type(found).__name__ if not isinstance(found, str) else found


@given(runs_with_memory())
@examples(150)
def test_the_kernel_takes_and_frees_what_simpy_does(given: tuple[dict[str, Any], TensorMemories]) -> None:
    event(agree(*given))


def gpu(nbytes: int | None = None, **numbers: Any) -> Machine:
    return Machine((Device("gpu0", memory_bytes=nbytes, **numbers),))


def chain(*nbytes: int) -> Graph:
    b = GraphBuilder("chain")
    b.parameter("w", 7)
    for i, size in enumerate(nbytes):
        b.op(f"o{i}", inputs=[f"o{i - 1}"] if i else ["w"], outputs=size, duration_ns=10)
    return b.build()


@pytest.mark.parametrize("pure", KERNELS)
@pytest.mark.parametrize("lifetime", ["issue", "execution"])
def test_a_chain_worked_by_hand(lifetime: str, pure: bool) -> None:
    policy = ReadyQueue(synchronisation="issue")
    given = {"graph": chain(100, 50, 70), "machine": gpu(), "policy": policy}
    found = run(*job_of(given), memory=tensor_memory({"gpu0": COUNTED}, lifetime=lifetime), pure=pure)
    assert isinstance(found, Trace)
    assert found.memory is not None
    rows = list(zip(*(found.memory[c].tolist() for c in ("time_ns", "change", "in_use")), strict=True))
    if lifetime == "issue":
        later = [(0, 100, 107), (0, 50, 157), (0, -100, 57), (0, 70, 127), (0, -50, 77), (0, -70, 7)]
    else:
        later = [
            *[(0, 100, 107), (10, 50, 157), (20, -100, 57)],
            *[(20, 70, 127), (30, -50, 77), (30, -70, 7)],
        ]
    assert rows == [(0, 7, 7), *later]


def test_who_is_in_the_way_is_named() -> None:
    def why(nbytes: int | None = None, **of: Any) -> str:
        memory = tensor_memory({"gpu0": MemorySpec(**of)}, lifetime="issue")
        job = make_job(chain(100, 50), gpu(nbytes))
        found = run(job, ReadyQueue(synchronisation="issue"), memory=memory)
        assert isinstance(found, str)
        return found

    assert why(150, **vars(COUNTED)) == "the memory of gpu0 runs short"
    assert why(150, allocator="pool") == "the memory of gpu0 runs short"
    assert why(allocator="counted") == "the counted allocator of gpu0 may wait until it is idle"
    assert why(allocator="caching") == "the caching allocator of gpu0 knows streams"
    assert why(allocator="pool", malloc_ns=1) == "calls of the allocator of gpu0 cost time"
    own = run(make_job(chain(100), gpu()), ReadyQueue(), memory=lambda job, context: None)
    assert own == "the memory of the run is of your own"


def test_what_does_not_fit_goes_to_simpy() -> None:
    given: dict[str, Any] = {"graph": chain(100, 50), "machine": gpu(150), "policy": ReadyQueue()}
    memory = tensor_memory({"gpu0": COUNTED})
    with pytest.raises(NotOnKernelError, match="the memory of gpu0 runs short"):
        simulate(**given, memory=memory, engine="kernel")
    for engine in ("auto", "simpy"):
        with pytest.raises(OutOfMemoryError, match="out of memory on gpu0"):
            simulate(**given, memory=memory, engine=engine)
    enough = simulate(**{**given, "machine": gpu(157)}, memory=memory, engine="kernel")
    assert enough.engine.startswith("kernel")


@pytest.mark.parametrize("pure", KERNELS)
def test_a_copy_that_nobody_reads_in_the_last_iteration(pure: bool) -> None:
    """`b` reads what `a` made in the iteration before: the copy of the last one is made, and goes at once."""
    b = GraphBuilder("late")
    b.op("a", outputs=10, duration_ns=5, device="gpu0")
    b.op("b", inputs=[("a", 1)], duration_ns=5, device="gpu1")
    link = Link("link", "gpu0", "gpu1", latency_ns=3)
    machine = Machine((Device("gpu0"), Device("gpu1")), (link,), (), make_network)
    policy = ReadyQueue(synchronisation="issue")
    given = {"graph": b.build(), "machine": machine, "policy": policy, "iterations": 2}
    memory = tensor_memory(dict.fromkeys(("gpu0", "gpu1"), COUNTED), lifetime="issue")
    expected = simulate(**given, memory=memory, engine="simpy")  # type: ignore[arg-type]
    found = run(*job_of(given), memory=memory, pure=pure)
    assert isinstance(found, Trace)
    assert expected.memory is not None
    assert found.memory is not None
    same(expected.memory, found.memory)
    there = found.memory["device"] == 1
    assert found.memory["change"][there].sum() == 0
    assert there.sum() == 4
