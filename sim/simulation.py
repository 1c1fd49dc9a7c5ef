"""`simulate`, the entry point: it turns a graph, a machine and a policy into a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.base.errors import InputError
from sim.base.options import require_call, require_methods
from sim.base.startup import collector_paused
from sim.engine import Memory, Observer
from sim.faults import Faults
from sim.graph.graph import Graph
from sim.issuers import with_processes
from sim.job.build_job import make_job
from sim.job.context import Context
from sim.job.job import Job, Linearizer, Placement, StreamAssignment
from sim.job.noise import Noise
from sim.kernel.run import run_job
from sim.machine.machine import Machine
from sim.policy import Policy
from sim.trace import Trace


def simulate(
    graph: Graph,
    machine: Machine,
    policy: Policy,
    *,
    placement: Placement | None = None,
    streams: StreamAssignment | None = None,
    linearize: Linearizer | None = None,
    memory: Callable[[Job, Context], Memory] | None = None,
    iterations: int = 1,
    knowledge: str = "exact",
    estimate_error: float = 0.2,
    noise: Noise | None = None,
    faults: Faults | None = None,
    seed: int = 0,
    engine: str = "auto",
    observers: Iterable[Observer] = (),
) -> Trace:
    """Run `graph` on `machine` under `policy` and return what happened.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    policy : Policy
        Issues tasks; it is prepared again for every run.
    placement : Placement, optional
        By default ops run where they are pinned, others on the first accelerator that can, else on a CPU.
    streams : StreamAssignment, optional
        By default all ops run on the first stream of their device.
    linearize : Linearizer, optional
        By default the topological order with the least index first.
    memory : callable, optional
        ``memory(job, context)`` returns the `Memory` of the run, as what
        `devices.memory.run_memory.tensor_memory` makes; by default memory is unlimited.
    iterations : int
        How many times the graph runs.
    knowledge : str
        What placements and policies may know about durations: ``exact``, ``mean``, ``estimate`` or ``none``;
        see `sim.job.build_job.make_job`.
    estimate_error : float
        Standard deviation of the logarithm of the factor by which estimates are off.
    noise : Noise, optional
        How the durations of tasks vary.
    faults : Faults, optional
        Which parts of the machine fail or become slow.
    seed : int
        The seed of all random draws.
    engine : str
        ``simpy`` runs everything; ``kernel`` runs policies given as data, much faster, with the same result;
        ``auto`` uses the kernel where it can. `Trace.engine` says which one ran.
    observers : iterable of Observer
        Called at every start and end of a task.

    Returns
    -------
    Trace

    Raises
    ------
    InputError
        A wrong number, name or pin.
    InfeasibleError
        The job was refused before time 0: no device can run an op, or no link connects two devices.
    StuckError
        Tasks remain and nothing can happen any more.
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
    if not isinstance(policy, Policy):
        raise InputError(f"policy should be an instance of a policy, such as ReadyQueue(), not {policy!r}")
    for argument, kind in ((graph, Graph), (machine, Machine), (noise, Noise), (faults, Faults)):
        if not isinstance(argument, kind) and (argument is not None or kind in (Graph, Machine)):
            advice = "what build() returns" if hasattr(argument, "build") else f"not {argument!r}"
            raise InputError(f"{kind.__name__.lower()} should be a {kind.__name__}, {advice}")
    if memory is not None:
        require_call("memory", memory, "job", "context")
    for device in {id(device.processor): device for device in machine.devices if device.processor}.values():
        require_call(f"the processor of {device.name!r}", device.processor, "device", "context")
    if not isinstance(observers, Iterable):
        raise InputError(f"observers should be a list of observers, not {observers!r}")
    observers = tuple(observers)
    for observer in observers:
        require_methods("an observer", observer, Observer)
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
            faults=faults,
        )
        if not policy.one_process:
            job = with_processes(job)
        return run_job(job, policy, engine, memory=memory, observers=observers)
