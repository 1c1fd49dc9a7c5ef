"""Calibration: run small programs on a backend and write down what every step of them costs.

Each *block* measures one thing. A sentinel runs before and after it; a block that the machine disturbed is
thrown away (and kept in the record) and measured again, at most `ATTEMPTS` times; then calibrating fails
and writes nothing. The loss is stated: the medians minimise the mean absolute error of one step, not of a
makespan.

::

    durations    one op at a time, warm, every (kind, size) of a grid
    busy         the same with a neighbour: what running side by side costs
    launch       a full queue: what issuing costs the host, and the gap between kernels of one stream
    latency      an empty queue: from issue to start
    events       two streams take turns: from record to the start of who waits
    decisions    workers under a policy: from readiness to start
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from devices.cost.calibration import Calibration
from devices.real.gate import MAX_DELAY, MAX_DRIFT, Sentinel
from devices.real.kernels import kernel_axes
from devices.real.statistics import summary
from devices.real.work import Observation
from policies.issue.ready_queue import ReadyQueue
from scenarios.validate.backends import Executor, make_backend, provenance, sentinel_ns
from scenarios.validate.case import Case, CaseOp
from sim.errors import RunError
from sim.job import Job

__all__ = ["ATTEMPTS", "DisturbedError", "calibrate"]

ATTEMPTS: Final = 6
"""How often a block is measured before calibrating gives up."""

MS: Final = 1_000_000

Samples = dict[str, list[float]]

_GRID: Final[dict[str, dict[str, list[tuple[int, ...]]]]] = {
    "timer": {"sleep": [(n * MS // 2,) for n in (1, 2, 4, 8, 16, 32)]},
    "threads": {
        "matmul": [(384, 1), (384, 3), (384, 10)],
        "softmax": [(384, 2)],
        "elementwise": [(384, 8)],
        "copy": [(384, 16)],
    },
    "cuda": {
        "matmul": [(n, r) for n in (256, 512, 1024, 2048, 4096) for r in (1, 4, 16)],
        "softmax": [(n, 1) for n in (1024, 2048, 4096)],
        "elementwise": [(n, 1) for n in (1024, 2048, 4096)],
        "copy": [(n, 1) for n in (1024, 2048, 4096)],
        "attention": [(n, 1) for n in (1024, 2048)],
        "h2d": [(n, 1) for n in (1024, 2048, 4096)],
        "d2h": [(n, 1) for n in (1024, 2048, 4096)],
    },
}
"""backend → kind → sizes to measure."""

_SMALL: Final = {
    "timer": ("sleep", {"sleep_ns": MS}),
    "threads": ("matmul", {"size": 256, "repeat": 2}),
    "cuda": ("matmul", {"size": 512, "repeat": 1}),
}


class DisturbedError(RunError):
    """The machine was not quiet enough to calibrate; nothing was written."""


class _Session:
    """Blocks, sentinels, and what came out so far."""

    def __init__(self, backend: str, executor: Executor, quick: bool) -> None:
        self.backend, self.executor, self.quick = backend, executor, quick
        self.samples: Samples = {}
        self.tables: list[dict[str, Any]] = []
        self.sentinels: list[dict[str, Any]] = []

    def block(
        self, name: str, cases: Sequence[Case], read: Callable[[Case, Observation], Samples]
    ) -> Samples:
        """Run the cases of a block until the machine leaves it in peace; return the samples.

        Raises
        ------
        DisturbedError
            It never did.
        """
        why = ""
        for _ in range(ATTEMPTS):
            found: Samples = {}
            worst = 0.0
            before = sentinel_ns(self.backend, self.executor)
            rounds: list[Samples] = [{}, {}]
            for case in cases:
                job = case.job()
                run_case(self.executor, case, job)  # warm: pages, caches, whatever is made lazily
                for samples in rounds:  # twice: what is steady is there both times
                    seen = run_case(self.executor, case, job)
                    worst = max(worst, seen.delayed)
                    if seen.wrong:
                        raise RunError(f"calibrating {name!r}: wrong results of {', '.join(seen.wrong[:5])}")
                    for key, values in read(case, seen).items():
                        samples.setdefault(key, []).extend(values)
                        found.setdefault(key, []).extend(values)
            moved = max(_moved(rounds[0], rounds[1], case.name) for case in cases)
            sentinel = Sentinel(before, sentinel_ns(self.backend, self.executor))
            why = ""
            if sentinel.drift > MAX_DRIFT[self.backend]:
                why = f"the sentinel moved by {sentinel.drift:.1%}"
            elif worst > MAX_DELAY:
                why = f"the machine stood in the way for {worst:.1%} of a makespan"
            elif moved > MAX_DRIFT[self.backend]:
                why = f"a median moved by {moved:.1%} from one round to the next"
            self.sentinels.append(
                {"block": name, "before": before, "after": sentinel.after_ns, "accepted": not why}
                | ({"why": why} if why else {})
            )
            if not why:
                return found
        raise DisturbedError(
            f"calibrating {name!r}: {why}, {ATTEMPTS} times in a row; nothing is written. "
            "Stop what else runs on this machine, or try later"
        )

    def keep(self, found: Samples) -> None:
        """Add samples of quantities."""
        for key, values in found.items():
            self.samples.setdefault(key, []).extend(values)


def _moved(first: Samples, second: Samples, key: str) -> float:
    """Return how far the median of a duration is from that of the next round."""
    if key not in first:  # a latency, which may move: its spread is part of the result
        return 0.0
    a, b = float(np.median(first[key])), float(np.median(second[key]))
    return abs(a - b) / max(1.0, min(a, b))


def run_case(executor: Executor, case: Case, job: Job) -> Observation:
    """Execute a case's plan, or let its policy drive."""
    plan = case.plan()
    return (
        executor.drive(job, case.make_policy())
        if plan is None
        else executor.execute(job, plan, gated=case.gated)
    )


