"""The meaning of a policy's `synchronisation`: which edges count when their producer is issued.

::

    completion    none: every edge counts when its producer has ended (TensorFlow on CPU, TVM)
    issue         those between tasks launched on streams: the device keeps the order
                  (CUDA streams and events, TFRT)

An edge that counts when its producer is issued lets its consumer be issued behind it; an event wait at the
head of the consumer's stream then holds back the start. All other edges count at the end. A CPU worker
executes what it takes, so an edge into or out of its task always counts at the end: the host cannot read
what the device has not computed.

A new synchronisation is a word in `sim.policy.Synchronisation` and a case in `edges_at_issue`.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from sim.base.arrays import UNSET, BoolArray
from sim.base.errors import InfeasibleError, UnknownNameError
from sim.graph.graph import Graph
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.policy import Synchronisation


def launched_nodes(job: Job, flow: Flow) -> BoolArray:
    """Return whether each node is launched on a stream or is a transfer, which behaves as if it were."""
    return np.append(job.launched, np.ones(flow.n_nodes - flow.n_ops, dtype=bool))


def edges_at_issue(synchronisation: str, job: Job, flow: Flow) -> BoolArray | None:
    """Return a mask of the edges that count when their producer is issued; None: none do.

    Raises
    ------
    UnknownNameError
        There is no such synchronisation.
    """
    if synchronisation not in get_args(Synchronisation):
        raise UnknownNameError("synchronisation", synchronisation, get_args(Synchronisation))
    if synchronisation == "completion":
        return None
    launched = launched_nodes(job, flow)  # between launched nodes, events hold back the start
    return launched[flow.producer] & launched[flow.consumer]


# ----------------------------------------------------------------------------------------------------------
# Non-strict ops: they start when the first of their inputs is there.
#
#     fast ▇▇▇──┐
#               ├──► join (strict: false)      starts when fast ends; what slow makes later changes nothing
#     slow ▇▇▇▇▇▇▇▇▇▇
#
# An op with the attribute ``strict: false`` waits for all ops that it follows by control edges, and for one
# of its inputs. Its counter, ``1 + 2 * controls``, goes down by two for each control edge, and any data
# clears the lowest bit. TensorFlow's executor counts a merge like this, and TFRT calls such an op a
# non-strict kernel.
#
# With control flow only the first live input counts, as for a merge; the op is dead if all inputs are, or if
# an op that it follows by a control edge is.
#
# A worker can begin with the data that is there. A stream cannot: an event wait is for one event, and
# several are waited for one after another; so launched ops are strict.


def non_strict_ops(graph: Graph) -> BoolArray:
    """Return a mask of the ops that start with the first of their inputs.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("join")
    >>> for name, inputs in {"fast": [], "slow": []}.items():
    ...     _ = b.op(name, inputs=inputs)
    >>> _ = b.op("join", inputs=["fast", "slow"], attributes={"strict": False})
    >>> non_strict_ops(b.build()).tolist()
    [False, False, True]
    """
    return ~graph.column("strict", True)


def refuse_launched(job: Job, non_strict: BoolArray) -> None:
    """Raise on a non-strict op on a device with streams.

    Raises
    ------
    InfeasibleError
        The message names the op, its device and a way out.
    """
    wrong = np.flatnonzero(non_strict & job.launched)
    if len(wrong):
        op = int(wrong[0])
        raise InfeasibleError(
            f"op {job.graph.op_names[op]!r} has strict: false and is launched on a stream of "
            f"{job.machine.devices[int(job.device_of[op])].name}, and a stream cannot wait for whichever of "
            "several inputs comes first; put it on a device with workers (a CPU), or leave strict out"
        ).about(job.graph.op_names[op], "strict")


def inputs_from_the_start(graph: Graph, flow: Flow, iteration: int) -> BoolArray:
    """Return a mask of the ops that, in one iteration, have an input at time 0 or read nothing at all.

    Parameters and graph inputs are there, unless they have to be transferred; so are inputs from before
    the first iteration.

    Parameters
    ----------
    graph : Graph
    flow : Flow
    iteration : int
    """
    comes = (flow.carries != UNSET) & (flow.distance <= iteration)
    coming = np.bincount(flow.consumer[comes], minlength=flow.n_nodes)[: flow.n_ops]
    reads = graph.inputs.counts()
    return np.asarray((coming < reads) | (reads == 0))


# ----------------------------------------------------------------------------------------------------------
# The parts of a graph: each is run by one executor, with loops of its own.
#
#     cpu0:  enter ─► merge ─► switch ─► send k        part 0: its iteration is over when these have run
#     cpu1:  enter ─► merge ─► recv k ─► op            part 1: its own window of parallel iterations
#
# If Sends and Recvs meet by key, only keys connect devices, and each device has an executor that knows only
# its part of a loop (tensorflow/core/common_runtime/graph_partition.cc gives each device the nodes that
# control the loop; ``PropagatorState`` in propagator_state.h keeps the frames of one executor). Devices
# connected by an edge are one part, and any graph without keys is one part.


def parts(job: Job) -> list[int]:
    """Return the part of each op, counted from 0.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two devices")
    >>> _ = b.op("send", kind="send", duration_ns=0, outputs=8, device="cpu0", attributes={"key": "k"})
    >>> _ = b.op("recv", kind="recv", duration_ns=0, device="cpu1", attributes={"key": "k"})
    >>> machine = Machine(tuple(Device(name, "cpu", workers=1) for name in ("cpu0", "cpu1")))
    >>> parts(make_job(b.build(), machine))
    [0, 1]
    """
    graph = job.graph
    if not rendezvous_keys(graph).recvs:
        return [0] * len(graph)
    part = np.arange(len(job.machine.devices))
    between = job.device_of[np.array([graph.edges.producer, graph.edges.consumer])]
    for a, b in np.unique(between, axis=1).T.tolist():
        part[part == part[b]] = part[a]
    _, number = np.unique(part[job.device_of], return_inverse=True)
    numbers: list[int] = number.tolist()
    return numbers
