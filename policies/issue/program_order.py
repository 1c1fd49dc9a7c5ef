"""Program order: policies that walk through linear programs, in order or within a window.

A queue has a program: ops in an order, repeated every iteration. A task has a *place* in it. The window
begins at the head, the oldest place not yet taken; a heap holds the places that are eligible::

    iteration      0           1           2
    op             a  b  c     a  b  c     a  b  c
    place          0  1  2     3  4  5     6  7  8
                      ^head                           window 1: b and nothing else
                      [--------]                      window 4: the first eligible of b, c, a and b

`sim.policy.Order` says how many programs there are, who takes from which, and how wide the window is.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from policies.option_checks import SYNCHRONISATIONS, one_of, whole
from sim import Issuer, Job, Policy, Task
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.graph.frames import has_control_flow
from sim.policy import Order


class _Window:
    """A program of which the places from the oldest not yet taken on may be taken, as many as fit the window.

    Parameters
    ----------
    length : int
        Places of the program over all iterations.
    step : int
        Distance from a place to that of the same op in the next iteration.
    size : int or None
        Width of the window, counted from the head; None: unlimited.
    """

    __slots__ = ("head", "heap", "in_flight", "size", "step", "taken")

    def __init__(self, length: int, step: int, size: int | None) -> None:
        self.step = step
        self.size = length if size is None else size
        self.head = 0
        self.heap: list[tuple[int, int, Task]] = []  # place, id: no two alike
        self.taken = bytearray(length + 1)  # the last one stays 0 and stops the head
        self.in_flight: set[int] = set()  # ids of tasks taken and not finished, if they are counted

    def first(self) -> Task | None:
        """Return the first eligible task, if it is inside the window."""
        return self.heap[0][2] if self.heap and self.heap[0][0] < self.head + self.size else None

    def take(self) -> None:
        """Take the first eligible task, and move the head to the oldest place not yet taken."""
        self.taken[heappop(self.heap)[0]] = 1
        while self.taken[self.head]:
            self.head += 1


class ProgramOrder(Policy):
    """Walk through the programs that the subclass's `as_data` returns, each process its own."""

    def prepare(self, job: Job) -> None:
        """Put a window at the beginning of every program, with nothing eligible."""
        order = self.as_data(job)
        assert order is not None
        self._most = order.in_flight
        self._stride = len(job.graph) if order.per == "issuer" else 0  # of the keys: iteration * ops + op
        self._place: dict[int, tuple[_Window, int]] = {}  # key, or op → where it stands in iteration 0
        self._windows = [
            [self._window(part, job, order) for part in _parts(program, job, order)]
            for program in order.programs
        ]
        issuers = job.machine.issuers()
        queues = {
            "group": [issuer.group for issuer in issuers],
            "machine": [0] * len(issuers),
            "issuer": [issuer.index for issuer in issuers],
        }
        self._of_issuer = [self._windows[queue] for queue in queues[order.per]]

    def _window(self, program: IntArray, job: Job, order: Order) -> _Window:
        n = len(program)
        window = _Window(n, 0, 1) if self._stride else _Window(n * job.iterations, n, order.window)
        self._place.update({key: (window, index) for index, key in enumerate(program.tolist())})
        return window

    def ready(self, task: Task) -> None:
        """Note that `task` is eligible."""
        window, index = self._place[task.iteration * self._stride + task.op]
        heappush(window.heap, (index + task.iteration * window.step, task.id, task))

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Note which tasks are now eligible, and that `task` is not in flight now (a transfer never was)."""
        if issuer is not None and self._most is not None:
            self._place[task.iteration * self._stride + task.op][0].in_flight.discard(task.id)
        super().ended(task, now_ready, issuer)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the oldest eligible task of the window, if `issuer` may take it."""
        windows, limit = self._of_issuer[issuer.index], self._most
        for window in windows:
            task = window.first()
            if task is not None and task.group == issuer.group and len(window.in_flight) != limit:
                break
        else:
            return None
        if len(windows) > 1:  # processes take turns
            windows.remove(window)
            windows.append(window)
        window.take()
        if limit is not None:
            window.in_flight.add(task.id)
        return task


def _parts(program: IntArray, job: Job, order: Order) -> list[IntArray]:
    """Return the program of each process (`sim.issuers`); an issuer's own plan stays whole."""
    if job.process_of is None or order.per == "issuer":
        return [program]
    process = job.process_of[program]
    return [program[process == k] for k in np.unique(process)] or [program]


def group_programs(job: Job, order: IntArray) -> list[IntArray]:
    """Return the ops of each group of issuers, in `order`."""
    group = job.group_of[order]
    return [order[group == g] for g in range(job.n_groups)]


def refuse_control_flow(policy: str, job: Job) -> None:
    """Raise if the ops of a graph have no fixed order.

    Parameters
    ----------
    policy : str
        Name for the message.
    job : Job

    Raises
    ------
    InputError
        If the graph has conditions or loops.
    """
    if has_control_flow(job.graph):
        raise InputError(
            f"{policy}: graph {job.graph.name!r} has conditions or loops, so its ops have no fixed order; "
            "the policy sequential runs it as a program with jumps"
        )


