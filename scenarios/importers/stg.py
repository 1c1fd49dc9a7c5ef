"""Task graphs of the Standard Task Graph Set (.stg): processing times and precedences.

::

    5                        five tasks besides the two dummies at the ends
    0   0   0                task 0, time 0, no predecessor
    1   7   1   0            task 1, time 7, one predecessor: 0
    2   4   1   0
    3   9   2   1  2
    ...
    6   0   ...              the exit
    # comments, statistics

With communication times (as in the set of the same name with communication, and in ``.stg`` files of other
tools) a predecessor is followed by the time to send its result, needed if the two run on different
processors. It becomes bytes, at `bandwidth`, so that the machine's links determine the time.

Times in the file have no unit; `unit` gives the duration of 1.

Format: Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling
algorithms", Journal of Scheduling 2002; https://www.kasahara.cs.waseda.ac.jp/schedule/format_e.html.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final, Literal

from scenarios.importers.files import stem
from scenarios.importers.scheduling_instances import TextLine, lines_of
from sim.base.errors import GraphError, InputError, in_file, shortened
from sim.base.files import StrPath, read_text
from sim.base.units import NS_PER_S, parse_bandwidth, parse_duration, round_half_up
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph


def recognises(name: str, head: bytes) -> bool:
    """Whether the file is one, by its name: numbers have no signature."""
    return name.removesuffix(".gz").endswith(".stg")


def load(
    path: StrPath,
    *,
    unit: str = "1us",
    communication: Literal["no", "yes"] = "no",
    bandwidth: str = "1GB/s",
) -> Graph:
    """Return the graph of a file.

    Parameters
    ----------
    path : path
    unit : str
        Duration of a time of 1.
    communication : {"no", "yes"}
        Whether every predecessor is followed by a communication time.
    bandwidth : str
        Bandwidth at which a communication time is as long as the file says.

    Returns
    -------
    Graph
        Tasks are named ``"0"``, ``"1"``, ... as in the file. Without communication, edges are control edges.
        With it, a task has an output for each successor, because the file gives each its own time.

    Raises
    ------
    InputError
        The file is not valid (with the number of the line).
    GraphError
        There is a cycle, or a predecessor does not exist.
    """
    unit_ns = parse_duration(unit, what="unit")
    rate = parse_bandwidth(bandwidth, what="bandwidth")
    per_edge = 2 if communication == "yes" else 1
    lines = lines_of(path, read_text(path))
    if not lines or len(lines[0].words) != 1 or _NUMBER.fullmatch(lines[0].words[0]) is None:
        raise InputError(f"{path}: not a task graph (its first line should be the number of tasks)")
    tasks = [_task(line, per_edge) for line in lines[1:]]
    count = Fraction(lines[0].words[0])
    if len(tasks) not in (count, count + 2):  # the two dummies are usually not counted
        raise InputError(f"{path}: {count} tasks are announced (and two dummies), {len(tasks)} are there")
    outputs: dict[Fraction, list[int]] = {task: [] for task, _, _ in tasks}
    edges: dict[Fraction, list[str]] = {task: [] for task, _, _ in tasks}
    for task, _, before in tasks:
        for other, time in before:
            if other not in outputs:
                raise GraphError(f"{path}: task {task} comes after task {other}, which is not there")
            if communication == "yes":
                edges[task].append(f"{other}:{len(outputs[other])}")
                outputs[other].append(round_half_up(time * unit_ns * rate / NS_PER_S))
            else:
                edges[task].append(str(other))
    builder = GraphBuilder(stem(path, ".stg"))
    reads = "inputs" if communication == "yes" else "after"
    with in_file(path):
        for task, time, _ in tasks:
            facts: dict[str, Any] = {reads: edges[task], "outputs": outputs[task]}
            builder.op(str(task), kind="task", duration_ns=round_half_up(time * unit_ns), **facts)
        return builder.build()


_NUMBER: Final = re.compile(r"\d{1,30}(\.\d{1,30})?", re.ASCII)


def _task(line: TextLine, per_edge: int) -> tuple[Fraction, Fraction, list[tuple[Fraction, Fraction]]]:
    """Return task, time and (predecessor, communication time) of each predecessor."""
    for word in line.words:
        if _NUMBER.fullmatch(word) is None:
            raise InputError(f"{line.path}: line {line.number}: {shortened(word)!r} is no number from 0")
    values = [*map(Fraction, line.words)]
    if len(values) < 3 or len(values) != 3 + per_edge * values[2] or values[0].denominator > 1:
        line.wrong("TASK TIME N" + (" PREDECESSOR" if per_edge == 1 else " PREDECESSOR TIME") + " ...")
    rest = values[3:]
    times = rest[1::2] if per_edge == 2 else [Fraction(0)] * len(rest)
    return values[0], values[1], list(zip(rest[::per_edge], times, strict=True))
