"""The policy: the engine tells it what happened and asks it what to run next."""

from __future__ import annotations

from collections.abc import Sequence, Set
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import numpy as np

from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InputError, hint
from sim.base.options import whole_numbers

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.machine.task import Issuer, Task


# ----------------------------------------------------------------------------------------------------------
# A policy as data: the order in which issuers take eligible tasks.
#
# Most policies are a queue. A policy that declares itself as one (`sim.Policy.as_data`) need not be asked
# task by task, so the kernel (`sim.kernel`) can run it:
#
#     fifo      first eligible, first taken         a queue for each group of issuers
#     lifo      last eligible, first taken
#     keep      an issuer keeps some of the tasks   a stack per issuer, and a queue for all other tasks
#               it made eligible, last in, first out
#     steal     an issuer keeps the tasks it made   a queue of cheap tasks per issuer, and a deque from whose
#               eligible; others steal them         back the others steal (`sim.kernel.stealing`)
#     place     a program for each queue            window 1: only its next task, eligible or not
#               a b c d e f                         window 3: the first eligible of the three starting at the
#                 [-----]                           oldest not yet taken; no window: the first eligible of all

Kind = Literal["fifo", "lifo", "place", "keep", "steal"]
Per = Literal["group", "machine", "issuer"]


class Order(NamedTuple):
    """How a policy chooses.

    Attributes
    ----------
    kind : str
        ``"fifo"``, ``"lifo"``, ``"place"``, ``"keep"`` or ``"steal"``.
    programs : sequence of array of int64
        For ``"place"``: the ops of each queue in order, repeated every iteration. For a queue per issuer:
        its tasks, as ``iteration * ops + op``, which are not repeated.
    window : int or None
        For ``"place"``: the number of places considered, from the oldest not yet taken; None is all.
    per : str
        Who shares a queue: the issuers of a ``"group"``, of the ``"machine"``, or none (``"issuer"``). With
        the last two the window is 1.
    in_flight : int or None
        For a window of 1: the maximum number of tasks of a queue that are taken and not done. A task is done
        when it ends or, if it is launched under ``synchronisation = "issue"``, when it is on its stream.
    label : array of int64, optional
        For ``"keep"``, one per op: an issuer keeps the tasks with the label of the op that made them
        eligible. Without it, it keeps the first.
    cheap : array of int64 of 0 and 1, optional
        For ``"steal"``, one per op.
    pool, pool_of_issuer : arrays of int64
        For ``"keep"`` and ``"steal"``, one per op and one per issuer: an issuer takes ops of its own pool.
        Issuers of one pool are neighbours; -1: an issuer that takes nothing.
    """

    kind: Kind
    programs: Sequence[IntArray] = ()
    window: int | None = None
    per: Per = "group"
    in_flight: int | None = None
    label: IntArray | None = None
    cheap: IntArray | None = None
    pool: IntArray | None = None
    pool_of_issuer: IntArray | None = None


# ----------------------------------------------------------------------------------------------------------

Synchronisation = Literal["completion", "issue"]
"""What *eligible* means: see `Policy`. `sim.readiness.eligibility` lists the edges that it affects."""

OnFailure = Literal["skip", "abort", "stop-group", "stop-machine"]
"""What happens to the rest of the run when an op fails: see `Policy`."""


