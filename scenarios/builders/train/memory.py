"""Memory of checkpoint units: kept for the backward, needed while running, and held by their weights.

::

    parameters       2 bytes each for the stages of the rank; under FSDP none, it gathers from its fp32 copy
    gradients        4 bytes each if they are summed in fp32
    optimizer state  12 bytes each: two moments and the fp32 copy               / ranks that share it
    activations      left by the forwards of micro-batches for their backwards
    working         further needs of the op that runs at the peak: its output, its gradient, gathered data
    buffers          gathered input (sequence parallelism), one gradient per shape of weight (Transformer
                     Engine returns it to autograd while it adds to the sum in place), workspaces of cuBLAS

    held ▁▂▃▄▅▆▇▇▇▇▇▆▅▄▃▂▁  + working at each action; the largest sum is the peak, at that action

Sources: arXiv 1910.02054, section 3.1 (bytes per parameter); Transformer Engine 2.11, pytorch/module/base.py
(``get_dummy_wgrad``, ``get_cublas_workspace_size_bytes``: 32 MiB); PyTorch, CUDABlas (32 MiB from Hopper on);
Megatron-LM, core/tensor_parallel/layers.py (the gathered input of a product is in one global buffer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from scenarios.builders.train.kernels import LayerPiece, Product, Spent

PARTS: Final = ("parameters", "gradients", "optimizer state", "activations", "working", "buffers")
"""The purposes of memory, in the order of reports."""


class CheckpointUnit(NamedTuple):
    """Pieces that are checkpointed together, or not at all; `boundary` is the size of a checkpoint.

    `kind` has the letters of a layer's parts.
    """

    name: str
    pieces: tuple[LayerPiece, ...]
    boundary: int = 0
    checkpointed: bool = False
    kind: str = ""


class StagePart(NamedTuple):
    """A stage or a unit of it: its parameters on a rank (all, and those of experts), and its time by kind.

    Recomputation counts as part of the input gradient. `parameters` includes those of `adapters` and
    `words` (embeddings).
    """

    units: tuple[CheckpointUnit, ...]
    parameters: int
    expert_parameters: int
    forward: Spent
    input_grad: Spent
    weight_grad: Spent
    adapters: int = 0
    words: int = 0

    @property
    def backward(self) -> Spent:
        """Time of both halves."""
        return self.input_grad.plus(self.weight_grad)


class StageMemory(NamedTuple):
    """Memory of a micro-batch on a stage, in addition to that of others.

    `saved` is left by its forward; `for_weights` is the part of it that weight gradients need: all but the
    scores. `forward` and `backward` are the peaks while they run, reached in `forward_at` and
    `backward_at`.
    """

    saved: int
    for_weights: int
    forward: int
    backward: int
    forward_at: str
    backward_at: str


def stage_memory(units: Sequence[CheckpointUnit], *, selective: bool = False) -> StageMemory:
    """Return the memory of a micro-batch on a stage made of these units."""

    def saved_bytes(piece: LayerPiece) -> int:
        return piece.saved - (piece.dropped if selective else 0)

    def away(unit: CheckpointUnit) -> int:
        return sum(saved_bytes(piece) for piece in unit.pieces if piece.offloaded)

    def kept_bytes(unit: CheckpointUnit) -> int:
        return unit.boundary if unit.checkpointed else sum(map(saved_bytes, unit.pieces)) - away(unit)

    def run(unit: CheckpointUnit, low: int, top: tuple[int, str], keep: bool) -> tuple[int, tuple[int, str]]:
        """Run a unit forward from the level `low`."""
        for piece in unit.pieces:
            level = low + piece.output + piece.extra + (saved_bytes(piece) if keep else piece.input)
            top = max(top, (level, f"{piece.name} of {unit.name}"), key=lambda pair: pair[0])
            low += saved_bytes(piece) if keep else piece.kept
            top = max(top, (low, f"{piece.name} of {unit.name}"), key=lambda pair: pair[0])
        return low, top

    level, forward, leaving = 0, (0, ""), 0  # `leaving`: on the way to the host, beside the next unit
    for unit in units:
        base, forward = run(unit, level + leaving, forward, not unit.checkpointed)
        level, leaving = level + kept_bytes(unit), away(unit)
    total, backward = level, (0, "")
    for unit, next_unit in zip(reversed(units), (*reversed(units[:-1]), None), strict=True):
        # data for the next unit comes back beside this one
        base = level + away(unit) + (away(next_unit) if next_unit else 0)
        if unit.checkpointed:
            # what the layer has kept is part of what its pieces save
            base, backward = run(unit, base - sum(piece.kept for piece in unit.pieces), backward, True)
        for piece in reversed(unit.pieces):
            again = piece.dropped if selective else 0
            needed = base + again + piece.output + piece.input + piece.extra + piece.backward_extra
            backward = max(backward, (needed, f"{piece.name} of {unit.name}"), key=lambda pair: pair[0])
            base -= saved_bytes(piece)
        level -= kept_bytes(unit)
    freed = 0 if selective else sum(p.dropped for unit in units if not unit.checkpointed for p in unit.pieces)
    return StageMemory(total, total - freed, forward[0], backward[0], forward[1], backward[1])


WORKSPACES: Final = 2 * 32 * 2**20
"""Workspaces of cuBLAS, one for PyTorch and one for Transformer Engine."""


def transformer_engine_buffers(stages: Sequence[StagePart], gathered: int) -> int:
    """Return the buffers of a rank: workspaces, the gathered input of a product, a gradient per shape of
    weight; experts have one.
    """
    shapes = {
        (kernel.m, kernel.n)
        for stage in stages
        for unit in stage.units
        for piece in unit.pieces
        if piece.name not in ("head", "router")
        for kernel in piece.backward
        if isinstance(kernel, Product) and kernel.part == "W"
    }
    return WORKSPACES + gathered + sum(2 * m * n for m, n in shapes)
