"""All ranks of a job from the recording of one: ``workload: {kineto: rank0.json.gz, ranks: {tp: 2, dp: 4}}``.

::

    recorded   gpu: stream 7, 20, 24   cpu: thread0      ranks tp 2, dp 4, the first changes fastest
               nccl on group "1" of 2 ranks    ──►       rank0 meets rank1 on tp, ranks 2, 4, 6 on dp ...
               nccl on group "0" of 4 ranks              rank3: gpu3, cpu3, ops rank3/...

Assumptions, because the recording of one rank does not tell:

* **Every rank runs this program**, with these durations: the same layers, sizes and host. This excludes a
  pipeline, whose stages differ, and experts with unequal loads. Noise makes ranks differ.
* **Groups.** A collective belongs to the dimension, or dimensions, whose group is as large as its process
  group; if the ranks of the process group are known, and are those of the layout, to the one that has these
  ranks. Ambiguous groups have to be given (`groups`).
* **Transfers.** A recorded collective includes an unknown wait for late ranks. Of all calls with
  the same kind, process group and size, the shortest waited least: each of them gets its duration
  (``fastest``). A size with a single call has nothing to compare; waiting contained in its time
  stays. ``machine`` drops the recorded times and uses the machine's model of collectives.
  ``recorded`` keeps each time as it was, waiting included.
* Sends and receives keep their recorded times and meet nobody, because a recording does not name their peer.

A rank that is late, by noise or by the scenario, then makes others wait, in the right groups.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, Final

import numpy as np

from policies.parallel.rank_grid import MEGATRON, MOST_RANKS, Grid, add_ranks, read_order
from scenarios.importers.files import TRACES, is_scenario, read_head, refuse_no_graph
from scenarios.recorded import select as roles
from scenarios.recorded.changes import ManyRanks
from scenarios.recorded.setup import AS_RECORDED, POLICY
from sim.base.arrays import UNSET, at_most
from sim.base.errors import InputError, error_path, hint
from sim.base.files import StrPath
from sim.base.units import format_count
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph

_P2P: Final = frozenset({"send", "recv"})


def on_layout(graph: Graph, layout: ManyRanks) -> Graph:
    """Return the graph in which every rank of the layout runs a recorded program.

    Parameters
    ----------
    graph : Graph
        Recording of one process with one GPU.
    layout : ManyRanks

    Raises
    ------
    InputError
        The recording has several ranks or GPUs, the layout has stages, a group of collectives fits none of
        its dimensions or several, or the size of a collective is unknown although the machine should give its
        time.

    Warns
    -----
    UserWarning
        Collectives keep recorded times that may include waiting.
    """
    _check_recording(graph, layout)
    grid = Grid(dict(layout.parallel)).reorder(MEGATRON)
    at_most(MOST_RANKS, grid.ranks, "ranks")
    if layout.order is not None:
        with error_path("ranks"):
            grid = grid.reorder(read_order(layout.order, list(grid.sizes)))
    on_gpu = roles.collectives(graph) & ~roles.has_key(graph, "thread")
    calls = {op: _group_key(graph, op) for op in np.flatnonzero(on_gpu).tolist()}
    dims: dict[str, str] = {}
    for op, key in calls.items():
        if key not in dims and graph.kind(op) not in _P2P:
            dims[key] = _find_dimensions(graph, layout, grid, key, op)
    if unused := [name for name in layout.groups if name not in dims]:
        message = f"no collective of the recording is on {unused[0]!r}{hint(unused[0], dims)}"
        raise InputError(message, path=("ranks", "groups", unused[0]))
    dim_of = {op: dims[key] for op, key in calls.items() if dims.get(key) and graph.kind(op) not in _P2P}
    program = _with_transfer_times(graph, layout, grid, dim_of, calls)

    def attributes(old: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
        name = old.get("dimension")
        if name is None:
            return old
        number = grid.number(name, rank) if grid.groups(name) > 1 else ""
        return {**old, "communicator": f"{name}{number}"}

    def device(pin: str, rank: int) -> str:
        return f"{pin.rstrip('0123456789')}{rank}"

    builder = GraphBuilder(graph.name)
    add_ranks(builder, program, [f"rank{rank}" for rank in range(grid.ranks)], attributes, device)
    facts = {
        name if name not in graph.pins else device(name, rank): values
        for rank in range(grid.ranks)
        for name, values in graph.device_facts.items()
    }
    return replace(builder.build(), device_facts=facts)


def _check_recording(graph: Graph, layout: ManyRanks) -> None:
    """Raise if a recording cannot be run on several ranks."""
    if graph.in_communicators:
        raise InputError("the recording is of several ranks already", path=("ranks",))
    tasks = ~roles.has_key(graph, "thread") & (graph.pin_code != UNSET)
    gpus = {graph.pins[int(graph.pin_code[op])] for op in np.flatnonzero(tasks).tolist()}
    if len(gpus) != 1:
        problem = f"has tasks on {', '.join(sorted(gpus))}" if gpus else "is none: no op says where it ran"
        raise InputError(f"the recording {problem}; that of a rank has one GPU", path=("ranks",))
    if layout.parallel.get("pp", 1) > 1:
        raise InputError("stages of a pipeline run programs of their own", path=("ranks", "pp"))


def _group_key(graph: Graph, op: int) -> str:
    """Return the name of a collective's group: its process group, or else its stream."""
    attributes = graph.attributes.get(op, {})
    return str(attributes.get("process_group", attributes.get("stream", "")))