class Policy:
    """Decides what is issued next. Override `ready` and `next`; the rest has defaults.

    A policy holds no clock, starts nothing and imports no simpy; the same object drives the
    simulator and the real executors. First in, first out is::

        class Fifo(Policy):
            def prepare(self, job):
                self.queues = [deque() for _ in range(job.n_groups)]
            def ready(self, task):
                self.queues[task.group].append(task)
            def next(self, issuer):
                queue = self.queues[issuer.group]
                return queue.popleft() if queue else None

    Attributes
    ----------
    synchronisation : str
        What *eligible* means. ``"completion"``: all inputs are computed (TensorFlow on CPU, TVM).
        ``"issue"``: all inputs are issued; streams and events keep the order on the device
        (CUDA). Data that a CPU worker reads or writes always waits for completion.
    scope : str
        ``"group"`` promises that `next` depends only on tasks of the issuer's own group and
        answers alike for all issuers of a group, so that the engine asks only where something
        changed. ``"machine"`` (the default) promises nothing: every free issuer is asked.
    asks_in_turn : bool
        Whether Sends and Recvs are nodes that an issuer runs. A Recv then asks the rendezvous for its tensor
        when an issuer takes it, and the issuer goes on with something else; and a dead Send or Recv of a CPU
        takes its time, to pass on that it is dead. By default a Recv asks as soon as it is eligible, and dead
        tasks take no time.
    one_process : bool
        Whether sessions that could be separate processes (`sim.issuers`) are one process, which shares all
        of their issuers.
    runs_in_turn : bool
        Whether iterations follow one another like calls that each run a whole graph: none begins before the
        previous one is over, and none at all after one in which an op failed. By default they overlap as far
        as the edges between them allow.
    on_failure : str, optional
        What happens when an op fails (`sim.graph.failures`). Its consumers never run, and nothing that has
        begun is undone. Beyond that, ``"skip"``: everything else runs. ``"abort"``: everything else runs,
        except Sends and Recvs of the step that have not met. ``"stop-group"``: an exception ends the program
        of the op's group of issuers, which take nothing more. ``"stop-machine"``: one program serves all
        devices, so every issuer of its process stops. None: unknown; a job whose ops may fail is
        refused.
    """

    synchronisation: str = "completion"
    scope: str = "machine"
    asks_in_turn: bool = False
    one_process: bool = False
    runs_in_turn: bool = False
    on_failure: OnFailure | None = None

    def prepare(self, job: Job) -> None:
        """Look at the job before time 0."""

    def ready(self, task: Task) -> None:
        """Note that `task` has become eligible."""
        raise InputError(f"{type(self).__name__} must define ready() or ended()")

    def next(self, issuer: Issuer) -> Task | None:
        """Return the task that the free `issuer` takes now; None: nothing yet."""
        raise InputError(f"{type(self).__name__} must define next()")

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Note that `task` ended (or, under ``"issue"``, was issued) and made `now_ready` eligible.

        `now_ready` is in edge order and may be empty. `issuer` ran or issued `task`, or, for a Recv that
        waited, the matching Send; it is None for a transfer and for a task that ran without a worker. Under
        ``"issue"`` this is called again when a launched task ends, without the issuer, which has gone on, and
        only if that made further tasks eligible.
        """
        for t in now_ready:
            self.ready(t)

    def asynchronous_ops(self, job: Job) -> Set[int]:
        """Return the ops that a worker only starts and does not wait for. By default none."""
        return frozenset()

    def not_before_ns(self, job: Job) -> IntArray | None:
        """Return the earliest time to take each task, at ``iteration * ops + op``; None: no such limits.

        This lets a policy without a clock delay eligible ops on purpose: `ready` is called for a task only at
        that time. Called after `prepare`.
        """
        return None

    def as_data(self, job: Job) -> Order | None:
        """Return the policy as data, which the kernel can run without asking it; None: it has to be asked.

        Called instead of `prepare`, and may likewise refuse the job. A subclass of a class with an order must
        define this again if it changes anything but ``__init__``.

        Raises
        ------
        InputError
            A job that `prepare` refuses.
        """
        return None


_WORDS: Final = {
    "synchronisation": get_args(Synchronisation),
    "scope": ("group", "machine"),
    "on_failure": (None, *get_args(OnFailure)),
    "asks_in_turn": (False, True),
    "one_process": (False, True),
    "runs_in_turn": (False, True),
}
_METHODS: Final = ("prepare", "ready", "next", "ended", "asynchronous_ops", "not_before_ns", "as_data")


def check_attributes(policy: Policy) -> None:
    """Raise if an attribute of a policy has an unknown value.

    Raises
    ------
    InputError
        An unknown word (the message names the nearest known one), or a verb that is not callable.
    """
    name = type(policy).__name__
    for key, accepted in _WORDS.items():
        if (value := getattr(policy, key)) not in accepted:
            raise InputError(f"policy {name} has {key} {value!r}{hint(str(value), map(str, accepted))}")
    for verb in _METHODS:
        if not callable(value := getattr(policy, verb)):
            raise InputError(f"policy {name} has {verb} {value!r}, which should be a method")


# ----------------------------------------------------------------------------------------------------------
# Checks of the order that a policy declares.


def order_of(policy: Policy, job: Job) -> Order | None:
    """Return the policy's order; None: it has none, or its class overrides one that declared an order.

    Parameters
    ----------
    policy : Policy
    job : Job

    Examples
    --------
    A class of your own does not inherit the order of the class that it changes:

    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=10)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> class Never(ReadyQueue):
    ...     def next(self, issuer):
    ...         return None
    >>> order_of(ReadyQueue(), job).kind, order_of(Never(), job)
    ('fifo', None)
    """
    for cls in type(policy).__mro__:
        if "as_data" in vars(cls):
            break
        if not all(name.startswith("__") for name in vars(cls)):
            return None
    changed = {"prepare", "ready", "next", "ended", "as_data"} & vars(policy).keys()
    return None if changed else _check_order(policy, job, policy.as_data(job))


def _check_order(policy: Policy, job: Job, order: Order | None) -> Order | None:
    """Return the order after checking it, so that the kernel can trust its numbers."""
    if order is None:
        return None
    source, names = f"{type(policy).__name__}.as_data", job.graph.op_names
    if not isinstance(order, Order):
        raise InputError(f"{source} returned {type(order).__name__}, should be a sim.policy.Order or None")
    for name, value, accepted in (("kind", order.kind, get_args(Kind)), ("per", order.per, get_args(Per))):
        if value not in accepted:
            raise InputError(f"{source}: {name} is {value!r}{hint(str(value), accepted)}")
    limit: Any
    for name, limit in (("window", order.window), ("in_flight", order.in_flight)):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 1):
            raise InputError(f"{source}: {name} is {limit!r}, should be a whole number from 1 on, or None")
    if order.per != "group" and (order.kind != "place" or order.window != 1):
        raise InputError(f"{source}: per is {order.per!r}, which takes the kind 'place' and a window of 1")

    n, issuers = len(names), len(job.machine.issuers())
    pools = n + 2 * issuers
    checked: dict[str, Any] = {}
    for name, rows, least, below in (
        ("label", n, UNSET, None),
        ("cheap", n, 0, 2),
        ("pool", n, 0, pools),
        ("pool_of_issuer", issuers, UNSET, pools),
    ):
        if (column := getattr(order, name)) is not None:
            ops = () if name == "pool_of_issuer" else names
            checked[name] = whole_numbers(column, f"{source}: {name}", rows, least=least, below=below, of=ops)
    order = order._replace(**checked)
    if order.kind == "place":
        return order._replace(programs=_programs(source, job, order))
    if order.kind in ("keep", "steal"):
        _check_pools(source, job, order)
    return order


def _programs(source: str, job: Job, order: Order) -> list[IntArray]:
    """Return the programs after checking that they have every task once, where an issuer may take it."""
    n, names = len(job.graph), job.graph.op_names
    tasks = n * job.iterations if order.per == "issuer" else n
    expected = {"group": job.n_groups, "machine": 1, "issuer": len(job.machine.issuers())}[order.per]
    if not isinstance(order.programs, Sequence) or len(order.programs) != expected:
        count = len(order.programs) if isinstance(order.programs, Sequence) else repr(order.programs)
        raise InputError(f"{source}: programs are {count}, should be {expected}, one for each {order.per}")
    programs = [whole_numbers(program, f"{source}: a program", below=tasks) for program in order.programs]
    times = np.bincount(np.concatenate(programs), minlength=tasks)
    if (times != 1).any():
        key = int((times != 1).argmax())
        raise InputError(
            f"{source}: the programs have op {names[key % n]!r} {times[key]} times, should have it once"
        ).about(names[key % n])
    for group, program in enumerate(programs if order.per == "group" else ()):
        if (elsewhere := job.group_of[program] != group).any():
            op = int(program[elsewhere.argmax()])
            raise InputError(
                f"{source}: the program of group {group} has op {names[op]!r}, which is of group "
                f"{job.group_of[op]}"
            ).about(names[op])
    return programs


def _check_pools(source: str, job: Job, order: Order) -> None:
    """Raise if a pool's issuers may not take its ops, or are not neighbours."""
    names = job.graph.op_names
    for name in ("pool", "pool_of_issuer", *(["cheap"] if order.kind == "steal" else ())):
        if getattr(order, name) is None:
            raise InputError(f"{source}: the kind {order.kind!r} takes {name}, which is None")
    assert order.pool is not None
    assert order.pool_of_issuer is not None
    group = np.array([issuer.group for issuer in job.machine.issuers()])
    group_of = np.full(int(max(order.pool.max(initial=0), order.pool_of_issuer.max())) + 1, UNSET)
    for pool in np.unique(order.pool_of_issuer[order.pool_of_issuer >= 0]).tolist():
        members = np.flatnonzero(order.pool_of_issuer == pool)
        if len(np.unique(group[members])) > 1 or members[-1] - members[0] >= len(members):
            raise InputError(f"{source}: the issuers of pool {pool} should be neighbours in one group")
        group_of[pool] = group[members[0]]
    takers = group_of[order.pool]
    wrong = (takers != job.group_of) & ((takers != UNSET) | (order.kind == "steal"))
    if wrong.any():
        op = int(wrong.argmax())
        raise InputError(
            f"{source}: op {names[op]!r} is of pool {order.pool[op]}, whose issuers may not take it"
        ).about(names[op])
