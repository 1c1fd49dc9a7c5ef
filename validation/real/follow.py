"""A plan decides: everyone does the next thing on its list, streams wait for the events that it names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sim.job.job import Job
from sim.machine.task import Issuer, Task
from sim.record.plan import Plan, plan_of
from sim.words.errors import InputError, UnknownNameError
from validation.real.driver import Assignments, refuse_unsupported
from validation.real.work import measured_trace

__all__ = ["Follower", "program_plan"]


class Follower:
    """Executes a plan exactly: its order of issue, its streams, its waits; a `Brain`
    (`validation.real.driver`).

    Parameters
    ----------
    job : Job
        Whose graph and machine the plan names.
    plan : Plan
    now : callable
        ``now()`` returns ns since the beginning of the run.

    Raises
    ------
    InputError
        The plan does not run every task of the job exactly once, or two issuers feed one stream.
    UnknownNameError
        It names an op, a stream or an issuer that the job does not have.
    """

    def __init__(self, job: Job, plan: Plan, now: Callable[[], int]) -> None:
        refuse_unsupported(job)
        self.now = now
        self.total = len(job.graph) * job.iterations
        stream_number = {job.machine.stream_name(s): s for s in range(job.machine.first_stream[-1])}
        issuer_of = {issuer.name: issuer for issuer in job.machine.issuers()}
        group_of = job.group_of.tolist()
        self.tasks: list[Task] = []
        self.lists: dict[int, deque[Task]] = {}
        feeds: dict[int, Issuer] = {}
        for planned in plan:
            for what, name, known in (
                ("stream", planned.stream, stream_number),
                ("issuer", planned.issuer, issuer_of),
            ):
                if name not in known:
                    raise UnknownNameError(f"{what} of the plan", name, known)
            op = job.graph.index(planned.op)
            task = Task(planned.iteration * len(job.graph) + op, op, planned.iteration, group_of[op])
            task.stream, task.issuer = stream_number[planned.stream], issuer_of[planned.issuer]
            if feeds.setdefault(task.stream, task.issuer) is not task.issuer:
                raise InputError(
                    f"two issuers feed {planned.stream}: {feeds[task.stream].name} and {planned.issuer}"
                )
            self.tasks.append(task)
            self.lists.setdefault(task.issuer.index, deque()).append(task)
        ids = {task.id for task in self.tasks}
        if len(ids) != len(self.tasks) or len(ids) != self.total or max(ids) >= self.total:
            raise InputError(
                f"the plan has {len(self.tasks)} tasks ({len(ids)} different), the job has {self.total}"
            )
        self.before = {
            task.id: [self.tasks[k].id for k in plan.waits.row(number).tolist()]
            for number, task in enumerate(self.tasks)
        }
        self.executed: list[bool] = (~job.launched).tolist()

    def prepare(self) -> None:
        """Do nothing: everything has been planned."""

    def begin(self) -> Assignments:
        """Give every issuer the first task of its list."""
        return [pair for index in sorted(self.lists) for pair in self._next(index)]

    def issued(self, task: Task) -> Assignments:
        """Give the issuer its next task."""
        assert task.issuer is not None
        return self._next(task.issuer.index)

    def completed(self, task: Task) -> Assignments:
        """Give a worker its next task."""
        assert task.issuer is not None
        return self._next(task.issuer.index) if self.executed[task.op] else []

    def waits(self, task: Task) -> list[int]:
        """Return the tasks whose events `task` waits for."""
        return self.before[task.id]

    def _next(self, index: int) -> Assignments:
        if not self.lists[index]:
            return []
        task = self.lists[index].popleft()
        assert task.issuer is not None
        task.ready_ns = self.now()
        return [(task.issuer, task)]


def program_plan(job: Job) -> Plan:
    """Return the plan of a host that issues the program order without looking at results.

    Nothing has to be simulated for it: every group's first issuer walks through its program
    (`sim.Job.programs`), every op goes to the stream that the job gives it, and events keep the order. It is
    what issue in order under ``synchronisation="issue"`` does, whatever the durations.

    Parameters
    ----------
    job : Job
        Of one iteration, on devices without workers.

    Raises
    ------
    InputError
        Workers, or several iterations.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a"); _ = b.op("b", inputs=["a"])
    >>> [task.op for task in program_plan(make_job(b.build(), Machine((Device("gpu0"),))))]
    ['a', 'b']
    """
    if job.iterations != 1 or any(device.workers for device in job.machine.devices):
        raise InputError("a plan without a run needs one iteration and devices without workers")
    first = {issuer.group: issuer for issuer in reversed(job.machine.issuers())}
    tasks = []
    group_of, stream_of = job.group_of.tolist(), job.stream_of.tolist()
    for place, op in enumerate(_merged(job)):
        task = Task(op, op, 0, group_of[op])
        task.issuer, task.stream = first[task.group], stream_of[op]
        task.ready_ns = task.issue_ns = task.start_ns = task.end_ns = place
        tasks.append(task)
    return plan_of(measured_trace(job, tasks))


def _merged(job: Job) -> list[int]:
    """Return the programs of all groups as one order in which producers come first.

    Programs of several groups need not agree with the global order; each may be issued as far as its
    producers have been.

    Raises
    ------
    InputError
        The programs block one another for ever.
    """
    dag = job.graph.dag()
    waiting = dag.pending()
    heads = [deque(program) for program in job.programs]
    order: list[int] = []
    moved = True
    while moved:
        moved = False
        for program in heads:
            while program and not waiting[program[0]]:
                op = program.popleft()
                order.append(op)
                moved = True
                dag.freed_by(op, waiting)
    if len(order) < len(job.graph):
        blocked = ", ".join(job.graph.op_names[program[0]] for program in heads if program)
        raise InputError(f"the programs block one another at {blocked}: no plan follows them")
    return order
