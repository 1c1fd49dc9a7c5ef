"""Costs of the host and the streams of a GPU, and of sharing its SMs, from makespans alone.

Events around single ops lengthen what they measure by a microsecond or two, which is much for a small kernel.
So all quantities for predictions are differences of makespans of runs without such events::

    frame        n streams and no op                     time of the events around a plan
    duration     (chain of n ops - frame) / n            a kernel and the gap before the next
    hop          (chain across two streams - frame - n durations) / (n - 1)
    issue        host time of a plan that the device executes faster than it is issued
    latency      (such a plan - its issuing - the last kernel)
    driven       the same two under a policy that waits for every end, which is another loop on the host

The overhead of events around ops (`looked_*`) is kept beside it: a replay has the durations of a run with
such events, and is compared with that same run.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from validation.calibrate.chains import ROUNDS, block_case, chain, in_turn, sampled, spans_ns
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case
from validation.cases.draws import step_case
from validation.gpu.torch_models import step_kinds
from validation.real.work import Observation

FRAMES: Final = (1, 2, 3, 4, 8)
"""Numbers of streams in plans."""

REPEATS: Final = 3
"""Runs of every case in each of the two rounds of a block: each makespan is one sample."""

SIZES: Final = (512, 1024, 2048)
"""Sizes of products on streams that share all SMs."""

PARTITIONS: Final = (2, 4, 8)
"""Numbers of parts into which the SMs are split."""

BATCHES: Final = {"gpt": [4, 16, 64], "resnet": [32, 128, 512]}
"""Model → batch sizes; those of the experiment lie between them."""

_SMALL: Final = ("matmul", {"size": 512, "repeat": 1})
_DRIVEN: Final = ("matmul", {"size": 2048, "repeat": 4})


def frames(session: Session) -> None:
    """Measure makespans in which nothing is executed."""
    executor: Any = session.executor
    found = session.probe(
        "frames", lambda: {f"frame_{k}_ns": executor.frame_ns(k, 15) for k in FRAMES}, needed=True
    )
    session.keep(found)


def frame_ns(session: Session, streams: int) -> float:
    """Return the median frame for that number of streams; 0 if it could not be measured."""
    samples = session.samples.get(f"frame_{streams}_ns")
    return float(np.median(samples)) if samples else 0.0


def bare(session: Session, case: Case, seen: Observation) -> Samples:
    """Return samples of one op's duration in a chain that ran without events around ops."""
    frame = frame_ns(session, sum(spec["streams"] for spec in case.devices.values())) if case.gated else 0.0
    return {case.name: [float((seen.makespan_ns - frame) / case.notes.get("chain", len(case.ops)))]}


def gpu_streams(session: Session) -> None:
    """Issuing, latency, gap and hop of plans."""
    n = 60
    alone = chain(_SMALL, n, linked=False)
    full = block_case("full", alone, {"dev0": {"streams": 1}}, notes={"gated": False})
    queued = block_case("queued", alone, {"dev0": {"streams": 1}})
    turns = block_case("turns", chain(_SMALL, n, lanes=(0, 1)), {"dev0": {"streams": 2}})
    got = session.block("streams", [full, queued, turns], sampled, REPEATS, steady=("queued", "turns"))
    one_ns = (np.median(got["queued"]) - frame_ns(session, 1)) / n
    session.keep(
        {
            "issue_ns": [ns / n for ns in got["full host"]],
            "launch_latency_ns": _positive(np.subtract(got["full"], got["full host"]) - one_ns),
            "gap_ns": [0.0],  # a duration includes the gap
            "event_ns": _positive((np.array(got["turns"]) - frame_ns(session, 2) - n * one_ns) / (n - 1)),
            "looked_gap_ns": _positive(got["queued gaps"]),
            "looked_event_ns": _positive(got["turns gaps"]),
        }
    )


