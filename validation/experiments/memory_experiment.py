"""g. Memory: allocations in host order through torch's caching allocator, against its model, to the byte.

Nothing here takes time and nothing is calibrated, so nothing is noise: after every step the bytes allocated
and the bytes reserved agree, or a rule is wrong.

::

    draw     ["alloc", id, nbytes, stream]   ["free", id]   ["empty_cache"]
    predict  devices.memory.caching                     allocated, reserved after every step
    measure  torch.cuda.memory_allocated, memory_reserved      the same, twice
    report   steps in which they differ, and the first of them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from devices.memory.caching import CachingAllocator
from devices.memory.device_memory import Block
from validation.cases.backends import Executor
from validation.cases.step_files import Recorded
from validation.cases.tables import GOALS
from validation.gpu.torch_memory import MemoryStep, run_steps

NAME: Final = "g-memory"

RUNS: Final = 2

MOST_LIVE_BYTES: Final = 1 << 30

_BYTES: Final = ("allocated", "reserved")


def draw(backend: str, split: str = "test") -> dict[str, list[MemoryStep]]:
    """Return the programs of allocations by name, drawn by seed; none for backends without an allocator.

    Examples
    --------
    >>> list(draw("cuda")), draw("timer")
    (['random-1-0', 'random-1-1', 'random-1-2', 'random-3-0', 'random-3-1', 'training-0', 'training-1'], {})
    """
    if backend != "cuda":
        return {}
    programs = {}
    for streams, number in ((1, 0), (1, 1), (1, 2), (3, 0), (3, 1)):
        name = f"random-{streams}-{number}"
        programs[name] = list(_random(_rng(name, split), streams))
    for number in range(2):
        name = f"training-{number}"
        programs[name] = list(_training(_rng(name, split)))
    return programs


def _rng(name: str, split: str) -> np.random.Generator:
    return np.random.default_rng([*f"{NAME}/{split}/{name}".encode()])


def _random(rng: np.random.Generator, streams: int, n: int = 300) -> Iterator[MemoryStep]:
    """Yield allocations of a byte to 64 MiB and frees in any order, occasionally with an emptied cache."""
    live: dict[int, int] = {}
    for id in range(n):
        dice = rng.random()
        if dice < 0.01:
            yield ["empty_cache"]
        nbytes = int(2 ** rng.uniform(0, 26))
        while live and (dice > 0.6 or sum(live.values()) + nbytes > MOST_LIVE_BYTES):
            victim = sorted(live)[int(rng.integers(len(live)))]
            del live[victim]
            yield ["free", victim]
            dice = 0.0
        live[id] = nbytes
        yield ["alloc", id, nbytes, int(rng.integers(streams))]
    for id in sorted(live):
        yield ["free", id]


def _training(rng: np.random.Generator, layers: int = 6, iterations: int = 3) -> Iterator[MemoryStep]:
    """Yield training steps in host order: weights stay; activations die in the backward, last one first."""
    width, tokens = 128 * int(rng.integers(3, 9)), 256 * int(rng.integers(2, 9))
    ids = iter(range(10**9))
    sizes = [2 * tokens * width, 2 * tokens * 4 * width, 2 * tokens * tokens, 4 * tokens]
    for _ in range(layers):
        for nbytes in (2 * 4 * width * width, 2 * 8 * width * width, 2 * width, 2 * width):
            yield ["alloc", next(ids), nbytes, 0]
    for _ in range(iterations):
        kept: list[list[int]] = []
        for _ in range(layers):
            mine = []
            for nbytes in sizes:
                mine.append(next(ids))
                yield ["alloc", mine[-1], nbytes, 0]
                scratch = next(ids)
                yield ["alloc", scratch, nbytes // 2, 0]
                yield ["free", scratch]
            kept.append(mine)
        gradients = []
        for mine in reversed(kept):
            gradients.append(next(ids))
            yield ["alloc", gradients[-1], 2 * 12 * width * width, 0]
            for id in reversed(mine):
                yield ["free", id]
        for id in gradients:
            yield ["free", id]


def predicted(steps: Sequence[MemoryStep]) -> dict[str, list[int]]:
    """Return the bytes allocated and reserved after every step, according to the model.

    Examples
    --------
    >>> predicted([["alloc", 0, 1000, 0], ["free", 0]])
    {'allocated': [1024, 0], 'reserved': [2097152, 2097152]}
    """
    model = CachingAllocator()
    live: dict[int, Block] = {}
    said: dict[str, list[int]] = {what: [] for what in _BYTES}
    for step in steps:
        if step[0] == "alloc":
            live[step[1]] = model.alloc(step[2], stream=step[3])
        elif step[0] == "free":
            model.free(live.pop(step[1]))
        else:
            model.empty_cache()
        said["allocated"].append(model.in_use)
        said["reserved"].append(model.reserved)
    return said


def measure_program(executor: Executor, steps: Sequence[MemoryStep]) -> list[dict[str, list[int]]]:
    """Return torch's numbers after every step of a program, for `RUNS` runs."""
    executor.forget()  # type: ignore[attr-defined]
    runs = (run_steps(executor.torch, steps) for _ in range(RUNS))  # type: ignore[attr-defined]
    return [dict(zip(_BYTES, said, strict=True)) for said in runs]


def judged(found: Recorded) -> dict[str, Any]:
    """Return the results of the programs: in how many steps model and torch differ, and where first."""
    rows, left_out = [], []
    for k, (case, measured) in enumerate(zip(found.plans["cases"], found.measurements["cases"], strict=True)):
        if measured.get("skipped"):
            left_out.append({"case": case["name"], "why": measured["skipped"]})
            continue
        model = predicted(case["steps"]) if found.predictions is None else found.predictions["cases"][k]
        rows += [_compare(case, model, run) for run in measured["runs"]]
    result: dict[str, Any] = {"inconclusive": left_out, "wrong": []}
    if not rows:
        why = left_out[0]["why"] if left_out else "nothing was run"
        return {**result, "status": "inconclusive", "why": why}
    metrics: dict[str, float] = {"steps": sum(row["steps"] for row in rows)}
    for what in _BYTES:
        metrics[f"{what}.mismatches"] = sum(row[f"{what}.mismatches"] for row in rows)
        metrics[f"{what}.max"] = max(row[f"{what}.max"] for row in rows)
    goals = GOALS["cuda"][NAME]
    return {
        **result,
        "status": "missed" if any(metrics[name] > bound for name, bound in goals.items()) else "met",
        "why": next((row["first"] for row in rows if row["first"]), ""),
        "goals": dict(goals),
        "metrics": metrics,
        "memory": rows,
    }


def _compare(
    case: Mapping[str, Any], model: Mapping[str, Sequence[int]], run: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return in how many steps a run differs, the largest difference relative to the peak, and the first."""
    row: dict[str, Any] = {"case": case["name"], "steps": len(case["steps"]), "first": ""}
    for what in _BYTES:
        said, seen = np.asarray(model[what]), np.asarray(run[what])
        away = np.abs(said - seen)
        row[f"{what}.mismatches"] = int((away > 0).sum())
        row[f"{what}.max"] = float(away.max() / max(1, seen.max()))
        if away.any() and not row["first"]:
            k = int(np.flatnonzero(away)[0])
            step = " ".join(map(str, case["steps"][k]))
            row["first"] = (
                f"{case['name']}, step {k} ({step}): {what} {seen[k]} bytes, the model says {said[k]}"
            )
    return row
