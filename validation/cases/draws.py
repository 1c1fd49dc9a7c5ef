"""The cases of every experiment, drawn by seed: (experiment, split, number) alone determines a case.

Calibration never uses a graph from here, and a split is part of the seed, so calibration, development and
test plans are disjoint by construction. Letters are those of docs/design.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from policies.pipeline.registry import generate
from validation.cases.case import Case, CaseOp
from validation.gpu.torch_models import step_kinds

MS: Final = 1_000_000

Facts = tuple[str, dict[str, int]]


def _sleep(rng: np.random.Generator, low_ms: float = 2, high_ms: float = 8) -> Facts:
    """Return a sleep of whole 50 us."""
    steps = int(rng.integers(int(low_ms * 20), int(high_ms * 20) + 1))
    return "sleep", {"sleep_ns": steps * MS // 20}


def _numpy(rng: np.random.Generator, low_ms: float = 2, high_ms: float = 8) -> Facts:
    """Return matrix products of at least about 1.5 ms on one core; repeats lie between calibrated ones."""
    repeat = int(rng.integers(max(1, round(low_ms / 1.5)), max(2, round(high_ms / 1.5)) + 1))
    return "matmul", {"size": 384, "repeat": repeat}


def _torch(
    rng: np.random.Generator, low_ms: float = 2, high_ms: float = 8, size: int = 2048, unit: int = 1
) -> Facts:
    """Return matrix products of a size that fills a GPU; `unit` of them per millisecond of the others."""
    repeat = int(rng.integers(unit * max(1, round(low_ms)), unit * max(2, round(high_ms)) + 1))
    return "matmul", {"size": size, "repeat": repeat}  # of one size, so that each can read any other


KERNELS: Final[Mapping[str, Callable[..., Facts]]] = {"timer": _sleep, "threads": _numpy, "cuda": _torch}
"""Backend → function that draws a kernel of some size."""

DRIVEN: Final[Mapping[str, Callable[..., Facts]]] = {**KERNELS, "cuda": partial(_torch, size=1024, unit=5)}
"""The same for cases that a policy drives, waiting for ends.

