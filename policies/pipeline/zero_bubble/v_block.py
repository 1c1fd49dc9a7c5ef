"""V-shaped schedules with half and a third of 1F1B's memory (``v-half``, ``v-min``).

The time between a micro-batch's forward and backward on a rank is what its activations cost. In a V
(rank r has stages r and 2p-1-r) a micro-batch comes by four times: F down, F up, I down, I up. A
*building block* says when, in ticks, and every micro-batch repeats it six ticks later (F and I of two
chunks, and two W):

    v-min   F down at r     F up at 2p-1-r   I down at 2p+g+r      I up at 4p+g-1-r     g = 2 if 3 divides p
    v-half  F down at 2r    F up at 3p-2-r   I down at 3p+g-1+2r   I up at 6p+g-2-r     g = 3 if 2 divides p

(g, else 0, keeps the four off each other's ticks.) Over all ranks alike, the two lifetimes of a
micro-batch add up to 4p + 2g in v-min and 6p - 1 + 2g in v-half, against 12p in zb-v, and a sixth of
that is the number of activations alive.

The blocks give the order of F and I; time gives the rest. A rank runs the next of its block, W when
that has no input yet or memory is full. At both ends of the batch, where blocks are missing, better
orders exist: an I that has its input may go before an action that has not, and so may an F where
memory lasts until its own turn. Strict order, early I, and early I and F are tried, and the shortest
longest span for F = I = W is taken.

``v-half`` with 2 ranks, 3 micro-batches, F=I=W=1:

    rank 0  F0 F1 F2 f0 i0 w0 f1 I0 i1 W0 w1 f2 i2 I1 w2 I2 W1 W2 .
    rank 1  .  F0 f0 F1 f1 i0 I0 w0 F2 W0 f2 i1 I1 i2 I2 w1 W1 w2 W2

``v-min`` with 2 ranks, 3 micro-batches, F=I=W=1:

    rank 0  F0 F1 F2 f0 i0 w0 f1 I0 i1 W0 w1 I1 W1 f2 i2 w2 .  I2 W2
    rank 1  .  F0 f0 F1 f1 i0 I0 w0 F2 i1 I1 W0 f2 w1 W1 i2 I2 w2 W2

Source: Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 3 (the
building blocks); the filling of the ends is ours.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from policies.pipeline.action import Action
from policies.pipeline.evaluate import StageTimes, evaluate
from policies.pipeline.pipeline_schedule import Schedule, v_pipeline
from policies.pipeline.zero_bubble.zb_greedy import action_of_leg, input_of_leg
from policies.pipeline.zero_bubble.zb_v import require_two_chunks

_Block = tuple[int, int, int, int]
"""Tick of F down, F up, I down, I up of micro-batch 0 on one rank."""

_Early = Literal["", "I", "IF"]
"""What may go before an action that waits for its input."""

_PERIOD = 6


def v_half(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate V-Half: about p/2 + 1 micro-batches of activations alive.

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
    """Choose what may go early on a batch just long enough to repeat itself, and write the real one."""
    limit = max(_peak(block) for block in blocks)

    def write(early: _Early, count: int) -> Schedule:
        programs = _Writer(blocks, count, limit, early).programs()
        return v_pipeline(name, programs, ranks=ranks, micro_batches=count, meta={"early": early})

    def longest_span(early: _Early) -> int:
        unit = StageTimes(forward=1, input_grad=1, weight_grad=1)
        return max(evaluate(write(early, min(micro_batches, 2 * ranks)), unit).spans)

    choices: tuple[_Early, ...] = ("", "I", "IF")
    return write(min(choices, key=longest_span), micro_batches)


def _peak(block: _Block) -> int:
    """Count the activations alive while blocks repeat: W runs in the first tick that no block takes."""
    due = deque(sorted((tick + _PERIOD * k, leg) for leg, tick in enumerate(block) for k in range(block[3])))
    alive = peak = pending = tick = 0
    while due:
        if due[0][0] == tick:
            _, leg = due.popleft()
            alive += leg < 2
            pending += leg >= 2
            peak = max(peak, alive)
        elif pending:
            pending -= 1
            alive -= 1
        tick += 1
    return peak


class _Writer:
    """Run all ranks tick by tick; the legs are 0 F down, 1 F up, 2 I down, 3 I up."""

    def __init__(self, blocks: list[_Block], micro_batches: int, limit: int, early: _Early) -> None:
        self.blocks, self.micro_batches, self.limit, self.early = blocks, micro_batches, limit, early
        ranks = len(blocks)
        self.program: list[list[Action]] = [[] for _ in range(ranks)]
        self.pending: list[deque[Action]] = [deque() for _ in range(ranks)]
        self.alive = [0] * ranks
        self.done = [[0, 0, 0, 0] for _ in range(ranks)]
        self.shown = [[0, 0, 0, 0] for _ in range(ranks)]  # done, as of the start of this tick

    def programs(self) -> list[list[Action]]:
        ranks = range(len(self.blocks))
        while any(done[3] < self.micro_batches for done in self.done):
            self.shown = [done.copy() for done in self.done]
            for rank in ranks:
                leg = self._choose(rank)
                if leg is not None:
                    self._run(rank, leg)
                elif self.pending[rank]:
                    self.program[rank].append(self.pending[rank].popleft())
                    self.alive[rank] -= 1
        for rank in ranks:
            self.program[rank] += self.pending[rank]
        return self.program

    def _choose(self, rank: int) -> int | None:
        """Return the leg to run now, or None for a W (or nothing)."""
        done, block = self.done[rank], self.blocks[rank]
        open_legs = [leg for leg in range(4) if done[leg] < self.micro_batches]
        if not open_legs:
            return None
        due = [block[leg] + _PERIOD * done[leg] for leg in range(4)]
        open_legs.sort(key=due.__getitem__)
        head = open_legs[0]
        full = self.alive[rank] >= self.limit
        if self._ready(rank, head) and not (full and head < 2):
            return head
        if not self.early or (full and self.pending[rank]):
            return None
        ready = [leg for leg in open_legs if self._ready(rank, leg)]
        gradients = [leg for leg in ready if leg >= 2]
        if gradients:
            return gradients[0]
        forwards = ready if self.early == "IF" and not full else []
        return next((leg for leg in forwards if self._room_until_due(rank, leg)), None)

    def _ready(self, rank: int, leg: int) -> bool:
        """Tell whether the input of the next action of `leg` was there when this tick began."""
        made_by = input_of_leg(leg, rank, len(self.blocks))
        return made_by is None or self.done[rank][leg] < self.shown[made_by[1]][made_by[0]]

    def _room_until_due(self, rank: int, leg: int) -> bool:
        """Tell whether memory lasts if the next F of `leg` goes now and the rest keeps its order."""
        block, done = self.blocks[rank], self.done[rank].copy()
        until = block[leg] + _PERIOD * done[leg]
        done[leg] += 1
        alive, pending = self.alive[rank] + 1, len(self.pending[rank])
        while True:
            ahead = [(block[i] + _PERIOD * done[i], i) for i in range(4) if done[i] < self.micro_batches]
            if not ahead or min(ahead)[0] > until:
                return True
            _, following = min(ahead)
            done[following] += 1
            if following >= 2:
                pending += 1
                continue
            alive += 1
            freed = min(pending, max(0, alive - self.limit))
            alive, pending = alive - freed, pending - freed
            if alive > self.limit:
                return False

    def _run(self, rank: int, leg: int) -> None:
        action = action_of_leg(leg, rank, len(self.blocks), 4, self.done[rank][leg])
        self.program[rank].append(action)
        self.done[rank][leg] += 1
        if leg < 2:
            self.alive[rank] += 1
        else:
            self.pending[rank].append(action._replace(phase="W"))
