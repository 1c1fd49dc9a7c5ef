"""Small training steps, and when their ops run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from runs import checked

from devices.cost.cost_models import FixedCost
from policies.issue.program_order import InOrder
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import OpEntry, read
from policies.streams import Recorded
from sim import Device, Graph, GraphBuilder, Machine, Trace
from sim.machine.communicators import Call

NS_A_BYTE = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


class PerByte:
    """Collectives that take a fixed time for each byte."""

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the time."""
        return NS_A_BYTE.get(call.kind, 1) * call.nbytes


def layers(weights: Sequence[int], ns: int | Sequence[int] = 100, optimizer: str = "sgd") -> Graph:
    """Return a training step of a stack of products; their forward takes `ns`, as does each gradient."""
    b = GraphBuilder("layers")
    b.input("x", 40)
    before = "x"
    for k, nbytes in enumerate(weights):
        took = ns if isinstance(ns, int) else ns[k]
        b.parameter(f"w{k}", nbytes)
        facts = {"duration_ns": took, "dtype": "fp32", "flops": 100}
        before = b.op(f"l{k}", kind="matmul", inputs=[before, f"w{k}"], outputs=40, **facts)
    return TrainingRewrite(optimizer=optimizer).apply(b.build())


def run(graph: Graph, ranks: int, streams: int = 8, engine: str = "simpy", **more: int) -> Trace:
    """Run on GPUs on which a copy in takes 2 ns, a copy out 3, and an update 1."""
    cost = FixedCost(1, {"copy_in": 2, "copy_out": 3, "concat": 3})
    devices = tuple(Device(f"gpu{r}", streams=streams, cost=cost, **more) for r in range(ranks))
    machine = Machine(devices, collectives=PerByte())
    policy = InOrder(synchronisation="issue")
    return checked(graph, machine, policy, streams=Recorded(), engine=engine)


def by_stream(trace: Trace, rank: str = "gpu0") -> dict[str, list[tuple[int, int, str]]]:
    """Return of each stream of a rank what starts and ends on it, by name."""
    graph, found = trace.job.graph, defaultdict(list)
    for op, start, end in zip(*(trace.tasks[k].tolist() for k in ("op", "start_ns", "end_ns")), strict=True):
        device, _, name = graph.op_names[op].partition("/")
        if device == rank:
            found[str(graph.attributes[op]["stream"])].append((start, end, name))
    return dict(found)


def of_rank(graph: Graph, rank: str = "gpu0") -> dict[str, OpEntry]:
    """Return the ops of a rank by their names there."""
    ops = read(graph).ops.values()
    return {each.name.removeprefix(f"{rank}/"): each for each in ops if each.device == rank}
