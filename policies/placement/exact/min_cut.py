"""Two devices, the least total of computing and copying: a minimum cut.

::

           cost on B        cost on A
    A ════════════════► op ════════════════► B       cut the first: op is with B, and costs that;
                         │ travel A → B              cut the second: it is with A
                         ▼
                        op2                          cut this one: op is with A, op2 with B

Stone 1977, "Multiprocessor scheduling with the aid of network flow algorithms", IEEE TSE 3(1): a cut
between the two devices is a placement and its value is the placement's total time. It is optimal
when one op runs at a time, and knows nothing of running ops side by side.

A tensor that several ops read crosses once. It gets a node of its own behind its producer, from
which edges that cannot be cut lead to the readers, and one of that sort for the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.exact.max_flow import FlowNetwork
from policies.placement.problem import NEVER, Problem
from sim import Graph, Machine
from sim.job.job import Placement
from sim.job.tensor_places import input_devices
from sim.words.arrays import IntArray
from sim.words.errors import InfeasibleError, InputError

__all__ = ["MinCut"]


class MinCut(Placement):
    """The placement on two devices with the least sum of costs and travel times.

    Parameters
    ----------
    devices : sequence of two str, optional
        Names of the devices; by default the machine has to have exactly two.

    Raises
    ------
    InputError
        Not two names.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Link
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("c is worth the way, a and b are not")
    >>> for name, inputs, cpu, gpu in (("a", [], 1, 3), ("b", ["a"], 1, 3), ("c", ["b"], 99, 1)):
    ...     _ = b.op(name, inputs=inputs, outputs=5, duration_by_kind={"cpu": cpu, "gpu": gpu})
    >>> _ = b.op("in", device="cpu"), b.op("first", inputs=["in", "b"], duration_ns=1, device="cpu")
    >>> links = (Link("up", "cpu0", "gpu0", 0, 10**9), Link("down", "gpu0", "cpu0", 0, 10**9))
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")), links)
    >>> make_job(b.build(), machine, placement=MinCut()).device_of.tolist()
    [0, 0, 1, 0, 0]
    """

    def __init__(self, devices: Sequence[str] | None = None) -> None:
        if devices is not None and (isinstance(devices, str) or len(set(devices)) != 2):
            message = f"min-cut: devices must be the names of two devices, found {devices!r}"
            raise InputError(message, path=("devices",))
        self.devices = None if devices is None else tuple(devices)

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        InputError
            The machine has another number of devices than two, and none were named.
        InfeasibleError
            An op that neither device can run, or that no link lets be where it must.
        """
        names = self.devices or tuple(device.name for device in machine.devices)
        if len(names) != 2:
            raise InputError(
                f"min-cut places on two devices and the machine has {len(names)}; name two with devices: "
                f"(known: {', '.join(names)})"
            )
        a, b = (machine.device_index(name) for name in names)
        problem = Problem(graph, machine, cost_ns)
        value, with_a = _network(problem, a, b).min_cut(_A, _B)
        if value >= NEVER:
            raise InfeasibleError(
                f"not every op can run on {names[0]} or {names[1]} (or no link leads there); "
                "place with heft or device-kind to use other devices"
            )
        return [a if with_a[2 + group] else b for group in problem.group_of]


_A, _B = 0, 1


def _network(problem: Problem, a: int, b: int) -> FlowNetwork:
    """Return the network of which every cut between nodes 0 (device `a`) and 1 (`b`) is a placement."""
    graph = problem.graph
    net = FlowNetwork(2 + problem.n)
    for op in range(problem.n):
        here, node = problem.devices_of[op], 2 + problem.group_of[op]
        net.edge(_A, node, problem.cost_ns[op][b] if b in here else NEVER)
        net.edge(node, _B, problem.cost_ns[op][a] if a in here else NEVER)
    consumers, producer = graph.consumers.lists(), graph.tensor_producer.tolist()
    home = input_devices(graph, problem.machine).tolist()
    for tensor, nbytes in enumerate(graph.tensor_nbytes.tolist()):
        readers = sorted({2 + problem.group_of[op] for op in consumers[tensor]})
        if producer[tensor] >= 0:
            made = 2 + problem.group_of[producer[tensor]]
            there, back = problem.travel_ns(a, b, nbytes), problem.travel_ns(b, a, nbytes)
            _cross(net, made, made, [node for node in readers if node != made], there, back)
        elif home[tensor] >= 0:
            from_home = [problem.travel_ns(home[tensor], device, nbytes) for device in (b, a)]
            _cross(net, _A, _B, readers, *from_home)
    return net


def _cross(net: FlowNetwork, from_a: int, from_b: int, readers: list[int], to_b: int, to_a: int) -> None:
    """Charge `to_b` once if `from_a` is with A and any reader with B, and `to_a` the other way round."""
    if not readers:
        return
    if len(readers) == 1 and from_a == from_b:
        net.edge(from_a, readers[0], to_b, to_a)
        return
    if to_b:
        node = net.node()
        net.edge(from_a, node, to_b)
        for reader in readers:
            net.edge(node, reader, NEVER)
    if to_a:
        node = net.node()
        net.edge(node, from_b, to_a)
        for reader in readers:
            net.edge(reader, node, NEVER)
