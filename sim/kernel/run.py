"""Running a job on the kernel: columns in, a trace out."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sim.graph import IntArray
from sim.job import Job
from sim.kernel import loop
from sim.kernel.layout import columns, no_order, obstacle
from sim.order import order_of
from sim.policy import Policy
from sim.trace import Trace, Wait
from sim.transfers import Flow

__all__ = ["compiled", "run"]


def compiled() -> bool:
    """Whether the kernel is compiled; ``SIM_PURE=1`` in the environment runs its source all the same."""
    return not str(loop.__file__).endswith(".py")


def run(
    job: Job,
    flow: Flow,
    policy: Policy,
    *,
    memory: Callable[..., Any] | None = None,
    observers: Iterable[Any] = (),
    pure: bool | None = None,
) -> Trace | str:
    """Run a job on the kernel; where that cannot be, return why not, in words.

    Parameters
    ----------
    job : Job
    flow : Flow
        Its nodes and edges (`sim.transfers.make_flow`).
    policy : Policy
    memory, observers
        As for `sim.simulate`; with either there is no run.
    pure : bool, optional
        Whether to run the source although it is compiled; by default what ``SIM_PURE`` says.

    Returns
    -------
    Trace or str
        The trace that the engine on SimPy gives, or what stands in the way of it.
    """
    why = obstacle(job, flow, memory=memory, observers=observers)
    if why is not None:
        return why
    order = order_of(policy, job)
    if order is None:
        return no_order(policy)
    if pure is None:
        pure = os.environ.get("SIM_PURE", "") not in ("", "0")
    source = pure or not compiled()
    kernel = (_source() if source else loop).Run()
    for name, value in columns(job, flow, policy, order).items():
        setattr(kernel, name, value.tolist() if source and isinstance(value, np.ndarray) else value)
    kernel.run()
    if kernel.n_rows < flow.n_ops * job.iterations or kernel.n_coming:
        return "nothing can happen any more and tasks remain"
    return _trace(job, flow, policy, kernel)


@cache
def _source() -> ModuleType:
    """Return the kernel as it is written, whether or not a compiled one stands beside it."""
    if not compiled():
        return loop
    spec = importlib.util.spec_from_file_location("sim.kernel.loop_source", Path(__file__).with_name("loop.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _trace(job: Job, flow: Flow, policy: Policy, kernel: loop.Run) -> Trace:
    """Return the trace, whose columns are those of the kernel in the order of starts."""
    rows = np.asarray(kernel.rows, np.int64)[: kernel.n_rows]

    def column(name: str) -> IntArray:
        return np.asarray(getattr(kernel, name), np.int64)[rows]

    tasks = {"id": rows, "stream": column("stream")}
    tasks |= {f"{name}_ns": column(name) for name in ("ready", "issue", "start", "end")}
    tasks |= {"wait": column("wait"), "issuer": column("issuer")}
    tasks["iteration"], tasks["op"] = np.divmod(rows, flow.n_nodes)
    tasks["dead"] = np.zeros(len(rows), np.int64)
    late = (tasks["wait"] == Wait.NONE) & (tasks["start_ns"] > tasks["ready_ns"])
    by_issuer = tasks["issue_ns"] > tasks["ready_ns"]
    tasks["wait"] = np.where(late, np.where(by_issuer, Wait.ISSUER, Wait.STREAM), tasks["wait"])
    none = np.zeros(0, np.int64)
    names = ("id", "iteration", "ready_ns", "start_ns", "end_ns", "tensor", "source", "destination", "nbytes")
    return Trace(job, flow, type(policy).__name__, tasks, dict.fromkeys(names, none))