def _find_dimensions(graph: Graph, layout: ManyRanks, grid: Grid, key: str, op: int) -> str:
    """Return the dimensions that a recorded group spans, in one word; empty for a single rank."""
    chosen = layout.groups.get(key)
    if chosen is not None:
        unknown = [name for name in chosen.split("-") if name not in grid.sizes]
        if unknown:
            message = f"{chosen!r} is no dimension of the layout{hint(unknown[0], grid.sizes)}"
            raise InputError(message, path=("ranks", "groups", key))
        return chosen
    attributes = graph.attributes[op]
    ranks, size = attributes.get("process_group_ranks", []), attributes.get("process_group_size", 0)
    if size == 1:
        return ""
    wide = [name for name, n in grid.sizes.items() if n > 1]
    words = ["-".join(names) for k in range(1, len(wide) + 1) for names in combinations(wide, k)]
    fitting = [word for word in words if size in (0, len(grid.members(word)))]
    exact = [word for word in fitting if ranks and max(ranks) < grid.ranks]
    exact = [word for word in exact if grid.members(word, ranks[0]) == sorted(ranks)]
    for matches in (exact, [word for word in fitting if word in wide], fitting):
        if len(matches) == 1:
            return matches[0]
    if not wide:
        return ""
    has = f"has {format_count(size, 'rank')}" if size else "does not say how many ranks it has"
    sizes = ", ".join(f"{name} {n}" for name, n in grid.sizes.items())
    fits = f"fits {' and '.join(fitting)}" if fitting else "fits no dimension"
    first = f"{key}: {fitting[0] if fitting else wide[0]}"
    raise InputError(
        f"the group {key!r} of the recording's collectives {has}, which {fits} of the layout ({sizes}); say "
        f"which it is, as in groups: {{{first}}}",
        path=("ranks",),
    )


