"""The neutral form of an allocation trace: what a program asked of its allocator, in order.

::

    {"op": "alloc", "id": "x", "nbytes": 4096, "stream": 0}
    {"op": "record_stream", "id": "x", "stream": 1}   stream 1 uses x, too: its free waits for stream 1
    {"op": "free", "id": "x"}
    {"op": "synchronise", "stream": 1}                the program waited for stream 1; without one, for all
    {"op": "reached", "id": "x"}                      one of the streams that x's free waits for came that far
    {"op": "empty_cache"}                             cached memory goes back to the device
    {"op": "oom", "nbytes": 4096, "stream": 0}        a request failed, even after that; the program went on
    {"op": "segment_alloc", "nbytes": 2097152}        what the recorded allocator asked of the device, and
    {"op": "segment_free", "nbytes": 2097152}         gave back; with expandable segments segment_map, _unmap

The words are PyTorch's: ``torch.cuda.empty_cache``, ``Tensor.record_stream``, the actions of a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from sim.base.errors import InputError

_SEGMENT: Final = (("nbytes",), ("stream",))

FIELDS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "alloc": (("id", "nbytes"), ("stream",)),
    "free": (("id",), ("nbytes", "stream")),
    "record_stream": (("id", "stream"), ()),
    "synchronise": ((), ("stream",)),
    "reached": (("id",), ()),
    "empty_cache": ((), ()),
    "oom": (("nbytes",), ("stream",)),
    "segment_alloc": _SEGMENT,
    "segment_free": _SEGMENT,
    "segment_map": _SEGMENT,
    "segment_unmap": _SEGMENT,
}
"""What each op needs besides its name, and what it may have."""

HELD: Final[Mapping[str, int]] = {
    "segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1,
}  # fmt: skip
"""What the recorded allocator asked of the device → whether it then holds more (1) or less (-1)."""

EVERY_STREAM: Final = -1
"""As the stream of ``synchronise``: all of them."""


class MemoryEvent(NamedTuple):
    """One line of a trace; `FIELDS` says which of these have a meaning for which op.

    A free needs no more than the id; its stream has no meaning. What a planner may want to know besides is
    the `dtype` of a tensor, and whether the program returns it.
    """

    op: str
    id: str | int = ""
    nbytes: int = 0
    stream: int = 0
    dtype: str = ""
    returned: bool = False


def checked_events(events: Iterable[tuple[str, MemoryEvent]]) -> Iterator[MemoryEvent]:
    """Yield the events of a trace, refusing one that cannot have happened.

    Parameters
    ----------
    events : iterable of (str, MemoryEvent)
        Where each stands (``"trace.jsonl:17"``), and the event.

    Raises
    ------
    InputError
        An id is allocated while it lives, freed or used while it does not, freed with another size, or
        reached before it was freed.

    Examples
    --------
    >>> list(checked_events([("t:1", MemoryEvent("free", "x"))]))
    Traceback (most recent call last):
    sim.base.errors.InputError: t:1: 'x' is freed, and was never allocated
    """
    live: dict[str | int, tuple[str, int]] = {}
    freed: dict[str | int, str] = {}
    for where, event in events:
        if event.op == "alloc":
            if event.id in live:
                raise InputError(
                    f"{where}: {event.id!r} is allocated, and lives already, since {live[event.id][0]}"
                )
            live[event.id] = (where, event.nbytes)
        elif event.op in ("free", "record_stream"):
            if event.id not in live:
                done = "freed" if event.op == "free" else "used on another stream"
                past = f"freed already, {freed[event.id]}" if event.id in freed else "never allocated"
                raise InputError(f"{where}: {event.id!r} is {done}, and was {past}")
            if event.op == "free":
                since, nbytes = live.pop(event.id)
                if event.nbytes not in (0, nbytes):
                    sizes = f"{event.nbytes} bytes, and was allocated with {nbytes}"
                    raise InputError(f"{where}: {event.id!r} is freed with {sizes}, {since}")
                freed[event.id] = where
        elif event.op == "reached" and event.id not in freed:
            raise InputError(f"{where}: {event.id!r} is reached, and was never freed")
        yield event


# ----------------------------------------------------------------------------------------------------------
# Allocation traces as JSON lines, which `devices.memory.trace_readers` reads.


def json_lines(events: Iterable[MemoryEvent]) -> Iterator[str]:
    """Yield one line an event, with what it needs, and what else is not its default.

    Examples
    --------
    >>> for line in json_lines([MemoryEvent("alloc", "x", 8, 2), MemoryEvent("free", "x")]):
    ...     print(line)
    {"op": "alloc", "id": "x", "nbytes": 8, "stream": 2}
    {"op": "free", "id": "x"}
    """
    usual = MemoryEvent._field_defaults
    for event in events:
        needed, optional = FIELDS[event.op]
        given = [key for key in optional if getattr(event, key) != usual[key]]
        yield json.dumps({"op": event.op, **{key: getattr(event, key) for key in (*needed, *given)}})
