"""Trace events without what nobody asks for: most of what a profiler notes is skipped and never made.

The parser is msgspec's (the extra ``fast``), if it is installed: told the members that matter, it makes no
others, and takes a third of the time of `json`. What it makes of them is the same. Where it has another
opinion of what JSON is (``NaN``, half a character), or finds something else than it expected, `json` decides.
"""

from __future__ import annotations

import importlib.util
import json
import types
from functools import cache
from typing import Any, Final, TypedDict

from scenarios.importers.streamed_json import Decode

__all__ = ["ARGS", "EVENT", "SELDOM", "parsed", "wanted"]

EVENT: Final = "ph", "cat", "name", "pid", "tid", "ts", "dur"
ARGS: Final = (
    *(
        "External id",
        "external id",
        "Sequence number",
        "Fwd thread id",
        "correlation",
        "device",
        "stream",
        "sycl queue",
    ),
    *("bytes", "grid", "block", "registers per thread", "shared memory"),
    *("wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id"),
    *("Process Group Name", "Process Group Ranks", "Group size", "Collective name", "dtype"),
    *("In msg nelems", "Out msg nelems"),
)
SELDOM: Final = "Input Dims", "Input type"
"""All that is read of an event, and of its ``args``; of some it is read of few events (`parsed`)."""


@cache
def wanted() -> Decode:
    """Return what parses a list of events."""
    if importlib.util.find_spec("msgspec") is None:
        return json.loads
    import msgspec

    typed: Any = TypedDict  # whose members are known here only
    members = {**dict.fromkeys(ARGS, Any), **dict.fromkeys(SELDOM, msgspec.Raw)}
    args = typed("Args", members, total=False)
    event = typed("Event", {**dict.fromkeys(EVENT, Any), "args": args}, total=False)
    decode: Decode = msgspec.json.Decoder(types.GenericAlias(list, (event,))).decode

    def decoded(text: str) -> list[Any]:
        try:
            return decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return json.loads(text)  # type: ignore[no-any-return]

    return decoded


def parsed(value: Any) -> Any:
    """Return the value of a member that is read `SELDOM`."""
    return value if value is None or isinstance(value, list) else json.loads(bytes(value))
