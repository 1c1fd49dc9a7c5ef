"""Run a job on the kernel: columns in, a trace out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sim.base.arrays import IntArray
from sim.base.compiled import load, source_is_wanted
from sim.base.errors import InputError, UnknownNameError
from sim.job.job import Job, read_only
from sim.job.transfers import Flow, make_flow
from sim.kernel.columns import Journal, MemoryAfterwards, columns, obstacle, routes_of, shared_of, sms_of
from sim.policy import Policy, check_attributes, order_of
from sim.readiness.counters import has_runs
from sim.record.record import TASK_COLUMNS, TRANSFER_COLUMNS
from sim.trace import Trace

if TYPE_CHECKING:
    from sim.engine import Memory, Observer
    from sim.job.context import Context


_SOURCE: Final = "sim.kernel.loop"

_SLICE_S: Final = 0.02

_NETWORK_FAILURES: Final = (
    "",
    "the work of transfers needs more than 60 bits",
    "shares of links are fractions that 128 bits cannot tell apart",
)
"""Why the network gave up, by `sim.kernel.network.Net.status`."""

DEADLOCK: Final = "nothing can happen any more and tasks remain"


def is_compiled() -> bool:
    """Whether the kernel runs compiled (see `sim.base.compiled`)."""
    return load("loop").__name__ != _SOURCE


def run(
    job: Job,
    policy: Policy,
    *,
    flow: Flow | None = None,
    memory: object = None,
    observers: Iterable[Any] = (),
    pure: bool = False,
) -> Trace | str:
    """Run a job on the kernel; return its trace or, if that is not possible, the reason in words.

    Parameters
    ----------
    job : Job
    policy : Policy
    flow : Flow, optional
        The result of `make_flow`, if already made.
    memory, observers
        As for `sim.simulate`.
    pure : bool
        Whether to run the source even if it is compiled.

    Returns
    -------
    Trace or str
        The same trace as that of the engine on SimPy, or what prevents it.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, Policy
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=10)
    >>> job = make_job(b.build(), Machine((Device("gpu0"),)))
    >>> class Mine(Policy):
    ...     pass
    >>> run(job, Mine())
    'the policy Mine has to be asked task by task'
    """
    reason = obstacle(job, memory=memory, observers=observers)
    if reason is not None:
        return reason
    if policy.runs_in_turn and has_runs(job):
        return "runs follow one another (runs: in-turn)"
    order = order_of(policy, read_only(job))
    if order is None:
        return f"the policy {type(policy).__name__} has to be asked task by task"
    if policy.not_before_ns(read_only(job)) is not None:
        return "ops wait on purpose"
    if order.kind == "steal" and job.graph.attribute("release"):
        return "ops are released, for threads that steal"
    shared = shared_of(job)
    if isinstance(shared, str):
        return shared
    flow = make_flow(job) if flow is None else flow
    routes = routes_of(job, flow)
    if isinstance(routes, str):
        return routes
    memories = memory if isinstance(memory, MemoryAfterwards) else None
    log_of = memories.afterwards(job, flow) if memories is not None else None
    if isinstance(log_of, str):
        return log_of
    names = ("loop", "network", "sms", "stealing")
    loop, network, sms, stealing = (import_module(f"sim.kernel.{n}") if pure else load(n) for n in names)
    lists = loop.__name__ == _SOURCE
    kernel = loop.Run()
    for name, value in columns(job, flow, policy, order, shared, memories).items():
        if isinstance(value, np.ndarray):  # Cython requires writable arrays
            value = value.tolist() if lists else np.require(value, requirements="W")
        setattr(kernel, name, value)
    if routes is not None:
        kernel.net = network.Net(routes, kernel.n_tasks - flow.n_ops * job.iterations)
    kernel.sms = sms.Sms(*sms_of(job, shared))
    if order.kind == "steal":
        pools = order.cheap, order.pool, order.pool_of_issuer
        kernel.threads = stealing.Stealing(kernel.n_tasks, flow.n_nodes, *pools)
    to_the_end(kernel)
    if routes is not None and kernel.net.status:
        return _NETWORK_FAILURES[kernel.net.status]
    if kernel.n_done < kernel.n_tasks or kernel.mismatched:
        return DEADLOCK
    log = log_of(Journal(*map(np.asarray, (kernel.noted, kernel.noted_ns)))) if log_of is not None else None
    if isinstance(log, str):
        return log
    ran = {name: np.asarray(getattr(kernel, name.removesuffix("_ns"))) for name in (*TASK_COLUMNS, "turn")}
    rows = np.asarray(kernel.rows[: kernel.n_rows], np.int64)
    del kernel  # its other columns would take as much memory as the trace
    tasks = _rows_of(rows, ran, TASK_COLUMNS)
    ids = np.arange(job.iterations * flow.n_nodes).reshape(job.iterations, -1)
    transfers = _rows_of(ids[:, flow.n_ops :].ravel(), ran, TRANSFER_COLUMNS)
    engine = "kernel (pure Python)" if lists else "kernel"
    return Trace.from_columns(job, flow, policy, tasks, transfers, memory=log, engine=engine)


def to_the_end(kernel: Any) -> None:
    """Run the loop in slices of some hundredths of a second, so that signals and threads get a turn.

    While the compiled loop runs, nothing else in this process does: neither Ctrl-C nor a time limit.
    """
    kernel.open()
    rounds, began = 1, perf_counter()
    while kernel.run(rounds):
        now = perf_counter()
        rounds = 2 * rounds if now - began < _SLICE_S else max(rounds // 2, 1)
        began = now


def _rows_of(id: IntArray, ran: dict[str, IntArray], names: tuple[str, ...]) -> dict[str, IntArray]:
    """Return the rows of some tasks, by start, round and lane; ties stay in the given order."""
    start, turn = ran["start_ns"][id], ran["turn"][id]
    turns = int(turn.max(initial=0)) + 1
    if int(start.max(initial=0)) < (1 << 62) // turns:  # one number each; already nearly sorted
        order = np.argsort(start * turns + turn, kind="stable")
    else:
        order = np.lexsort((turn, start))
    id = id[order]
    return {"id": id} | {name: ran[name][id].astype(np.int64, copy=False) for name in names}


# ----------------------------------------------------------------------------------------------------------
# The choice of engine: the kernel if it can run the job, else the one on SimPy, which can run everything.
#
# A kernel that is not compiled is slower than SimPy, so it only runs on request.

ENGINES: Final = ("auto", "simpy", "kernel")


class NotOnKernelError(InputError):
    """The kernel was requested but cannot run the job."""


def run_job(
    job: Job,
    policy: Policy,
    engine: str = "auto",
    *,
    memory: Callable[[Job, Context], Memory] | None = None,
    observers: Iterable[Observer] = (),
) -> Trace:
    """Run a job on the requested engine; the trace says which engine ran.

    Parameters
    ----------
    job : Job
    policy : Policy
    engine : str
        ``auto``: the kernel if it can and is compiled (or ``SIM_PURE`` is set); ``simpy``; ``kernel``.
    memory, observers
        As for `sim.simulate`.

    Raises
    ------
    UnknownNameError
        There is no such engine.
    InputError
        An attribute of the policy, or a value that it returns, is invalid.
    NotOnKernelError
        The kernel was requested and cannot run the job.
    StuckError
        Nothing can happen any more and tasks remain.
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    check_attributes(policy)
    observers = list(observers)
    flow = job.once("flow", lambda: make_flow(job))
    label = "simpy"
    if engine == "auto" and not is_compiled() and not source_is_wanted():
        label = "simpy: the kernel is not compiled here"
    elif engine != "simpy":
        result = run(job, policy, flow=flow, memory=memory, observers=observers)
        if isinstance(result, Trace):
            return result
        if engine == "kernel" and result != DEADLOCK:
            raise NotOnKernelError(f"the kernel cannot run this: {result}; engine: auto runs it on SimPy")
        label = f"simpy: {result}"
    if job.faults is not None:
        from sim.engine.attempts import run_attempts

        return replace(run_attempts(job, policy, job.faults, flow, memory, observers), engine=label)
    from sim.engine.engine import Engine

    return replace(Engine(job, policy, flow=flow, memory=memory, observers=observers).run(), engine=label)
