"""Two opposite pipelines in each other's bubbles (``chimera``).

Two replicas of the model: one goes down the ranks, one up. Each takes half of a unit of p
micro-batches. Rule, with one tick for a F and one for a B: at its distance d from the start of its
pipeline (d = r going down, p-1-r going up), a rank runs the j-th micro-batch of unit u

    F at tick  2p·u + 2j + d            B at tick  2p·u + 2j + 2p-1-d

Going down and going up fall on ticks of different parity, F and B of the same parity on different
halves of a unit, so no tick is taken twice; a rank's program is its actions by tick.

``chimera`` with 4 ranks, 4 micro-batches, F=1, B=2; micro-batches 0, 1 go down and 2, 3 up:

    rank 0  F0 F1 .  f2 b2 -- f3 b3 -- .  B0 -- .  .  B1 --
    rank 1  .  F0 f2 F1 f3 .  b2 -- B0 -- b3 -- B1 -- .  .
    rank 2  .  f2 F0 f3 F1 .  B0 -- b2 -- B1 -- b3 -- .  .
    rank 3  f2 f3 .  F0 B0 -- F1 B1 -- .  b2 -- .  .  b3 --

Activations alive: between p/2 + 1 on the first and last rank and p in the middle. More than p
micro-batches are the units one after the other ("direct concatenation"). Both replicas hold
weights, and their gradients have to be summed; that is the workload's business.

Source: Li and Hoefler, "Chimera", arXiv 2107.06925, section 3.
"""

from __future__ import annotations

from policies.pipeline.action import Action
from policies.pipeline.pipeline_schedule import Schedule, bidirectional
from sim.base.errors import MisfitError


def chimera(ranks: int, micro_batches: int) -> Schedule:
    """Generate the Chimera schedule with two pipelines.

    Parameters
    ----------
    ranks : int
        Number of ranks, even.
    micro_batches : int
        Number of micro-batches. Of each unit of `ranks` the first half goes down, the second up;
        a last unit that is not full is halved likewise.

    Raises
    ------
    MisfitError
        `ranks` is odd.

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
            place = k - first - down * replica
            for stage in range(ranks):
                rank = ranks - 1 - stage if replica else stage
                start = 2 * first + 2 * place
                ticks[rank].append((start + stage, Action(stage, "F", k)))
                ticks[rank].append((start + 2 * ranks - 1 - stage, Action(stage, "B", k)))
    programs = ([action for _, action in sorted(own)] for own in ticks)
    return bidirectional("chimera", programs, ranks=ranks, micro_batches=micro_batches, replica_of=replica_of)
