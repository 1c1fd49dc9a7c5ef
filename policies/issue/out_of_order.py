"""Out-of-order issue: a window over the program, the oldest ready instruction first.

::

    program    a  b  c  d  e  f  g           window 4, b the oldest that has not been issued
                  [─────────]                b waits for data; c and e have been issued:
                  b  ·  d  ·                 d may issue, f may not although it is ready

This is the instruction window of a processor (Tomasulo 1967, "An efficient algorithm for exploiting
multiple arithmetic units", IBM Journal 11(1)), applied to ops: a window of 1 is issue in order, an
unlimited one list scheduling in program order (Graham 1969, "Bounds on multiprocessing timing
anomalies", SIAM J. Appl. Math. 17(2)).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from policies.issue.linear_program import Program, group_programs, places, refuse_control_flow
from policies.option_checks import SYNCHRONISATIONS, one_of, whole
from sim import Issuer, Job, Policy, Task
from sim.policy.order import Order

__all__ = ["OutOfOrder"]


class _Window(Program):
    """A program of which the places below `end` may issue; `heap` has those that are eligible.

    A place enters the heap once, when it is both eligible and inside the window, so that a decision
    costs O(log window), however many tasks are eligible behind it.
    """

    __slots__ = ("end", "heap", "issued", "size")

    def __init__(self, length: int, iterations: int, size: int | None) -> None:
        super().__init__(length, iterations)
        total = length * iterations
        self.size = total if size is None else size
        self.end = min(self.size, total)
        self.heap: list[int] = []
        self.issued = bytearray(total + 1)  # the last one stays 0 and stops `slide`

    def slide(self) -> None:
        """Move the head to the oldest place not issued, and the window's end with it."""
        issued = self.issued
        head = self.head
        while issued[head]:
            head += 1
        self.head = head
        end = min(head + self.size, len(issued) - 1)
        for place in range(self.end, end):
            if self.slots[place] is not None:
                heappush(self.heap, place)
        self.end = end


class OutOfOrder(Policy):
    """Issue the oldest ready op among a window of instructions.

    Parameters
    ----------
    window : int, optional
        The window holds the oldest op that has not been issued and the ``window - 1`` ops after it in
        program order, across iterations. By default it is unlimited.
    synchronisation : str
        ``"completion"``: an op is ready when its inputs are computed. ``"issue"``: when they are issued.

    Raises
    ------
    InputError
        A window below 1, or another word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("b holds c up")
    >>> for name, inputs, ns in (("a", [], 30), ("b", ["a"], 10), ("c", [], 10), ("d", ["c"], 30)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> machine = Machine((Device("cpu0", "cpu", workers=2),))
    >>> [simulate(b.build(), machine, OutOfOrder(window)).makespan_ns for window in (1, 2, 3, None)]
    [70, 60, 40, 40]
    """

    scope = "group"

    def __init__(self, window: int | None = None, synchronisation: str = "completion") -> None:
        self.window = None if window is None else whole("out-of-order", "window", window)
        self.synchronisation = one_of("out-of-order", "synchronisation", synchronisation, SYNCHRONISATIONS)
        self._windows: list[_Window] = []
        self._place: list[int] = []

    def prepare(self, job: Job) -> None:
        """Put a window at the beginning of every program; a graph with control flow has none.

        Raises
        ------
        InputError
            A graph with control flow.
        """
        refuse_control_flow("out-of-order", job)
        self._windows = [_Window(len(ops), job.iterations, self.window) for ops in job.programs]
        self._place = places(len(job.graph), job.programs)

    def as_data(self, job: Job) -> Order:
        """Return the programs and the window over them."""
        refuse_control_flow("out-of-order", job)
        return Order("place", group_programs(job), self.window)

    def ready(self, task: Task) -> None:
        """Note that `task` is eligible."""
        window = self._windows[task.group]
        place = task.iteration * window.length + self._place[task.op]
        window.slots[place] = task
        if place < window.end:
            heappush(window.heap, place)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Note who is eligible now."""
        for t in now_ready:
            window = self._windows[t.group]
            place = t.iteration * window.length + self._place[t.op]
            window.slots[place] = t
            if place < window.end:
                heappush(window.heap, place)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the oldest eligible task of the window."""
        window = self._windows[issuer.group]
        if not window.heap:
            return None
        place = heappop(window.heap)
        window.issued[place] = 1
        if place == window.head:
            window.slide()
        return window.slots[place]
