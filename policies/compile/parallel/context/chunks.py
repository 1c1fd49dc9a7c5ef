"""Which part of a sequence each rank has, and how much of its attention that is.

::

    4 ranks, 8 chunks, causal             rank 0 has 0 and 7, rank 1 has 1 and 6, ...: all have the same work

    queries  0  #                         contiguous: rank 0 has 0 and 1, rank 3 has 6 and 7: seven times the
             work 1  ##
             ...
             7  ########                  of a chunk with itself half counts: s²/2 of s² pairs are not masked

Sources: TransformerEngine, attention/dot_product_attention/context_parallel.py (``get_batch_on_this_cp_rank``
of Megatron-LM gives the chunks); "The Llama 3 Herd of Models", arXiv 2407.21783, section 3.3.2.
"""

from __future__ import annotations

from fractions import Fraction

__all__ = ["attention_shares"]


def attention_shares(ranks: int, rank: int, *, causal: bool, balanced: bool = True) -> list[Fraction]:
    """Return the part of all attention that `rank` computes with the keys and values of each rank.

    Parameters
    ----------
    ranks, rank : int
    causal : bool
        Whether a token sees those before it only.
    balanced : bool
        Whether rank i has chunks i and 2 ranks - 1 - i of twice as many as ranks, not its neighbours.

    Examples
    --------
    >>> [str(part) for part in attention_shares(2, 0, causal=True)]
    ['1/4', '1/4']
    >>> [str(part) for part in attention_shares(2, 0, causal=True, balanced=False)]
    ['1/4', '0']
    """
    n = 2 * ranks

    def chunks(of: int) -> tuple[int, int]:
        return (of, n - 1 - of) if balanced else (2 * of, 2 * of + 1)

    def pairs(query: int, key: int) -> Fraction:
        if not causal or key < query:
            return Fraction(1)
        return Fraction(1, 2) if key == query else Fraction(0)

    total = Fraction(n * n, 2 if causal else 1)
    return [
        sum((pairs(query, key) for query in chunks(rank) for key in chunks(other)), Fraction(0)) / total
        for other in range(ranks)
    ]
