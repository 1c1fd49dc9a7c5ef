"""A virtual machine: one thread walks a linear program with jumps, one call after another.

::

    pc ──► call step         wait until step is done, then go on
           if p else +4      the outcome that the switches of p received
           goto -4           the next iteration

Each process (`sim.issuers`) has a program and a thread that walks it; threads that need the same
CPU workers take turns.

Done means executed for a CPU op and enqueued for a GPU op. TVM's and Relax's virtual machines work this way
(tvm/src/runtime/vm/vm.cc: ``VirtualMachine::RunLoop``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from policies.issue.program_order import in_turn
from policies.jumps import JumpProgram, compile_program
from sim import Issuer, Job, Policy, Task
from sim.graph.frames import CONTROL_FLOW_KINDS, has_control_flow
from sim.policy import Order


class Sequential(Policy):
    """One thread per process walks a program, executing or enqueueing one op before the next.

    ::

        host     a ▇▇▇ b ▇▇ ·c· ·d· e ▇▇▇      ▇ executes on the CPU; ·x· only enqueues on a stream
        stream                ▇▇▇▇▇▇▇c▇▇▇d▇▇▇

    TVM's graph executor and virtual machine, ONNX Runtime's sequential executor and an eager PyTorch script
    run this way; they differ only in the order of the program (`policies.linearize`). A graph with control
    flow is compiled to a program with jumps, which is walked strictly in order.

    Parameters
    ----------
    runs : str
        How iterations follow one another (`policies.issue.program_order`): ``"enqueued"`` or ``"in-turn"``.

    Raises
    ------
    InputError
        If `runs` is any other word.

    Notes
    -----
    An op on another device is handed over: an issuer that serves the device takes it, and the program goes on
    when that issuer is done with it. The simulator moves values through switches, merges, enters and exits,
    which are not instructions here: they pass between two calls as they become ready. If their issue cost
    matters, set it to zero (``issue_cost: {switch: 0, merge: 0, ...}``); a ``loop_cond`` stands for the If
    and a ``next_iteration`` for the Goto.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("independent")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_ns=10)
    >>> simulate(b.build(), Machine((Device("cpu0", "cpu", workers=4),)), Sequential()).makespan_ns
    30
    """

    synchronisation = "issue"
    on_failure = "stop-machine"

    def __init__(self, runs: str = "enqueued") -> None:
        self.runs_in_turn = in_turn(type(self).__name__, runs, "enqueued")

    def prepare(self, job: Job) -> None:
        """Compile the graph, and put a thread of each process at the first instruction."""
        graph, order = job.graph, job.order
        process = np.zeros(len(graph), np.int64) if job.process_of is None else job.process_of
        orders = [order[process[order] == k].tolist() for k in range(len(job.processes) or 1)]
        self._threads = [_Thread(job, compile_program(graph, own)) for own in orders]
        self._thread_of = [self._threads[k] for k in process.tolist()]

    def ready(self, task: Task) -> None:
        """Tell the thread of the task's process."""
        self._thread_of[task.op].ready(task)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Tell the threads of the processes."""
        if task.op < len(self._thread_of):
            self._thread_of[task.op].ended(task)
        super().ended(task, now_ready, issuer)

    def next(self, issuer: Issuer) -> Task | None:
        """Return what the next thread in turn wants done; a thread that was served goes last."""
        for k, thread in enumerate(self._threads):
            task = thread.next(issuer)
            if task is not None:
                if len(self._threads) > 1:
                    self._threads.append(self._threads.pop(k))
                return task
        return None

    def as_data(self, job: Job) -> Order | None:
        """Return the program if there is one thread and no jump; None otherwise."""
        if has_control_flow(job.graph) or job.process_of is not None:
            return None
        return Order("place", [job.order], 1, "machine", in_flight=1)


class _Thread:
    """A thread that walks a program."""

    def __init__(self, job: Job, program: JumpProgram) -> None:
        graph = job.graph
        self.program = program
        self._moves = [kind in CONTROL_FLOW_KINDS for kind in graph.kinds]
        self._kind_code = graph.kind_code.tolist()
        self._repetitions = job.iterations
        self._repetition, self._pc = 0, 0
        self._path: list[int] = [0] * (max(self.program.frame) + 1)  # the iteration of each frame
        self._waiting: dict[tuple[int, int, str], Task] = {}
        self._tokens: deque[Task] = deque()
        self._says: dict[tuple[int, int, str], int] = {}
        self._dead: set[tuple[int, int, str]] = set()
        self._current: Task | None = None

    def ready(self, task: Task) -> None:
        """Keep `task` for its call; a task that only moves tokens, or is dead, goes through at once."""
        if task.dead:  # for example behind a merge whose sides depend on different predicates
            structure = self.program.structure
            asks = -1 if structure is None else structure.predicate.get(task.op, -1)
            self._dead |= {(task.iteration, op, _tag(task)) for op in (task.op, asks)}
        if task.dead or self._moves[self._kind_code[task.op]]:
            self._tokens.append(task)
        else:
            self._waiting[task.iteration, task.op, _tag(task)] = task

    def ended(self, task: Task) -> None:
        """Go on when the current call is done; note the outcome that a switch received."""
        if task is self._current:
            self._current = None
        structure = self.program.structure
        if structure is not None and task.op in structure.predicate and not task.dead:
            side = task.frame.taken.get(task.op)  # unknown at issue if a host reads its output
            if side is not None:
                self._says[task.iteration, structure.predicate[task.op], _tag(task)] = side

    def next(self, issuer: Issuer) -> Task | None:
        """Return a task that moves tokens, else the op of the current call."""
        for k, task in enumerate(self._tokens):
            if task.group == issuer.group:
                del self._tokens[k]
                return task
        if self._current is not None or self._tokens:
            return None
        while self._repetition < self._repetitions:
            tag = self._tag_of(self.program.frame[self._pc])
            match self.program.instructions[self._pc]:
                case "call", op, _ if (self._repetition, op, tag) in self._dead:
                    self._go_to(self._pc + 1)
                case "call", op, _:
                    waiting = self._waiting.get((self._repetition, op, tag))
                    if waiting is None or waiting.group != issuer.group:
                        return None
                    self._current = self._waiting.pop((self._repetition, op, tag))
                    self._go_to(self._pc + 1)
                    return self._current
                case "if", predicate, offset:
                    asked = self._repetition, predicate, tag
                    says = self._says.get(asked)
                    if says is None and asked not in self._dead:
                        return None
                    self._go_to(self._pc + (1 if says else offset))
                case "goto", _, offset:
                    self._go_to(self._pc + offset)
                case _:
                    self._repetition += 1
                    self._pc = 0
        return None

    def _go_to(self, pc: int) -> None:
        """Move to `pc`; reaching a loop's head from above enters the loop, from below begins an iteration."""
        frame = self.program.head.get(pc)
        if frame is not None:
            self._path[frame] = 0 if pc > self._pc else self._path[frame] + 1
        self._pc = pc

    def _tag_of(self, frame: int) -> str:
        """Return, as text, the tag with which an instruction of `frame` runs now."""
        structure = self.program.structure
        parts: list[str] = []
        while structure is not None and frame > 0:
            parts.append(f"{structure.name[frame]}:{self._path[frame]}")
            frame = structure.parent[frame]
        return "/".join(reversed(parts))


def _tag(task: Task) -> str:
    return "" if task.frame is None else str(task.frame)
