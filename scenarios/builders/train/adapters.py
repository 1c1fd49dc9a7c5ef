"""Low-rank adapters (LoRA) beside frozen products: which pieces of a layer have one, and its kernels.

::

    x (m, k) ─┬─ frozen product (k, n) ──────────────┬─ add ──► (m, n)
              └─ (k, r) ─ (r, n) ─ times alpha / r ──┘

Both products are in 16 bits and trained. If a product's columns are split over t ranks, the first one's r
columns are split and its output is gathered; if its rows are split, that output is summed, and
the columns of the second are exchanged for tokens. Sources: Hu et al., arXiv 2106.09685; Megatron Bridge,
peft/utils.py (``ParallelLinearAdapter``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scenarios.builders.train.kernels import (
    MODULES,
    WIDE,
    Collective,
    Kernel,
    LayerPiece,
    Pass,
    Product,
    products,
)

_BY_ROWS: Final = {"proj", "down", "shared down", "mamba out"}
"""Pieces whose product is split by rows (`layers.RankWork.row`)."""


def with_adapters(
    pieces: Iterable[LayerPiece], lora: Mapping[str, int], t: int, tokens: int
) -> list[LayerPiece]:
    """Return the pieces of a layer on one of t ranks, with an adapter behind each adapted piece.

    `lora` maps a module (`kernels.MODULES`) to the rank of its adapters; `tokens` is the number of tokens in
    products that the ranks share.
    """
    adapted = {name: rank for module, rank in lora.items() for name in MODULES[module]}
    found = []
    for piece in pieces:
        found.append(piece)
        if piece.name in adapted:
            found.append(_adapter(piece, adapted[piece.name], t, tokens))
    return found


def _adapter(piece: LayerPiece, rank: int, t: int, tokens: int) -> LayerPiece:
    blocks = [each for each in piece.forward if isinstance(each, Product) and each.part == "F"]
    m, by_rows = sum(each.m for each in blocks), piece.name in _BY_ROWS
    k, n = blocks[0].k, blocks[0].n
    first = products(m, k, rank if by_rows else -(-rank // t))
    second = products(m, rank, -(-n // t) if by_rows else n)
    there: list[Kernel] = []
    if t > 1 and m == tokens:  # otherwise each rank has the whole product for its own tokens
        there = [Collective("all_reduce" if by_rows else "all_gather", 2 * m * rank, "tp")]
    swap: list[Kernel] = [Collective("all_to_all", piece.made, "tp")] * (bool(there) and by_rows)
    return LayerPiece(
        f"{piece.name} adapter",
        (first[0], *there, second[0], *swap, Pass(5 * piece.made)),
        (Pass(2 * piece.made), *swap, *second[1:], *there, *first[1:], Pass(3 * piece.took)),
        # attention itself saves what is needed of proj's input
        saved=(piece.took if piece.name != "proj" else 0) + 2 * m * rank,
        made=piece.made,
        took=2 * m * rank,
        adapts=True,
    ).computed_in(WIDE)