def _with_transfer_times(
    graph: Graph, layout: ManyRanks, grid: Grid, dim_of: Mapping[int, str], calls: Mapping[int, str]
) -> Graph:
    """Return the program of a rank whose collectives have transfer times and know their dimensions."""
    ns, written = graph.duration_ns.copy(), graph.bytes_written.copy()
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    unsized = []
    for op, name in dim_of.items():
        nbytes, kind = int(max(graph.bytes_read[op], graph.bytes_written[op])), graph.kind(op)
        if kind == "all_gather":
            written[op] = max(int(written[op]), int(graph.bytes_read[op]) * len(grid.members(name)))
        if nbytes > 0:
            alike[calls[op], kind, nbytes].append(op)
        elif kind != "barrier":
            unsized.append(op)
    if layout.collectives == "machine":
        if unsized:
            raise InputError(
                f"the recording lacks sizes of collectives, {len(unsized)} of {len(dim_of)}, such as that of "
                f"{graph.op_names[unsized[0]]!r}; an execution graph has them (execution_graph)",
                path=("ranks", "collectives"),
            )
        ns[list(dim_of)] = UNSET
    elif layout.collectives == "fastest":
        for ops in alike.values():
            timed = [int(ns[op]) for op in ops if ns[op] != UNSET]
            ns[ops] = min(timed, default=UNSET)
        if unsized:
            problem = f"sizes of collectives are not known, {len(unsized)} of {len(dim_of)}"
            warnings.warn(f"{problem}: they keep their recorded times, with what they waited", stacklevel=4)
    attributes = dict(graph.attributes)
    for op, name in dim_of.items():
        recorded = {"recorded_ns": int(graph.duration_ns[op])} if graph.duration_ns[op] != UNSET else {}
        attributes[op] = {**attributes[op], **recorded, "dimension": name}
    return replace(graph, duration_ns=ns, bytes_written=written, attributes=attributes)


# ----------------------------------------------------------------------------------------------------------
# Recordings in place of a scenario: ``sim run trace.json.gz`` runs the trace as it was recorded.

_MODELS = (".onnx", ".hlo", ".mlir")
_ENDINGS = (*chain.from_iterable(TRACES.values()),)


def format_of(path: StrPath) -> str | None:
    """Return the workload's key for a recording: ``kineto``, ``chakra`` or ``graph``; None for other files.

    An instance of a scheduling benchmark, which includes its machine, counts too. A folder holds the ranks
    of a job. For a graph file, the first ops show whether they were recorded.

    Raises
    ------
    InputError
        The file is a damaged archive (no scenario is one), a model or its sizes, or a report of Nsight
        Systems that was not exported.
    """
    from scenarios.importers import chakra, graph_json
    from scenarios.importers.kineto import kineto
    from scenarios.importers.scheduling_instances import is_instance

    if os.path.isdir(path):
        names = os.listdir(path)
        formats_found = [key for key, ends in TRACES.items() if any(name.endswith(ends) for name in names)]
        return formats_found[-1] if formats_found else None  # JSON beside Chakra's traces describes a network
    if os.fspath(path).endswith((".nsys-rep", ".qdrep")):
        raise InputError(f"{path}: is not read as it is; `nsys export --type sqlite` writes what is")
    refuse_no_graph(path, b"")
    if (name := os.path.basename(path)).endswith(_MODELS):
        raise InputError(f"{path}: is a model, not a scenario; name it in one: `workload: {{graph: {name}}}`")
    if not name.endswith(_ENDINGS):
        return "graph" if is_instance(path) else None
    try:
        head = read_head(path)
    except InputError:
        if os.fspath(path).endswith(".gz"):
            raise
        return None  # the full reader reports the reason
    if graph_json.recognises(name, head):
        return "graph" if b'"recorded_start_ns"' in head else None
    formats = {"chakra": chakra, "kineto": kineto}
    match = next((key for key, importer in formats.items() if importer.recognises(name, head)), None)
    if match is None and not is_scenario(head):
        refuse_no_graph(path, head)
    return match


def as_scenario(path: StrPath) -> dict[str, Any]:
    """Return the scenario that runs a recording as it was recorded, with a path relative to its folder.

    Raises
    ------
    InputError
        It is not a recording.
    """
    key = format_of(path)
    if key is None:
        raise InputError(f"{path}: is no recording; known: traces of Kineto and Chakra, a folder of ranks")
    name = os.path.basename(os.path.realpath(path))
    policy = (
        dict(POLICY)
        if name.endswith(_ENDINGS) or key != "graph"
        else {"name": "ready-queue", "placement": "heft"}
    )
    return {"machine": {**AS_RECORDED, "devices": {}}, "workload": {key: name}, "policy": policy}
