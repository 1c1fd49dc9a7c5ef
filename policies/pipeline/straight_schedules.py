"""Schedules in which each micro-batch passes the ranks in one direction; each function states its rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, count, repeat
from typing import Literal

from policies.option_checks import one_of, whole
from policies.pipeline.pipeline_schedule import Action, Phase, Schedule, loop, one_pipeline
from sim.base.errors import InputError, MisfitError
from sim.base.units import format_count


def gpipe(ranks: int, micro_batches: int, *, order: Literal["lifo", "fifo"] = "lifo") -> Schedule:
    """Generate the GPipe schedule.

    GPipe: all forwards, then all backwards (``gpipe``).

    Rule: each rank runs F of every micro-batch in order, then B of every micro-batch, the last one
    first (``order="lifo"``, as torchgpipe's autograd graph makes it) or the first one first
    (``order="fifo"``, as ``torch.distributed.pipelining.ScheduleGPipe``). All m activations are alive
    when the first backward starts.

    ``gpipe`` with 3 ranks, 4 micro-batches, F=1, B=2, ``order="lifo"``:

        rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B3 -- B2 -- B1 -- B0 --
        rank 1  .  F0 F1 F2 F3 .  .  .  B3 -- B2 -- B1 -- B0 -- .  .
        rank 2  .  .  F0 F1 F2 F3 B3 -- B2 -- B1 -- B0 -- .  .  .  .

    With `checkpoint`, a micro-batch that kept only its stage input is recomputed just before its backward:
    ``B3 R2 B2 R1 B1 R0 B0``, the order of torchgpipe's ``checkpoint="except_last"``.

    Sources: Huang et al., "GPipe", arXiv 1811.06965; kakaobrain/torchgpipe, ``torchgpipe/pipeline.py``.

    Parameters
    ----------
    ranks, micro_batches : int
        Sizes.
    order : {"lifo", "fifo"}
        Order of the backwards.

    Raises
    ------
    InputError
        If `order` is any other word.

    Examples
    --------
    >>> [" ".join(map(str, program)) for program in gpipe(1, 3, order="fifo").programs]
    ['0F0 0F1 0F2 0B0 0B1 0B2']
    """
    way = -1 if one_of("gpipe", "order", order, ("lifo", "fifo")) == "lifo" else 1
    ks = range(micro_batches)
    programs = (actions(rank, "F", ks) + actions(rank, "B", ks[::way]) for rank in range(ranks))
    return one_pipeline("gpipe", programs, micro_batches, loop(ranks))


def clock_cycles(micro_batches: int, stages: int) -> Iterator[list[tuple[int, int]]]:
    """Yield, cycle by cycle, the pairs (i, j): micro-batch i runs on stage j in GPipe's forward.

    ::

        m = 4 micro-batches            cycle 0   (0,0)
        n = 3 stages                   cycle 1   (1,0) (0,1)
                                       cycle 2   (2,0) (1,1) (0,2)
        (i, j) runs in                 cycle 3   (3,0) (2,1) (1,2)
        cycle i + j                    cycle 4         (3,1) (2,2)
                                       cycle 5               (3,2)

    Issuing by cycles keeps one host thread from running ahead on one device while others wait for
    their launches (torchgpipe, arXiv 2004.09910, section 3.2.1; ``clock_cycles`` in its ``pipeline.py``).

    Parameters
    ----------
    micro_batches, stages : int
        Sizes; there are ``micro_batches + stages - 1`` cycles.

    Examples
    --------
    >>> list(clock_cycles(2, 2))
    [[(0, 0)], [(1, 0), (0, 1)], [(1, 1)]]
    """
    for cycle in range(micro_batches + stages - 1):
        first = max(0, cycle - micro_batches + 1)
        yield [(cycle - stage, stage) for stage in range(first, min(cycle, stages - 1) + 1)]


def clock_table(micro_batches: int, stages: int) -> str:
    """Return the cycles as the table of `clock_cycles`: one row per cycle, one column per stage.

    Examples
    --------
    >>> print(clock_table(2, 2))
    cycle 0   (0,0)
    cycle 1   (1,0) (0,1)
    cycle 2         (1,1)
    """
    width = len(f"({micro_batches - 1},{stages - 1})") + 1
    number = len(str(micro_batches + stages - 2))
    lines = []
    for cycle, pairs in enumerate(clock_cycles(micro_batches, stages)):
        cells = {stage: f"({i},{stage})" for i, stage in pairs}
        row = "".join(cells.get(stage, "").ljust(width) for stage in range(stages))
        lines.append(f"cycle {cycle:<{number}}   {row}".rstrip())
    return "\n".join(lines)


def alternate(
    forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int, behind: int = 0
) -> list[Action]:
    """Return a rank's program: `warm_up` forwards, then alternating forward and backward, then backwards.

    If the backward is split, W runs `behind` micro-batches behind I, with the remaining W at the end.

    Examples
    --------
    >>> " ".join(map(str, alternate(actions(0, "F", range(3)), actions(0, "B", range(3)), warm_up=1)))
    '0F0 0F1 0B0 0F2 0B1 0B2'
    """
    weight_grads = [action._replace(phase="W") for action in backwards if action.phase == "I"]
    program = list(forwards[:warm_up])
    for i, backward in enumerate(backwards):
        program += [*forwards[warm_up + i : warm_up + i + 1], backward]  # none once all have run
        if i >= behind:
            program += weight_grads[i - behind : i - behind + 1]  # none if the backward is whole
    return program + weight_grads[max(0, len(backwards) - behind) :]


def actions(stage: int, phase: Phase, micro_batches: Iterable[int]) -> list[Action]:
    """Return one phase of one stage for each micro-batch in turn."""
    make = partial(tuple.__new__, Action)  # same result as Action, in a third of the time
    return list(map(make, zip(repeat(stage), repeat(phase), micro_batches)))


def forward_only(ranks: int, micro_batches: int, *, in_flight: int | None = None) -> Schedule:
    """Generate inference: F of every micro-batch in order, and nothing is kept.

    Parameters
    ----------
    ranks, micro_batches : int
        Sizes.
    in_flight : int, optional
        Most micro-batches in flight: the first stage begins one only when the last stage has ended the
        `in_flight`-th before it. By default there is no limit.

    Examples
    --------
    >>> [" ".join(map(str, program)) for program in forward_only(2, 3).programs]
    ['0F0 0F1 0F2', '1F0 1F1 1F2']
    """
    programs = (actions(rank, "F", range(micro_batches)) for rank in range(ranks))
    if in_flight is not None:
        whole("forward-only", "in_flight", in_flight)
    meta = {"forward_only": True, "in_flight": in_flight}
    return one_pipeline("forward-only", programs, micro_batches, loop(ranks), **meta)


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """Generate the 1F1B schedule.

    One forward, one backward (``1f1b``), also known as PipeDream-flush.

    Rule: rank r starts with p - 1 - r forwards, then alternates one forward with one backward, then
    runs the remaining backwards. It holds at most p - r activations, where GPipe holds m.

    ``1f1b`` with 3 ranks, 4 micro-batches, F=1, B=2:

        rank 0  F0 F1 F2 .  .  .  .  B0 -- F3 B1 -- .  B2 -- .  B3 --
        rank 1  .  F0 F1 .  .  B0 -- F2 B1 -- F3 B2 -- .  B3 -- .  .
        rank 2  .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- .  .  .  .

    The order is that of ``torch.distributed.pipelining.Schedule1F1B``, which refuses fewer
    micro-batches than stages, and so do we. (Torch 2.13's *table* of this schedule numbers the last
    rank's forwards 1..m; what torch runs is 0..m-1, as here.)

    Sources: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503;
    Fan et al., "DAPPLE", arXiv 2007.01045.

    Raises
    ------
    MisfitError
        If there are fewer micro-batches than ranks.

    Examples
    --------
    >>> [" ".join(map(str, program)) for program in one_f_one_b(2, 3).programs]
    ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """
    if micro_batches < ranks:
        raise MisfitError(
            f"1f1b needs at least as many micro-batches as stages (as torch's Schedule1F1B does): "
            f"{format_count(micro_batches, 'micro-batch')}, {ranks} stages; use {ranks} or more, or gpipe",
            reason="1f1b has fewer micro-batches than stages",
        )
    ks = range(micro_batches)
    programs = (alternate(actions(r, "F", ks), actions(r, "B", ks), ranks - 1 - r) for r in range(ranks))
    return one_pipeline("1f1b", programs, micro_batches, loop(ranks))


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """Generate ZB-H1: within the memory of 1F1B.

    Handwritten zero bubble (``zb-h1``, ``zb-h2``): a split backward, with W filling the bubbles.

    The gradient moves on after I, so the next rank need not wait for W; W has no successor and can fill
    a gap. Rule, with d = 1 for H1 and d = 2 for H2: rank r starts with d·(p-1-r) forwards, then
    alternates F and I; W runs d·r micro-batches behind I: after the i-th I comes the (i-d·r)-th W, and
    the remaining W come at the end. So every rank has the same number of activations alive: p in H1, as
    on the first rank of 1F1B, and 2p - 1 in H2.

    ``zb-h1`` with 3 ranks, 5 micro-batches, F=I=W=1:

        rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
        rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
        rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.

    Examples
    --------
    >>> " ".join(map(str, zb_h1(2, 2).programs[1]))
    '1F0 1I0 1F1 1I1 1W0 1W1'
    """
    return _handwritten("zb-h1", ranks, micro_batches, depth=1)


def zb_h2(ranks: int, micro_batches: int) -> Schedule:
    """Generate ZB-H2: up to 2p - 1 activations alive, no bubble when F = I = W.

    The rule is that of `zb_h1`.

    ``zb-h2`` with 3 ranks, 5 micro-batches, F=I=W=1:

        rank 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4 .  .
        rank 1  .  F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4 .
        rank 2  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    H2 has no bubble inside any rank's span when F = I = W; the makespan is still longer by (p-1)·F, because
    the last rank starts that much later.

    Examples
    --------
    >>> " ".join(map(str, zb_h2(2, 3).programs[0]))
    '0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2'
    """
    return _handwritten("zb-h2", ranks, micro_batches, depth=2)


def _handwritten(name: str, ranks: int, micro_batches: int, depth: int) -> Schedule:
    ks = range(micro_batches)
    programs = (
        alternate(actions(r, "F", ks), actions(r, "I", ks), depth * (ranks - 1 - r), behind=depth * r)
        for r in range(ranks)
    )
    return one_pipeline(name, programs, micro_batches, loop(ranks))


def looped_bfs(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the looped breadth-first schedule.

    Breadth-first looping (``looped-bfs``): each chunk runs all its micro-batches at once.

    Rule: stage s is on rank s mod p. A rank runs F of every micro-batch, chunk by chunk; then, with chunks
    reversed, B of every micro-batch, the last one first. Like GPipe it holds all m·v activations; its
    advantage is that each chunk's weights are gathered and its gradients reduced only once.

    ``looped-bfs`` with 2 ranks, 2 chunks, 2 micro-batches, F=1, B=2:

        rank 0  F0 F1 f0 f1 .  .  .  b1 -- b0 -- B1 -- B0 --
        rank 1  .  F0 F1 f0 f1 b1 -- b0 -- B1 -- B0 -- .  .

    The order is that of ``torch.distributed.pipelining.ScheduleLoopedBFS``.

    Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", arXiv 2211.05953.

    Examples
    --------
    >>> " ".join(map(str, looped_bfs(2, 2, 2).programs[1]))
    '1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0'
    """
    programs, ks = [], range(micro_batches)
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        forwards = [action for stage in stages for action in actions(stage, "F", ks)]
        backwards = [action for stage in stages[::-1] for action in actions(stage, "B", ks[::-1])]
        programs.append(forwards + backwards)
    return one_pipeline("looped-bfs", programs, micro_batches, loop(ranks, chunks))


def round_size(name: str, ranks: int, micro_batches: int) -> int:
    """Return the number of micro-batches that a chunk runs in a row.

    Raises
    ------
    MisfitError
        The micro-batches cannot be split into equal rounds.

    Examples
    --------
    >>> round_size("interleaved-1f1b", ranks=4, micro_batches=8)
    4
    >>> round_size("interleaved-1f1b", ranks=4, micro_batches=10)
    5
    """
    rounds = _rounds(ranks, micro_batches)
    if micro_batches % rounds:
        below = next(m for m in count(micro_batches, -1) if m % _rounds(ranks, m) == 0)
        above = next(m for m in count(micro_batches) if m % _rounds(ranks, m) == 0)
        raise MisfitError(
            f"{name} needs micro-batches in equal rounds (as torch does): {ranks} ranks make {rounds} rounds "
            f"of {micro_batches} micro-batches, which does not come out even; use {below} or {above}",
            reason=f"{name} makes no equal rounds of the micro-batches",
        )
    return micro_batches // rounds


def _rounds(ranks: int, micro_batches: int) -> int:
    return max(1, micro_batches // ranks)


def rounds_of(
    phase: Phase, rank: int, ranks: int, chunks: int, micro_batches: int, size: int
) -> list[Action]:
    """Return the actions of one phase on `rank`: round by round, each round chunk by chunk.

    Examples
    --------
    >>> " ".join(map(str, rounds_of("F", 0, ranks=2, chunks=2, micro_batches=4, size=2)))
    '0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3'
    """
    stages = range(rank, ranks * chunks, ranks)[:: 1 if phase == "F" else -1]
    rounds = (range(first, first + size) for first in range(0, micro_batches, size))
    return [action for ks in rounds for stage in stages for action in actions(stage, phase, ks)]


def interleaved_1f1b(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the interleaved 1F1B schedule.

    Megatron's virtual stages (``interleaved-1f1b``): 1F1B over several chunks per rank.

    Rule: stage s is on rank s mod p. Micro-batches go in rounds of g (p of them, when p divides m): a
    rank runs a round on its first chunk, then the same round on its second, and so on; backwards take
    the chunks from the last to the first. Rank r starts with (v-1)·g + 2(p-1-r) forwards, then
    alternates one F with one B, then runs the remaining backwards. The bubble is v times smaller than
    1F1B's, with v times as many transfers.

    ``interleaved-1f1b`` with 2 ranks, 2 chunks, 2 micro-batches, F=1, B=2:

        rank 0  F0 F1 f0 f1 .  .  b0 -- .  b1 -- B0 -- B1 --
        rank 1  .  F0 F1 f0 b0 -- f1 b1 -- B0 -- B1 -- .  .

    The order and the refused sizes are those of ``torch.distributed.pipelining``'s
    ``ScheduleInterleaved1F1B``: with max(1, m // p) rounds, m must be a multiple of the rounds.

    Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters",
    arXiv 2104.04473, section 2.2.

    Raises
    ------
    MisfitError
        The micro-batches cannot be split into equal rounds.

    Examples
    --------
    >>> " ".join(map(str, interleaved_1f1b(2, 2, 2).programs[1]))
    '1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1'
    """
    return interleave("interleaved-1f1b", "B", 2, ranks, micro_batches, chunks)


def interleave(
    name: str, backward: Phase, ahead: int, ranks: int, micro_batches: int, chunks: int
) -> Schedule:
    """Return a schedule that alternates forwards and backwards over the chunks of each rank.

    Parameters
    ----------
    name : str
        Name of the schedule.
    backward : str
        ``"B"``, or ``"I"`` followed by W.
    ahead : int
        Number of extra warm-up forwards of a rank over the next one.
    ranks, micro_batches, chunks : int
        Sizes of the schedule.
    """
    size = round_size(name, ranks, micro_batches)
    programs = []
    for rank in range(ranks):
        forwards = rounds_of("F", rank, ranks, chunks, micro_batches, size)
        backwards = rounds_of(backward, rank, ranks, chunks, micro_batches, size)
        warm_up = (chunks - 1) * size + ahead * (ranks - 1 - rank)
        programs.append(alternate(forwards, backwards, warm_up, behind=rank))
    return one_pipeline(name, programs, micro_batches, loop(ranks, chunks))


def interleaved_zb(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the interleaved zero-bubble schedule.

    Zero bubble over interleaved chunks (``interleaved-zb``): a split backward with W postponed.

    Rule: chunks and rounds as in ``interleaved-1f1b``, with half the extra warm-up, (v-1)·g + (p-1-r)
    forwards, because the gradient moves on after I without waiting for W. On rank r, W runs r
    micro-batches behind I: after the i-th I comes the (i-r)-th W, and the remaining W at the end.

    ``interleaved-zb`` with 2 ranks, 2 chunks, 2 micro-batches, F=I=W=1:

        rank 0  F0 F1 f0 f1 .  i0 w0 i1 w1 I0 W0 I1 W1
        rank 1  .  F0 F1 f0 i0 f1 i1 w0 I0 w1 I1 W0 W1

    The order and the refused sizes are those of ``torch.distributed.pipelining``'s
    ``ScheduleInterleavedZeroBubble``.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241 (ZB-1p's rule over chunks).

    Raises
    ------
    InputError
        The micro-batches cannot be split into equal rounds.

    Examples
    --------
    >>> " ".join(map(str, interleaved_zb(2, 2, 2).programs[1]))
    '1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1'
    """
    return interleave("interleaved-zb", "I", 1, ranks, micro_batches, chunks)


def pipedream(ranks: int, micro_batches: int, *, replicas: Sequence[int] | None = None) -> Schedule:
    """Generate the asynchronous 1F1B schedule.

    PipeDream's asynchronous 1F1B (``pipedream``): no flush, stashed weights, replicated stages.

    Every mini-batch updates the weights of a stage as soon as its backward ends there, while later ones are
    already under way. So the pipeline never drains, at the price of *staleness*: F uses the newest weights,
    and B must use the version its F saw, which is kept ("stashed") until then.

    Rule: stage s has r_s replicas, one per rank; mini-batches go round-robin over the replicas. A rank of
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

    Parameters
    ----------
    ranks : int
        Number of ranks (workers).
    micro_batches : int
        Number of mini-batches to run.
    replicas : sequence of int, optional
        Replicas of each stage; by default one stage per rank.

    Returns
    -------
    Schedule
        With ``meta``: ``asynchronous``, ``warm_up``, ``weight_versions`` and ``staleness`` per rank.

    Raises
    ------
    InputError
        If the replicas do not add up to the ranks.

    Examples
    --------
    >>> schedule = pipedream(4, 6, replicas=[3, 1])
    >>> [" ".join(map(str, program)) for program in schedule.programs[:3]]
    ['0F0 0F3 0B0 0B3', '0F1 0F4 0B1 0B4', '0F2 0F5 0B2 0B5']
    >>> schedule.meta["weight_versions"]
    (2, 2, 2, 1)
    """
    per_stage = (1,) * ranks if replicas is None else replicas
    counts = tuple(whole("pipedream", "replicas", count) for count in per_stage)
    if sum(counts) != ranks:
        text = f"{'+'.join(map(str, counts)) or 'none'} = {sum(counts)}, ranks {ranks}"
        raise InputError(f"pipedream's replicas must add up to the ranks: {text}")
    first = [0, *accumulate(counts)]
    programs, warm_ups = [], []
    for stage, replicated in enumerate(counts):
        warm_up = (ranks - 1 - first[stage]) // replicated
        for replica in range(replicated):
            ks = range(replica, micro_batches, replicated)
            programs.append(alternate(actions(stage, "F", ks), actions(stage, "B", ks), warm_up))
            warm_ups.append(warm_up)
    turns = math.lcm(*counts)
    schedule = Schedule(
        "pipedream",
        tuple(map(tuple, programs)),
        tuple(tuple(first[s] + turn % count for s, count in enumerate(counts)) for turn in range(turns)),
        tuple(k % turns for k in range(micro_batches)),
    )
    meta = {
        "asynchronous": True,
        "replicas": counts,
        "warm_up": tuple(warm_ups),
        "weight_versions": tuple(warm_up + 1 for warm_up in warm_ups),
        "staleness": tuple(max(updates, default=0) for updates in staleness(schedule)),
    }
    return replace(schedule, meta=meta)


def staleness(schedule: Schedule) -> list[list[int]]:
    """Return, per rank, the updates between F and its own update for each mini-batch, with one after each B.

    Replicas of a stage update together (their gradients are summed), so the number of a rank's own
    backwards is the number of updates.

    Parameters
    ----------
    schedule : Schedule
        Schedule with one stage per rank and unsplit backwards.

    Examples
    --------
    >>> staleness(pipedream(3, 5))
    [[0, 1, 2, 2, 2], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]]
    """
    late: list[list[int]] = [[] for _ in range(schedule.ranks)]
    for rank, delays in enumerate(late):
        version_of: dict[int, int] = {}  # what the F of a mini-batch saw
        for action in schedule.actions(rank):
            if action.phase == "F":
                version_of[action.micro_batch] = len(delays)
            else:
                delays.append(len(delays) - version_of[action.micro_batch])
    return late