def calibrate(backend: str, executor: Executor | None = None, *, quick: bool = False) -> Calibration:
    """Measure everything that a backend has to tell.

    Parameters
    ----------
    backend : str
        ``"timer"``, ``"threads"`` or ``"cuda"``.
    executor : Executor, optional
        By default the one of that name.
    quick : bool
        Fewer samples, for a look.

    Raises
    ------
    DisturbedError
        The machine was not quiet; there is no calibration then.
    """
    executor = executor or make_backend(backend)
    session = _Session(backend, executor, quick)
    _durations(session)
    if backend != "threads":  # streams; threads have workers alone
        _streams(session)
    if backend != "cuda":
        _decisions(session)
    if backend == "threads":
        _busy(session)
    if backend == "cuda":
        _company(session)
        _partitions(session)
    quiet = [
        ns for entry in session.sentinels if entry["accepted"] for ns in (entry["before"], entry["after"])
    ]
    session.keep({"sentinel_ns": quiet})
    return Calibration(
        backend,
        _device_name(backend, executor),
        provenance(backend, executor),
        {name: summary(values).to_json() for name, values in sorted(session.samples.items())},
        session.tables,
        session.sentinels,
    )


def _device_name(backend: str, executor: Executor) -> str:
    facts = provenance(backend, executor)
    name = facts.get("gpu") or f"{facts['processor']} ({facts['cores']} cores)"
    return f"{name}, {backend}"


def _serial(backend: str, kind: str, facts: dict[str, int], n: int, name: str, lane: int = 0) -> list[CaseOp]:
    device = "cpu0" if backend == "threads" else "dev0"
    return [
        CaseOp(f"{name}{i}", kind, [f"{name}{i - 1}"] if i else [], facts, device, lane) for i in range(n)
    ]


def _durations(session: _Session) -> None:
    """One op at a time: a chain on one stream or worker, its first ops left out (caches, clocks, pages)."""
    n, drop = (8, 2) if session.quick else (20, 4)
    backend = session.backend
    machine = {"cpu0": {"workers": 1}} if backend == "threads" else {"dev0": {"streams": 1}}
    policy = {"name": "in-order"} if backend == "threads" else None
    for kind, sizes in _GRID[backend].items():
        axes = kernel_axes(kind)
        cases = [
            Case(
                f"{kind}-{'x'.join(map(str, size))}", "calibration", "calibration",
                _serial(backend, kind, dict(zip(axes, size, strict=True)), n, "o"), machine, policy=policy,
            )
            for size in sizes
        ]  # fmt: skip

        def read(case: Case, seen: Observation) -> Samples:
            return {case.name: _spans(seen)[drop:].tolist()}

        found = session.block(f"durations of {kind}", cases, read)
        stats = [summary(found[case.name]) for case in cases]
        session.tables.append(
            {
                "kind": kind,
                "axes": list(axes),
                "context": "warm",
                "rows": [[*size, s.median] for size, s in zip(sizes, stats, strict=True)],
                "statistics": [s.to_json() for s in stats],
            }
        )


