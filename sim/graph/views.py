"""Views: tensors without bytes of their own.

A reshape, a slice or a dropout at inference gives its reader another name for existing bytes. Its op carries
the attribute ``view_of: k``: output 0 shares the storage of input k::

    a ──100 B──► reshape (view_of: 0) ──100 B──► b        100 bytes in all, from a's start to b's end

A Send with a key (`sim.graph.rendezvous_keys`) offers its input without copying it, so its output is a view
too, if that input has a size. A view of an earlier iteration's tensor counts as a copy: storage is followed
only within one iteration.

Source for Sends: ``SendOp::Compute`` in tensorflow/core/kernels/sendrecv_ops.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph

_VIEWS = """reshape flatten squeeze unsqueeze identity stop_gradient dropout read_variable
    switch merge enter exit next_iteration loop_cond"""
VIEWS: Final = tuple(_VIEWS.split())
"""Kinds whose first output is their data input under another description: no work, no bytes moved."""

_WITHOUT_DATA = "shape size rank const no_op placeholder control_trigger arg retval send recv"
WITHOUT_DATA: Final = tuple(_WITHOUT_DATA.split())
"""Kinds that read no data."""

FREE: Final = (*VIEWS, *WITHOUT_DATA, "source", "sink", "barrier", "synchronise")
"""Kinds that by nature do no work: without a given duration they take no time."""


def launches_nothing(graph: Graph, ns: IntArray) -> BoolArray:
    """Return a mask of the ops that launch no kernel if they take `ns`, and so leave no gap on a stream.

    These are views and other kinds that do no work (`FREE`) where they take no time. Any other op is a kernel
    or a copy, even one of no time, and so is a collective.
    """
    nothing: BoolArray = graph.is_kind(*FREE) & (ns == 0)
    nothing[[*graph.attribute("communicator")]] = False
    return nothing


def reads_from(graph: Graph, *kinds: str) -> BoolArray:
    """Return a mask of the ops that read the output of an op of these kinds, directly or through views."""
    writers, views = graph.is_kind(*kinds), graph.is_kind(*VIEWS)
    producer, consumer = graph.tensor_producer[graph.inputs.indices], graph.inputs.rows()
    while True:
        readers = np.zeros(len(graph), np.bool_)
        readers[consumer[(producer != UNSET) & writers[producer]]] = True
        if not (views & readers & ~writers).any():
            return readers
        writers = writers | (views & readers)


def storage_of(graph: Graph) -> IntArray:
    """Return, per tensor, the tensor whose storage it directly shares; -1: none, it has its own.

    Raises
    ------
    GraphError
        A ``view_of`` is not the number of an input.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("view")
    >>> _ = b.op("a", outputs=100)
    >>> _ = b.op("flat", inputs=["a"], outputs=100, attributes={"view_of": 0})
    >>> storage_of(b.build()).tolist()
    [-1, 0]
    """
    shared = np.full(graph.n_tensors, UNSET)
    for op in np.flatnonzero(graph.is_kind("send")).tolist():
        row, first = graph.inputs.row(op), graph.inputs.indptr[op]
        keyed = "key" in graph.attributes.get(op, {}) and len(row) > 0
        if keyed and graph.tensor_nbytes[row[0]] and not graph.input_distance[first]:
            shared[graph.first_output[op]] = row[0]
    for op, k in graph.attribute("view_of").items():
        row = graph.inputs.row(op)
        if not 0 <= k < len(row):
            accepted = f"the number of one of its {len(row)} inputs, counted from 0"
            raise graph.fault(op, f"has view_of {k!r}, which should be {accepted}", "view_of")
        if not graph.input_distance[graph.inputs.indptr[op] + k]:
            shared[graph.first_output[op]] = row[k]
    return shared


# ----------------------------------------------------------------------------------------------------------
# Outputs that, under control flow, are not tensors of their own but an input passed on.
#
#     x ──► switch ──true──► f         f reads x itself, which stays until f has read it
#
# A switch, enter, exit, next_iteration and loop_cond pass on their first input, and a merge the first one to
# arrive, by reference and not as a copy (TensorFlow: ``tensorflow/core/kernels/control_flow_ops.cc``, where
# each sets an input as its output). The other output of a merge, the index of that input, is an ordinary
# output. So a tensor passed on has the size of the original (`forwarded_nbytes`), unless the graph says
# otherwise.

ANY: Final = -2
"""Stands for an input: whichever arrives first."""


def forwarding(graph: Graph) -> BoolArray:
    """Return a mask of the tensors passed on by a switch, merge, enter, exit, next_iteration or loop_cond.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("switch")
    >>> _ = b.op("x", outputs=100), b.op("p", attributes={"outcome": True})
    >>> _ = b.op("switch", kind="switch", inputs=["x", "p"], outputs=(0, 0))
    >>> forwarding(b.build()).tolist()
    [False, False, True, True]
    """
    passed_on = np.zeros(graph.n_tensors, dtype=bool)
    for op in np.flatnonzero(graph.is_kind(*CONTROL_FLOW_KINDS)).tolist():
        outputs = graph.outputs.row(op)
        passed_on[outputs if graph.kind(op) == "switch" else outputs[:1]] = True
    return passed_on


def forwarded_inputs(graph: Graph) -> Mapping[int, tuple[int, list[int]]]:
    """Return op → the tensor that it passes on (`ANY`: any of its inputs) and the outputs that alias it.

    Views (`sim.graph.views`) are included.
    """
    is_forwarded = forwarding(graph)
    shared = storage_of(graph)
    forwarded: dict[int, tuple[int, list[int]]] = {}
    for tensor in np.flatnonzero(is_forwarded | (shared != UNSET)).tolist():
        op = int(graph.tensor_producer[tensor])
        first = ANY if graph.kind(op) == "merge" else int(graph.inputs.row(op)[0])
        passed_on = first if is_forwarded[tensor] else int(shared[tensor])
        forwarded.setdefault(op, (passed_on, []))[1].append(tensor - int(graph.first_output[op]))
    return forwarded


def forwarded_nbytes(
    nbytes: IntArray, kinds: Sequence[str], kind_code: IntArray, inputs: Csr, outputs: Csr
) -> IntArray:
    """Return the sizes of tensors, giving those of 0 bytes that are passed on their largest possible size.

    Parameters
    ----------
    nbytes : ndarray of int
        Bytes of each tensor.
    kinds : sequence of str
    kind_code : ndarray of int
        Index in `kinds` of each op's kind.
    inputs, outputs : Csr
        Op → tensors.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("switch")
    >>> _ = b.op("x", outputs=100), b.op("p", outputs=1, attributes={"outcome": True})
    >>> _ = b.op("switch", kind="switch", inputs=["x", "p"], outputs=(0, 0))
    >>> b.build().tensor_nbytes.tolist()
    [100, 1, 100, 100]
    """
    control = [code for code, kind in enumerate(kinds) if kind in CONTROL_FLOW_KINDS]
    if not control:
        return nbytes
    pairs: list[tuple[int, int]] = []  # a tensor, and one that it becomes
    for op in np.flatnonzero(np.isin(kind_code, control)).tolist():
        kind, read, written = kinds[kind_code[op]], inputs.row(op), outputs.row(op)
        for tensor in (written if kind == "switch" else written[:1]).tolist():
            if not nbytes[tensor]:
                pairs += [(source, tensor) for source in (read if kind == "merge" else read[:1]).tolist()]
    source, becomes = np.array(pairs, np.int64).reshape(-1, 2).T
    sizes = nbytes.copy()
    while (sizes[becomes] < sizes[source]).any():
        np.maximum.at(sizes, becomes, sizes[source])
    return sizes
