"""The log of every allocation and free during a run, and the table derived from it.

Only what cannot be derived later is logged; the rest is summed up at the end::

    put down:  when   key    bytes (allocations only)     reserved, where it changed
               0      5      512                          row 0: 2 MiB
               0      6      1024
               10     ~5
                 │
                 └─► time_ns, device, change, in_use, requested, reserved, tensor, iteration

A key is ``iteration * n_buffers + buffer``, unless `MemoryLog.named` says what keys stand for;
a free is put down as ``~key``, which is below 0. As each key is allocated once, the size of what is freed is
known from its allocation.
"""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from devices.memory.device_memory import Block, Owner
from devices.memory.trace_readers import MemoryEvent
from sim.base.arrays import UNSET, IntArray


class MemoryLog:
    """Allocations and frees in order; the memory of a run appends to the columns.

    Parameters
    ----------
    nbytes, device, tensor : (n_buffers,) arrays of int
        Of each buffer: its size as asked for, where it lies, and which tensor it holds.
    reserved : list of int
        Bytes that each device's allocator has reserved before the first row.

    Attributes
    ----------
    when : array of int64
        One entry a row: ns.
    key : array of int64
        One entry a row, see the module.
    taken : array of int64
        One entry for each allocation, in order: bytes as rounded.
    """

    def __init__(self, nbytes: IntArray, device: IntArray, tensor: IntArray, reserved: list[int]) -> None:
        self.nbytes, self.device, self.tensor = nbytes, device, tensor
        self.when, self.key, self.taken = array("q"), array("q"), array("q")
        # The buffer and iteration of each key, where they are recorded; both may still grow.
        self.named: tuple[array[int], array[int]] | None = None
        self.resident: list[tuple[int, int, int]] = []  # device, bytes as rounded, tensor: the first rows
        self._marks: list[tuple[int, int, int]] = [(0, device, size) for device, size in enumerate(reserved)]

    def load(self, device: int, nbytes: int, tensor: int) -> None:
        """Put down a tensor that is there from the beginning; these come before all others."""
        self.resident.append((device, nbytes, tensor))

    def mark(self, row: int, device: int, reserved: int) -> None:
        """Put down that a device's allocator has reserved so many bytes from a row on.

        Rows are counted from the first one after time 0; -1 is the last of those before.
        """
        self._marks.append((max(0, len(self.resident) + row), device, reserved))

    def undo(self) -> None:
        """Strike out the last row, an allocation."""
        for column in (self.when, self.key, self.taken):
            column.pop()

    def columns(self) -> dict[str, IntArray]:
        """Return the table, as `sim.trace.Trace` has it."""
        n = len(self.nbytes)
        key = np.array(self.key, np.int64)
        freed = key < 0
        key[freed] = ~key[freed]
        size = np.empty(int(key.max(initial=-1)) + 1, np.int64)
        size[key[~freed]] = np.array(self.taken, np.int64)
        if self.named is None:
            iteration, buffer = np.divmod(key, max(1, n))
        else:
            buffer, iteration = (np.array(column, np.int64)[key] for column in self.named)
        before = np.array(self.resident, np.int64).reshape(-1, 3).T
        sign = np.concatenate((np.ones(len(self.resident), np.int64), np.where(freed, -1, 1)))
        device = np.concatenate((before[0], self.device[buffer]))
        change = sign * np.concatenate((before[1], size[key]))
        tensor = np.concatenate((before[2], self.tensor[buffer]))
        requested = sign * self.nbytes[np.concatenate((before[2], buffer))]
        order = np.argsort(device, kind="stable")
        by_device = np.split(order, np.flatnonzero(np.diff(device[order])) + 1)
        return {
            "time_ns": np.concatenate(
                (np.zeros(len(self.resident), np.int64), np.array(self.when, np.int64))
            ),
            "device": device,
            "change": change,
            "in_use": _running_sum(change, by_device),
            "requested": _running_sum(requested, by_device),
            "reserved": self._reserved_bytes(device),
            "tensor": tensor,
            "iteration": np.concatenate((np.full(len(self.resident), UNSET), iteration)),
        }

    def _reserved_bytes(self, device: IntArray) -> IntArray:
        """Return what the device of each row had reserved then: what its last mark says."""
        rows = len(device)
        row, marked, value = np.array(self._marks, np.int64).reshape(-1, 3).T
        position = marked * (rows + 1) + row
        order = np.argsort(position, kind="stable")  # of several at one row the last counts
        last = np.searchsorted(position[order], device * (rows + 1) + np.arange(rows), side="right") - 1
        return np.asarray(value[order][last])


def _running_sum(value: IntArray, groups: list[IntArray]) -> IntArray:
    """Return, for each entry, the sum of those of its group up to it; `groups` say which these are.

    Examples
    --------
    >>> _running_sum(np.array([5, 7, -2, 1]), [np.array([0, 2]), np.array([1, 3])]).tolist()
    [5, 7, 3, 8]
    """
    result = np.empty_like(value)
    for group in groups:
        result[group] = np.cumsum(value[group])
    return result


# ----------------------------------------------------------------------------------------------------------
# What is asked of an allocator, as events that a replay does again.
#
# A block that other streams use is free once events of them have been reached; the engine knows when, so the
# trace has that as ``reached``, and not as waits of the program.


class Recording:
    """Writes down what an allocator did, as events.

    Parameters
    ----------
    events : list of MemoryEvent
        What is written down is appended. An owner's second allocation is called ``owner#2``, and so on.

    Examples
    --------
    >>> from devices.memory import PoolAllocator
    >>> events, pool = [], PoolAllocator(100)
    >>> pool.recording = Recording(events)
    >>> pool.let_go(pool.take(30, owner="x")), pool.take(200, owner="y")
    ((), None)
    >>> [(event.op, event.id, event.nbytes) for event in events]
    [('alloc', 'x', 30), ('free', 'x', 0)]
    """

    def __init__(self, events: list[MemoryEvent]) -> None:
        self._events = events
        self._ids: dict[Block, str] = {}
        self._count: Counter[str] = Counter(str(event.id) for event in events if event.op == "alloc")

    def alloc(self, block: Block, nbytes: int, stream: int, owner: Owner) -> None:
        """Write down an allocation."""
        name = str(owner)
        self._count[name] += 1
        self._ids[block] = name if self._count[name] == 1 else f"{name}#{self._count[name]}"
        self._events.append(MemoryEvent("alloc", self._ids[block], nbytes, stream))

    def free(self, block: Block, streams: tuple[int, ...]) -> None:
        """Write down a free, which these streams have yet to allow."""
        self._events.append(MemoryEvent("free", self._ids[block] if streams else self._ids.pop(block)))

    def put(self, op: str, block: Block, stream: int = 0) -> None:
        """Write down what else happens to a block."""
        self._events.append(MemoryEvent(op, self._ids[block], stream=stream))
