"""The keys of ``what_if:``, in the order in which they are applied, and those of ``ranks:``.

::

    workload:
      kineto: trace.json.gz
      what_if: {issue_cost: x0.5, scale: {gemm: x0.5}}           a mapping: applied in the order of this file
      what_if: [{scale: {gemm: x0.5}}, {fuse: [elementwise]}]     a list: one mapping after another

A change without effect on the graph gives a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from devices.describe.field_types import Duration, fault
from devices.describe.quantities import Count, Name, Shorthand, Strict
from scenarios.recorded.durations import AnyChange, AnyFactor, Change
from sim.base.errors import error_path
from sim.graph.graph import Graph

_ONE: Final = Fraction(1)
_WORDS: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer"]}}]}

_Words = Annotated[
    list[Name],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(min_length=1, description="names, kinds or patterns of ops"),
]
_HostWork = Annotated[
    Literal["stays", "goes"],
    Field(description="what becomes of the host's work before each launch call that goes"),
]


class _Short(Shorthand):
    """A plain value that stands for a mapping with one or several keys; true stands for all defaults."""

    def whole(self, value: Any) -> Any:
        """Return the mapping that a value stands for."""
        if isinstance(value, bool) and not self.key:
            return {} if value else None
        plain = self.key and value is not None and not isinstance(value, dict)
        return dict.fromkeys(self.key.split(), value) if plain else value


class Remove(Strict):
    """Ops to remove."""

    ops: _Words
    host: _HostWork = "stays"


class Fuse(Strict):
    """Consecutive kernels on a stream that become one.

    Attributes
    ----------
    ops
        a sequence to look for; one word: any number of such kernels
    duration
        default: what the parts take together
    """

    ops: _Words
    duration: Duration | None = None
    host: _HostWork = "stays"


class OtherDevice(Strict):
    """Another GPU: durations are converted by the cost models of both.

    Attributes
    ----------
    source
        preset of the GPU that was recorded
    target
        preset of the other one
    bound
        durations are known within bounds: take the shortest, the middle, the longest
    """

    source: Name = Field(alias="from")
    target: Name = Field(alias="to")
    bound: Literal["low", "middle", "high"] = "middle"


class Bandwidth(Strict):
    """Links with another bandwidth.

    Attributes
    ----------
    transfers
        copies between host and device
    """

    collectives: AnyFactor = _ONE
    transfers: AnyFactor = _ONE


class CudaGraph(Strict):
    """All launches between two synchronisations become one.

    Attributes
    ----------
    issue_cost
        what a launch costs the host; default: 2.5us
    node
        ... and besides for each task in the graph; default: 1ns
    gap
        between its kernels; default: as in the recording
    """

    issue_cost: Duration | None = None
    node: Duration | None = None
    gap: Duration | None = None


class WhatIf(Strict):
    """Changes to a recorded program, applied in this order.

    Attributes
    ----------
    remove
        ops that are not there
    fuse
        kernels that become one
    device
        another GPU
    scale
        how long ops take, by name, kind, operator, device or pattern
    bandwidth
        of links, for collectives and copies
    host
        how long the host's own work takes
    gap
        between kernels of a stream
    issue_cost
        how long a launch call takes the host itself
    cuda_graph
        launches between synchronisations become one
    streams
        for each one that was recorded, where kernels are independent
    """

    remove: Annotated[Remove | None, _Short("ops", _WORDS)] = None
    fuse: list[Annotated[Fuse, _Short("ops", _WORDS)]] = Field(default_factory=list)
    device: OtherDevice | None = None
    scale: dict[Name, AnyChange] = Field(default_factory=dict)
    bandwidth: Annotated[Bandwidth | None, _Short("collectives transfers", {"type": "string"})] = None
    host: AnyFactor | None = None
    gap: AnyChange | None = None
    issue_cost: AnyChange | None = None
    cuda_graph: Annotated[CudaGraph | None, _Short("", {"type": "boolean"})] = None
    streams: Annotated[Count, Field(le=1024)] = 1

    def steps(self) -> Iterator[tuple[tuple[str | int, ...], Callable[[Graph], Graph]]]:
        """Yield each change with the path of its key."""
        from scenarios.recorded import durations, launches

        if (removal := self.remove) is not None:
            stays = removal.host == "stays"
            yield ("remove",), lambda g: launches.remove_ops(g, removal.ops, host_work=stays)
        for n, fusion in enumerate(self.fuse):
            fuse = partial(launches.fuse_kernels, words=fusion.ops, duration_ns=fusion.duration)
            yield ("fuse", n), partial(fuse, host_work=fusion.host == "stays")
        if (gpu := self.device) is not None:
            yield ("device",), lambda g: durations.on_device(g, gpu.source, gpu.target, gpu.bound)
        if self.scale:
            yield ("scale",), lambda g: durations.scale_durations(g, self.scale)
        if (links := self.bandwidth) is not None:
            yield ("bandwidth",), lambda g: durations.more_bandwidth(g, links.collectives, links.transfers)
        if (host := self.host) is not None:
            yield ("host",), lambda g: durations.faster_host(g, host)
        if (gap := self.gap) is not None:
            yield ("gap",), lambda g: durations.other_gap(g, gap)
        if (cost := self.issue_cost) is not None:
            yield ("issue_cost",), lambda g: durations.issue_cost(g, cost)
        if (graphs := self.cuda_graph) is not None:
            launch_ns = launches.LAUNCH_NS if graphs.issue_cost is None else graphs.issue_cost
            node_ns = launches.NODE_NS if graphs.node is None else graphs.node
            yield ("cuda_graph",), partial(launches.with_cuda_graphs, launch_ns=launch_ns, node_ns=node_ns)
            if graphs.gap is not None:
                yield ("cuda_graph", "gap"), partial(durations.other_gap, change=Change(value_ns=graphs.gap))
        if "streams" in self.model_fields_set:
            yield ("streams",), lambda g: launches.on_more_streams(g, self.streams)


def _as_list(value: Any) -> Any:
    if not isinstance(value, dict | list):
        raise fault(f"should be a mapping such as {{issue_cost: x0.5}}, or a list of such, not {value!r}")
    return [value] if isinstance(value, dict) else value


class _OneOrSeveral:
    """Schema for editors of a list that may be given as its only item."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        schema = handler(core)
        return {"anyOf": [schema["items"], schema]}


