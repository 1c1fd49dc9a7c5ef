"""Which allocations and frees follow from many takings and endings, worked out at once.

Where nobody waits for an answer, what happens to memory may be done later (`devices.memory.run.tensors`); and
where it does not matter on which stream something is read, it follows from counting alone::

    put down        takes a    takes b (reads a)    takes c (reads a, b)
    calls           +a         +b                   +c  -a  -b                 a has two readers, b one

A node that is launched reads when it takes, another one when it ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from devices.memory.run.buffers import Buffers
from sim.graph.csr import Csr
from sim.words.arrays import IntArray

__all__ = ["Deferred"]


class Deferred:
    """Keeps what does not change during a run.

    Parameters
    ----------
    buffers : Buffers
    launched : (n_nodes,) array of bool
        Whether a node reads when it takes, not when it ends.
    uses : (iterations * n_buffers,) array of int
        How often each buffer of each iteration is still to be read; counted down here.

    Examples
    --------
    >>> one_each = Csr(np.array([0, 1, 2, 3]), np.array([0, 1, 2]))
    >>> reads = Csr(np.array([0, 0, 1, 3]), np.array([0, 0, 1]))
    >>> buffers = Buffers(np.full(3, 64), np.zeros(3, int), one_each, reads, [])
    >>> deferred = Deferred(buffers, np.ones(3, bool), np.array([2, 1, 0]))
    >>> key, when_ns = deferred.calls(np.array([0, 1, 2]), np.array([0, 5, 10]))
    >>> key.tolist(), when_ns.tolist()
    ([0, 1, 2, -1, -2, -3], [0, 5, 10, 10, 10, 10])
    """

    def __init__(self, buffers: Buffers, launched: npt.NDArray[np.bool_], uses: IntArray) -> None:
        self._uses = uses
        self._launched = launched
        self._all_launched = bool(launched.all())
        self._writes = buffers.writes
        self._n_buffers = len(buffers.nbytes)
        self._n_nodes = n = len(launched)
        # What a node writes and nobody reads (in some iterations) it lets go itself, after what it reads.
        node = buffers.writes.rows()
        unread = (uses.reshape(-1, self._n_buffers) == 0).any(axis=0)[buffers.writes.indices]
        reader = np.concatenate((buffers.reads.rows(), node[unread]))
        offset = np.concatenate((buffers.reads.indices, buffers.writes.indices[unread]))
        counts = np.ones(len(reader), np.int64)
        counts[len(buffers.reads.indices) :] = 0
        self._reads = Csr.group(reader, offset, n)
        self._counts = Csr.group(reader, counts, n).indices

    def calls(self, tasks: IntArray, when: IntArray) -> tuple[IntArray, IntArray]:
        """Return the keys of what is allocated (``key``) and freed (``~key``), in order, and when, in ns.

        Parameters
        ----------
        tasks : (n,) array of int
            Ids of tasks, as it happens.
        when : (n,) array of int
            ns: a task takes at ``t``, or ends at ``~t``.
        """
        iteration, node = np.divmod(tasks, self._n_nodes)
        first = iteration * self._n_buffers
        place = np.arange(len(tasks))
        if self._all_launched:
            taking = reading = place
        else:
            ends = when < 0
            when = np.where(ends, ~when, when)
            taking = place[~ends]
            reading = place[ends != self._launched[node]]
        at_write, written = _gather(self._writes, node[taking])
        at_write = taking[at_write]
        at_free, freed = self._freed(node[reading], first[reading])
        at_free = reading[at_free]
        at = np.concatenate((at_write, at_free))
        key = np.concatenate((self._writes.indices[written] + first[at_write], ~freed))
        order = np.argsort(at, kind="stable")  # at one place what is written comes first
        return key[order], when[at[order]]

    def _freed(self, node: IntArray, first: IntArray) -> tuple[IntArray, IntArray]:
        """Return what these nodes are the last to read: the place of the node, and the key."""
        at, read = _gather(self._reads, node)
        key = self._reads.indices[read] + first[at]
        there = key >= 0  # else of an iteration before the first
        if not there.all():
            at, read, key = at[there], read[there], key[there]
        if not len(key):
            return at, key
        # The reads of one buffer side by side, as they come; `n` counts how many of them there were.
        order = np.argsort(key, kind="stable")
        together, counts = key[order], self._counts[read[order]]
        last = np.flatnonzero(np.append(np.diff(together) != 0, True))
        n = np.cumsum(counts)
        before = np.repeat(np.append(0, n[last[:-1]]), np.diff(last, prepend=-1))
        n -= before
        left = self._uses[together]
        over = np.zeros(len(key), bool)
        over[order] = n == left
        self._uses[together[last]] -= n[last]
        return at[over], key[over]


def _gather(rows: Csr, which: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for every entry of these rows, the place of its row in `which` and its index in `rows`.

    Examples
    --------
    >>> at, index = _gather(Csr(np.array([0, 2, 3]), np.array([7, 8, 9])), np.array([1, 0]))
    >>> at.tolist(), index.tolist()
    ([0, 1, 1], [2, 0, 1])
    """
    begin = rows.indptr[which]
    counts = rows.indptr[which + 1] - begin
    at = np.repeat(np.arange(len(which)), counts)
    return at, np.arange(len(at)) + (begin - (np.cumsum(counts) - counts))[at]
