"""Pieces of DeepSeek-V4's attention on one rank, and the mixing of residual streams around parts of a layer.

::

    x ─ norm ─┬─ q down ─ norm ─ q up ─ norm ─ rotary ────────────────────┐
              ├─ one key, which is also its value ─ norm ─ rotary ────────┤
              ├─ pool: keys of 4 tokens, or of 128 ───────────────────────┼─ attention ─ o group ─ proj
              └─ index: keys of 4 tokens ─ scores of all ─ the best 512 ──┘

    streams   4h ─ mix: input of a part, h ─ part ─ mix out: 4h

A query sees the last 128 tokens and the pooled keys in one kernel, which costs as much as attention in a
window of as many keys: for 4,096 tokens, 64 heads and 512 or 1,024 keys its backward is within 4 % of the
measurement on a B200 (NVIDIA/cudnn-frontend, pull request 318). The indexer is trained on the keys that it
chose: their scores in attention, its own scores again, and two gradients.

Sources: DeepSeek-AI, DeepSeek-V4-Flash (config.json); Megatron-LM, core/transformer/
experimental_attention_variant/{deepseek_v4_hybrid_attention,csa}.py (which products stay in 16 bits, what
runs again with ``mla_up_proj``), core/transformer/hyper_connection.py; arXiv 2512.24880 (bytes that fused
kernels of mixing read and write).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from scenarios.builders.train.architecture import POOLED
from scenarios.builders.train.kernels import WIDE, Attention, Kernel, LayerPiece, Pass, Product
from scenarios.builders.train.rank_products import RankProducts
from sim.base.errors import InputError, MisfitError


def sparse_attention(work: RankProducts, part: str) -> list[LayerPiece]:
    """Return the pieces of a part: ``w``, ``C`` or ``H`` (`scenarios.builders.train.architecture`).

    Raises
    ------
    MisfitError
        Tensor or context parallelism would split it.
    InputError
        The options ask to keep its scores.
    """
    for name, ranks in (("tp", work.t), ("cp", work.c)):
        if ranks > 1:
            raise MisfitError(
                f"{name}: attention with pooled keys is whole on each rank, not shared by {ranks}",
                reason=f"{name} with pooled keys",
            )
    if work.batch.attention == "eager":
        raise InputError(
            "attention with pooled keys is one kernel, which keeps no scores", path=("attention",)
        )
    m, e, tokens, thin = work.model, work.e, work.tokens, work.thin
    q, key = tokens * m.heads * m.head * e, tokens * m.head * e
    norms = Pass(2 * q), Pass(2 * q * m.rotary_head // m.head)
    up = work.column("q up", m.q_rank, m.heads * m.head)
    pieces = [
        work.norm(thin),
        work.plain("q down", m.hidden, m.q_rank, (), (), thin),
        replace(up, forward=(*up.forward, *norms), backward=(norms[1], Pass(3 * q), *up.backward)),
        _behind(work.plain("kv up", m.hidden, m.head, (), (), 0), Pass(2 * key), Pass(3 * key)),
    ]
    if part in POOLED:
        pieces.append(_pooled(work, "pool", part, m.head))
    if part == "C":
        pieces += _indexer(work)
    groups, wide = m.o_groups, m.heads * m.head // m.o_groups
    grouped, of_input, of_weight = work.products(tokens, wide, m.o_rank, groups)
    made = tokens * groups * m.o_rank * e
    return [
        *pieces,
        _attention(work, part),
        LayerPiece("o group", (grouped,), (of_input, *of_weight), made=made, took=q).computed_in(WIDE),
        work.row("proj", groups * m.o_rank, m.hidden),
    ]


def _behind(piece: LayerPiece, forward: Pass, backward: Pass) -> LayerPiece:
    """Return a product followed by a pass."""
    return replace(piece, forward=(*piece.forward, forward), backward=(backward, *piece.backward))


def _pooled(work: RankProducts, name: str, part: str, head: int) -> LayerPiece:
    """Return the piece that makes keys of width `head`: values, gates (16 bits), and weighted sums."""
    width = work.model.pool_width(part, head)
    read = work.tokens * width * work.e
    made = work.tokens // POOLED[part] * head * work.e
    product = work.plain(name, work.model.hidden, width, (), (), read).computed_in(WIDE)
    return replace(_behind(product, Pass(read + made), Pass(2 * read + made)), made=made)


def _indexer(work: RankProducts) -> list[LayerPiece]:
    """Return the pieces that score pooled keys of 4 tokens, with heads of their own, and choose the best.

    Its queries are rotated by a Hadamard matrix. It learns from the keys that it chose: its inputs get no
    gradient from it.
    """
    m, e, tokens = work.model, work.e, work.tokens
    queries = tokens * m.index_heads * m.index_head * e
    turned = Pass(2 * queries * m.rotary_head // m.index_head + 2 * queries)
    pieces = [
        _behind(
            work.plain("index q", m.q_rank, m.index_heads * m.index_head, (), (), queries), turned, turned
        ),
        work.plain("index weights", m.hidden, m.index_heads, (), (), 0).computed_in(WIDE),
        _pooled(work, "index pool", "C", m.index_head),
    ]
    run: list[Kernel] = []
    back: list[Kernel] = []
    chosen = 0
    for length, count in work.batch.sequences(work.batch.samples, work.batch.sequence).items():
        keys = length // POOLED["C"]
        best = min(m.index_top_k, keys)
        if not best:
            continue
        rows, chosen = length * m.index_heads, chosen + count * length * best
        run += [Product(rows, m.index_head, -(-keys // 2), "S", count), Pass(8 * count * length * keys)]
        again = Product(rows, m.index_head, best, "S", count)
        back += [Product(length * m.heads, m.head, best, "S", count), again]
        back += [Product(rows, best, m.index_head, "S", count), again]
    trained = () if work.batch.lora else tuple(back)
    weightless = (replace(p, backward=tuple(k for k in p.backward if not _of_input(k))) for p in pieces)
    return [*weightless, LayerPiece("index", tuple(run), trained, saved=4 * chosen)]


def _of_input(kernel: Kernel) -> bool:
    return isinstance(kernel, Product) and kernel.part == "I"


def _attention(work: RankProducts, part: str) -> LayerPiece:
    """Return attention itself: over the tokens in a window and the pooled keys."""
    m, e, tokens = work.model, work.e, work.tokens
    q, key = tokens * m.heads * m.head * e, tokens * m.head * e
    runs = [
        Attention(count, length, m.heads, 1, m.head, m.head, window=min(length, m.reach(part, length)))
        for length, count in work.batch.sequences(work.batch.samples, work.batch.sequence).items()
    ]
    read = 2 * (q + key)  # inputs and outputs of the norms
    lse = 4 * tokens * m.heads
    pooled = tokens // POOLED[part] * m.head * e if part in POOLED else 0
    return LayerPiece(
        "attention",
        tuple(runs),
        tuple(run._replace(backward=True) for run in runs),
        saved=read + pooled + lse + q,
        made=q,
        took=read,
        again=True,
        dropped=lse,
    )


def mixed(work: RankProducts, part: Iterable[LayerPiece], number: int) -> list[LayerPiece]:
    """Return the pieces of the first or second part of a layer, with those that mix residual streams for it.

    Each is one fused kernel beside the product. The mixing replaces the part's own addition to the residual,
    so its reads and writes are subtracted.
    """
    n, thin = work.model.streams, work.thin
    into, columns = work.model.mix_weights
    product = work.plain(f"mix {number}", into, columns, (), (), n * thin).computed_in(WIDE)
    before = _behind(product, Pass((n + 1) * thin), Pass((3 * n + 1) * thin))
    return [
        replace(before, made=thin, took=n * thin),
        *part,
        LayerPiece(
            "mix out",
            (Pass((2 * n + 1 - 3) * thin),),
            (Pass((3 * n + 2 - 3) * thin),),
            saved=thin,
            made=n * thin,
            took=thin,
        ),
    ]