On a GPU, products that leave most SMs free, about 40 us per millisecond of the others: streams need
room beside one another for decisions to matter, and the host takes about 20 us to react.
"""


def _block(rng: np.random.Generator, low_ms: float, high_ms: float) -> Facts:
    """Return transformer blocks, captured as one CUDA graph: one block for the shorter times, or two."""
    return "block", {"size": 2048, "repeat": 1 + int(rng.uniform(low_ms, high_ms) > 3.5)}


def _rng(experiment: str, split: str, number: int) -> np.random.Generator:
    return np.random.default_rng([*f"{experiment}/{split}/{number}".encode()])


Place = tuple[str, dict[str, dict[str, int]], dict[str, Any] | None]


def _place(backend: str, lanes: int, policy: str) -> Place:
    """Return device, machine and what decides: on cores a policy and workers, else a plan and streams."""
    if backend == "threads":
        return "cpu0", {"cpu0": {"workers": lanes}}, {"name": policy}
    return "dev0", {"dev0": {"streams": lanes}}, None


def chain(backend: str, split: str) -> Iterator[Case]:
    """a. A chain from launch-bound to kernel-bound; with sleeps, the host takes 2 ms per launch."""
    device, machine, live = _place(backend, 1, "in-order")
    for number, share in enumerate((0.25, 0.5, 1, 1.5, 3)):
        kind, facts = {
            "timer": ("sleep", {"sleep_ns": int(share * 2 * MS), "issue_sleep_ns": 2 * MS}),
            "threads": ("matmul", {"size": 384, "repeat": int(1 + 2 * share)}),
            "cuda": ("matmul", {"size": 256 * 2**number, "repeat": 1}),
        }[backend]
        ops = [CaseOp(f"o{i}", kind, [f"o{i - 1}"] if i else [], facts, device) for i in range(24)]
        notes = {"share": share, "gated": False}
        yield Case(f"chain-{share:g}", "a-chain", split, ops, machine, policy=live, notes=notes)


def fork_join(backend: str, split: str) -> Iterator[Case]:
    """b. A fork over k streams, and a join; on a GPU with kernels that fill all of it, a quarter, or less."""
    sizes = (2048, 1024, 512) if backend == "cuda" else (0,)
    for k, size in itertools.product((2,) if backend == "threads" else (2, 4), sizes):
        rng = _rng("b-fork-join", split, k)
        device, machine, live = _place(backend, k, "ready-queue")

        def op(name: str, inputs: list[str], lane: int = 0) -> CaseOp:
            kind, facts = KERNELS[backend](rng)  # noqa: B023
            facts |= {"size": size} if size else {}  # noqa: B023
            return CaseOp(name, kind, inputs, facts, device, lane)  # noqa: B023

        ops = [op("root", [])]
        for i in range(5):
            ops += [op(f"b{j}.{i}", [f"b{j}.{i - 1}" if i else "root"], j) for j in range(k)]
        if k == 2:
            ops.append(op("join", [f"b{j}.4" for j in range(k)]))
        else:  # a kernel reads two results
            ops += [op("join0", ["b0.4", "b1.4"]), op("join1", ["b2.4", "b3.4"], 2)]
            ops.append(op("join", ["join0", "join1"]))
        name = f"fork-join-{k}" + (f"-{size}" if size else "")
        yield Case(name, "b-fork-join", split, ops, machine, policy=live)


def overlap(backend: str, split: str) -> Iterator[Case]:
    """c. Copies beside kernels with double buffering: on one stream, on three, and from pageable memory.

    Pageable copies hold the host, so that the third case has no overlap: nothing is launched before they end.
    """
    if backend != "cuda":
        return
    for number, repeat in enumerate((1, 4, 8)):
        for label, lanes, memory in (
            ("one stream", (0, 0, 0), ""),
            ("three streams", (0, 1, 2), ""),
            ("pageable memory", (0, 1, 2), "-pageable"),
        ):
            ops: list[CaseOp] = []
            for i in range(8):
                # The third buffer is the first again: it is free once the product has read it.
                free = [f"product{i - 2}"] if i >= 2 else []
                facts = {"size": 4096, "repeat": 1}
                ops.append(CaseOp(f"in{i}", f"h2d{memory}", free, facts, "dev0", lanes[0]))
                work = {"size": 4096, "repeat": repeat}
                ops.append(CaseOp(f"product{i}", "matmul", [f"in{i}"], work, "dev0", lanes[1]))
                ops.append(CaseOp(f"out{i}", f"d2h{memory}", [f"product{i}"], facts, "dev0", lanes[2]))
            yield Case(
                f"{label.replace(' ', '-')}-{number}", "c-overlap", split, ops, {"dev0": {"streams": 3}},
                group=f"products-{repeat}", label=label,
                notes={"gated": False} if memory else {},
            )  # fmt: skip


def head_of_line(backend: str, split: str) -> Iterator[Case]:
    """d. Unready ops hold up ready ones: in order against out of order, on two workers."""
    device, machine, lane = _two(backend)
    for number in range(3):
        rng = _rng("d-head-of-line", split, number)
        ops: list[CaseOp] = []
        for block in range(3):
            before = [f"tail{block - 1}"] if block else []
            kind, facts = DRIVEN[backend](rng, 10, 14)
            ops.append(CaseOp(f"long{block}", kind, before, facts, device))
            kind, facts = DRIVEN[backend](rng, 2, 3)
            ops.append(CaseOp(f"tail{block}", kind, [f"long{block}"], facts, device))
            for i in range(4):
                kind, facts = DRIVEN[backend](rng, 2, 4)
                ops.append(CaseOp(f"free{block}.{i}", kind, [], facts, device, lane))
        for label, policy in (
            ("in-order", {"name": "in-order"}),
            ("out-of-order", {"name": "out-of-order", "window": 8}),
        ):
            yield Case(
                f"{label}-{number}", "d-head-of-line", split, ops, machine,
                policy=policy, group=f"blocked-{number}", label=label,
            )  # fmt: skip


def _two(backend: str) -> tuple[str, dict[str, dict[str, int]], int]:
    """Return a device that does two things at once, its machine, and its second lane."""
    if backend == "cuda":
        return "dev0", {"dev0": {"streams": 2}}, 1
    return "cpu0", {"cpu0": {"workers": 2}}, 0


def random_graph(
    kernel: Callable[..., Facts], rng: np.random.Generator, n: int, lanes: int, device: str
) -> list[CaseOp]:
    """Return ops that read up to two of the eight ops before them, on random streams."""
    ops: list[CaseOp] = []
    for i in range(n):
        width = min(int(rng.integers(0, 3)), i)
        chosen = sorted(rng.permutation(np.arange(max(0, i - 8), i))[:width].tolist())
        kind, facts = kernel(rng)
        ops.append(CaseOp(f"o{i}", kind, [f"o{j}" for j in chosen], facts, device, int(rng.integers(lanes))))
    return ops


def random_graphs(backend: str, split: str) -> Iterator[Case]:
    """e. Random graphs of 60 ops over 2 and 4 streams with events."""
    for lanes in (2,) if backend == "threads" else (2, 4):
        for number in range(3):
            rng = _rng("e-random", split, 10 * lanes + number)
            device, machine, live = _place(backend, lanes, "ready-queue")
            ops = random_graph(KERNELS[backend], rng, 60, lanes, device)
            yield Case(f"random-{lanes}-{number}", "e-random", split, ops, machine, policy=live)


def pipeline(backend: str, split: str) -> Iterator[Case]:
    """f. GPipe against 1F1B, p stages of equal and of unequal length, one worker or SM partition each."""
    for p in (2,) if backend == "threads" else (2, 4, 8):
        for even in (True, False):
            rng = _rng("f-pipeline", split, 2 * p + even)
            drawn = _block if backend == "cuda" else KERNELS[backend]
            one = drawn(rng, 3, 3)
            stages = [one if even else drawn(rng, 2, 5) for _ in range(p)]
            for schedule in ("gpipe", "1f1b"):
                made = generate(schedule, ranks=p, micro_batches=8)
                ops = []
                for rank, program in enumerate(made.programs):
                    for action in (action for slot in program for action in slot.parts):
                        kind, facts = _phase(stages[action.stage], action.phase)
                        ops.append(CaseOp(str(action), kind, _reads(action, p), facts, f"rank{rank}"))
                word = "even" if even else "uneven"
                unit = {"streams": 1} if backend == "cuda" else {"workers": 1}
                yield Case(
                    f"{schedule}-{p}-{word}", "f-pipeline", split, ops,
                    {f"rank{r}": unit for r in range(p)},
                    policy=None if backend == "cuda" else {"name": "in-order"},
                    group=f"{p}-{word}", label=schedule,
                )  # fmt: skip


def _phase(stage: Facts, phase: str) -> Facts:
    """Return the kernel of a phase: a backward takes twice a forward."""
    kind, facts = stage
    key = "sleep_ns" if kind == "sleep" else "repeat"
    return kind, {**facts, key: facts[key] * (1 if phase == "F" else 2)}


def _reads(action: Any, p: int) -> list[str]:
    stage, phase, k = action
    if phase == "F":
        return [f"{stage - 1}F{k}"] if stage else []
    return [f"{stage}F{k}", *([f"{stage + 1}B{k}"] if stage + 1 < p else [])]


def step_case(model: str, batch: int, experiment: str, split: str) -> Case:
    """Return a step of a model as a chain on one stream."""
    kinds = step_kinds(model)
    ops = [
        CaseOp(kind, kind, [kinds[k - 1]] if k else [], {"batch": batch}, "dev0")
        for k, kind in enumerate(kinds)
    ]
    return Case(f"{model}-{batch}", experiment, split, ops, {"dev0": {"streams": 1}})


def steps_of_models(backend: str, split: str) -> Iterator[Case]:
    """h. A step of a GPT and of a residual network, at batch sizes that no calibration saw."""
    batches = {"gpt": (8, 32), "resnet": (64, 256)} if backend == "cuda" else {}
    for model, batch in ((model, batch) for model, sizes in batches.items() for batch in sizes):
        yield step_case(model, batch, "h-models", split)


def ranking(backend: str, split: str) -> Iterator[Case]:
    """i. Which policy is best, and how much is lost by believing the prediction."""
    device, machine, lane = _two(backend)
    if backend == "timer":
        machine = {device: {"workers": 3}}
    lanes = lane + 1
    for number in range(2):
        rng = _rng("i-ranking", split, number)
        ops = random_graph(DRIVEN[backend], rng, 40, lanes, device)
        policies: dict[str, dict[str, Any]] = {
            "fifo": {"name": "ready-queue"},
            "lifo": {"name": "ready-queue", "order": "lifo"},
            "in-order": {"name": "in-order"},
            "window 4": {"name": "out-of-order", "window": 4},
            "critical-path": {"name": "critical-path"},
        }
        for label, policy in policies.items():
            yield Case(
                f"{label}-{number}".replace(" ", "-"), "i-ranking", split, ops,
                machine, policy=policy, group=f"graph-{number}", label=label,
            )  # fmt: skip


EXPERIMENTS: Final[Mapping[str, Callable[[str, str], Iterator[Case]]]] = {
    "a-chain": chain,
    "b-fork-join": fork_join,
    "c-overlap": overlap,
    "d-head-of-line": head_of_line,
    "e-random": random_graphs,
    "f-pipeline": pipeline,
    "h-models": steps_of_models,
    "i-ranking": ranking,
}
"""Experiments that are lists of cases."""


NOT_MEASURED: Final[Mapping[str, str]] = {
    "j": "another day: --again in the same folder, reported beside the recorded day; machine: another folder",
}
"""What of the matrix no command measures, and why."""


def draw(experiment: str, backend: str, split: str = "test") -> list[Case]:
    """Return the cases of one experiment.

    Examples
    --------
    >>> [case.name for case in draw("b-fork-join", "timer")]
    ['fork-join-2', 'fork-join-4']
    """
    return list(EXPERIMENTS[experiment](backend, split))