def _spans(seen: Observation) -> Any:
    tasks = seen.trace.tasks
    return tasks["end_ns"] - tasks["start_ns"]


def _streams(session: _Session) -> None:
    """What the host and the streams cost: full queue, empty queue, events."""
    backend = session.backend
    kind, facts = _SMALL[backend]
    n = 16 if session.quick else 60
    full = Case(
        "full", "calibration", "calibration",
        [CaseOp(f"o{i}", kind, [], facts, "dev0") for i in range(n)], {"dev0": {"streams": 1}},
        notes={"gated": False},
    )  # fmt: skip
    queued = dataclasses.replace(full, name="queued", notes={})

    def read_full(case: Case, seen: Observation) -> Samples:
        tasks = seen.trace.tasks
        if case is full:
            return {"issue_ns": np.diff(np.sort(tasks["issue_ns"])).tolist()}
        return {"gap_ns": np.maximum(0, tasks["start_ns"][1:] - tasks["end_ns"][:-1]).tolist()}

    session.keep(session.block("launch", [full, queued], read_full))
    # Two streams take turns, so a stream is idle, its host is far ahead, and an event is what it waits for.
    turns = Case(
        "turns", "calibration", "calibration",
        [CaseOp(f"o{i}", kind, [f"o{i - 1}"] if i else [], facts, "dev0", i % 2) for i in range(n)],
        {"dev0": {"streams": 2}},
    )  # fmt: skip

    def read_turns(case: Case, seen: Observation) -> Samples:
        tasks = seen.trace.tasks
        return {"event_ns": (tasks["start_ns"][1:] - tasks["end_ns"][:-1]).tolist()[2:]}

    session.keep(session.block("events", [turns], read_turns))
    if backend == "timer":
        slow: dict[str, int] = {"sleep_ns": MS, "issue_sleep_ns": 3 * MS}
        idle = Case(
            "idle", "calibration", "calibration",
            [CaseOp(f"o{i}", "sleep", [], slow, "dev0") for i in range(n // 2)], {"dev0": {"streams": 1}},
        )  # fmt: skip

        def read_idle(case: Case, seen: Observation) -> Samples:
            tasks = seen.trace.tasks
            return {"launch_latency_ns": (tasks["start_ns"] - tasks["issue_ns"]).tolist()[2:]}

        session.keep(session.block("latency", [idle], read_idle))
    else:
        session.keep({"launch_latency_ns": [float(ns) for ns in executor_latency(session.executor)]})


def executor_latency(executor: Executor) -> list[int]:
    """Return the launch-to-start latencies that a GPU backend measures by itself."""
    measure: Callable[[], list[int]] = executor.launch_latency_ns  # type: ignore[attr-defined]
    return measure()


def _decisions(session: _Session) -> None:
    """From readiness (and a free worker) to start, under a ready queue on two workers."""
    backend = session.backend
    kind, facts = _SMALL[backend]
    rng = np.random.default_rng([*b"calibration/decisions"])
    n = 20 if session.quick else 60
    ops = []
    for i in range(n):
        chosen = sorted(rng.permutation(np.arange(max(0, i - 4), i))[: min(i, 2)].tolist())
        ops.append(CaseOp(f"o{i}", kind, [f"o{j}" for j in chosen], facts, "cpu0"))
    case = Case(
        "decisions",
        "calibration",
        "calibration",
        ops,
        {"cpu0": {"workers": 2}},
        policy={"name": "ready-queue"},
    )
    assert isinstance(case.make_policy(), ReadyQueue)

    def read(case: Case, seen: Observation) -> Samples:
        return {"decision_ns": reaction_ns(seen)}

    session.keep(session.block("decisions", [case], read))


def reaction_ns(seen: Observation) -> list[float]:
    """Return, for every task of workers, the time from (inputs there and worker free) to its start."""
    trace = seen.trace
    tasks = trace.tasks
    end_of = dict(zip(tasks["op"].tolist(), tasks["end_ns"].tolist(), strict=True))
    predecessors = trace.job.graph.predecessors.lists()
    free: dict[int, int] = {}
    reactions: list[float] = []
    for op, lane, start, end in zip(
        *(tasks[name].tolist() for name in ("op", "stream", "start_ns", "end_ns")), strict=True
    ):
        possible = max([free.get(lane, 0), *(end_of[p] for p in predecessors[op])])
        if possible:
            reactions.append(float(start - possible))
        free[lane] = end
    return reactions


def _company(session: _Session) -> None:
    """Products on 2 and 4 streams that share all SMs against one stream: what company costs each of them."""
    n = 4 if session.quick else 8
    facts = {"size": 2048, "repeat": 4}
    for k, name in ((2, "corun_slowdown_ppm"), (4, "corun_slowdown_4_ppm")):
        alone, busy = (
            Case(
                f"{label}-{k}", "calibration", "calibration",
                [
                    CaseOp(f"o{j}.{i}", "matmul", [f"o{j}.{i - 1}"] if i else [], facts, "dev0", j)
                    for i in range(n)
                    for j in range(lanes)
                ],
                {"dev0": {"streams": k}},
            )
            for label, lanes in (("alone", 1), ("busy", k))
        )  # fmt: skip

        def read(case: Case, seen: Observation) -> Samples:
            return {case.name: [float(seen.makespan_ns)]}

        rounds = [
            session.block(f"{k} streams", [alone, busy], read) for _ in range(1 if session.quick else 3)
        ]
        factors = [float(np.median(r[busy.name]) / np.median(r[alone.name])) for r in rounds]
        # Interference counts only if every clean round shows it.
        session.keep({name: [max(1.0, min(factors)) * 1e6]})


PARTITIONS: Final = (2, 4, 8)
"""Into how many parts the SMs are split."""


def _partitions(session: _Session) -> None:
    """The blocks of a pipeline on one of p equal groups of SMs, where the driver can split them."""
    n, drop = (8, 2) if session.quick else (12, 3)
    for p in PARTITIONS:
        machine = {f"rank{r}": {"streams": 1} for r in range(p)}
        sizes = [(2048, repeat) for repeat in (1, 2, 4, 6)]
        cases = []
        for size, repeat in sizes:
            facts = {"size": size, "repeat": repeat}
            ops = [CaseOp(f"o{i}", "block", [f"o{i - 1}"] if i else [], facts, "rank0") for i in range(n)]
            ops += [CaseOp(f"idle{r}", "block", [], facts, f"rank{r}") for r in range(1, p)]
            cases.append(Case(f"block-{p}-{repeat}", "calibration", "calibration", ops, machine))

        def read(case: Case, seen: Observation) -> Samples:
            mine = seen.trace.tasks["stream"] == 0
            return {case.name: _spans(seen)[mine][drop:].tolist()}

        try:
            found = session.block(f"blocks on a {p}th of the SMs", cases, read)
        except RunError as error:  # the rest of the calibration is good without
            session.sentinels.append({"block": f"partitions, {p}", "accepted": False, "why": str(error)})
            return
        stats = [summary(found[case.name]) for case in cases]
        session.tables.append(
            {
                "kind": "block", "axes": ["size", "repeat"], "context": f"partition {p}",
                "rows": [[*size, s.median] for size, s in zip(sizes, stats, strict=True)],
                "statistics": [s.to_json() for s in stats],
            }
        )  # fmt: skip


def _busy(session: _Session) -> None:
    """Two independent chains on two workers against one: what company costs."""
    n, drop = (8, 2) if session.quick else (16, 4)
    kind, facts = "matmul", {"size": 384, "repeat": 3}
    ops = _serial("threads", kind, facts, n, "a") + _serial("threads", kind, facts, n, "b")
    both = [op for pair in zip(ops[:n], ops[n:], strict=True) for op in pair]
    case = Case(
        "busy", "calibration", "calibration", both, {"cpu0": {"workers": 2}}, policy={"name": "ready-queue"}
    )

    def read(case: Case, seen: Observation) -> Samples:
        return {"busy": _spans(seen)[2 * drop : -2].tolist()}

    rounds = [session.block("busy", [case], read)["busy"] for _ in range(1 if session.quick else 3)]
    alone = next(
        row[-1]
        for table in session.tables
        if table["kind"] == kind
        for row in table["rows"]
        if row[:2] == [384, 3]
    )
    factors = [float(np.median(busy)) / alone for busy in rounds]
    # Interference counts only if every clean round shows it.
    slowdown = min(factors) if min(factors) > 1.02 else 1.0
    session.keep({"corun_slowdown_ppm": [slowdown * 1e6]})
    stats = summary([ns for busy in rounds for ns in busy])
    session.tables.append(
        {
            "kind": kind, "axes": ["size", "repeat"], "context": "neighbours busy",
            "rows": [[384, 3, stats.median]], "statistics": [stats.to_json()],
        }
    )  # fmt: skip
