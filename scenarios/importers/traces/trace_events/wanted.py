"""Trace events without what nobody asks for: most of what a profiler notes is skipped and never made.

The parser is msgspec's (the extra ``fast``), if it is installed: told the members that matter, it makes no
others, and takes a third of the time of `json`. What it makes of them is the same. Where it has another
opinion of what JSON is (``NaN``, half a character), or finds something else than it expected, `json` decides.
"""

from __future__ import annotations

import importlib.util
import json
import types
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Protocol, TypedDict

from scenarios.importers.streamed_json import Decode
from scenarios.importers.traces.trace_events.event_fields import ABSENT, text

__all__ = ["ARGS", "MEMBERS", "SELDOM", "Event", "as_events", "parsed", "wanted"]

MEMBERS: Final = "ph", "name", "pid", "tid", "ts", "dur", "args"
ARGS: Final = (
    *("External id", "external id", "Sequence number", "Fwd thread id", "correlation", "device", "stream"),
    *("bytes", "grid", "block", "registers per thread", "shared memory"),
    *("wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id"),
    *("Process Group Name", "Process Group Ranks", "Group size", "Collective name", "dtype"),
    *("In msg nelems", "Out msg nelems"),
)
SELDOM: Final = "Input Dims", "Input type"
"""All that is read of the ``args`` of an event; of some it is read of few events (`parsed`)."""
_JSON: Final = {dict, list, str, int, float, bool, type(None)}
"""What `json` makes."""


class Event(Protocol):
    """What is read of an event; `ABSENT`, or no category, where it is not there."""

    cat: str
    ph: Any
    name: Any
    pid: Any
    tid: Any
    ts: Any
    dur: Any
    args: Any


@cache
def wanted() -> Decode:
    """Return what parses a list of events, into `Event` or dictionaries."""
    if importlib.util.find_spec("msgspec") is None:
        return json.loads
    import msgspec

    typed: Any = TypedDict  # whose members are known here only
    members = {**dict.fromkeys(ARGS, Any), **dict.fromkeys(SELDOM, msgspec.Raw)}
    of_type = {**dict.fromkeys(MEMBERS, Any), "args": typed("Args", members, total=False)}
    fields = [("cat", str, ""), *((member, type_, ABSENT) for member, type_ in of_type.items())]
    event = msgspec.defstruct("Event", fields, gc=False)
    decode: Decode = msgspec.json.Decoder(types.GenericAlias(list, (event,))).decode

    def decoded(text: str) -> list[Any]:
        try:
            return decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return json.loads(text)  # type: ignore[no-any-return]

    return decoded


def as_events(values: Sequence[Any]) -> Sequence[Event]:
    """Return what was parsed as events; ValueError where one is no object, or its category no text."""
    return values if _JSON.isdisjoint(map(type, values)) else [_event(value) for value in values]


def _event(value: Any) -> Event:
    """Return an event as `json` parsed it."""
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} is no event")
    event: Any = types.SimpleNamespace(**{member: value.get(member, ABSENT) for member in MEMBERS})
    event.cat = text(value, "cat") if "cat" in value else ""
    return event  # type: ignore[no-any-return]


def parsed(value: Any) -> Any:
    """Return the value of a member that is read `SELDOM`."""
    return value if value is None or isinstance(value, list) else json.loads(bytes(value))
