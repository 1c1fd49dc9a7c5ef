"""Running a job on the kernel: columns in, a trace out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from sim.job.job import Job
from sim.job.transfers import Flow, make_flow
from sim.kernel import loop as source
from sim.kernel import network as network_source
from sim.kernel.layout import columns, no_order, obstacle, routes_of, shared_of
from sim.native.compiled import load
from sim.policy.as_data import order_of
from sim.policy.policy import Policy
from sim.record.record import complete_tasks
from sim.trace import Trace
from sim.words.arrays import IntArray

__all__ = ["compiled", "run"]


_RESULTS: Final = ("stream", "ready", "issue", "start", "end", "wait", "issuer", "turn")
"""Columns of which a trace is made, an entry a task."""

STUCK: Final = "nothing can happen any more and tasks remain"


def compiled() -> bool:
    """Whether the kernel runs compiled (see `sim.native.compiled`)."""
    return load("loop") is not source


def run(
    job: Job,
    policy: Policy,
    *,
    memory: Callable[..., Any] | None = None,
    observers: Iterable[Any] = (),
    pure: bool = False,
) -> Trace | str:
    """Run a job on the kernel; where that cannot be, return why not, in words.

    Parameters
    ----------
    job : Job
    policy : Policy
    memory, observers
        As for `sim.simulate`; with either there is no run.
    pure : bool
        Whether to run the source although it is compiled.

    Returns
    -------
    Trace or str
        The trace that the engine on SimPy gives, or what stands in the way of it.
    """
    why = obstacle(job, memory=memory, observers=observers)
    if why is not None:
        return why
    order = order_of(policy, job)
    if order is None:
        return no_order(policy)
    shared = shared_of(job)
    if isinstance(shared, str):
        return shared
    flow = make_flow(job)
    routes = routes_of(job, flow)
    if isinstance(routes, str):
        return routes
    loop, network = (source, network_source) if pure else (load("loop"), load("network"))
    lists = loop is source
    kernel = loop.Run()
    for name, value in columns(job, flow, policy, order, shared).items():
        setattr(kernel, name, value.tolist() if lists and isinstance(value, np.ndarray) else value)
    if routes is not None:
        kernel.net = network.Net(routes, kernel.n_tasks - flow.n_ops * job.iterations)
    kernel.run()
    if routes is not None and kernel.net.status:
        return "shares of links are fractions that 128 bits cannot tell apart"
    if kernel.n_done < kernel.n_tasks:
        return STUCK
    ran: dict[str, IntArray] = {name: np.asarray(getattr(kernel, name)) for name in _RESULTS}
    rows = np.asarray(kernel.rows[: kernel.n_rows], np.int64)
    del kernel  # its other columns would take as much memory as the trace
    return _trace(job, flow, policy, rows, ran, "kernel (pure Python)" if lists else "kernel")


def _trace(
    job: Job, flow: Flow, policy: Policy, rows: IntArray, ran: dict[str, IntArray], engine: str
) -> Trace:
    """Return the trace, whose columns are those of the kernel in the order of starts."""

    def column(name: str) -> IntArray:
        return ran[name][rows].astype(np.int64, copy=False)

    tasks = {"id": rows, "stream": column("stream")}
    tasks |= {f"{name}_ns": column(name) for name in ("ready", "issue", "start", "end")}
    tasks |= {"wait": column("wait"), "issuer": column("issuer")}
    complete_tasks(tasks, flow)
    moved = _transfers(job, flow, ran)
    return Trace(job, flow, type(policy).__name__, tasks, moved, engine=engine)


def _transfers(job: Job, flow: Flow, ran: dict[str, IntArray]) -> dict[str, IntArray]:
    """Return the columns of the transfers, in the order of starts."""
    n = flow.n_nodes
    id = (np.arange(job.iterations)[:, None] * n + np.arange(flow.n_ops, n)).ravel()
    times = {name: ran[name][id] for name in ("turn", "ready", "start", "end")}
    order = np.lexsort((times["turn"], times["start"]))
    id = id[order]
    iteration, node = np.divmod(id, n)
    moved = {"id": id, "iteration": iteration}
    moved |= {f"{name}_ns": times[name][order] for name in ("ready", "start", "end")}
    which = node - flow.n_ops
    return moved | {
        name: getattr(flow, name)[which] for name in ("tensor", "source", "destination", "nbytes")
    }
