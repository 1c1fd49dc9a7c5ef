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

import numpy as np

from sim.graph.graph import Graph
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import GraphError

__all__ = ["storage_of"]


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
