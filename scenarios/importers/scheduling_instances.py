"""Instances of scheduling benchmarks: job shops, flexible job shops, projects and task graphs.

::

    job shop (JSPLIB)        6 6                         jobs, machines; then a line per job:
                             2 1  0 3  1 6 ...           machine from 0, time; machine, time; ...
    flexible job shop        10 6 2                      jobs, machines (and machines per op)
                             6  2 1 5 3 4  1 5 3 ...     ops; for each: number of machines, machine and time
    project (PSPLIB, .sm)    PRECEDENCE RELATIONS, REQUESTS/DURATIONS, RESOURCEAVAILABILITIES
    task graph (.stg)        5                           five tasks besides the two dummies at the ends
                             0   0   0                   task 0, time 0, no predecessor
                             3   9   2   1  2            task 3, time 9, two predecessors: 1 and 2
    ... prototype            5 3                         five tasks, of 1 on, besides a dummy; processors

A machine of a shop is a device that executes one op at a time. A project has one device, with a worker for
each activity, and its resources are those of the machine; a task graph has no machine, and the processors in
a prototype are not used. Times in the file have no unit; `unit` gives the duration of 1.

With communication times (as in the set of task graphs with communication, and in ``.stg`` files of other
tools) a predecessor is followed by the time to send its result, needed if the two run on different
processors. It becomes bytes, at `bandwidth`, so that the machine's links determine the time.

Formats: https://github.com/tamy0612/JSPLIB; https://github.com/SchedulingLab/fjsp-instances; Kolisch and
Sprecher, "PSPLIB, a project scheduling problem library", EJOR 96(1), 1997; Tobita and Kasahara, "A standard
task graph set for fair evaluation of multiprocessor scheduling algorithms", Journal of Scheduling 2002,
https://www.kasahara.cs.waseda.ac.jp/schedule/format_e.html, and proto_e.html.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple, NoReturn

from scenarios.importers.files import read_head, stem
from sim.base.errors import GraphError, InputError, in_file, shorten
from sim.base.files import StrPath, read_text
from sim.base.units import NS_PER_S, parse_bandwidth, parse_duration, round_half_up
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph

_PROJECT: Final = "REQUESTS/DURATIONS"


class TextLine(NamedTuple):
    """A line of numbers, with its position."""

    path: StrPath
    number: int
    words: list[str]

    def wrong(self, expected: str) -> NoReturn:
        """Raise an error about the line."""
        # The file may be of another kind, with content that no message should show. Only plain words, or a
        # line that begins with a number, are repeated.
        text = " ".join(self.words)
        excerpt = f", found {shorten(text)!r}" if re.match(r"\d|[-+.\w ]*$", text, re.ASCII) else ""
        raise InputError(f"{self.path}: line {self.number}: should be {expected}{excerpt}")

    def numbers(self, expected: str) -> list[int]:
        """Return the numbers; raise if the line has anything else."""
        if not all(re.fullmatch(r"\d{1,15}", word, re.ASCII) for word in self.words):
            self.wrong(f"{expected}, all whole numbers from 0")
        return [int(word) for word in self.words]


def lines_of(path: StrPath, text: str) -> list[TextLine]:
    """Return the lines that are not comments."""
    rows = ((number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1))
    return [TextLine(path, number, words) for number, words in rows if words]


def _is_shop(head: bytes) -> list[list[str]]:
    """Return the first rows of numbers; empty if the file has anything but numbers."""
    rows = [line.words for line in lines_of("", head.decode(errors="replace"))[:2]]
    plain = len(rows) == 2 and all(re.fullmatch(r"-?[\d.]+", word) for row in rows for word in row)
    return rows if plain and len(rows[0]) in (2, 3) else []


def _job_lines(path: StrPath, max_sizes: int) -> tuple[int, list[TextLine]]:
    """Return the number of machines, and the line of each job."""
    lines = lines_of(path, read_text(path)) or [TextLine(path, 1, [])]
    sizes = [word for word in lines[0].words[:2] if word.isdecimal() and word.isascii()]
    if len(sizes) < 2 or len(lines[0].words) > max_sizes or "0" in sizes:
        lines[0].wrong("JOBS MACHINES" + (" [MACHINES AN OP]" if max_sizes > 2 else ""))
    jobs, machines = map(int, sizes)
    if len(lines) != jobs + 1:
        raise InputError(f"{path}: {jobs} jobs are announced, a line each, and {len(lines) - 1} lines follow")
    return machines, lines[1:]


def _shop(path: StrPath, machines: int, jobs: Iterator[list[dict[int, int]]], unit: str) -> Graph:
    """Return the graph of jobs, each a chain of ops with a time on some machines."""
    unit_ns = parse_duration(unit, what="unit")
    builder = GraphBuilder(stem(path, ".jsp", ".fjs", ".txt"))
    for j, job in enumerate(jobs):
        for k, times in enumerate(job):
            after = [f"j{j}.{k - 1}"] if k else []
            if len(times) == 1:
                ((machine, time),) = times.items()
                facts: dict[str, Any] = {"device": f"m{machine}", "duration_ns": time * unit_ns}
            else:
                facts = {
                    "duration_by_kind": {f"m{machine}": time * unit_ns for machine, time in times.items()}
                }
            builder.op(f"j{j}.{k}", kind="task", after=after, **facts)
    devices = {f"m{machine}": {"kind": "cpu", "cores": 1} for machine in range(machines)}
    with in_file(path):
        return replace(builder.build(), machine={"devices": devices})


class JobShop:
    """Job shops in the format of JSPLIB."""

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:
        """Whether the file is one: a line of two numbers, then a pair for each machine; or by its name."""
        if not (rows := _is_shop(head)):
            return name.removesuffix(".gz").endswith(".jsp")
        return len(rows[0]) == 2 and len(rows[1]) == 2 * int(float(rows[0][1]))

    @staticmethod
    def load(path: StrPath, *, unit: str = "1us") -> Graph:
        """Return the graph of a file; op k of job j is named ``j0.0``, its machine ``m0``.

        Raises
        ------
        InputError
            The file is not valid (with the number of the line).
        """
        machines, lines = _job_lines(path, 2)

        def job(line: TextLine) -> list[dict[int, int]]:
            expected = f"MACHINE TIME for each of {machines} ops, machines from 0 to {machines - 1}"
            numbers = line.numbers(expected)
            if len(numbers) != 2 * machines or max(numbers[::2]) >= machines:
                line.wrong(expected)
            return [{machine: time} for machine, time in zip(numbers[::2], numbers[1::2], strict=True)]

        return _shop(path, machines, map(job, lines), unit)


class FlexibleJobShop:
    """Flexible job shops: each op runs on one of some machines, and takes its own time on each."""

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:
        """Whether the file is one: numbers that are no other instance, or by its name."""
        others = JobShop, TaskGraph
        return name.removesuffix(".gz").endswith(".fjs") or (
            bool(_is_shop(head)) and not any(other.recognises(name, head) for other in others)
        )

    @staticmethod
    def load(path: StrPath, *, unit: str = "1us") -> Graph:
        """Return the graph of a file, with names as in a job shop; the first machine is 0 or 1, as named.

        Parameters
        ----------
        path : path
        unit : str
            Duration of a time of 1.

        Raises
        ------
        InputError
            The file is not valid (with the number of the line).
        """
        machines, lines = _job_lines(path, 3)
        jobs = [_flexible(line) for line in lines]
        named = [machine for job in jobs for times in job for machine in times]
        first = min(1, *named)
        for line, job in zip(lines, jobs, strict=True):
            if any(not first <= machine < first + machines for times in job for machine in times):
                line.wrong(f"ops on machines from {first} to {first + machines - 1}")
        moved = ([{machine - first: t for machine, t in times.items()} for times in job] for job in jobs)
        return _shop(path, machines, moved, unit)


def _flexible(line: TextLine) -> list[dict[int, int]]:
    """Return the times of each op of a job by machine."""
    expected = "OPS, then for each op N and N times MACHINE TIME"
    count, *rest = line.numbers(expected)
    job = []
    for _ in range(count):
        n = 2 * rest[0] if rest else 0
        if not n or len(rest) <= n or len({*rest[1 : n + 1 : 2]}) < n // 2:
            line.wrong(expected)
        job.append(dict(zip(rest[1 : n + 1 : 2], rest[2 : n + 1 : 2], strict=True)))
        del rest[: n + 1]
    if rest or not job:
        line.wrong(expected)
    return job


class Project:
    """Projects with scarce resources, in the format of PSPLIB (.sm)."""

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:
        """Whether the file is one."""
        return _PROJECT.encode() in head

    @staticmethod
    def load(path: StrPath, *, unit: str = "1us") -> Graph:
        """Return the graph of a file; activities are named by their numbers.

        Raises
        ------
        InputError
            The file is not valid (with the number of the line), or there are several modes.
        """
        unit_ns = parse_duration(unit, what="unit")
        follow, requests, capacities = _sections(path)
        n = len(capacities)
        before: dict[int, list[str]] = {}
        for line in follow:
            job, modes, count, *after = line.numbers("JOB MODES N SUCCESSOR ...")
            if modes != 1:
                line.wrong("JOB 1 N SUCCESSOR ...: an activity of one mode")
            if count != len(after):
                line.wrong(f"JOB 1 N and N successors, which are {len(after)}")
            for other in after:
                before.setdefault(other, []).append(str(job))
        builder = GraphBuilder(stem(path, ".sm"))
        for line in requests:
            expected = f"JOB MODE TIME and a need of each of {n} resources"
            numbers = line.numbers(expected)
            if len(numbers) != 3 + n:
                line.wrong(expected)
            job, _, time, *needs = numbers
            demands = {name: k for name, k in zip(capacities, needs, strict=True) if k}
            attributes = {"resources": demands} if demands else {}
            after_ = before.pop(job, [])
            builder.op(str(job), kind="task", duration_ns=time * unit_ns, after=after_, attributes=attributes)
        if before:
            raise InputError(f"{path}: activity {min(before)} follows others and has no line in {_PROJECT}")
        machine = {"devices": {"project": {"kind": "cpu", "cores": len(requests)}}, "resources": capacities}
        with in_file(path):
            return replace(builder.build(), machine=machine)


def _sections(path: StrPath) -> tuple[list[TextLine], list[TextLine], dict[str, int]]:
    """Return the lines of successors and of requests, and the capacity of each resource."""
    sections: dict[str, list[TextLine]] = {}
    section = ""
    for line in lines_of(path, read_text(path)):
        text = " ".join(line.words)
        if text.endswith(":") or text.startswith("RESOURCEAVAILABILITIES"):
            section = text.rstrip(":")
        elif not re.fullmatch(r"[*-]+", text):
            sections.setdefault(section, []).append(line)
    names = ("PRECEDENCE RELATIONS", _PROJECT, "RESOURCEAVAILABILITIES")
    for name in names:
        if len(sections.get(name, ())) < 2:
            raise InputError(f"{path}: has no {name}, which a project of PSPLIB (.sm) should")
    follow, requests, capacities = (sections[name] for name in names)
    words = " ".join(capacities[0].words).replace(" ", "")
    resources = re.findall(r"[A-Z]\d+", words)
    if "".join(resources) != words or any(name[0] != "R" for name in resources):
        capacities[0].wrong("renewable resources: R 1 R 2 ...")
    amounts = capacities[1].numbers(f"how much there is of each of {len(resources)} resources")
    if len(amounts) != len(resources):
        capacities[1].wrong(f"how much there is of each of {len(resources)} resources")
    return follow[1:], requests[1:], dict(zip(resources, amounts, strict=True))


def is_instance(path: StrPath) -> bool:
    """Whether a file is an instance that includes its machine; False if it cannot be read."""
    with suppress(InputError, OSError):
        name, head = os.path.basename(os.fspath(path)), read_head(path)
        return any(reader.recognises(name, head) for reader in (Project, JobShop, FlexibleJobShop))
    return False


class TaskGraph:
    """Task graphs of the Standard Task Graph Set (.stg): processing times and precedences."""

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:
        """Whether the file is one, by its name: numbers have no signature."""
        return name.removesuffix(".gz").endswith(".stg")

    @staticmethod
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
            Tasks are named ``"0"``, ``"1"``, ... as in the file. Without communication, edges are control
            edges. With it, a task has an output for each successor, because the file gives each its own time.

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
        if not lines or len(lines[0].words) > 2 or not all(map(_NUMBER.fullmatch, lines[0].words)):
            raise InputError(f"{path}: not a task graph (its first line should be the number of tasks)")
        tasks = [_task(line, per_edge) for line in lines[1:]]
        count = Fraction(lines[0].words[0])
        if len(tasks) not in (count, count + 1, count + 2):  # dummies are usually not counted
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
            raise InputError(f"{line.path}: line {line.number}: {shorten(word)!r} is no number from 0")
    values = [*map(Fraction, line.words)]
    if len(values) < 3 or len(values) != 3 + per_edge * values[2] or values[0].denominator > 1:
        line.wrong("TASK TIME N" + (" PREDECESSOR" if per_edge == 1 else " PREDECESSOR TIME") + " ...")
    rest = values[3:]
    times = rest[1::2] if per_edge == 2 else [Fraction(0)] * len(rest)
    return values[0], values[1], list(zip(rest[::per_edge], times, strict=True))
