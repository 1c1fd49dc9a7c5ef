"""What ran, of the events of a file: slices with their lanes, and what they waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from scenarios.importers.files import StrPath
from scenarios.importers.traces.trace_events.event_fields import arguments, span, text, thread_of, whole
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.words.errors import InputError

__all__ = ["Slice", "slices_in"]

_LAUNCH: Final = "cuda_runtime"
_WORKER: Final = "cpu_op"


@dataclass(slots=True)
class Slice:
    """An op to be.

    Attributes
    ----------
    name, kind, device : str
    lane : tuple
        Process and thread.
    attributes : dict
        ``stream`` or ``thread``, and what else comes back.
    start_ns, end_ns : int
    number : int
        What others call it in their `fed_by`; of a launch, the number of its op.
    fed_by : list of int
    before : list of Slice
        What has to have ended.
    launches : bool
        Whether it is a call of a host that launches `number`.
    more : dict
        Further arguments of `GraphBuilder.op`.
    duration_ns : int
        Of a collective without its waiting.
    """

    name: str
    kind: str
    device: str
    lane: tuple[int, int]
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    number: int
    fed_by: list[int]
    launches: bool
    more: dict[str, Any]
    before: list[Slice] = field(default_factory=list)
    duration_ns: int = 0

    def __post_init__(self) -> None:
        """Let it last from start to end."""
        self.duration_ns = self.end_ns - self.start_ns

    @property
    def is_op(self) -> bool:
        """Whether it is an op: of a launch that costs nothing, what it launches waits itself."""
        return self.duration_ns > 0 or not self.launches

    @property
    def on_stream(self) -> bool:
        """Whether it ran on a stream, not on a thread."""
        return "stream" in self.attributes


def slices_in(path: StrPath, events: Iterable[Any]) -> Iterator[Slice]:
    """Yield what ran, of a file's events: on the device, and the thread, that its process and thread name.

    Raises
    ------
    InputError
        An event without what it must have (with its index).
    """
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for index, event in enumerate(events):
        try:
            if not isinstance(event, dict):
                raise ValueError(f"is no event but a {type(event).__name__}")
            if event["ph"] == "M" and event["name"] == "process_name":
                processes[event["pid"]] = text(arguments(event), "name")
            elif event["ph"] == "M" and event["name"] == "thread_name":
                threads[thread_of(event)] = text(arguments(event), "name")
            elif event["ph"] == "X":
                lane = thread_of(event)
                yield _slice(event, lane, processes[lane[0]], threads[lane])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path}: traceEvents[{index}]: {reason}") from None


def _slice(event: Any, lane: tuple[int, int], device: str, thread: str) -> Slice:
    args, title, category = arguments(event), text(event, "name"), event["cat"]
    start, end = span(event)
    launches = category == _LAUNCH
    name = text(args, "op") if "op" in args else title
    kind = text(args, "kind") if "kind" in args else "transfer"
    if kind in CONTROL_FLOW_KINDS:
        kind = "op"  # what it decided has been decided
    attributes: dict[str, Any] = {"stream": args.get("stream", args.get("on stream", thread))}
    if launches or category == _WORKER:
        attributes = {"thread": thread}
    if launches:
        name, kind = f"launch.{name}", "launch"
        attributes["call"] = title
    elif name != title:
        attributes["kernel"] = title
    if "Process Group Name" in args:
        attributes["communicator"] = args["Process Group Name"]
        attributes |= {key: args[key] for key in ("peer", "group", "pair") if key in args}
    if "iteration" in args and "group" in attributes:  # a group call of each iteration
        attributes["group"] = f"{attributes['group']}.{args['iteration']}"
    more = {key: args[key] for key in ("stage", "micro_batch") if key in args}
    if "bytes" in args:
        more |= {"bytes_read": args["bytes"], "bytes_written": args["bytes"]}
    if not isinstance(fed_by := args.get("after", []), list):
        raise ValueError(f"after is no list but {fed_by!r:.40}")
    return Slice(
        *(name, kind, device, lane, attributes, start, end),
        *(whole(args, "External id"), fed_by, launches, more),
    )
