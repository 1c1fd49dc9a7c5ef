"""Random graphs with communicators, and their runs computed in another way."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sim import Device, Graph, GraphBuilder, Machine, Trace

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "broadcast")


def draw_collectives(
    rng: np.random.Generator,
    ranks: int,
    steps: int,
    distances: bool = False,
    crossing: bool = False,
    copies: bool = False,
) -> Graph:
    """Return a graph in which all ranks have the same collectives in one order, among other ops.

    With `crossing`, ops also read what other ranks have made; with `copies`, every third op is a copy in.
    """
    b = GraphBuilder(f"{ranks} ranks")
    groups = {
        f"c{k}": sorted(rng.choice(ranks, int(rng.integers(1, ranks + 1)), replace=False).tolist())
        for k in range(int(rng.integers(1, 4)))
    }
    own: dict[int, list[str]] = {r: [] for r in range(ranks)}

    def add(name: str, r: int, kind: str, **attributes: object) -> None:
        before = own[r][-6:]
        if crossing and rng.random() < 0.3:
            before = [*before, *own[int(rng.integers(0, ranks))][-2:]]
        before = list(dict.fromkeys(before))
        inputs: list[str | tuple[str, int]] = [one for one in before if rng.random() < 0.4]
        if distances and own[r] and rng.random() < 0.2:
            inputs.append((own[r][int(rng.integers(0, len(own[r])))], int(rng.integers(1, 3))))
        b.op(
            f"{name}@{r}",
            kind=kind,
            inputs=inputs,
            outputs=int(rng.integers(0, 500)) if crossing else 0,
            duration_ns=int(rng.integers(0, 40)),
            device=f"d{r}",
            attributes={"stream": int(rng.integers(0, 3)), "nbytes": 8, **attributes},
        )
        own[r].append(f"{name}@{r}")

    for step in range(steps):
        for r in range(ranks):
            if rng.random() < 0.5:
                add(f"f{step}", r, "copy_in" if copies and step % 3 == 0 else "matmul")
        name = list(groups)[int(rng.integers(0, len(groups)))]
        here = groups[name]
        if len(here) > 1 and rng.random() < 0.3:
            one, other = (int(r) for r in rng.choice(here, 2, replace=False))
            add(f"s{step}", one, "send", communicator=name, peer=f"d{other}")
            add(f"r{step}", other, "recv", communicator=name, peer=f"d{one}")
            continue
        kind = KINDS[int(rng.integers(0, len(KINDS)))]
        for r in here:
            add(f"c{step}", r, kind, communicator=name)
    return b.build()


def draw_ranks(rng: np.random.Generator, ranks: int) -> Machine:
    """Return devices with three streams each, or workers, and overheads or none."""
    devices = []
    for r in range(ranks):
        issue = int(rng.integers(0, 8)) if rng.random() < 0.5 else 0
        if rng.random() < 0.2:
            devices.append(Device(f"d{r}", "cpu", workers=int(rng.integers(1, 4)), issue_ns=issue))
            continue
        over = rng.integers(0, 6, 3).tolist() if rng.random() < 0.5 else [0, 0, 0]
        devices.append(
            Device(
                f"d{r}",
                "gpu",
                streams=3,
                issue_ns=issue,
                launch_latency_ns=over[0],
                gap_ns=over[1],
                event_ns=over[2],
                queue_depth=int(rng.integers(1, 5)) if rng.random() < 0.2 else None,
            )
        )
    return Machine(tuple(devices))


def recomputed(trace: Trace) -> tuple[list[int], list[int]]:
    """Return start and end of every row from issue times, edges and the rules alone, as a longest path.

    Events of other streams take no time to arrive.
    """
    job, tasks = trace.job, trace.tasks
    graph, iterations = job.graph, job.iterations
    row_of = {
        (int(i), int(o)): r for r, (i, o) in enumerate(zip(tasks["iteration"], tasks["op"], strict=True))
    }
    attributes = graph.attributes
    before: dict[int, list[tuple[int, int]]] = defaultdict(list)  # row → (row that ends before, delay)
    devices = job.machine.devices
    lane_last: dict[int, int] = {}
    line_last: dict[tuple[str, int], int] = {}
    counted: dict[object, int] = defaultdict(int)
    party_of: dict[int, tuple[object, ...]] = {}
    parties: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row in range(len(trace)):  # rows of a lane, and of a line, are in the order in which they ran
        op, device = int(tasks["op"][row]), int(trace.device[row])
        lane = int(tasks["stream"][row])
        if lane in lane_last:
            before[row].append((lane_last[lane], devices[device].gap_ns))
        lane_last[lane] = row
        given = attributes.get(op, {})
        if "communicator" not in given:
            continue
        name = given["communicator"]
        if (name, device) in line_last:
            before[row].append((line_last[name, device], 0))
        line_last[name, device] = row
        me = devices[device].name
        if "peer" in given:
            pair = (me, given["peer"]) if graph.kind(op) == "send" else (given["peer"], me)
            what: tuple[object, ...] = (name, pair)
        else:
            what = (name,)
        party_of[row] = (*what, counted[what, device])
        counted[what, device] += 1
        parties[party_of[row]].append(row)
    for producer, consumer, distance, _ in zip(*graph.edges, strict=True):
        for iteration in range(int(distance), iterations):
            one = row_of[iteration - int(distance), int(producer)]
            other = row_of[iteration, int(consumer)]
            before[other].append((one, 0))
    start: dict[int, int] = {}
    end: dict[int, int] = {}

    def starts(row: int) -> int:
        if row not in start:
            device = devices[int(trace.device[row])]
            least = int(tasks["issue_ns"][row]) + (
                device.launch_latency_ns if job.launched[tasks["op"][row]] else device.issue_ns
            )
            start[row] = max([least, *(ends(other) + delay for other, delay in before[row])])
        return start[row]

    def ends(row: int) -> int:
        if row not in end:
            if row in party_of:
                members = parties[party_of[row]]
                took = max(int(trace.alone_ns[one]) for one in members)
                end[row] = max(starts(one) for one in members) + took
            else:
                end[row] = starts(row) + int(trace.alone_ns[row])
        return end[row]

    rows = range(len(trace))
    for row in rows:  # in the order of starts, so that the recursion is not deep
        ends(row)
    return [start[row] for row in rows], [end[row] for row in rows]
