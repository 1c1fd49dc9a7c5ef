"""Schedules that fold a pipeline into a V, or run two in opposite directions; each function has its rule."""

from __future__ import annotations

from collections import deque
from itertools import chain

from policies.pipeline.evaluate import UNIT_TIMES, evaluate
from policies.pipeline.pipeline_schedule import (
    Action,
    Phase,
    Schedule,
    Slot,
    SlotProgram,
    StageLane,
    bidirectional,
    one_pipeline,
    vee,
)
from policies.pipeline.zb_greedy import action_of_leg, input_of_leg
from sim.base.errors import MisfitError
from sim.base.units import format_count


def require_two_chunks(name: str, chunks: int) -> None:
    """Raise unless a V has two stages per rank.

    Raises
    ------
    MisfitError
        If `chunks` is not 2.
    """
    if chunks != 2:
        raise MisfitError(
            f"{name} needs exactly 2 stages a rank, one on each arm of the V, not {chunks}: set chunks to 2",
            reason=f"{name} has two stages a rank",
        )


def zb_v(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the ZB-V schedule.

    Zero bubble in a V (``zb-v``): no bubble in any rank's span, within the memory of 1F1B.

    Two stages per rank, folded: rank r has stages r and 2p-1-r, so that the last stage is on the rank of the
    first, and the backward of a micro-batch starts on rank 0, where memory is freed first. Each rank
    has at most 2p activations of these half-size stages alive.

    Rule, with F0, I0, W0 for the rank's first stage and F1, I1, W1 for its second, n = max(m, 2p-1):

        warm-up     2(p-r)-1 times F0;  r times F1 F0;  p-r times F1 I1 W1
        steady      F0 I0 W0 F1 I1 W1, until F0 and F1 have run n times (without F0 once it has)
        cool-down   r times I0 I1;  p-r times I0 W0;  the remaining W1;  the remaining W0

    without the micro-batches from m on. There is no bubble if F = I = W; for other times ``zb-auto``
    with ``chunks=2`` finds an order with few bubbles.

    ``zb-v`` with 2 ranks, 4 micro-batches, F=I=W=1:

        rank 0  F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3 .
        rank 1  .  F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3

    The order is that of ``torch.distributed.pipelining.ScheduleZBVZeroBubble``.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 6.

    Raises
    ------
    MisfitError
        There are not exactly two chunks.

    Examples
    --------
    >>> " ".join(map(str, zb_v(1, 2, 2).programs[0]))
    '0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1'
    """
    require_two_chunks("zb-v", chunks)
    programs = (_program(ranks, rank, micro_batches) for rank in range(ranks))
    return one_pipeline("zb-v", programs, micro_batches, vee(ranks))


def _program(ranks: int, rank: int, micro_batches: int) -> list[Slot]:
    full = max(micro_batches, 2 * ranks - 1)
    down, up = StageLane(rank), StageLane(2 * ranks - 1 - rank)
    program = SlotProgram()
    program.repeat(2 * (ranks - rank) - 1, (down, "F"))
    program.repeat(rank, (up, "F"), (down, "F"))
    program.repeat(ranks - rank, (up, "F"), (up, "I"), (up, "W"))
    while program.counts[up, "F"] < full:
        if program.counts[down, "F"] < full:
            program.add(down, "F")
        program.repeat(1, (down, "I"), (down, "W"), (up, "F"), (up, "I"), (up, "W"))
    program.repeat(rank, (down, "I"), (up, "I"))
    program.repeat(ranks - rank, (down, "I"), (down, "W"))
    program.repeat(full - program.counts[up, "W"], (up, "W"))
    program.repeat(full - program.counts[down, "W"], (down, "W"))
    return [slot for slot in program.slots if all(a.micro_batch < micro_batches for a in slot.parts)]


_Block = tuple[int, int, int, int]
"""Tick of F down, F up, I down, I up of micro-batch 0 on one rank."""

_PERIOD = 6
_FORWARD_LEGS = (0, 1)


def v_half(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate V-Half: about p/2 + 1 micro-batches of activations alive.

    V-shaped schedules with half and a third of 1F1B's memory (``v-half``, ``v-min``).

    A micro-batch's activations stay in memory from its forward to its backward on a rank. In a V (rank r has
    stages r and 2p-1-r) a micro-batch visits a rank four times: F down, F up, I down, I up. A *building
    block* gives the ticks, and every micro-batch repeats it six ticks later (F and I of two chunks, two W):

        v-min   F down at r    F up at 2p-1-r   I down at 2p+g+r      I up at 4p+g-1-r   g = 2 if 3 divides p
        v-half  F down at 2r   F up at 3p-2-r   I down at 3p+g-1+2r   I up at 6p+g-2-r   g = 3 if 2 divides p

    (g, otherwise 0, keeps the four on different ticks.) On every rank, the two lifetimes of a micro-batch
    add up to 4p + 2g in v-min and 6p - 1 + 2g in v-half, against 12p in zb-v, and a sixth of that is the
    number of activations alive.

    The blocks give the order of F and I; timing gives the rest. A rank runs the next action of its block, or
    a W if that has no input yet or memory is full. At both ends of the batch, where blocks are missing,
    better orders exist: an I with its input may run ahead of an action without, and so may an F if memory
    lasts until its own turn. Strict order and early actions are tried; the one with the shorter longest span
    for F = I = W is taken.

    ``v-half`` with 2 ranks, 3 micro-batches, F=I=W=1:

        rank 0  F0 F1 F2 f0 i0 w0 f1 I0 i1 W0 w1 f2 i2 I1 w2 I2 W1 W2 .
        rank 1  .  F0 f0 F1 f1 i0 I0 w0 F2 W0 f2 i1 I1 i2 I2 w1 W1 w2 W2

    Source: Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 3 (the
    building blocks); the filling of the ends is ours.

    Raises
    ------
    InputError
        There are not exactly two chunks.

    Examples
    --------
    >>> from policies.pipeline.evaluate import peak_activations
    >>> max(peak_activations(v_half(8, 32, 2))), "chunks; 1F1B has 16"
    (10, 'chunks; 1F1B has 16')
    """
    require_two_chunks("v-half", chunks)
    gap = 3 if ranks % 2 == 0 else 0
    p = ranks
    blocks = [(2 * r, 3 * p - 2 - r, 3 * p + gap - 1 + 2 * r, 6 * p + gap - 2 - r) for r in range(p)]
    return _best("v-half", ranks, micro_batches, blocks)


def v_min(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate V-Min: about p/3 + 1 micro-batches of activations alive.

    The rule is that of `v_half`.

    ``v-min`` with 2 ranks, 3 micro-batches, F=I=W=1:

        rank 0  F0 F1 F2 f0 i0 w0 f1 I0 i1 W0 w1 I1 W1 f2 i2 w2 .  I2 W2
        rank 1  .  F0 f0 F1 f1 i0 I0 w0 F2 i1 I1 W0 f2 w1 W1 i2 I2 w2 W2

    Raises
    ------
    InputError
        There are not exactly two chunks.

    Examples
    --------
    >>> from policies.pipeline.evaluate import peak_activations
    >>> max(peak_activations(v_min(8, 32, 2))), "chunks; 1F1B has 16"
    (8, 'chunks; 1F1B has 16')
    """
    require_two_chunks("v-min", chunks)
    gap = 2 if ranks % 3 == 0 else 0
    p = ranks
    blocks = [(r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r) for r in range(p)]
    return _best("v-min", ranks, micro_batches, blocks)


def _best(name: str, ranks: int, micro_batches: int, blocks: list[_Block]) -> Schedule:
    """Choose what may run early on a batch just long enough to be periodic, then write the real schedule."""
    limit = max(_peak(block) for block in blocks)

    def write(early: bool, count: int) -> Schedule:
        programs = _Writer(blocks, count, limit, early).programs()
        return one_pipeline(name, programs, count, vee(ranks))

    def longest_span(early: bool) -> int:
        return max(evaluate(write(early, min(micro_batches, 2 * ranks)), UNIT_TIMES).spans)

    return write(min((False, True), key=longest_span), micro_batches)


def _peak(block: _Block) -> int:
    """Return the activations alive while blocks repeat; W runs in the first tick without a block's action."""
    due = deque(sorted((tick + _PERIOD * k, leg) for leg, tick in enumerate(block) for k in range(block[3])))
    alive = peak = pending = tick = 0
    while due:
        if due[0][0] == tick:
            if due.popleft()[1] in _FORWARD_LEGS:
                alive += 1
                peak = max(peak, alive)
            else:
                pending += 1
        elif pending:
            pending -= 1
            alive -= 1
        tick += 1
    return peak


class _Writer:
    """Runs all ranks tick by tick; the legs are 0 F down, 1 F up, 2 I down, 3 I up."""

    def __init__(self, blocks: list[_Block], micro_batches: int, limit: int, early: bool) -> None:
        self.blocks, self.micro_batches, self.limit, self.early = blocks, micro_batches, limit, early
        ranks = len(blocks)
        self.program: list[list[Action]] = [[] for _ in range(ranks)]
        self.pending: list[deque[Action]] = [deque() for _ in range(ranks)]
        self.alive = [0] * ranks
        self.done = [[0, 0, 0, 0] for _ in range(ranks)]
        self.shown = [[0, 0, 0, 0] for _ in range(ranks)]  # done by the start of this tick

    def programs(self) -> list[list[Action]]:
        ranks = range(len(self.blocks))
        while any(done[3] < self.micro_batches for done in self.done):
            self.shown = [done.copy() for done in self.done]
            for rank in ranks:
                leg = self._choose(rank)
                if leg is not None:
                    action = action_of_leg(leg, rank, len(self.blocks), 4, self.done[rank][leg])
                    self.program[rank].append(action)
                    self.done[rank][leg] += 1
                    if leg in _FORWARD_LEGS:
                        self.alive[rank] += 1
                    else:
                        self.pending[rank].append(action._replace(phase="W"))
                elif self.pending[rank]:
                    self.program[rank].append(self.pending[rank].popleft())
                    self.alive[rank] -= 1
        for rank in ranks:
            self.program[rank] += self.pending[rank]
        return self.program

    def _choose(self, rank: int) -> int | None:
        """Return the leg to run now; None for a W or nothing."""
        done, block = self.done[rank], self.blocks[rank]
        open_legs = [leg for leg in range(4) if done[leg] < self.micro_batches]
        if not open_legs:
            return None
        due = [block[leg] + _PERIOD * done[leg] for leg in range(4)]
        open_legs.sort(key=due.__getitem__)
        head = open_legs[0]
        full = self.alive[rank] >= self.limit
        if self._ready(rank, head) and not (full and head in _FORWARD_LEGS):
            return head
        if not self.early or (full and self.pending[rank]):
            return None
        ready = [leg for leg in open_legs if self._ready(rank, leg)]
        gradients = (leg for leg in ready if leg not in _FORWARD_LEGS)
        forwards = (leg for leg in ready if not full and self._room_until_due(rank, leg))
        return next(chain(gradients, forwards), None)

    def _ready(self, rank: int, leg: int) -> bool:
        """Return whether the next action of `leg` had its input when this tick began."""
        made_by = input_of_leg(leg, rank, len(self.blocks))
        return made_by is None or self.done[rank][leg] < self.shown[made_by[1]][made_by[0]]

    def _room_until_due(self, rank: int, leg: int) -> bool:
        """Return whether memory lasts if the next F of `leg` runs now and the rest stays in order."""
        block, done = self.blocks[rank], self.done[rank].copy()
        due = block[leg] + _PERIOD * done[leg]
        done[leg] += 1
        alive, pending = self.alive[rank] + 1, len(self.pending[rank])
        while True:
            ahead = [(block[i] + _PERIOD * done[i], i) for i in range(4) if done[i] < self.micro_batches]
            if not ahead or min(ahead)[0] > due:
                return True
            _, following = min(ahead)
            done[following] += 1
            if following not in _FORWARD_LEGS:
                pending += 1
                continue
            alive += 1
            freed = min(pending, max(0, alive - self.limit))
            alive, pending = alive - freed, pending - freed
            if alive > self.limit:
                return False


def chimera(ranks: int, micro_batches: int) -> Schedule:
    """Generate the Chimera schedule with two pipelines.

    Two opposite pipelines that fill each other's bubbles (``chimera``).

    Two replicas of the model: one goes down the ranks, one up. Each takes half of a unit of p
    micro-batches. Rule, with one tick for an F and one for a B: at distance d from the start of its
    pipeline (d = r going down, p-1-r going up), a rank runs the j-th micro-batch of unit u

        F at tick  2p·u + 2j + d            B at tick  2p·u + 2j + 2p-1-d

    Down and up fall on ticks of different parity, and F and B of the same parity on different halves of
    a unit, so no tick is used twice; a rank's program is its actions in order of ticks.

    ``chimera`` with 4 ranks, 4 micro-batches, F=1, B=2; micro-batches 0, 1 go down and 2, 3 up:

        rank 0  F0 F1 .  f2 b2 -- f3 b3 -- .  B0 -- .  .  B1 --
        rank 1  .  F0 f2 F1 f3 .  b2 -- B0 -- b3 -- B1 -- .  .
        rank 2  .  f2 F0 f3 F1 .  B0 -- b2 -- B1 -- b3 -- .  .
        rank 3  f2 f3 .  F0 B0 -- F1 B1 -- .  b2 -- .  .  b3 --

    Activations alive: between p/2 + 1 on the first and last rank and p in the middle. With more than p
    micro-batches the units follow one another ("direct concatenation"). Both replicas hold weights, whose
    gradients must be summed; that is left to the workload.

    Source: Li and Hoefler, "Chimera", arXiv 2107.06925, section 3.

    Parameters
    ----------
    ranks : int
        Number of ranks, even.
    micro_batches : int
        Number of micro-batches. The first half of each unit of `ranks` goes down, the second up; an
        incomplete last unit is halved in the same way.

    Raises
    ------
    MisfitError
        If `ranks` is odd.

    Examples
    --------
    >>> " ".join(map(str, chimera(2, 2).programs[0]))
    '0F0 1F1 1B1 0B0'
    """
    if ranks % 2:
        raise MisfitError(
            f"chimera needs an even number of ranks, not {ranks}: its pipelines cross in the middle",
            reason="chimera has an odd number of ranks",
        )
    ticks: list[list[tuple[int, Action]]] = [[] for _ in range(ranks)]
    replica_of: list[int] = []
    for first in range(0, micro_batches, ranks):
        size = min(ranks, micro_batches - first)
        down = (size + 1) // 2
        replica_of += [0] * down + [1] * (size - down)
        for k in range(first, first + size):
            replica = replica_of[k]
            index = k - first - down * replica
            for stage in range(ranks):
                program, start = ticks[ranks - 1 - stage if replica else stage], 2 * first + 2 * index
                program.append((start + stage, Action(stage, "F", k)))
                program.append((start + 2 * ranks - 1 - stage, Action(stage, "B", k)))
    programs = ([action for _, action in sorted(program)] for program in ticks)
    return bidirectional("chimera", programs, replica_of)


def dualpipe(ranks: int, micro_batches: int) -> Schedule:
    """Generate DualPipe: two replicas in opposite directions; micro-batches 0..m/2-1 go down, the rest up.

    DeepSeek's DualPipe (``dualpipe``) and its half-size V (``dualpipe-v``).

    A forward and a backward of *different* micro-batches share one compound slot, so that the
    computation of one hides the communication of the other. Each rank has two lanes, 0 and 1:

    * ``dualpipe``: the model twice, once down the ranks and once up; half of the micro-batches go each
      way. Rank r of the first half and rank p-1-r run the same program with the directions exchanged.
    * ``dualpipe-v``: one model folded into a V; rank r has stages r and 2p-1-r. It is the first half of
      the ranks of ``dualpipe``, with the middle rank sending to itself.

    Rule, for rank r of the h ranks in a half, and n micro-batches per lane (F0 is the next forward of
    lane 0, F0&B1 a compound slot):

        1  (h-1-r)·2 times  F0
        2  r+1              F0 F1
        3  h-1-r            I1 W F1
        4  n-2h+r+1         F0&B1 F1&B0        (rank h-1 does its first F0 B1 one after the other)
        5  h-1-r            B1 F1&B0
        6  r+1              B1 B0              (its second half split: I, and W kept for later)
        7  h-1-r            W I0
        8  the remaining W

    Sources: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437; deepseek-ai/DualPipe,
    ``dualpipe/dualpipe.py`` and ``dualpipe/dualpipev.py`` (the eight steps, README: bubble and memory).

    Raises
    ------
    MisfitError
        If `ranks` or `micro_batches` is odd, or there are fewer than two micro-batches per rank.

    Examples
    --------
    >>> print(*dualpipe(2, 4).programs[0])
    0F0 1F2 0F1 1B2 (1F3;0B0)OVERLAP_F_B 1B3 0I1 0W1
    """
    if ranks % 2 or micro_batches % 2 or micro_batches < 2 * ranks:
        raise MisfitError(
            f"dualpipe needs an even number of ranks, and an even number of micro-batches of at least twice "
            f"the ranks: {format_count(ranks, 'rank')}, {format_count(micro_batches, 'micro-batch')}",
            reason="dualpipe has an odd number of ranks or micro-batches, or too few of these",
        )
    half = micro_batches // 2
    programs = []
    for rank in range(ranks):
        lanes = StageLane(rank), StageLane(ranks - 1 - rank, first=half)
        if rank >= ranks // 2:
            lanes = lanes[1], lanes[0]
        programs.append(_steps(*lanes, ranks // 2, min(rank, ranks - 1 - rank), half))
    ways = (0,) * half + (1,) * half
    return bidirectional("dualpipe", programs, ways)


def dualpipe_v(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate DualPipeV: one model in a V, two stages per rank.

    The rule is that of `dualpipe`.

    ``dualpipe-v`` with 2 ranks, 4 micro-batches, F=1, I=W=1:

        rank 0  F0 F1 F2 f0 i0 w0 f1 F3&b1 --    -- .  f2&B0 -- -- b2    -- .  f3&B1 -- -- b3 -- I2 W2 I3 W3
        rank 1  .  F0 f0 F1 f1 F2 b0 --    f2&B0 -- -- F3&b1 -- -- f3&B1 -- -- b2    -- B2 -- .  i3 I3 w3 W3

    ``dualpipe-v`` equals ``torch.distributed.pipelining.ScheduleDualPipeV``, including the sizes refused.

    Raises
    ------
    MisfitError
        If there are not exactly two chunks, or fewer micro-batches than stages.

    Examples
    --------
    >>> print(*dualpipe_v(1, 2, 2).programs[0])
    0F0 1F0 0F1 1B0 (1F1;0B0)OVERLAP_F_B 1B1 0I1 0W1
    """
    require_two_chunks("dualpipe-v", chunks)
    if micro_batches < 2 * ranks:
        raise MisfitError(
            f"dualpipe-v needs at least as many micro-batches as stages (as torch does): "
            f"{format_count(micro_batches, 'micro-batch')}, {format_count(2 * ranks, 'stage')}",
            reason="dualpipe-v has fewer micro-batches than stages",
        )
    programs = (
        _steps(StageLane(r), StageLane(2 * ranks - 1 - r), ranks, r, micro_batches) for r in range(ranks)
    )
    return one_pipeline("dualpipe-v", programs, micro_batches, vee(ranks))


def _steps(lane0: StageLane, lane1: StageLane, ranks: int, rank: int, count: int) -> list[Slot]:
    """Return the eight steps of `dualpipe`."""
    program = SlotProgram()
    after = ranks - 1 - rank
    program.repeat(2 * after, (lane0, "F"))
    program.repeat(rank + 1, (lane0, "F"), (lane1, "F"))
    for _ in range(after):
        program.add(lane1, "I")
        program.add_weight_grad()
        program.add(lane1, "F")
    for i in range(count - 2 * ranks + rank + 1):
        if i == 0 and after == 0:
            program.add(lane0, "F")
            program.add(lane1, "B")
        else:
            program.overlap(lane0, lane1)
        program.overlap(lane1, lane0)
    for _ in range(after):
        program.add(lane1, "B")
        program.overlap(lane1, lane0)
    # Of these 2(rank+1) backwards, those after the middle are split.
    for i in range(2 * (rank + 1)):
        phase: Phase = "B" if i <= rank else "I"
        program.add(lane0 if i % 2 else lane1, phase)
    for _ in range(after):
        program.add_weight_grad()
        program.add(lane0, "I")
    while program.pending:
        program.add_weight_grad()
    return program.slots
