"""Memory of a run: who hands it out, how long tensors keep it, and whether it is simulated at all.

::

    memory: {allocator: bfc}                                        a name, with its defaults
    memory: {allocator: {name: caching, malloc: 10us}}              with options (`devices.memory`)
    memory: {allocator: bfc, devices: {npu0: scratchpad}}           all devices but one
    memory: {lifetime: issue, when_full: wait}                      without naming an allocator
    memory: {allocator: runtime}                                    the one that the policy's runtime has

Without an allocator bytes are counted against the capacity of the device, at no cost. Where the
policy synchronises by issue (as PyTorch does on a GPU), tensors live from issue to issue, else from start to
end, unless the scenario says otherwise.

Without any of these nothing is simulated: memory is what the tensors alone take. A run that then turns out to
need more than a device has is repeated with memory, so that it ends where memory ends and says who held what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from scenarios.fields.policy_fields import Choice, MemoryFields
from scenarios.file.document import Loc
from sim.base import plugins
from sim.base.errors import OutOfMemoryError
from sim.base.units import format_bytes, format_duration
from sim.explain.memory_use import MemoryUse, memory_use, peak_bytes
from sim.graph.frames import has_control_flow
from sim.job.job import Job
from sim.machine.machine import Machine
from sim.policy import Policy
from sim.trace import Trace

if TYPE_CHECKING:
    from devices.memory.device_memories import Recordings
    from devices.memory.registry import MemorySpec
    from devices.memory.run_memory import TensorMemories
    from scenarios.run.scenario import Scenario


RUNTIME: Final = "runtime"
"""In place of the name of an allocator: the one that the policy's runtime names."""


def _ideal() -> MemorySpec:
    """Return what counts bytes against the capacity, without rounding, fragments or costs."""
    from devices.memory.registry import MemorySpec

    return MemorySpec("counted", options={"free_synchronises": False})


def memory_of(
    scenario: Scenario,
    job: Job,
    policy: Policy,
    allocators: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    recordings: Recordings | None = None,
) -> TensorMemories | None:
    """Return what an engine takes as `memory`; None when nobody says or asks anything of memory.

    Parameters
    ----------
    scenario : Scenario
        Its ``memory:`` and the virtual devices of its machine.
    job : Job
    policy : Policy
        How it synchronises decides on lifetimes that nobody gives.
    allocators : mapping of str to mapping
        Kind of device → the allocator that ``runtime`` stands for; on other kinds bytes are counted.
    recordings : dict of str to list of MemoryEvent, optional
        Where what is asked of the allocators is to be written down.

    Raises
    ------
    ScenarioError
        An unknown allocator or option, or a wrong value of an option; a plan for a graph with control flow.
    """
    fields, document, machine = scenario.content.memory, scenario.document, job.machine
    cut = {d.name: d.details.virtual_devices for d in machine.devices if d.details.virtual_devices}
    if fields is None and not cut and recordings is None:
        return None
    from devices.memory.device_memories import PLAN_NEEDS_ORDER
    from devices.memory.run_memory import tensor_memory

    fields = fields or MemoryFields.model_validate({})
    specs = {}
    for device in machine.devices:
        own = device.name in fields.devices
        loc: Loc = ("memory", "devices", device.name) if own else ("memory", "allocator")
        choice = fields.devices[device.name] if own else fields.allocator
        if choice is not None and choice.name == RUNTIME:
            choice = _of_runtime(choice, allocators, device.kind, scenario, loc)
        specs[device.name] = _read(choice, scenario, loc)
        if specs[device.name].allocator == "planned" and has_control_flow(job.graph):
            raise document.error(loc, PLAN_NEEDS_ORDER)
    for name, parts in cut.items():
        if specs[name].allocator == "planned":
            message = "a plan is for a whole device; choose another allocator"
            raise document.error(("machine", "devices", name, "virtual_devices"), message)
        specs[name] = replace(specs[name], options={**specs[name].options, "virtual_devices": parts})
    lifetime = fields.lifetime or ("issue" if policy.synchronisation == "issue" else "execution")
    with document.placing("memory"):
        memory = tensor_memory(specs, lifetime=lifetime, when_full=fields.when_full)
    return replace(memory, recordings=recordings)


def _of_runtime(
    choice: Choice,
    allocators: Mapping[str, Mapping[str, Any]],
    kind: str,
    scenario: Scenario,
    loc: Loc,
) -> Choice | None:
    """Return the runtime's allocator for a kind of device, with more options; None: bytes are counted."""
    if not allocators:
        runtimes = {name: plugins.lookup("sim.runtimes", name) for name in plugins.names("sim.runtimes")}
        known = ", ".join(name for name, choices in runtimes.items() if "allocator" in choices)
        message = f"{RUNTIME!r} is the allocator that the policy's runtime names, and it names none"
        raise scenario.document.error(loc, f"{message}; these runtimes do: {known}")
    if kind not in allocators:
        return None
    return Choice(**{**allocators[kind], **choice.options})


def _read(choice: Choice | None, scenario: Scenario, loc: Loc) -> MemorySpec:
    from devices.memory.registry import read_allocator

    if choice is None:
        return _ideal()
    with scenario.document.placing(*loc):
        return read_allocator({"name": choice.name, **choice.options}, scenario.document.origin)


def exact_memory(machine: Machine) -> Callable[..., Any]:
    """Return a memory that counts bytes and nothing else."""
    from devices.memory.run_memory import tensor_memory

    return tensor_memory(dict.fromkeys((device.name for device in machine.devices), _ideal()))


def exceeds_memory(trace: Trace) -> bool:
    """Whether the tensors of a run, which did not ask for memory, take more than some device has.

    Raises
    ------
    OutOfMemoryError
        They do, and no allocator can be asked where that happens: not if ops may fail.
    """
    job = trace.job
    capacity = {d.name: d.memory_bytes for d in job.machine.devices if d.memory_bytes is not None}
    everything = int(job.graph.tensor_nbytes.sum()) * job.iterations
    if all(everything <= nbytes for nbytes in capacity.values()) and not has_control_flow(job.graph):
        return False  # no device ever holds more than all tensors of all iterations
    peak = peak_bytes(trace)
    full = [name for name, nbytes in capacity.items() if peak[name] > nbytes]
    if full and trace.on_failure is not None:
        raise OutOfMemoryError(_story(memory_use(trace)[full[0]], capacity[full[0]]))
    return bool(full)


def _story(use: MemoryUse, limit: int) -> str:
    """Say what was in memory when most was, as `devices.memory.out_of_memory` says it of an allocator."""
    holders = "; ".join(f"{h.name!r} {format_bytes(h.nbytes, iec=True)}" for h in use.holders[:5])
    short = format_bytes(use.peak_bytes - limit, iec=True)
    return (
        f"out of memory on {use.device}: {format_bytes(use.peak_bytes, iec=True)} are in use "
        f"at {format_duration(use.peak_ns)}\n"
        f"  limit            {format_bytes(limit, iec=True)}\n"
        f"  largest holders  {holders}\n"
        f"  what would help  {short} more memory, or as much less in use: a smaller batch, recomputation"
    )
