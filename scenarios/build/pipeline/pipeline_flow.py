"""What the stages of a pipeline send, keep and read, as outputs and inputs of their ops.

Outputs of an op, by the phase of its action (0 bytes where nothing is kept)::

    F     0 boundary           1 what I frees (recomputed: the stage input)   2 what W frees    3.. skips
    R     0 nothing            1 what I frees                                 2 what W frees
    B, I  0 boundary gradient  1.. gradients of skips, and what it needs while it runs: nobody reads it
    W     0 nothing

Actions are numbered ``(plane · stages + stage) · micro-batches + micro-batch``, where the plane is 0 for F, 1
for the gradient (of B or I), 2 for R: kinds of what may be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scenarios.build.pipeline.pipeline_stage import Around, PipelineStage

__all__ = ["Read", "Sizes", "output_sizes", "reads_of_stages"]

Sizes = Mapping[str, tuple[int, ...]]
"""Sizes of the outputs of a stage's ops by phase; ``"C"`` is the F of a micro-batch that is recomputed."""


class Read(NamedTuple):
    """What an action reads of another stage: an output of the action numbered ``base + micro-batch``."""

    base: int
    stage: int
    output: int
    nbytes: int


def output_sizes(stages: Sequence[PipelineStage], around: Around) -> list[Sizes]:
    """Return the sizes of outputs, for each stage."""
    return [_sizes(stages, around, s) for s in range(len(stages))]


def _sizes(stages: Sequence[PipelineStage], around: Around, s: int) -> Sizes:
    stage = stages[s]
    boundary = stage.boundary_nbytes + around.carried_nbytes(s)
    copies = around.kept_nbytes(s)
    kept = stage.kept_nbytes + copies
    passing = stage.activation_nbytes - stage.kept_nbytes
    checkpoint = stage.input_nbytes + copies
    skips = tuple(skip.nbytes for skip in around.portal_skips if skip.source == s)
    back = tuple(skip.nbytes for skip in around.portal_skips if skip.destination == s)
    working = (stage.working_nbytes,) if stage.working_nbytes else ()
    gradient = stages[s - 1].boundary_nbytes + around.carried_nbytes(s - 1) if s else 0
    return {
        "F": (boundary, passing, kept, *skips),
        "C": (boundary, checkpoint, 0, *skips),
        # The stage input, kept to the end, is part of the activations.
        "R": (0, passing, max(0, kept - checkpoint)),
        "B": (gradient, *back, *working),
        "I": (gradient, *back, *working),
        "W": (0,),
    }


def reads_of_stages(
    sizes: Sequence[Sizes], around: Around, micro_batches: int
) -> list[tuple[list[Read], list[Read]]]:
    """Return, for each stage, what its F and what its B (or I) reads of other stages."""
    n = len(sizes)
    gradients = n * micro_batches
    leaving = [[skip for skip in around.portal_skips if skip.source == s] for s in range(n)]
    entering = [[skip for skip in around.portal_skips if skip.destination == s] for s in range(n)]
    found = []
    for s in range(n):
        before, after = s - 1, s + 1
        forward = [Read(before * micro_batches, before, 0, sizes[before]["F"][0])] if s else []
        backward = [Read(gradients + after * micro_batches, after, 0, sizes[s]["F"][0])] if after < n else []
        for skip in entering[s]:
            output = 3 + leaving[skip.source].index(skip)
            forward.append(Read(skip.source * micro_batches, skip.source, output, skip.nbytes))
        for skip in leaving[s]:
            output = 1 + entering[skip.destination].index(skip)
            base = gradients + skip.destination * micro_batches
            backward.append(Read(base, skip.destination, output, skip.nbytes))
        found.append((forward, backward))
    return found
