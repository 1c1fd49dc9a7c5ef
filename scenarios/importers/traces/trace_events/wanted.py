"""Trace events without what nobody asks for: most of what a profiler notes is skipped and never made.

msgspec makes no other members than those of `Event`, and takes a third of the time of `json`. What it makes
of them is the same. Where it has another opinion of what JSON is (``NaN``, half a character), or finds
something else than it expected, `json` decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from scenarios.importers.traces.trace_events.event_fields import ABSENT, text

__all__ = ["Args", "Event", "as_events", "parsed", "wanted"]

_ARGS: Final = (
    *("External id", "external id", "Sequence number", "Fwd thread id", "correlation", "device", "stream"),
    *("sycl queue", "bytes", "grid", "block", "registers per thread", "shared memory"),
    *("wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id"),
    *("Process Group Name", "Process Group Ranks", "Group size", "Collective name", "dtype"),
    *("In msg nelems", "Out msg nelems", "Src Rank", "Dst Rank"),
)
_SELDOM: Final = "Input Dims", "Input type"
if TYPE_CHECKING:
    Args = Mapping[str, Any]
else:
    Args = TypedDict(
        "Args", {**dict.fromkeys(_ARGS, Any), **dict.fromkeys(_SELDOM, msgspec.Raw)}, total=False
    )
"""What is read of the ``args`` of an event; of some it is read of few events, and parsed then (`parsed`)."""


class Event(msgspec.Struct, gc=False):
    """What is read of an event; `ABSENT`, or no category, where it is not there."""

    cat: str = ""
    ph: Any = ABSENT
    name: Any = ABSENT
    pid: Any = ABSENT
    tid: Any = ABSENT
    ts: Any = ABSENT
    dur: Any = ABSENT
    args: Args = ABSENT


_JSON: Final = {dict, list, str, int, float, bool, type(None)}
"""What `json` makes."""
_decode: Final = msgspec.json.Decoder(list[Event]).decode


def wanted(text: str) -> list[Any]:
    """Parse a list of events, into `Event` or dictionaries."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return json.loads(text)  # type: ignore[no-any-return]


def as_events(values: Sequence[Any]) -> Sequence[Event]:
    """Return what was parsed as events; ValueError where one is no object, or its category no text."""
    return values if _JSON.isdisjoint(map(type, values)) else [_event(value) for value in values]


def _event(value: Any) -> Event:
    """Return an event as `json` parsed it."""
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} is no event")
    if "cat" in value:
        text(value, "cat")
    return Event(**{member: value[member] for member in Event.__struct_fields__ if member in value})


def parsed(value: Any) -> Any:
    """Return the value of a member that is read of few events."""
    return value if value is None or isinstance(value, list) else json.loads(bytes(value))