class InOrder(ProgramOrder):
    """Issue the ops in program order; an op that is not ready blocks everything behind it.

    In-order issue: a linear program, one instruction after another, whatever else may be ready.

    ::

        program   a  b  c  d          b waits for data, c is ready
                     ^                but nothing is issued: head-of-line blocking

    This is how a runtime behaves that turned its graph into a list before running: TVM's graph executor
    walks over its nodes (``GraphExecutor::Run``, src/runtime/graph_executor), a PyTorch script launches
    kernel after kernel, and an NPU's command queue is consumed from the front.

    Parameters
    ----------
    in_flight : int, optional
        Most tasks that may be issued and not yet ended; 1 is strictly one after another. By default
        only the issuers limit it: two workers may run the first two ops of the program at once.
    per : str
        ``"group"``: each group of issuers has its own program and its own limit `in_flight`.
        ``"machine"``: one program for all devices, as when a single host thread runs it.
    synchronisation : str
        ``"completion"``: an op is ready when its inputs are computed. ``"issue"``: when they are
        issued (streams and events keep the order on the device).

    Raises
    ------
    InputError
        If an option has any other value, or `in_flight` is set under ``"issue"``, where a policy is not
        told of ends (the device's ``queue_depth`` limits the launches outstanding).

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("a and b side by side, then c")
    >>> for name, inputs, ns in (("a", [], 30), ("b", [], 10), ("c", ["b"], 10), ("d", [], 10)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> machine = Machine((Device("cpu0", "cpu", workers=2),))
    >>> simulate(b.build(), machine, InOrder()).makespan_ns
    30
    >>> simulate(b.build(), machine, InOrder(in_flight=1)).makespan_ns
    60
    """

    def __init__(
        self, in_flight: int | None = None, per: str = "group", synchronisation: str = "completion"
    ) -> None:
        self.in_flight = None if in_flight is None else whole("in-order", "in_flight", in_flight)
        self.per = one_of("in-order", "per", per, ("group", "machine"))
        self.synchronisation = one_of("in-order", "synchronisation", synchronisation, SYNCHRONISATIONS)
        if in_flight is not None and synchronisation == "issue":
            raise InputError(
                "in-order: in_flight needs synchronisation: completion, because under issue a policy is not "
                "told of ends; set the device's queue_depth instead",
                path=("in_flight",),
            )
        # A head may wait only for the end of a task on a stream or in another group.
        self.scope = "group" if per == "group" and in_flight is None else "machine"
        self.on_failure = "stop-group" if per == "group" else "stop-machine"

    def as_data(self, job: Job) -> Order:
        """Return the programs.

        Raises
        ------
        InputError
            If the graph has control flow.
        """
        refuse_control_flow("in-order", job)
        if self.per == "group":
            return Order("place", group_programs(job, job.order), 1, "group", self.in_flight)
        return Order("place", [job.order], 1, "machine", self.in_flight)


# ----------------------------------------------------------------------------------------------------------
# How the runs of a graph follow one another, for executors that run the whole graph in one call.
#
#     in-turn         [ run 0 ][ run 1 ][ run 2 ]      a program calls in a loop and waits for each result
#     side-by-side    [ run 0 ]                        threads of a program call at once: runs share the
#                     [ run 1 ]                        executor's threads
#     enqueued        [ launches 0 ][ launches 1 ]     a call returns when everything is launched; the GPU's
#                        [ GPU 0    ][ GPU 1 ]         streams go on
#
# Usually a call returns when its run is over, on the devices too. TensorFlow's ``DirectSession::RunInternal``
# waits for its executors, which wait for their devices. ONNX Runtime's ``Run`` synchronises its execution
# providers at the end (``disable_synchronize_execution_providers`` in onnxruntime_run_options_config_keys.h
# skips that: ``enqueued``). A program that calls a function of TFRT waits for its results
# (``host->Await`` in lib/bef_executor_driver/bef_executor_driver.cc). TVM's ``run`` and a PyTorch script only
# enqueue GPU work. For every executor, `sim.readiness.counters` keeps runs apart.


def in_turn(policy: str, runs: str, otherwise: str) -> bool:
    """Return whether runs follow one another; `otherwise` is the other word that `policy` accepts.

    Raises
    ------
    InputError
        If `runs` is neither word.

    Examples
    --------
    >>> in_turn("tfrt", "in-turn", "side-by-side"), in_turn("tfrt", "side-by-side", "side-by-side")
    (True, False)
    """
    return one_of(policy, "runs", runs, ("in-turn", otherwise)) == "in-turn"


class OutOfOrder(ProgramOrder):
    """Issue the oldest ready op in a window of instructions.

    Out-of-order issue: a window over the program, the oldest ready instruction first.

    ::

        program    a  b  c  d  e  f  g           window 4; b is the oldest op not issued yet
                      [─────────]                b waits for data; c and e have been issued:
                      b  ·  d  ·                 d may issue, f may not although it is ready

    This is the instruction window of a processor (Tomasulo 1967, "An efficient algorithm for exploiting
    multiple arithmetic units", IBM Journal 11(1)), applied to ops: a window of 1 is in-order issue, and an
    unlimited one is list scheduling in program order (Graham 1969, "Bounds on multiprocessing timing
    anomalies", SIAM J. Appl. Math. 17(2)).

    Parameters
    ----------
    window : int, optional
        Size of the window: the oldest op not issued yet and the ``window - 1`` ops after it in program
        order, across iterations. By default it is unlimited.
    synchronisation : str
        ``"completion"``: an op is ready when its inputs are computed. ``"issue"``: when they are issued.

    Raises
    ------
    InputError
        If `window` is below 1 or `synchronisation` is any other word.

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

    def as_data(self, job: Job) -> Order:
        """Return the programs and the window over them.

        Raises
        ------
        InputError
            If the graph has control flow.
        """
        refuse_control_flow("out-of-order", job)
        return Order("place", group_programs(job, job.order), self.window)
