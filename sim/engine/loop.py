"""The loop over instants, and `simulate`, the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat

from sim.engine.clock import NEVER
from sim.engine.collector import collector_paused
from sim.engine.hooks import Memory, Observer
from sim.engine.issuing import Issuing
from sim.engine.state import State
from sim.errors import StuckError
from sim.graph import Graph
from sim.job import Job, make_job
from sim.model import Linearizer, Machine, Placement, Policy, StreamAssignment
from sim.noise import Noise
from sim.rows import AT_ONCE
from sim.stuck import stuck_error
from sim.trace import Trace

__all__ = ["Engine", "simulate"]


class Engine(Issuing):
    """One run of a job under a policy; `simulate` makes both."""

    __slots__ = ()

    def run(self) -> Trace:
        """Run to the end.

        Raises
        ------
        StuckError
            When tasks remain and nothing can happen any more.
        """
        self.policy.prepare(self.job)
        next_instant = self.clock.next_instant
        ended, paid, by_group = self.ended, self.paid, self.by_group
        with collector_paused():
            self._eligible(None, self.readiness.roots(), None, True)
            now: float = 0
            while now != NEVER:
                for _ in repeat(None, AT_ONCE):
                    if ended:
                        self._complete()
                    if paid:
                        self._issue_paid()
                    if self.hosts is not None:
                        self._launch_waiting()
                    if not by_group:
                        self._ask_all()
                    elif self.dirty_groups:
                        self._ask_groups()
                    if self.dirty_streams:
                        self._start_heads()
                    if self.settling:
                        self._settle()
                    now = next_instant()
                    if now == NEVER:
                        break
                    self.now_ns = now  # type: ignore[assignment]
                self.task_rows.collect()
                self.transfer_rows.collect()
        if len(self.task_rows) + len(self.transfer_rows) < self.readiness.total:
            raise self._stuck()
        return Trace.from_rows(
            self.job,
            self.flow,
            self.policy,
            self.task_rows,
            self.transfer_rows,
            frames=self.frames,
            memory=self.memory.columns() if self.memory is not None else None,
            calls=self.calls,
            met=self.rendezvous.met if self.rendezvous is not None else (),
        )

    def _stuck(self) -> StuckError:
        over = [rows.columns()["id"].tolist() for rows in (self.task_rows, self.transfer_rows)]
        waiting = dict(self.readiness.unfinished({*over[0], *over[1]}))
        lacks = {task.id: self.memory.lacks(task) for task in self.starved} if self.memory else {}
        if self.rendezvous is not None:
            lacks.update(self.rendezvous.lacks())
        return stuck_error(self.readiness.name, waiting, self.policy, lacks)

    def _settle(self) -> None:
        """Let devices and networks share what they have, now that all that wants it is known."""
        while self.settling:
            settling, self.settling = self.settling, []
            for callback in settling:
                callback()

    def _complete(self) -> None:
        ended = self.ended[:]
        self.ended.clear()
        now = self.now_ns
        executed = self.executed
        for task in ended:
            task.end_ns = now
            issuer = task.issuer
            if issuer is not None:
                if task.dead or executed[task.op]:
                    self._free(issuer)
                else:
                    self._leave_stream(task)
                    if task.op in self.holding:
                        self._free(issuer)
            elif self.hosts is not None and (host := self.hosts.let_go(task)) is not None:
                self._free(host)
        freed = False
        if not self.plain:
            if self.shared:
                for task in ended:
                    if task.issuer is not None and not task.dead:
                        self._leave_processor(task)
            if self.observers:
                for task in ended:
                    self._tell("ended", task)
            if self.memory is not None and self.memory.follows_ends:
                for task in ended:
                    freed |= self.memory.release(task)
        now_ready_of = self.now_ready_of
        if not self.asynchronous:
            for task in ended:
                self._eligible(task, now_ready_of(task), task.issuer, True)
        else:
            for task in ended:
                now_ready = now_ready_of(task)
                issuer = task.issuer
                told = issuer is None or not (task.dead or executed[task.op])  # when issued
                if now_ready or not told:
                    self._eligible(task, now_ready, issuer, not told)
            for task in self.readiness.released():
                if task.group < 0:
                    self._carry(task)
                else:
                    self._touch(self.streams[task.stream])
        if freed and self.starved:
            self._feed()


def simulate(
    graph: Graph,
    machine: Machine,
    policy: Policy,
    *,
    placement: Placement | None = None,
    streams: StreamAssignment | None = None,
    linearize: Linearizer | None = None,
    memory: Callable[[Job, State], Memory] | None = None,
    iterations: int = 1,
    knowledge: str = "exact",
    estimate_error: float = 0.2,
    noise: Noise | None = None,
    seed: int = 0,
    observers: Iterable[Observer] = (),
) -> Trace:
    """Run `graph` on `machine` under `policy` and return what happened.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    policy : Policy
        Issues tasks; prepared anew for every run.
    placement, streams, linearize, iterations, knowledge, estimate_error, noise, seed
        The other decisions; see `sim.job.make_job`.
    memory : callable, optional
        ``memory(job, engine)`` returns the `Memory` of the run; by default memory is unlimited.
    observers : iterable of Observer
        Told of every start and end.

    Returns
    -------
    Trace

    Raises
    ------
    InputError
        A wrong number, name or pin.
    InfeasibleError
        Refused before time 0: an op that no device can run, devices no link connects.
    StuckError
        Nothing can happen any more and tasks remain.
    OutOfMemoryError
        An allocation failed.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("fork")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2),)), ReadyQueue()).makespan_ns
    20
    """
    with collector_paused():
        job = make_job(
            graph,
            machine,
            placement=placement,
            streams=streams,
            linearize=linearize,
            iterations=iterations,
            knowledge=knowledge,
            estimate_error=estimate_error,
            noise=noise,
            seed=seed,
        )
        return Engine(job, policy, memory=memory, observers=observers).run()
