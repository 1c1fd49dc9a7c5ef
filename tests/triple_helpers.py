"""Random (graph, machine, policy) triples, drawn by hypothesis, so that a failing one shrinks.

What is drawn, and what goes with it::

    graph      data and control edges, several outputs, edges into later iterations, inputs, kinds, pins
    machine    1 to 3 CPUs and GPUs, overheads, launch queues, cores; no links, a mesh or a ring of them
    policy     every issue policy under either synchronisation, with a placement, streams, a program order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from devices.cores import CorePool
from devices.network import make_network
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.linearize import (
    CriticalPathFirst,
    DepthFirst,
    MemoryAware,
    Priority,
    ReverseDepthFirst,
    Topological,
)
from policies.placement.list_schedule import Cpop, Greedy, Heft, Peft
from policies.placement.simple import DeviceKind
from policies.placement.simple import RoundRobinPlacement as DevicesInTurn
from policies.placement.simple import SinglePlacement as OneDevice
from policies.streams import PerBranch, PerKind
from policies.streams import RoundRobinStreams as StreamsInTurn
from policies.streams import SingleStream as OneStream
from sim import Device, Graph, GraphBuilder, Host, Link, Machine, Policy, Trace, simulate
from sim.job.places import PinnedPlacement

PLACEMENTS: list[Callable[[], Any]] = [
    *[PinnedPlacement, DevicesInTurn, OneDevice, DeviceKind, Greedy, Heft, Cpop, Peft],
    lambda: DeviceKind(["cpu"], soft=True),
]
STREAMS: list[Callable[[], Any]] = [
    *[OneStream, StreamsInTurn, PerBranch, PerKind, Heft],
    lambda: PerBranch("next"),
]
LINEARIZERS: list[Callable[[], Any]] = [
    *[Topological, DepthFirst, ReverseDepthFirst, CriticalPathFirst, Priority, MemoryAware, Heft],
    lambda: Topological("fifo"),
]
SYNCHRONISATIONS = st.sampled_from(("completion", "issue"))


class Op(NamedTuple):
    """One op, its producers by number."""

    kind: str
    duration_ns: int
    outputs: tuple[int, ...]
    inputs: tuple[tuple[int, int], ...]  # (op, output)
    after: tuple[int, ...]
    from_before: tuple[tuple[int, int], ...]  # (op, distance)
    reads_x: bool
    pin: str | None
    colocate: str | None


class Run(NamedTuple):
    """Everything that a run is made of; `trace` makes it."""

    ops: tuple[Op, ...]
    x_lies_on: str | None
    machine: Machine
    policy: Policy
    placement: Any
    streams: Any
    linearize: Any
    iterations: int

    def graph(self, numbering: Sequence[int] | None = None) -> Graph:
        """Return the graph, its ops added in the order of `numbering`."""
        b = GraphBuilder("drawn")
        b.input("x", 30, device=self.x_lies_on)
        b.parameter("w", 100)
        for i in range(len(self.ops)) if numbering is None else numbering:
            op = self.ops[i]
            inputs: list[str | tuple[str, int]] = [f"o{p}:{k}" if k else f"o{p}" for p, k in op.inputs]
            inputs += [(f"o{p}", distance) for p, distance in op.from_before]
            b.op(
                f"o{i}",
                kind=op.kind,
                inputs=[*inputs, *(["x", "w"] if op.reads_x else [])],
                after=[f"o{p}" for p in op.after],
                outputs=op.outputs,
                duration_ns=op.duration_ns,
                device=op.pin,
                attributes={"colocate": op.colocate} if op.colocate else None,
            )
        return b.build()

    def trace(self, numbering: Sequence[int] | None = None, **options: Any) -> Trace:
        """Run it; `options` are more of `simulate`."""
        return simulate(
            self.graph(numbering),
            self.machine,
            self.policy,
            placement=self.placement,
            streams=self.streams,
            linearize=self.linearize,
            iterations=self.iterations,
            **options,
        )


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Draw one to three devices, their overheads, their hosts and the links between them."""
    n = draw(st.integers(1, 3))
    overheads = draw(st.booleans())
    small = st.integers(0, 6) if overheads else st.just(0)
    devices = []
    for d in range(n):
        issue = {"issue_ns": draw(small), "issue_ns_by_kind": {"copy": draw(small)}}
        if draw(st.integers(0, 2)) == 0:
            cores = draw(st.integers(1, 4))
            limited = {"cores": cores, "cores_per_op": draw(st.integers(1, cores)), "processor": CorePool}
            some = limited if draw(st.booleans()) else {}
            devices.append(Device(f"d{d}", "cpu", workers=draw(st.integers(1, 3)), **issue, **some))
        else:
            devices.append(
                Device(
                    f"d{d}",
                    "gpu",
                    streams=draw(st.integers(1, 3)),
                    launch_latency_ns=draw(small),
                    gap_ns=draw(small),
                    event_ns=draw(small),
                    queue_depth=draw(st.sampled_from((None, 1, 2, 5))) if overheads else None,
                    **issue,
                )
            )
    shape = draw(st.sampled_from(("none", "mesh", "ring")))
    links = []
    for a in range(n):
        for b in range(n) if shape == "mesh" else [(a + 1) % n] if shape == "ring" else []:
            if a != b:
                rate = draw(st.sampled_from((None, 10**9, 3 * 10**9)))
                sharing = draw(st.sampled_from(("serial", "shared")))
                links.append(Link(f"d{a}-d{b}", f"d{a}", f"d{b}", draw(st.integers(0, 9)), rate, sharing))
    launched = tuple(device.name for device in devices if not device.workers)
    hosts = []
    if len(launched) > 1 and draw(st.booleans()):
        hosts.append(Host("host", launched, draw(st.integers(1, 2))))
    return Machine(tuple(devices), tuple(links), tuple(hosts), make_network if links else None)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Draw an issue policy."""
    which, synchronisation = draw(st.integers(0, 5)), draw(SYNCHRONISATIONS)
    if which == 0:
        return InOrder(per=draw(st.sampled_from(("group", "machine"))), synchronisation=synchronisation)
    if which == 1:
        return InOrder(in_flight=draw(st.integers(1, 3)), per=draw(st.sampled_from(("group", "machine"))))
    if which == 2:
        return OutOfOrder(draw(st.sampled_from((1, 2, 3, 4, None))), synchronisation)
    if which == 3:
        return CriticalPath(synchronisation)
    return ReadyQueue("fifo" if which == 4 else "lifo", synchronisation)


@st.composite
def ops(draw: st.DrawFn, machine: Machine, across: bool, longest_ns: int = 20) -> tuple[Op, ...]:
    """Draw the ops of a graph, which may run on every device or are pinned to one."""
    made: list[Op] = []
    for i in range(draw(st.integers(1, 9))):
        before = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        control = draw(st.integers(0, len(before)))
        made.append(
            Op(
                kind=draw(st.sampled_from(("matmul", "copy", "shape"))),
                duration_ns=draw(st.integers(0, longest_ns)),
                outputs=tuple(draw(st.lists(st.integers(0, 25), min_size=1, max_size=2))),
                inputs=tuple((p, draw(st.integers(0, len(made[p].outputs) - 1))) for p in before[control:]),
                after=tuple(before[:control]),
                from_before=(),
                reads_x=draw(st.integers(0, 4)) == 0,
                pin=draw(st.sampled_from((None, None, None, *(d.name for d in machine.devices)))),
                colocate=None,
            )
        )
    if across:  # an edge into a later iteration may come from any op, also from a later one or itself
        for i, op in enumerate(made):
            if draw(st.integers(0, 3)) == 0:
                edge = (draw(st.integers(0, len(made) - 1)), draw(st.integers(1, 2)))
                made[i] = op._replace(from_before=(edge,))
    free = [i for i, op in enumerate(made) if op.pin is None]
    if len(free) > 1 and draw(st.integers(0, 3)) == 0:
        for i in draw(st.sets(st.sampled_from(free), min_size=2, max_size=3)):
            made[i] = made[i]._replace(colocate="together")
    return tuple(made)


@st.composite
def runs(draw: st.DrawFn, longest_ns: int = 20) -> Run:
    """Draw everything."""
    machine = draw(machines())
    iterations = draw(st.integers(1, 3))
    return Run(
        ops=draw(ops(machine, iterations > 1, longest_ns)),
        x_lies_on=draw(st.sampled_from((None, "d0"))),
        machine=machine,
        policy=draw(policies()),
        placement=draw(st.sampled_from(PLACEMENTS))(),
        streams=draw(st.sampled_from(STREAMS))(),
        linearize=draw(st.sampled_from(LINEARIZERS))(),
        iterations=iterations,
    )
