"""Adapters of a low rank beside frozen products (LoRA): which pieces of a layer have one, and what it runs.

::

    x (m, k) ─┬─ frozen product (k, n) ──────────────┬─ add ──► (m, n)
              └─ (k, r) ─ (r, n) ─ times alpha / r ──┘

Both are in 16 bits and trained. Of a product whose columns are shared over t ranks, the first shares its r
columns, and what is between is gathered; of one whose rows are shared, what is between is summed, and the
columns of the second are exchanged for tokens. Sources: Hu et al., arXiv 2106.09685; Megatron Bridge,
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
"""Pieces whose product's rows are shared (`layers.RankWork.row`)."""


def with_adapters(
    pieces: Iterable[LayerPiece], lora: Mapping[str, int], t: int, tokens: int
) -> list[LayerPiece]:
    """Return the pieces of a layer on one of t ranks, an adapter behind each that has one.

    `lora` has the width between an adapter's products by module (`kernels.MODULES`); `tokens` are those of
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
    if t > 1 and m == tokens:  # else each rank has the whole product, of tokens of its own
        there = [Collective("all_reduce" if by_rows else "all_gather", 2 * m * rank, "tp")]
    swap: list[Kernel] = [Collective("all_to_all", piece.made, "tp")] * (bool(there) and by_rows)
    return LayerPiece(
        f"{piece.name} adapter",
        (first[0], *there, second[0], *swap, Pass(5 * piece.made)),
        (Pass(2 * piece.made), *swap, *second[1:], *there, *first[1:], Pass(3 * piece.took)),
        # of proj's input, attention keeps what it needs
        saved=(piece.took if piece.name != "proj" else 0) + 2 * m * rank,
        made=piece.made,
        took=2 * m * rank,
        adapts=True,
    ).computed_in(WIDE)
