"""The Sends and Recvs of a graph that meet by key, and the bytes that then travel between devices.

::

    cpu0:  a ──► send   key: cpu0;gpu0;a          no edge leads from the Send to the Recv:
    gpu0:               recv ──► b                they meet at run time (`sim.readiness.rendezvous`)

A Send is an op of kind ``send``, a Recv one of kind ``recv``, and both name a ``key`` in their attributes.
A Recv that reads its Send is already matched: that edge is like any other and is of no interest here.

Source: tensorflow/core/framework/rendezvous.h and tensorflow/core/kernels/sendrecv_ops.cc.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from sim.base.arrays import IntArray, group_pairs
from sim.base.errors import nearest
from sim.graph.graph import Graph
from sim.graph.walks import Edges, least_index_first


class RendezvousKeys(NamedTuple):
    """Sends and Recvs that meet by key.

    Attributes
    ----------
    sends, recvs : dict of int to str
        Op → key, in graph order.
    """

    sends: dict[int, str]
    recvs: dict[int, str]

    @property
    def unsure(self) -> frozenset[int]:
        """The Sends whose key has fewer Recvs than Sends: some of their tensors never travel."""
        sent, received = Counter(self.sends.values()), Counter(self.recvs.values())
        return frozenset(op for op, key in self.sends.items() if sent[key] > received[key])

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(Send, Recv) pairs that meet if both run in graph order: the n-th ones of a key."""
        sends = group_pairs((key, op) for op, key in reversed(self.sends.items()))
        return [(sends[key].pop(), op) for op, key in self.recvs.items() if sends[key]]


NOBODY = RendezvousKeys({}, {})


def rendezvous_keys(graph: Graph) -> RendezvousKeys:
    """Return the Sends and Recvs of `graph` that meet by key.

    A Send whose key no Recv names is left out: it never blocks and has no effect.

    Raises
    ------
    GraphError
        A Recv has a key that no Send has; a key is not a text; or an op other than its Recv reads the output
        of a Send.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two devices")
    >>> _ = b.op("a"), b.op("send", kind="send", inputs=["a"], attributes={"key": "a to gpu0"})
    >>> _ = b.op("recv", kind="recv", attributes={"key": "a to gpu0"})
    >>> rendezvous_keys(b.build())
    RendezvousKeys(sends={1: 'a to gpu0'}, recvs={2: 'a to gpu0'})
    """
    if "recv" not in graph.kinds:
        return NOBODY
    sends, recvs = _with_key(graph, "send"), _with_key(graph, "recv")
    for op in list(recvs):
        for producer in graph.tensor_producer[graph.inputs.row(op)].tolist():
            if sends.get(producer) == recvs.get(op):
                del sends[producer], recvs[op]
    requested = frozenset(recvs.values())
    offered = frozenset(sends.values())
    for op, key in recvs.items():
        if key not in offered:
            close = nearest(key, offered)
            suggestion = f"; did you mean {close!r}?" if close else ""
            raise graph.fault(op, f"has the key {key!r}, and no send has it{suggestion}", "key")
    sends = {op: key for op, key in sends.items() if key in requested}
    producer, reader = graph.tensor_producer[graph.inputs.indices], graph.inputs.rows()
    for k in np.flatnonzero(np.isin(producer, list(sends))).tolist():
        send = int(producer[k])
        raise graph.fault(
            int(reader[k]),
            f"reads send {graph.op_names[send]!r}, which gives what it sends to the recv with key "
            f"{sends[send]!r}; let it read what the send reads, or that recv",
        )
    return RendezvousKeys(sends, recvs)


def program_edges(graph: Graph) -> Edges:
    """Return the edges of `graph`, plus one from each Send to the Recv that it meets by key.

    A program in this order has no Recv before its Send, where it would wait for ever. If the extra edges
    would close a cycle, they are left out.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two devices")
    >>> _ = b.op("recv", kind="recv", attributes={"key": "a"}), b.op("b", inputs=["recv"])
    >>> _ = b.op("a"), b.op("send", kind="send", inputs=["a"], attributes={"key": "a"})
    >>> list(zip(*(column.tolist() for column in program_edges(b.build())[:2])))
    [(0, 1), (2, 3), (3, 0)]
    """
    pairs = rendezvous_keys(graph).pairs
    if not pairs:
        return graph.edges
    send, recv = np.array(pairs).T
    zero = np.zeros_like(send)
    more = zip(graph.edges, (send, recv, zero, zero - 1), strict=True)
    edges = Edges(*(np.concatenate(columns) for columns in more))
    return graph.edges if least_index_first(edges, len(graph)) is None else edges


def program_order(graph: Graph) -> IntArray:
    """Return the topological order by `program_edges`: among the free ops, the least index first."""
    edges = program_edges(graph)
    order = None if edges is graph.edges else least_index_first(edges, len(graph))
    return graph.topological_order if order is None else order


def sent_nbytes(graph: Graph, send: int) -> int:
    """Return the bytes that a Send sends: the size of its output or, if that is 0, of its input."""
    size = int(graph.tensor_nbytes[graph.outputs.row(send)[0]])
    inputs = graph.inputs.row(send)
    return size or (int(graph.tensor_nbytes[inputs[0]]) if len(inputs) else 0)


def _with_key(graph: Graph, kind: str) -> dict[int, str]:
    return {op: key for op, key in graph.attribute("key").items() if graph.kind(op) == kind}
