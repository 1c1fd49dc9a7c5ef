"""The policy: told what happened, asked what next."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Final, Literal, get_args

from sim.words.errors import InputError, hint

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.machine.task import Issuer, Task
    from sim.policy.order import Order

__all__ = ["OnFailure", "Policy", "Synchronisation", "check_attributes"]

Synchronisation = Literal["completion", "issue"]
"""What *eligible* means: see `Policy`. `sim.readiness.synchronisations` says which edges it concerns."""

OnFailure = Literal["skip", "abort", "stop-group", "stop-machine"]
"""What becomes of the rest when an op fails: see `Policy`."""


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
        Whether Sends and Recvs are nodes that an issuer runs. A Recv asks the rendezvous for what is sent to
        it when an issuer takes it, which then goes on with something else; and a dead Send or Recv of a CPU
        takes its time, to transmit that it is dead. By default a Recv asks as soon as it is eligible, and
        what is dead takes no time.
    one_process : bool
        Whether sessions that could be processes of their own (`sim.policy.processes`) are one, whose issuers
        are theirs together.
    runs_in_turn : bool
        Whether iterations follow one another as calls that run a whole graph do: none begins before the one
        before it is over, and after one in which an op failed, none at all. By default they overlap as far
        as edges between them allow.
    on_failure : str, optional
        What happens when an op fails (`sim.graph.failures`). Its consumers never run, and what has begun is
        never taken back. Beyond that, ``"skip"``: everything else runs. ``"abort"``: so it does, but what has
        not been sent and received in the step yet never will be. ``"stop-group"``: an exception leaves the
        program of its group of issuers, and these take nothing more. ``"stop-machine"``: one program is for
        all devices, and no issuer of its process does. None: nobody knows, and a job whose ops may fail is
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
        """Return the task that `issuer`, which is free, takes now; None: nothing yet."""
        raise InputError(f"{type(self).__name__} must define next()")

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Note that `task` ended (or, under ``"issue"``, was issued) and made `now_ready` eligible.

        `now_ready` is in edge order and may be empty. `issuer` ran or issued `task`, or, for a Recv that
        waited, its Send; it is None for a transfer, and for what ran without a worker. Under ``"issue"``
        this is called again at the end of a task only when that made further tasks eligible.
        """
        for t in now_ready:
            self.ready(t)

    def asynchronous_ops(self, job: Job) -> Set[int]:
        """Return the ops that a worker only starts: they run without it, and it goes on. By default none."""
        return frozenset()

    def as_data(self, job: Job) -> Order | None:
        """Return the policy as data, which the kernel can run without asking it; None: it has to be asked.

        Called in place of `prepare`, and may refuse the job as that does. A class that inherits from one with
        an order and changes anything but its ``__init__`` has to define this again.

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
_VERBS: Final = ("prepare", "ready", "next", "ended", "asynchronous_ops", "as_data")


def check_attributes(policy: Policy) -> None:
    """Refuse attributes of a policy that say what there is not.

    Raises
    ------
    InputError
        An unknown word, with the nearest known, or a verb that cannot be called.
    """
    name = type(policy).__name__
    for key, known in _WORDS.items():
        if (found := getattr(policy, key)) not in known:
            raise InputError(f"policy {name} has {key} {found!r}{hint(str(found), map(str, known))}")
    for verb in _VERBS:
        if not callable(found := getattr(policy, verb)):
            raise InputError(f"policy {name} has {verb} {found!r}, which should be a method")
