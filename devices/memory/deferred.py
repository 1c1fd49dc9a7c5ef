"""Which calls of the allocators follow from many takings and endings, worked out at once.

Where nobody waits for an answer, what happens to memory may be done later (`devices.memory.tensors`). Then
who reads what last follows from counting alone::

    put down     takes a     takes b (reads a)     takes c (reads a, b)     ends a    ends b ...
    calls        alloc a     alloc b               alloc c, free a, free b
                                                   (a has two readers, b one)

A node that is launched reads when it takes, another one when it ends. Where allocators look at streams, reads
on another stream than the maker's and all endings are calls, too. Nothing may be copied between devices: a
copy may be read by who is issued before it is there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from devices.memory.buffers import Buffers
from sim.graph import Csr, IntArray

__all__ = ["Calls", "Deferred"]


class Calls(NamedTuple):
    """What is to be done, in order; one entry a call.

    Attributes
    ----------
    code : (n,) array of int
        Below 0: free the buffer of the key ``~code``. Below `Deferred.n_keys`: allocate that of the key
        ``code``. Below twice that: that of the key ``code - n_keys`` is used. Else the task
        ``code - 2 * n_keys`` ends.
    place : (n,) array of int
        Because of which of the takings and endings.
    when : (n,) array of int
        ns.
    """

    code: IntArray
    place: IntArray
    when: IntArray


class Deferred:
    """Keeps what does not change during a run, and how often each buffer is still to be read.

    Parameters
    ----------
    buffers : Buffers
    launched : (n_nodes,) array of bool
        Whether a node reads when it takes, not when it ends.
    uses : (iterations * n_buffers,) array of int
        How often each buffer of each iteration is still to be read; counted down here.
    stream : (n_nodes,) array of int, optional
        The stream of each node, where allocators look at streams.

    Examples
    --------
    >>> one_each = Csr(np.array([0, 1, 2, 3]), np.array([0, 1, 2]))
    >>> reads = Csr(np.array([0, 0, 1, 3]), np.array([0, 0, 1]))
    >>> buffers = Buffers(np.full(3, 64), np.zeros(3, int), one_each, reads, [])
    >>> deferred = Deferred(buffers, np.ones(3, bool), np.array([2, 1, 0]))
    >>> code, place, when_ns = deferred.calls(np.array([0, 1, 2]), np.array([0, 5, 10]))
    >>> code.tolist(), when_ns.tolist()
    ([0, 1, 2, -1, -2, -3], [0, 5, 10, 10, 10, 10])
    """

    def __init__(
        self,
        buffers: Buffers,
        launched: npt.NDArray[np.bool_],
        uses: IntArray,
        stream: IntArray | None = None,
    ) -> None:
        self.n_keys = len(uses)
        self._uses = uses
        self._launched = launched
        self._all_launched = bool(launched.all())
        self._writes = buffers.writes
        self._n_buffers = len(buffers.nbytes)
        self._n_nodes = n = len(launched)
        # What a node writes and nobody reads (in some iterations) it lets go itself, after what it reads.
        node = np.repeat(np.arange(n), buffers.writes.counts())
        written = buffers.writes.indices
        unread = (uses.reshape(-1, self._n_buffers) == 0).any(axis=0)[written]
        reader = np.concatenate((np.repeat(np.arange(n), buffers.reads.counts()), node[unread]))
        offset = np.concatenate((buffers.reads.indices, written[unread]))
        counts = np.ones(len(reader), np.int64)
        counts[len(buffers.reads.indices) :] = 0
        self._reads = Csr.group(reader, offset, n)
        self._counts = Csr.group(reader, counts, n).indices
        self._abroad: npt.NDArray[np.bool_] | None = None  # reads on another stream than the maker's
        if stream is not None:
            made_on = np.zeros(self._n_buffers, np.int64)
            made_on[written] = stream[node]
            abroad = (counts > 0) & launched[reader] & (made_on[offset % self._n_buffers] != stream[reader])
            self._abroad = Csr.group(reader, abroad.astype(np.int64), n).indices > 0

    def calls(self, tasks: IntArray, when: IntArray) -> Calls:
        """Return what follows, and count the reads.

        Parameters
        ----------
        tasks : (n,) array of int
            Ids of tasks, as it happens.
        when : (n,) array of int
            ns: a task takes at ``t``, or ends at ``~t``.
        """
        iteration, node = np.divmod(tasks, self._n_nodes)
        first = iteration * self._n_buffers
        every = np.arange(len(tasks))
        ends = when < 0
        if self._all_launched and not ends.any():
            taking = reading = every
        else:
            when = np.where(ends, ~when, when)
            taking = every[~ends]
            reading = every[ends != self._launched[node]]
        at_write, written = _gather(self._writes, node[taking])
        at_read, read = _gather(self._reads, node[reading])
        at_write, at_read = taking[at_write], reading[at_read]
        key = self._reads.indices[read] + first[at_read]
        there = key >= 0  # else of an iteration before the first
        if not there.all():
            at_read, read, key = at_read[there], read[there], key[there]
        # At one place the order is: what ends, what is written, what is used, what is freed.
        places, codes = [at_write], [self._writes.indices[written] + first[at_write]]
        if self._abroad is not None:
            ended, used = every[ends], self._abroad[read]
            places, codes = [ended, *places], [tasks[ended] + 2 * self.n_keys, *codes]
            places.append(at_read[used])
            codes.append(key[used] + self.n_keys)
        freed = self._count(read, key)
        places.append(at_read[freed])
        codes.append(~key[freed])
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        place = place[order]
        return Calls(np.concatenate(codes)[order], place, when[place])

    def _count(self, read: IntArray, key: IntArray) -> npt.NDArray[np.bool_]:
        """Count these reads, which are in order; return which of them are the last of what they read."""
        freed = np.zeros(len(key), bool)
        if not len(key):
            return freed
        # The reads of one buffer side by side, as they come; `n` counts how many of them there were.
        order = np.argsort(key, kind="stable")
        together, counts = key[order], self._counts[read[order]]
        last = np.flatnonzero(np.append(np.diff(together) != 0, True))
        n = np.cumsum(counts)
        n -= np.repeat(np.append(0, n[last[:-1]]), np.diff(last, prepend=-1))
        left = self._uses[together]
        freed[order] = (n == left) & ((counts > 0) | (left == 0))
        self._uses[together[last]] -= n[last]
        return freed


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
