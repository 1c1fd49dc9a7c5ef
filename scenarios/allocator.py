"""Memory of a run: who hands it out, how long tensors keep it, and whether it is simulated at all.

::

    policy: {name: ..., allocator: bfc}                             a name, with its defaults
            allocator: {name: caching, lifetime: issue, malloc: 10us}   with options
    memory: {lifetime: issue, when_full: wait}                      the same without naming an allocator

A device may name its own (`devices.memory.spec`), which wins; a device of which nobody says anything counts
bytes against its capacity, at no cost. Where the policy synchronises by issue (as PyTorch does on a GPU),
tensors live from issue to issue, else from start to end, unless the scenario says otherwise.

Without any of these nothing is simulated: memory is what the tensors alone take. A run that then turns out to
need more than a device has is repeated with memory, so that it ends where memory ends and says who held what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from devices.memory.spec import MemorySpec, read_allocator
from devices.memory.tensors import tensor_memory
from scenarios.document import Document, Loc, hint
from scenarios.memory import MemoryFields
from scenarios.schema import Choice
from sim.errors import InputError, OutOfMemoryError, UnknownNameError
from sim.frames import has_control_flow
from sim.memory_use import MemoryUse, memory_use, peak_bytes
from sim.model import Machine, Policy
from sim.trace import Trace
from sim.units import format_bytes, format_duration

__all__ = ["exact_memory", "exceeds_memory", "memory_of"]

_LIFETIME = ("lifetime", "when_full")
"""When memory is taken and given back, and what happens when there is none; see `tensor_memory`."""


IDEAL: Final = MemorySpec("counted", options={"free_synchronises": False})
"""Bytes are counted against the capacity, without rounding, fragments or costs."""


def memory_of(
    choice: Choice | None,
    fields: MemoryFields | None,
    machine: Machine,
    policy: Policy,
    document: Document,
    loc: Loc,
) -> Callable[..., Any] | None:
    """Return what an engine takes as `memory`; None when nobody says anything of memory.

    Parameters
    ----------
    choice : Choice or None
        The allocator of the policy.
    fields : MemoryFields or None
        The scenario's ``memory:``.
    machine : Machine
    policy : Policy
        How it synchronises decides on lifetimes that nobody gives.
    document, loc
        Where the choice stands.

    Raises
    ------
    ScenarioError
        An unknown allocator or option, or a wrong value of one.
    """
    own: dict[str, MemorySpec] = {
        d.name: d.details["allocator"] for d in machine.devices if "allocator" in d.details
    }
    if choice is None and fields is None and not own:
        return None
    lifetime = {"lifetime": "issue" if policy.synchronisation == "issue" else "execution"}
    if fields is not None:
        lifetime |= fields.model_dump(exclude_none=True)
    default = IDEAL
    if choice is not None:
        lifetime |= {key: value for key, value in choice.options.items() if key in _LIFETIME}
        given = {key: value for key, value in choice.options.items() if key not in _LIFETIME}
        default = _read(choice.name, given, document, loc)
    try:
        return tensor_memory({d.name: own.get(d.name, default) for d in machine.devices}, **lifetime)
    except InputError as error:
        raise document.error(loc, str(error)) from None


def _read(name: str, options: dict[str, Any], document: Document, loc: Loc) -> MemorySpec:
    try:
        return read_allocator({"name": name, **options}, "")
    except UnknownNameError as error:
        message = f"unknown {error.what} {error.name!r}{hint(error.name, [*error.known, *_LIFETIME])}"
        raise document.error((*loc, error.name), message, key=True) from None
    except InputError as error:
        key, _, message = str(error).removeprefix(".").partition(": ")
        raise document.error((*loc, key), message) from None


def exact_memory(machine: Machine) -> Callable[..., Any]:
    """Return a memory that counts bytes and nothing else."""
    return tensor_memory(dict.fromkeys((device.name for device in machine.devices), IDEAL))


def exceeds_memory(trace: Trace) -> bool:
    """Whether the tensors of a run, which did not ask for memory, take more than some device has.

    Raises
    ------
    OutOfMemoryError
        They do, and as there is control flow no allocator can be asked where that happens.
    """
    job = trace.job
    capacity = {d.name: d.memory_bytes for d in job.machine.devices if d.memory_bytes is not None}
    everything = int(job.graph.tensor_nbytes.sum()) * job.iterations
    if all(everything <= nbytes for nbytes in capacity.values()) and not has_control_flow(job.graph):
        return False  # no device ever holds more than all tensors of all iterations
    peak = peak_bytes(trace)
    full = [name for name, nbytes in capacity.items() if peak[name] > nbytes]
    if full and has_control_flow(job.graph):
        raise OutOfMemoryError(_story(memory_use(trace)[full[0]], capacity[full[0]]))
    return bool(full)


def _story(use: MemoryUse, limit: int) -> str:
    """Say what was in memory when most was, as `devices.memory.oom` says it of an allocator."""
    holders = "; ".join(f"{h.name!r} {format_bytes(h.nbytes, iec=True)}" for h in use.holders[:5])
    short = format_bytes(use.peak_bytes - limit, iec=True)
    return (
        f"out of memory on {use.device}: {format_bytes(use.peak_bytes, iec=True)} are in use "
        f"at {format_duration(use.peak_ns)}\n"
        f"  limit            {format_bytes(limit, iec=True)}\n"
        f"  largest holders  {holders}\n"
        f"  what would help  {short} more memory, or as much less in use: a smaller batch, recomputation"
    )
