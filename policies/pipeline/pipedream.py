"""PipeDream's asynchronous 1F1B (``pipedream``): no flush, stashed weights, replicated stages.

Every mini-batch updates the weights of a stage as soon as its backward ends there; the next ones are
already under way. So the pipeline is never drained, and the price is *staleness*: F uses the newest
weights, and B must use the version its F saw, which is kept ("stashed") until then.

Rule: stage s has r_s replicas, each a rank; mini-batches go round-robin over the replicas. A rank of
stage s starts with floor((N - 1 - (r_0 + ... + r_{s-1})) / r_s) forwards, N = r_0 + r_1 + ..., then
alternates one F with one B. It keeps warm-up + 1 versions of its weights.

``pipedream`` with 3 ranks (1, 1, 1), 5 mini-batches, F=1, B=2:

    rank 0  F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- F4 B2 -- .  B3 -- .  B4 --
    rank 1  .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- F4 B3 -- .  B4 -- .  .
    rank 2  .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- F4 B4 -- .  .  .  .

With ``replicas=[3, 1]`` (the split published for VGG-16 on 4 workers) stage 0 is on ranks 0, 1, 2
and stage 1 on rank 3: each replica of stage 0 warms up with floor(3/3) = 1, stage 1 with 0.

Source: Narayanan et al., "PipeDream", SOSP 2019, sections 3.2 and 3.3; the warm-up rule is that of
msr-fiddle/pipedream, ``runtime/runtime.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from policies.pipeline.one_f_one_b import actions, alternate
from policies.pipeline.pipeline_schedule import Schedule, one_pipeline
from policies.pipeline.registry import per_stage
from sim.base.errors import InputError


@dataclass(frozen=True, slots=True)
class Staleness:
    """Weight versions on one rank.

    Attributes
    ----------
    rank, stage : int
        Where.
    versions : int
        The largest number of weight versions in use at once in this run, the newest included.
    forward_version : tuple of int
        For each of the rank's mini-batches, in order, how many updates its F had seen.
    staleness : tuple of int
        For each, how many updates came between its F and its own update.
    """

    rank: int
    stage: int
    versions: int
    forward_version: tuple[int, ...]
    staleness: tuple[int, ...]


def pipedream(ranks: int, micro_batches: int, *, replicas: Sequence[int] | None = None) -> Schedule:
    """Generate the asynchronous 1F1B schedule.

    Parameters
    ----------
    ranks : int
        Number of ranks (workers).
    micro_batches : int
        Number of mini-batches to run.
    replicas : sequence of int, optional
        Replicas of each stage; by default one stage a rank.

    Returns
    -------
    Schedule
        With ``meta``: ``asynchronous``, ``warm_up``, ``weight_versions`` and ``staleness`` per rank.

    Raises
    ------
    InputError
        The replicas do not add up to the ranks.

    Examples
    --------
    >>> schedule = pipedream(4, 6, replicas=[3, 1])
    >>> [" ".join(map(str, program)) for program in schedule.programs[:3]]
    ['0F0 0F3 0B0 0B3', '0F1 0F4 0B1 0B4', '0F2 0F5 0B2 0B5']
    >>> schedule.meta["weight_versions"]
    (2, 2, 2, 1)
    """
    counts = per_stage("replicas", replicas, len(replicas), least=1) if replicas else (1,) * ranks
    if sum(counts) != ranks:
        raise InputError(
            f"pipedream's replicas must add up to the ranks: "
            f"{'+'.join(map(str, counts))} = {sum(counts)}, ranks {ranks}"
        )
    first = [0, *accumulate(counts)]
    programs, warm_ups = [], []
    for stage, count in enumerate(counts):
        warm_up = (ranks - 1 - first[stage]) // count
        for replica in range(count):
            ks = range(replica, micro_batches, count)
            programs.append(alternate(actions(stage, "F", ks), actions(stage, "B", ks), warm_up))
            warm_ups.append(warm_up)
    turns = math.lcm(*counts)
    schedule = replace(
        one_pipeline("pipedream", programs, ranks=ranks, micro_batches=micro_batches),
        stages=len(counts),
        placements=tuple(
            tuple(first[s] + turn % count for s, count in enumerate(counts)) for turn in range(turns)
        ),
        replica_of=tuple(k % turns for k in range(micro_batches)),
    )
    meta = {
        "asynchronous": True,
        "replicas": counts,
        "warm_up": tuple(warm_ups),
        "weight_versions": tuple(warm_up + 1 for warm_up in warm_ups),
        "staleness": tuple(max(each.staleness, default=0) for each in staleness(schedule)),
    }
    return replace(schedule, meta=meta)


def staleness(schedule: Schedule) -> tuple[Staleness, ...]:
    """Follow the weight versions through each rank's program, one update after each B.

    Replicas of a stage update together (their gradients are summed), so a rank's own backwards
    count the updates.

    Parameters
    ----------
    schedule : Schedule
        One stage a rank, backwards in one piece.

    Returns
    -------
    tuple of Staleness
        One a rank.

    Examples
    --------
    >>> [each.staleness for each in staleness(pipedream(3, 5))]
    [(0, 1, 2, 2, 2), (0, 1, 1, 1, 1), (0, 0, 0, 0, 0)]
    """
    return tuple(_follow(schedule, rank) for rank in range(schedule.ranks))


def _follow(schedule: Schedule, rank: int) -> Staleness:
    seen: dict[int, int] = {}
    in_use: dict[int, int] = {}
    late: list[int] = []
    version, versions = 0, 1
    for action in schedule.actions(rank):
        k = action.micro_batch
        if action.phase == "F":
            seen[k] = in_use[k] = version
        elif action.phase == "B":
            late.append(version - in_use.pop(k))
            version += 1
        versions = max(versions, len({version, *in_use.values()}))
    return Staleness(rank, schedule.stages_of(rank)[0], versions, tuple(seen.values()), tuple(late))