AnyWhatIf = Annotated[
    list[WhatIf],
    BeforeValidator(_as_list),
    _OneOrSeveral(),
    Field(default_factory=list, description="changes to what was recorded; a list: one after another"),
]
"""The value of ``what_if:``."""


def apply_changes(graph: Graph, changes: Sequence[WhatIf], *, path: Sequence[str | int] = ()) -> Graph:
    """Return the graph after the changes.

    Parameters
    ----------
    graph : Graph
    changes : sequence of WhatIf
    path : sequence of str or int
        Their path in the scenario, for messages.

    Raises
    ------
    InputError
        A word matches nothing in the graph, or the recording does not allow a change; the error's path begins
        with `path`.

    Warns
    -----
    UserWarning
        A change has no effect, or the recording lacks information that would be needed.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", kind="matmul", duration_ns=10)
    >>> faster = WhatIf.model_validate({"scale": {"gemm": "x0.5"}})
    >>> apply_changes(b.build(), [faster, faster]).duration_ns.tolist()
    [3]
    """
    for n, change in enumerate(changes):
        for key, step in change.steps():
            key_path = (*path, n, *key) if len(changes) > 1 else (*path, *key)
            with error_path(*key_path):
                after = step(graph)
            if after is graph:
                text = ".".join(map(str, key_path))
                warnings.warn(f"{text}: changes nothing in {graph.name!r}", stacklevel=2)
            graph = after
    return graph


class ManyRanks(Strict):
    """Ranks that all run the program of one recorded rank.

    Attributes
    ----------
    parallel
        dimensions of parallelism (tp, cp, ep, dp, or any name) and their sizes
    order
        dimensions, the fastest changing first; default: tp-cp-ep-dp
    groups
        process groups, or streams, of the recording, and which dimensions (tp, cp-dp) they are, where their
        sizes do not tell
    collectives
        how long they take: the shortest recorded time of those that are alike, what the machine says, or as
        recorded, with the time that each waited
    """

    parallel: dict[Name, Count] = Field(min_length=1)
    order: Name | None = None
    groups: dict[Name, Name] = Field(default_factory=dict)
    collectives: Literal["fastest", "machine", "recorded"] = "fastest"
