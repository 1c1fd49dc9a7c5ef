"""Views: tensors without bytes of their own.

A reshape, a slice, a dropout at inference gives its reader other names for bytes that are there already.
Its op carries the attribute ``view_of: k``: output 0 shares the storage of input k::

    a ──100 B──► reshape (view_of: 0) ──100 B──► b        100 bytes in all, from a's start to b's end

A Send with a key (`sim.graph.rendezvous_keys`) offers its input and no copy of it, so its output is a view,
too, if that input has a size. A view of an earlier iteration's tensor is a copy here: storage is followed
within one iteration.

Source of the Send's rule: ``SendOp::Compute`` in tensorflow/core/kernels/sendrecv_ops.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray
from sim.base.errors import GraphError
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph

_VIEWS = """reshape flatten squeeze unsqueeze identity stop_gradient dropout read_variable
    switch merge enter exit next_iteration loop_cond"""
VIEWS: Final = tuple(_VIEWS.split())
"""Kinds whose first output is their data input under another description: no work, no byte moved."""

_WITHOUT_DATA = "shape size rank const no_op placeholder control_trigger arg retval send recv"
WITHOUT_DATA: Final = tuple(_WITHOUT_DATA.split())
"""Kinds that look at no data."""

FREE: Final = (*VIEWS, *WITHOUT_DATA, "source", "sink", "barrier", "synchronise")
"""Kinds that do no work by their nature: without a duration they take no time."""


def reads_from(graph: Graph, *kinds: str) -> BoolArray:
    """Return which ops read what an op of one of some kinds wrote, be it as another view."""
    wrote, views = graph.is_kind(*kinds), graph.is_kind(*VIEWS)
    producer, consumer = graph.tensor_producer[graph.inputs.indices], graph.inputs.rows()
    while True:
        found = np.zeros(len(graph), np.bool_)
        found[consumer[(producer != UNSET) & wrote[producer]]] = True
        if not (views & found & ~wrote).any():
            return found
        wrote = wrote | (views & found)


def storage_of(graph: Graph) -> IntArray:
    """Return, per tensor, the tensor whose storage it directly shares; -1: it has its own.

    Raises
    ------
    GraphError
        A ``view_of`` that is not the number of an input.

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
            raise GraphError(
                f"op {graph.op_names[op]!r}: view_of should be the number of one of its "
                f"{len(row)} inputs, counted from 0; found {k!r}"
            ).about(graph.op_names[op], "view_of")
        if not graph.input_distance[graph.inputs.indptr[op] + k]:
            shared[graph.first_output[op]] = row[k]
    return shared


# ----------------------------------------------------------------------------------------------------------
# Which outputs are no tensors of their own under control flow, but an input passed on.
#
#     x ──► switch ──true──► f         what f reads is x itself, which stays until f has read it
#
# A switch, enter, exit, next_iteration and loop_cond pass on their first input, a merge whichever comes
# first, by reference and not as a copy (TensorFlow: ``tensorflow/core/kernels/control_flow_ops.cc``, where
# each sets an input as its output). What else a merge gives, the number of that input, is an output like any
# other. So what is passed on weighs as much as what it is (`forwarded_nbytes`), unless the graph says
# something else.

ANY: Final = -2
"""In place of an input: whichever comes first."""


def forwarding(graph: Graph) -> BoolArray:
    """Return which tensors are passed on by a switch, merge, enter, exit, next_iteration or loop_cond.

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
    for kind in CONTROL_FLOW_KINDS & set(graph.kinds):
        for op in np.flatnonzero(graph.is_kind(kind)).tolist():
            outputs = graph.outputs.row(op)
            passed_on[outputs if kind == "switch" else outputs[:1]] = True
    return passed_on


def forwarded_inputs(graph: Graph) -> Mapping[int, tuple[int, list[int]]]:
    """Return op → the tensor that it passes on (or `ANY` that it reads), and the outputs that are it.

    Views (`sim.graph.views`) do so, too.
    """
    own = forwarding(graph)
    shared = storage_of(graph)
    found: dict[int, tuple[int, list[int]]] = {}
    for tensor in np.flatnonzero(own | (shared != UNSET)).tolist():
        op = int(graph.tensor_producer[tensor])
        first = ANY if graph.kind(op) == "merge" else int(graph.inputs.row(op)[0])
        passed_on = first if own[tensor] else int(shared[tensor])
        found.setdefault(op, (passed_on, []))[1].append(tensor - int(graph.first_output[op]))
    return found


def forwarded_nbytes(
    nbytes: IntArray, kinds: Sequence[str], kind_code: IntArray, inputs: Csr, outputs: Csr
) -> IntArray:
    """Return the sizes of tensors, where those of 0 bytes that are passed on weigh what they may be at most.

    Parameters
    ----------
    nbytes : ndarray of int
        Bytes of each tensor.
    kinds : sequence of str
    kind_code : ndarray of int
        Of each op, which of `kinds` it is.
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
    becomes: dict[int, list[int]] = {}
    for op in np.flatnonzero(np.isin(kind_code, control)).tolist():
        kind, given, made = kinds[kind_code[op]], inputs.row(op), outputs.row(op)
        for tensor in (made if kind == "switch" else made[:1]).tolist():
            for source in (given if kind == "merge" else given[:1]).tolist() if not nbytes[tensor] else ():
                becomes.setdefault(source, []).append(tensor)
    found = nbytes.copy()
    waiting = sorted(becomes, key=found.__getitem__)  # from the largest on, each tensor grows once
    while waiting:
        source = waiting.pop()
        for tensor in becomes.get(source, ()):
            if found[tensor] < found[source]:
                found[tensor] = found[source]
                waiting.append(tensor)
    return found
