"""Which tensor lies where under control flow, where ops run as often as tokens come.

Each live output of each task has a key of its own, given out when the task comes to be, and counts who
refers to it. The bytes are taken and given back as on a static graph (`devices.memory.tensor_lifetimes`);
who refers to them is told by tokens::

    x ──token──► kept for a reader          until the reader has read: at its end, or at its launch
                 parked, an invariant       until it is given to an iteration; until the loop is over
      ──────────  the task itself           until it has ended and given its tokens
    last reference gone ──► free

So a switch, merge, enter, exit, next_iteration, loop_cond or view takes nothing: its tokens refer to what it
was given. A dead output takes nothing, and a dead reader has read when its turn has come. At most
`parallel_iterations` iterations of a loop hold anything at once.

That is how TensorFlow's executor counts: an entry for each input of each node in each iteration, cleared once
the node is done, loop invariants kept by their frame, parked tokens by their iteration
(``tensorflow/core/common_runtime/executor.cc``: ``ExecutorState::Process``, ``propagator_state.cc``:
``AddLoopInv``, ``next_iter_roots``).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from devices.memory.device_memories import Recordings
from devices.memory.registry import MemorySpec
from devices.memory.tensor_lifetimes import NOWHERE, TensorMemory
from sim.base.arrays import UNSET
from sim.graph.views import ANY, forwarded_inputs
from sim.job.context import Context
from sim.job.job import Job
from sim.machine.task import Task
from sim.readiness.eligibility import non_strict_ops
from sim.readiness.tokens import TokenWatcher

_Place = tuple[object, int]
"""An iteration of a frame, and an op."""


@dataclass(slots=True)
class _Held:
    """What a task refers to, by key.

    Attributes
    ----------
    reads : list of int
        What came for it, and it has not read.
    gives : dict of int to int
        Output slot → what its tokens refer to.
    first : int
        What makes keys of the buffers that it writes, when added to them.
    """

    reads: list[int]
    gives: dict[int, int] = field(default_factory=dict)
    first: int = 0


class TokenMemory(TensorMemory):
    """The memory of all devices during a run with control flow; is told of tokens (`TokenWatcher`)."""

    __slots__ = (
        "_buffer_of", "_came", "_first", "_forwards", "_given", "_held", "_iteration_of", "_late", "_loose",
        "_offers", "_read_by", "_slot",
    )  # fmt: skip

    def __init__(
        self,
        job: Job,
        context: Context,
        specs: Mapping[str, MemorySpec],
        lifetime: str,
        waits: bool,
        recordings: Recordings | None = None,
    ) -> None:
        super().__init__(job, context, specs, lifetime, waits, recordings)
        graph, flow, buffers = job.graph, context.flow, self.memories.buffers
        # By key, which tasks are given as they come to be.
        self.home, self.blocks, self.uses, self.ended = [], [], [], bytearray()
        self._buffer_of, self._iteration_of = array("q"), array("q")
        self.log.name_keys(self._buffer_of, self._iteration_of)
        self.calm, self.follows_ends = False, True
        # Of each node, the first tensor that it gives; of each buffer, its slot, and whether any op reads it.
        self._first: list[int] = [*graph.first_output.tolist(), *flow.tensor.tolist()]
        copies = flow.n_nodes - flow.n_ops
        slot = np.arange(graph.n_tensors) - graph.first_output[graph.tensor_producer]
        self._slot: list[int] = [*slot.tolist(), *([0] * copies)]
        data = flow.carries != UNSET
        own = flow.producer < flow.n_ops
        buffer = np.where(own, flow.carries, graph.n_tensors - flow.n_ops + flow.producer)
        self._read_by: list[int] = np.bincount(
            np.append(buffer[data], [*self.offered.values()]).astype(np.int64), minlength=self.n_buffers
        ).tolist()
        self.unread = buffers.writers(np.array(self._read_by) == 0)
        self._forwards = forwarded_inputs(graph)
        self._loose = set(np.flatnonzero(non_strict_ops(graph)).tolist())
        self._came: dict[_Place, list[tuple[int, int]]] = {}  # tensors and keys, of an op that is no task yet
        self._held: dict[int, _Held] = {}  # by task
        self._late: dict[
            _Place, _Held
        ] = {}  # of tasks that did not wait for all their inputs, until they end
        self._given: set[int] = set()  # tasks that gave their tokens, and have not ended
        self._offers: dict[int, int] = {}  # Send (task) → the key of what it offers

    @property
    def watcher(self) -> TokenWatcher | None:
        """Who is told where tokens go."""
        return self

    # -- sim.readiness.tokens.TokenWatcher --------------------------------------------------

    def came(self, task: Task, slot: int, consumer: int, place: object, late: bool) -> None:
        """Note that a token of `task` is kept for a reader."""
        key = self._held[task.id].gives.get(slot)
        if key is None:  # it has no bytes, or they are there from the beginning
            return
        if not late:
            self._came.setdefault((place, consumer), []).append((self._first[task.op] + slot, key))
        elif (reader := self._late.get((place, consumer))) is not None:
            reader.reads.append(key)
        else:
            return
        self.uses[key] += 1

    def made(self, task: Task) -> None:
        """Give `task` what came for it, and keys to what it will give."""
        op, place = task.op, (task.frame, task.op)
        came = self._came.pop(place, [])
        held = self._held[task.id] = _Held([key for _, key in came])
        self.ended.append(0)
        if op in self._loose:
            self._late[place] = held
        if op in self._forwards and not task.dead:
            tensor, slots = self._forwards[op]
            passed_on = [key for read, key in came if tensor in (read, ANY)]
            for slot in slots if passed_on else ():
                held.gives[slot] = passed_on[0]
                self.uses[passed_on[0]] += 1
        self._make_keys(task, held)
        if op in self.offered and 0 in held.gives:
            self._offers[task.id] = held.gives[0]
            self.uses[held.gives[0]] += 1

    def _make_keys(self, task: Task, held: _Held) -> None:
        op = task.op
        writes = self.writes[op]
        if not writes:
            return
        held.first = len(self.home) - writes[0]
        for buffer in range(writes[0], writes[-1] + 1):
            read = self._read_by[buffer] and self.nbytes[buffer]
            if read:
                held.gives[self._slot[buffer]] = len(self.home)
            self.home.append(self.device_of[op])
            self.blocks.append(NOWHERE)
            self.uses.append(1 if read else 0)
            self._buffer_of.append(buffer)
            self._iteration_of.append(task.iteration)

    def given(self, task: Task) -> None:
        """Let `task` refer to its outputs no longer, unless it has yet to end."""
        if task.end_ns < 0 and not self.launched[task.op]:
            self._given.add(task.id)
        elif self._let_go(task):
            self._freed = True

    # -- what happens ------------------------------------------------------------------------

    def met(self, send: Task, recv: Task) -> None:
        """Let `recv` read what `send` offers until it ends; see `sim.engine.Memory`."""
        if send.id in self._offers:
            self.late.setdefault(recv.id, []).append(self._offers.pop(send.id))

    def release(self, task: Task) -> bool:
        """`task` ended; see `TensorMemory.release`."""
        freed = False
        if task.dead and self.launched[task.op]:  # it was not launched
            freed = self._read(task, -1, self.context.now_ns)
        freed |= super().release(task)
        if task.id in self._given:
            self._given.remove(task.id)
            freed |= self._let_go(task)
        return freed

    def _let_go(self, task: Task) -> bool:
        """Drop the references of `task` to what it gives; return whether anything became free."""
        freed = False
        for key in self._held.pop(task.id).gives.values():
            self.uses[key] -= 1
            if not self.uses[key] and self.blocks[key] is not NOWHERE:
                self._free(key, task, -1, self.context.now_ns)
                freed = True
        return freed

    def _first_key(self, task: Task) -> int:
        return self._held[task.id].first

    def _to_read(self, task: Task) -> tuple[Sequence[int], int]:
        held = self._held[task.id]
        reads, held.reads = held.reads, []
        self._late.pop((task.frame, task.op), None)
        return reads, 0
