"""Non-strict ops: those that start when the first of their inputs is there.

::

    fast ▇▇▇──┐
              ├──► join (strict: false)      starts when fast ends; what slow makes later changes nothing
    slow ▇▇▇▇▇▇▇▇▇▇

An op with the attribute ``strict: false`` waits for all that it follows by control edges, and for one
of its inputs. Its ``1 + 2 * controls`` count down by two for each control edge, and data clears the
lowest bit, as often as it comes: how TensorFlow's executor counts a merge, and what TFRT calls a
non-strict kernel.

With control flow it is the first live input that counts, as for a merge; when all are dead, or something that
it follows by a control edge is, so is the op.

A worker can begin with what is there. A stream cannot: an event wait is for one event, and several
are waited for one after another; so launched ops are strict.
"""

from __future__ import annotations

import numpy as np

from sim.graph.graph import Graph
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.words.arrays import UNSET, BoolArray
from sim.words.errors import InfeasibleError

__all__ = ["inputs_from_the_start", "non_strict_ops", "refuse_launched"]


def non_strict_ops(graph: Graph) -> BoolArray:
    """Return which ops start with the first of their inputs.

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
    which = np.zeros(len(graph), dtype=bool)
    which[[op for op, strict in graph.attribute("strict").items() if not strict]] = True
    return which


def refuse_launched(job: Job, non_strict: BoolArray) -> None:
    """Refuse a non-strict op on a device with streams.

    Raises
    ------
    InfeasibleError
        Naming the op, its device and the way out.
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
    """Return which ops have an input that is there at time 0, in one iteration, or read nothing at all.

    Parameters and graph inputs are there, unless they have to be transferred; so is what would come
    from before the first iteration.

    Parameters
    ----------
    graph : Graph
    flow : Flow
    iteration : int
    """
    comes = (flow.carries != UNSET) & (flow.distance <= iteration)
    coming = np.bincount(flow.consumer[comes], minlength=flow.n_nodes)[: flow.n_ops]
    reads = graph.inputs.counts()
    there: BoolArray = (coming < reads) | (reads == 0)
    return there