def driven(session: Session) -> None:
    """Under a driving policy: time to launch, and from the end of a kernel to the start of the next."""
    n = 40
    case = partial(block_case, devices={"dev0": {"streams": 1}})
    wide = case("wide", chain(_DRIVEN, n, linked=False), policy={"name": "ready-queue"})
    deep = case("deep", chain(_DRIVEN, n), policy={"name": "in-order"})
    plan = case("plan", deep.ops)
    got = session.block("driven", [wide, deep, plan], sampled, REPEATS, steady=("wide", "plan"))
    issue_ns = float(np.median(got["wide issues"]))
    one_ns = (np.median(got["plan"]) - frame_ns(session, 1)) / n
    session.keep(
        {
            "driven_issue_ns": got["wide issues"],
            "driven_latency_ns": _positive(np.array(got["deep"]) / n - one_ns - issue_ns),
            "driven_gap_ns": _positive((np.array(got["wide"]) - issue_ns) / n - one_ns),
            "driven_looked_latency_ns": _positive(np.array(got["deep gaps"]) - issue_ns),
            "driven_looked_gap_ns": _positive(got["wide gaps"]),
        }
    )


def shared_sms(session: Session) -> None:
    """Products on 2 and 4 streams that share all SMs against one stream: the slowdown of each.

    It depends on how much of the GPU a kernel fills, so it is measured for every size in plans.
    """
    for size, streams in itertools.product(SIZES, (2, 4)):
        session.attempt(f"{streams} streams of {size}", partial(_company, session, size, streams))


def _company(session: Session, size: int, streams: int) -> None:
    kernel = ("matmul", {"size": size, "repeat": 8})
    chains = [chain(kernel, 8, name=f"o{lane}.", lanes=(lane,)) for lane in range(streams)]
    machine = {"dev0": {"streams": streams}}
    cases = [block_case("alone", chains[0], machine), block_case("busy", in_turn(*chains), machine)]
    name, frame = f"{streams} streams of {size}", frame_ns(session, streams)
    rounds = [session.block(name, cases, sampled, REPEATS) for _ in range(ROUNDS)]
    factors = [(np.median(found["busy"]) - frame) / (np.median(found["alone"]) - frame) for found in rounds]
    more = "" if streams == 2 else f"_{streams}"
    session.keep({f"corun_{size}_slowdown{more}_ppm": [max(1.0, float(min(factors))) * 1e6]})


def partitions(session: Session, p: int) -> None:
    """The blocks of a pipeline on one of p equal groups of SMs, if the driver can split them.

    Alone, and while all other groups do the same: SMs are separate; caches, memory and power are shared.
    """
    n, size, repeats = 10, 2048, (1, 2, 4)
    machine = {f"rank{r}": {"streams": 1} for r in range(p)}
    contexts = {f"partition {p}": 1, f"partition {p} busy": p}
    cases = [
        block_case(
            f"{context}, {repeat}",
            [
                op
                for r in range(p)
                for op in chain(
                    ("block", {"size": size, "repeat": repeat}),
                    n if r < working else 1,
                    device=f"rank{r}",
                    name=f"r{r}.",
                )
            ],
            machine,
            notes={"chain": n},
        )
        for repeat, (context, working) in itertools.product(repeats, contexts.items())
    ]
    found = session.each("blocks on", cases, partial(bare, session), REPEATS)
    for context in contexts:
        samples = {(size, r): found[f"{context}, {r}"] for r in repeats if f"{context}, {r}" in found}
        if samples:
            session.table("block", ("size", "repeat"), context, samples, along="repeat")


def model_steps(session: Session, model: str) -> None:
    """Measure the duration of every segment of a step: a table for each, over batch sizes."""
    batches = BATCHES[model]
    cases = [step_case(model, batch, "calibration", "calibration") for batch in batches]
    found = session.each("steps of", cases, partial(segments, session), REPEATS)
    measured = [batch for case, batch in zip(cases, batches, strict=True) if case.name in found]
    for kind in step_kinds(model) if measured else ():
        session.table(kind, ("batch",), "warm", {(batch,): found[f"{kind} {batch}"] for batch in measured})


def segments(session: Session, case: Case, seen: Observation) -> Samples:
    """Return durations of a step and of its ops, scaled so that the ops last as long as without events."""
    lasted = spans_ns(seen)
    scale = (seen.makespan_ns - frame_ns(session, 1)) / max(1, int(lasted.sum()))
    ns = dict(zip(seen.trace.tasks["op"].tolist(), (lasted * scale).tolist(), strict=True))
    of_ops = {f"{op.kind} {op.facts['batch']}": [ns[k]] for k, op in enumerate(case.ops)}
    return {case.name: [float(seen.makespan_ns)], **of_ops}


def _positive(samples: npt.ArrayLike) -> list[float]:
    return np.maximum(0.0, samples).tolist()  # type: ignore[no-any-return]
