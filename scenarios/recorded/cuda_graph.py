"""What if launches were replayed from CUDA graphs: between synchronisations one launch instead of many.

::

    recorded    host  [work,a][work,b][work,c][sync  ]       graph   host  [work,abc][sync]
                gpu          a       b       c                       gpu            abc

What a thread launches between two calls that wait for the device is one graph: a call that waits cannot be
captured, nor can a copy that the host waits for, whose launch stays by itself. So does that of a copy from
the host: it brings what the host has made by then (a batch, from the data loader), before the replay that
reads it. Within a graph, tasks have the order of their streams and events, as a capture has. A replay does
not execute what the host did between the launches: arguments are set up, and ops dispatched, once; what it
did before the first launch, and after the last, stays. If it did something else in between, this is the
most that graphs can give.

Sources: CUDA C++ Programming Guide, "CUDA Graphs", "Stream capture" and "Prohibited and unhandled
operations"; PyTorch, "Accelerating PyTorch with CUDA Graphs" (blog, 2021), whose replays follow copies into
static inputs. A launch: 2.5 us, and 1 ns a node, by "Constant time launch for straight-line CUDA graphs and
other performance enhancements" (NVIDIA technical blog, 2024, CUDA 12.6). The gap between the kernels of a
graph is the recording's, if no other is given.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Final

from scenarios.recorded.program import RecordedProgram
from sim.base.errors import InputError
from sim.base.units import format_duration
from sim.graph.graph import Graph

LAUNCH_NS: Final = 2500
"""What launching a graph costs the host,"""

NODE_NS: Final = 1
"""and how much more each task in it."""

_FROM_HOST: Final = re.compile(r"Memcpy HtoD|CopyHostToDevice")


def with_cuda_graphs(graph: Graph, *, launch_ns: int = LAUNCH_NS, node_ns: int = NODE_NS) -> Graph:
    """Return a graph in which launches between synchronisations are one.

    Parameters
    ----------
    graph : Graph
    launch_ns, node_ns : int
        What the host takes for a launch, and besides for each task in it.

    Raises
    ------
    InputError
        The recording has no launch calls.
    """
    program = RecordedProgram(graph)
    if not program.tasks_of:
        raise InputError("this recording has no launch calls of the host, so nothing can be captured")
    captured = [part for thread in program.threads.values() for part in _captured(program, thread)]
    if gone_ns := sum(_dispatch_ns(program, part) for part in captured):
        warnings.warn(
            f"{format_duration(gone_ns)} that the host worked between launches is taken for dispatch, "
            "which a replay does not repeat: this is the most that CUDA graphs can give",
            stacklevel=3,
        )
    for part in captured:
        _as_one_launch(program, part, launch_ns, node_ns)
    program.contract({name: [(first, 0)] for first, *others in captured for name in others})
    return program.graph() if captured else graph


def _captured(program: RecordedProgram, thread: list[str]) -> Iterator[list[str]]:
    """Yield what a thread does from the first launch of each graph to its last one."""
    ops, mine = program.records.ops, set(thread)
    part: list[str] = []
    length = 0  # up to the last launch
    for name in thread:
        is_launch = name in program.tasks_of
        alone = is_launch and (program.wait_of(name) is not None or _brings_input(program, name))
        queued = is_launch and "recorded_wait_ns" in ops[name].attributes  # in a full launch queue
        waits = not queued and any(before not in mine for before, _ in ops[name].after)
        if alone or waits or ops[name].kind == "synchronize":
            if length:
                yield part[:length]
            part, length = [], 0
        elif is_launch or part:
            part.append(name)
            length = len(part) if is_launch else length
    if length:
        yield part[:length]


def _dispatch_ns(program: RecordedProgram, part: list[str]) -> int:
    """Return what the host does between the first launch of a graph and its last one, but for launching."""
    calls_ns = sum(program.call_ns(name) for name in part if name in program.tasks_of)
    before_ns = (program.records.ops[part[0]].duration_ns or 0) - program.call_ns(part[0])
    return sum(program.records.ops[name].duration_ns or 0 for name in part) - calls_ns - before_ns


def _brings_input(program: RecordedProgram, launch: str) -> bool:
    """Whether a launch copies from the host."""
    tasks = (program.records.ops[name] for name in program.tasks_of[launch])
    return any(_FROM_HOST.search(str(task.attributes.get("kernel"))) is not None for task in tasks)


def _as_one_launch(program: RecordedProgram, part: list[str], launch_ns: int, node_ns: int) -> None:
    """Make the first launch of a graph the one of all its tasks; the others have to go."""
    first = part[0]
    record = program.records.ops[first]
    nodes = sum(len(program.tasks_of.get(name, ())) for name in part)
    call_ns = launch_ns + node_ns * nodes
    record.duration_ns = (record.duration_ns or 0) - program.call_ns(first) + call_ns
    record.attributes = {**record.attributes, "call": "cudaGraphLaunch", "call_ns": call_ns}
    if "recorded_wait_ns" in record.attributes:  # a graph takes one place in the launch queue
        del record.attributes["recorded_wait_ns"]
        record.after = [edge for edge in record.after if edge[0] not in program.tasks]
    program.end_call(part[-1])
