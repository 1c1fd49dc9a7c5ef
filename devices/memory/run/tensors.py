"""Tensors that live and die during a run: the engine's `Memory`, on any allocator.

Two lifetimes, because runtimes differ in when they ask:

``execution``
    Memory is taken when a task starts and given back when the last reader has ended: what a device
    needs at the least.
``issue``
    Memory is taken in the host's order, when a task is issued, and given back when the last reader
    has been *issued*: what PyTorch and TensorFlow do on a GPU. The stream's order makes that safe
    on one stream; a reader on another stream holds the block until an event of it (`record_use`).
    CPU workers execute what they take: what they read is given back when they have read it.

As long as an allocator is certain to have room (`Allocator.room`), and its calls to the device cost nothing,
its answer is known without asking. Then what happens is only put down, and done later, many tasks at once, in
the same order and with the same outcome: the processor's caches then hold one thing at a time, and it takes
half as long. A request for which there may be no room is asked at once, after all that came before it.

Out of memory is an outcome: an error at that instant, or, with ``when_full="wait"``, the task waits
until something is freed. A buffer that could not be had on an empty device is refused before time 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from devices.memory.memory_description import MemorySpec
from devices.memory.run.tensor_lifetimes import Lifetimes
from sim.job.context import Context
from sim.job.job import Job
from sim.machine.task import Task
from sim.words.arrays import IntArray
from sim.words.collector import collector_paused
from sim.words.errors import InputError

__all__ = ["MemorySpec", "TensorMemory", "tensor_memory"]

LIFETIMES: Final = ("execution", "issue")

AT_ONCE: Final = 1024
"""So many takings and endings are put down before they are done."""


def tensor_memory(
    specs: Mapping[str, MemorySpec] | None = None,
    *,
    lifetime: str = "execution",
    when_full: str = "error",
) -> Callable[[Job, Context], TensorMemory]:
    """Return what `sim.simulate` takes as `memory`.

    Parameters
    ----------
    specs : mapping of str to MemorySpec, optional
        Device name → how its memory is managed; others have one exact pool.
    lifetime : str
        ``"execution"`` or ``"issue"``, see the module.
    when_full : str
        ``"error"``: raise `OutOfMemoryError`; ``"wait"``: the task waits for memory.

    Raises
    ------
    InputError
        Another word, or a device the machine does not have (when the run begins).
    """
    if lifetime not in LIFETIMES:
        raise InputError(f"lifetime must be one of {', '.join(LIFETIMES)}; found {lifetime!r}")
    if when_full not in ("error", "wait"):
        raise InputError(f"when_full must be error or wait; found {when_full!r}")

    def make(job: Job, context: Context) -> TensorMemory:
        with collector_paused():
            return TensorMemory(job, context, specs or {}, lifetime, when_full == "wait")

    return make


class TensorMemory:
    """The memory of all devices during one run; made by `tensor_memory`."""

    def __init__(
        self, job: Job, context: Context, specs: Mapping[str, MemorySpec], lifetime: str, waits: bool
    ) -> None:
        self.context = context
        self.at_issue = lifetime == "issue"
        self.lives = lives = Lifetimes(job, context, specs, lifetime, waits)
        self.device_of = lives.device_of
        # What is put down and not done yet: tasks, and when; an end at t as ~t.
        self.tasks: list[Task] = []
        self.when: list[int] = []
        # Bytes that each device is certain to have left, that each node may need at most, and the most of
        # these on each device. Up to so many tasks may be put down without looking at all.
        self.room = lives.room() if self.at_issue else None
        self.at_most = lives.at_most() if self.room is not None else []
        self.most = [1] * len(lives.allocators)
        for device, need in zip(self.device_of, self.at_most, strict=False):
            self.most[device] = max(self.most[device], need)
        self.certain = 0
        if self.room is not None:
            self._look()
        self.follows_ends = not (lives.calm and all(lives.launched))

    def acquire(self, task: Task) -> int:
        """Take the outputs of `task`; see `sim.engine.Memory`."""
        if len(self.tasks) < self.certain:
            self.tasks.append(task)
            self.when.append(self.context.now_ns)
            return 0
        if self.room is None:
            return self.lives.take(task, self.context.now_ns)
        if self.certain:
            self._catch_up()
            self._look()
            return self.acquire(task)
        device = self.device_of[task.op]
        left = self.room[device] - self.at_most[task.op]
        if left < 0 or len(self.tasks) > AT_ONCE:
            return self._ask(task)
        self.room[device] = left
        self.tasks.append(task)
        self.when.append(self.context.now_ns)
        return 0

    def freed(self) -> bool:
        """Whether an `acquire` freed anything since this was last asked; see `sim.engine.Memory`."""
        freed, self.lives.freed = self.lives.freed, False
        return freed

    def _look(self) -> None:
        """See how much room there is, and how many tasks find some whichever they are."""
        self.room = room = self.lives.room()
        fit = [left // most for left, most in zip(room, self.most, strict=True)] if room else [0]
        self.certain = max(0, min(AT_ONCE, *fit))

    def release(self, task: Task) -> bool:
        """`task` ended: free what nobody reads any more; return whether anything became free."""
        if self.room is None:
            return self.lives.give(task, self.context.now_ns)
        self.tasks.append(task)
        self.when.append(~self.context.now_ns)
        return False  # nobody waits for memory as long as there is room

    def _ask(self, task: Task) -> int:
        """Do what was put down; then take the outputs of `task` at once."""
        self._catch_up()
        answer = self.lives.take(task, self.context.now_ns)
        if answer == 0:
            self._look()
        else:  # it is tight: from now on everything at once
            self.room, self.certain = None, 0
        return answer

    def _catch_up(self) -> None:
        self.lives.catch_up(self.tasks, self.when)
        self.tasks.clear()
        self.when.clear()

    def lacks(self, task: Task) -> str:
        """Say what `task` waits for; see `sim.engine.Memory`."""
        self._catch_up()
        return self.lives.lacks(task)

    def columns(self) -> dict[str, IntArray]:
        """Return the log: one row per allocation (change > 0) or free (change < 0), in order."""
        self._catch_up()
        return self.lives.log.columns()
