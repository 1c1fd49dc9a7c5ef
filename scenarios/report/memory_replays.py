"""Replays of an allocation trace under other allocators: what each would have reserved, and wasted.

::

    trace.jsonl ──read_events──► events ──replay──► one row per allocator: peak, reserved, fragmentation
    snapshot.pickle                       │
                                          └──► one row per event: address and bytes after it (--ops)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from devices.memory.memory_replay import Replay, replay_until_full
from devices.memory.registry import make_allocator, read_allocator
from devices.memory.trace_readers import MemoryEvent, json_lines
from sim.base.errors import InputError, error_path
from sim.base.files import write_bytes

if TYPE_CHECKING:
    import pandas as pd

    from scenarios.run.execute import Result


MEMORY_SCHEMA: Final = "sim.memory/1"
"""Value of ``"schema"`` in the output of ``sim memory --json``."""


def replay_under(
    events: Sequence[MemoryEvent], allocator: str, capacity: int | None, options: Mapping[str, Any]
) -> Replay:
    """Return the replay of a trace until its end, or until memory runs out (`Replay.failure`).

    Parameters
    ----------
    events : sequence of MemoryEvent
    allocator : str
        A name in `devices.memory.allocators()`.
    capacity : int or None
        Bytes of the device; None: unlimited.
    options : mapping
        Options of the allocator, as in a description (`devices.memory.registry`).

    Raises
    ------
    InputError
        An unknown allocator or option.
    OutOfMemoryError
        A plan is larger than the device.
    """
    with error_path(f"--allocator {allocator}"):
        spec = read_allocator({"name": allocator, **options})
    if spec.malloc_ns or spec.free_ns or spec.synchronisation_ns:
        raise InputError("a replay has no clock: costs of malloc, free and synchronisation mean nothing here")
    made = make_allocator(spec.allocator, capacity, name="the device", events=events, **spec.options)
    return replay_until_full(events, made)


def replay_report(done: Replay, allocator: str, *, holders: int = 5) -> dict[str, Any]:
    """Return the results of a replay as plain values, sizes in bytes."""
    at, recorded = done.peak_event, done.recorded
    return {
        "allocator": allocator,
        "events": len(done.events),
        "peak_in_use_bytes": done.peak_in_use,
        "peak_requested_bytes": int(done.requested.max(initial=0)),
        "peak_reserved_bytes": done.peak_reserved,
        "peak_event": at + 1,
        "fragmentation_bytes": int(done.fragmentation[at]) if at >= 0 else 0,
        "worst_fragmentation_bytes": int(done.fragmentation.max(initial=0)),
        "device_mallocs": done.device_mallocs,
        "device_frees": done.device_frees,
        "synchronisations": done.synchronisations,
        "retries": done.retries,
        "recorded_reserved_bytes": None if recorded is None else int(recorded.max(initial=0)),
        "not_followed": done.not_followed,
        "holders": [{"id": id, "nbytes": nbytes} for id, nbytes in done.holders_at_peak(holders)],
        "never_freed": len(done.never_freed()),
    }


def event_table(done: Replay) -> pd.DataFrame:
    """Return a table with one row per event: its operation, its address, and the bytes after it."""
    import pandas as pd

    events = pd.DataFrame(list(done.events), columns=MemoryEvent._fields)[["op", "id", "nbytes", "stream"]]
    after = ("address", "in_use", "requested", "reserved", "largest_free")
    return events.astype({"id": str}).assign(**{name: getattr(done, name) for name in after})


# ----------------------------------------------------------------------------------------------------------
# Requests of a run to its allocators, as files that ``sim memory`` replays under other allocators.


def write_memory_traces(result: Result, path: str) -> list[str]:
    """Write the allocations of a run, one file for each device with any; return the files.

    With one device it is `path`; with several, ``t.jsonl`` becomes ``t.gpu0.jsonl`` and so on.

    Raises
    ------
    InputError
        Nothing was ever allocated.
    """
    recordings = {device: events for device, events in (result.recordings or {}).items() if events}
    if not recordings:
        raise InputError(f"--memory-trace {path}: there is nothing to write: nothing is ever held")
    ending = ".jsonl.gz" if path.lower().endswith(".gz") else ".jsonl"
    written = []
    for device, events in recordings.items():
        name = path if len(recordings) == 1 else f"{path[: -len(ending)]}.{device}{path[-len(ending) :]}"
        data = "".join(f"{line}\n" for line in json_lines(events)).encode()
        write_bytes(name, data)
        written.append(name)
    return written
