"""Which engine runs a job: the kernel where it can, else the one on SimPy, which can run everything.

A kernel that is not compiled is slower than SimPy, so that it only runs when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sim.job.job import Job
from sim.job.transfers import make_flow
from sim.kernel.run import DEADLOCK, compiled, run
from sim.native.compiled import source_is_wanted
from sim.policy.policy import Policy, check_attributes
from sim.trace import Trace
from sim.words.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from sim.engine import Memory, Observer
    from sim.job.context import Context

__all__ = ["ENGINES", "NotOnKernelError", "run_job"]

ENGINES: Final = ("auto", "simpy", "kernel")


class NotOnKernelError(InputError):
    """The kernel was asked for, and something stands in its way."""


def run_job(
    job: Job,
    policy: Policy,
    engine: str = "auto",
    *,
    memory: Callable[[Job, Context], Memory] | None = None,
    observers: Iterable[Observer] = (),
) -> Trace:
    """Run a job on the engine that is wanted; the trace says which one that was.

    Parameters
    ----------
    job : Job
    policy : Policy
    engine : str
        ``auto``: the kernel where it can and is compiled (or ``SIM_PURE`` is set); ``simpy``; ``kernel``.
    memory, observers
        As for `sim.simulate`.

    Raises
    ------
    UnknownNameError
        There is no such engine.
    InputError
        An attribute of the policy, or what it returns, is not what a policy may say.
    NotOnKernelError
        The kernel is wanted and cannot run this.
    StuckError
        Nothing can happen any more and tasks remain.
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    check_attributes(policy)
    observers = list(observers)
    flow = make_flow(job)
    which = "simpy"
    if engine == "auto" and not compiled() and not source_is_wanted():
        which = "simpy: the kernel is not compiled here"
    elif engine != "simpy":
        found = run(job, policy, flow=flow, memory=memory, observers=observers)
        if isinstance(found, Trace):
            return found
        if engine == "kernel" and found != DEADLOCK:
            raise NotOnKernelError(f"the kernel cannot run this: {found}; engine: auto runs it on SimPy")
        which = f"simpy: {found}"
    if job.faults is not None:
        from sim.engine.attempts import run_attempts

        return replace(run_attempts(job, policy, job.faults, flow, memory, observers), engine=which)
    from sim.engine.engine import Engine

    return replace(Engine(job, policy, flow=flow, memory=memory, observers=observers).run(), engine=which)
