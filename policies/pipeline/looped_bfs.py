"""Breadth-first looping (``looped-bfs``): each chunk runs all its micro-batches at once.

Rule: stage s is on rank s mod p. A rank runs, chunk after chunk, F of every micro-batch; then,
chunks reversed, B of every micro-batch, the last one first. Like GPipe it holds all m·v
activations; its point is that each chunk's weights are gathered and its gradients reduced once.

``looped-bfs`` with 2 ranks, 2 chunks, 2 micro-batches, F=1, B=2:

    rank 0  F0 F1 f0 f1 .  .  .  b1 -- b0 -- B1 -- B0 --
    rank 1  .  F0 F1 f0 f1 b1 -- b0 -- B1 -- B0 -- .  .

The order is that of ``torch.distributed.pipelining.ScheduleLoopedBFS``.

Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", arXiv 2211.05953.
"""

from __future__ import annotations

from policies.pipeline.action import Action
from policies.pipeline.pipeline_schedule import Schedule, one_pipeline


def looped_bfs(ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """Generate the looped breadth-first schedule.

    Examples
    --------
    >>> " ".join(map(str, looped_bfs(2, 2, 2).programs[1]))
    '1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0'
    """
    programs = []
    for rank in range(ranks):
        stages = range(rank, ranks * chunks, ranks)
        program = [Action(s, "F", k) for s in stages for k in range(micro_batches)]
        program += [Action(s, "B", k) for s in reversed(stages) for k in reversed(range(micro_batches))]
        programs.append(program)
    return one_pipeline("looped-bfs", programs, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
