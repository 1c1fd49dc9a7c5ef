"""Deterministic clock cycles: which (micro-batch, stage) pairs run together in the forward of GPipe.

    m = 4 micro-batches            cycle 0   (0,0)
    n = 3 stages                   cycle 1   (1,0) (0,1)
                                   cycle 2   (2,0) (1,1) (0,2)
    (i, j) runs in                 cycle 3   (3,0) (2,1) (1,2)
    cycle i + j                    cycle 4         (3,1) (2,2)
                                   cycle 5               (3,2)

Issuing by cycles keeps one host thread from running ahead on one device while others wait for
their launches.

Source: Kim et al., "torchgpipe", arXiv 2004.09910, section 3.2.1; kakaobrain/torchgpipe,
``clock_cycles`` in ``torchgpipe/pipeline.py``.
"""

from __future__ import annotations

from collections.abc import Iterator


def clock_cycles(micro_batches: int, stages: int) -> Iterator[list[tuple[int, int]]]:
    """Yield, cycle by cycle, the pairs (i, j): micro-batch i runs on stage j.

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
    """Write the cycles as the table of this module's docstring: one row a cycle, one column a stage.

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
