"""Building blocks of a layer's parts on one rank: products that ranks share, and their messages.

::

    column    x (T/t, h) ── norm ── AG ── (h, n/t)         row    (n/t, h) ── RS ── add ──► (T/t, h)

    without sequence parallelism: AR after rows forward, and after columns backward

Backward, a product with weights gathers its saved input again while it computes the gradient of its input,
and scatters that while it computes its weight gradient; the gradient after rows is gathered first.
With `tensor_overlap` the other products run in t blocks, beside which their messages pass:

    gather, product   block 0 ─ block 1 ─ ... ─ block t-1            product, scatter the same, then the sum
                      part 1 ─► part 2 ─► ...                        (in 16 bits in four splits, by SMs)

Sources: Narayanan et al., arXiv 2104.04473, and Korthikanti et al., arXiv 2205.05198, section 4.2;
Transformer Engine 2.11, pytorch/module/{layernorm_linear,linear}.py (what overlaps, and gradients of weights
added in place).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from devices.collectives.groups import CollectiveKind
from scenarios.builders.train.architecture import POOLED, Architecture
from scenarios.builders.train.kernels import (
    WIDE,
    Attention,
    Collective,
    Kernel,
    LayerPiece,
    Pass,
    Product,
    products,
)
from scenarios.builders.train.layout import ParallelLayout, ReplicaBatch, refuse_misfit
from sim.base.errors import InputError
from sim.base.units import format_count

_SPLITS: Final = 4  # of a product whose results are scattered meanwhile (`initialize_ub`, num_splits)


class RankProducts:
    """The products of a model on one rank of a layout.

    Raises
    ------
    MisfitError
        The ranks cannot share the model.
    InputError
        An option has no effect.
    """

    def __init__(self, model: Architecture, layout: ParallelLayout, batch: ReplicaBatch) -> None:
        t, c = layout.tp, layout.cp
        shared = [("heads", model.heads), ("middle", model.middle)]
        if "M" in model.pattern:
            shared += [("mamba_heads", model.mamba_heads), ("mamba_groups", model.mamba_groups)]
        for name, size in shared:
            reason = f"tp: {t} ranks cannot share {size} {name}"
            refuse_misfit(size % t, f"tp does not divide the {name}", reason)
        uneven = batch.sequence % (t * c if layout.splits_sequence else c)
        reason = f"a sequence of {batch.sequence} cannot be shared by tp·cp = {t * c} ranks"
        refuse_misfit(uneven, "tp·cp does not divide the sequence", reason)
        heads, by_heads = model.heads // t, c if batch.context == "all-to-all" else 1
        reason = f"cp: {c} ranks cannot share {format_count(heads, 'head')}; use context: ring"
        refuse_misfit(heads % by_heads, "cp does not divide the heads of a rank", reason)
        for key, ranks, kv in (("tp", t, model.kv_heads), ("cp", by_heads, max(1, model.kv_heads // t))):
            uneven = kv % ranks and ranks % kv  # heads are replicated if there are fewer than ranks
            reason = f"{key}: {ranks} ranks cannot share {format_count(kv, 'head')} of keys and values"
            refuse_misfit(uneven, f"{key} and the heads of keys and values are no multiples", reason)
        reason = "packed: sequences are not known to go round a ring; use context: all-to-all or all-gather"
        ring = batch.packed and c > 1 and batch.context == "ring"
        refuse_misfit(ring, "packed sequences with context: ring", reason)
        reason = f"ep: {layout.ep} ranks cannot share {format_count(model.experts, 'expert')}"
        refuse_misfit(model.experts % layout.ep, "ep does not divide the experts", reason)
        if not model.experts and (batch.imbalance != 1.0 or batch.routes is not None):
            name = "imbalance" if batch.routes is None else "routing"
            raise InputError("has no effect: the model has no experts", path=(name,))
        self.model, self.layout, self.batch = model, layout, batch
        self.tokens = batch.samples * batch.sequence // c
        """Tokens of a micro-batch on this rank, before sequence parallelism splits them."""
        self.few = self.tokens // t if layout.splits_sequence else self.tokens
        self.t, self.c, self.e = t, c, batch.width
        self.wide = self.tokens * model.hidden * self.e
        """Bytes of the hidden state of all tokens."""
        self.thin = self.few * model.hidden * self.e
        """Bytes that a part of a layer reads and adds to."""
        self.carried = self.thin * model.streams
        """Bytes that travel from layer to layer."""

    # -- parts of pieces ------------------------------------------------------------------------------

    def products(
        self, m: int, k: int, n: int, groups: int = 1
    ) -> tuple[Product, Product, tuple[Product, ...]]:
        """Return products of m rows with a weight: forward, input gradient, and weight's unless frozen."""
        forward, of_input, of_weight = products(m, k, n, groups)
        return forward, of_input, () if self.batch.lora else (of_weight,)

    def read_again(self, nbytes: int) -> int:
        """Return the bytes of a product's input kept for its weight gradient."""
        return 0 if self.batch.lora else self.kept_bytes(nbytes)

    def kept_bytes(self, nbytes: int) -> int:
        """Return the bytes kept of the input of a product with weights, quantized if products are."""
        return nbytes if self.batch.kept is None else round(nbytes * self.batch.kept / self.e)

    def gather(self, hidden_by: Product | Attention | None = None, copies: int = 1) -> list[Kernel]:
        """Gather the hidden state over the ranks that share a layer, quantized if products are."""
        if not self.layout.splits_sequence:
            return []
        return [Collective("all_gather", copies * self.kept_bytes(self.wide), "tp", hidden_by)]

    def gather_for(self, product: Product, copies: int = 1) -> list[Kernel]:
        """Gather the hidden state for one of its products."""
        if not (self.batch.tensor_overlap and self.layout.splits_sequence):
            return [*self.gather(copies=copies), product]
        return self._ring(product, copies * self.kept_bytes(self.wide))

    def scatter_after(self, product: Product) -> list[Kernel]:
        """Sum a product's contributions to the hidden state; each rank keeps its tokens."""
        if not (self.batch.tensor_overlap and self.layout.splits_sequence):
            return [product, *self.scatter()]
        if self.batch.kept is None:
            return self._pipeline(product)
        return [*self._ring(product, self.wide), Pass((self.t + 1) * self.thin)]

    def _ring(self, product: Product, nbytes: int) -> list[Kernel]:
        """Return a product block by block, with a message of a rank's part beside each block but the last.

        Source: Transformer Engine, common/comm_gemm_overlap (``CommOverlapP2PBase``: ring exchange);
        pytorch/module/base.py (``initialize_ub``: by copy engines). Messages take NCCL's time: at the
        rate of copy engines (256 of 288 bytes of NVLink) published steps on H100 come out 7 to 12 % too fast.
        """
        block = product._replace(m=product.m // self.t)
        send = Collective("send", nbytes // self.t, "tp", block, copied=True)
        overlapped: list[Kernel] = [send, block]
        return [*overlapped * (self.t - 1), block]

    def _pipeline(self, product: Product) -> list[Kernel]:
        """Return a product in four splits, each scattered by SMs beside the next.

        Source: Megatron Bridge, training/comm_overlap.py (``PipelineOverlapCfg`` in 16 bits; in 8 bits nearly
        all configurations take a ring exchange).
        """
        split = product._replace(m=-(-product.m // _SPLITS))
        message = Collective("reduce_scatter", self.wide // _SPLITS, "tp")
        overlapped: list[Kernel] = [message._replace(hidden_by=split), split]
        return [split, *overlapped * (_SPLITS - 1), message]

    def scatter(self, hidden_by: Product | Attention | None = None) -> list[Kernel]:
        """Sum the parts of the hidden state; each rank keeps its tokens, or all of them."""
        if self.t == 1:
            return []
        kind: CollectiveKind = "reduce_scatter" if self.layout.splits_sequence else "all_reduce"
        return [Collective(kind, self.wide, "tp", hidden_by)]

    def norm(self, saved: int) -> LayerPiece:
        """Return a norm that is a kernel of its own and keeps `saved` bytes of its input and output."""
        thin = self.thin
        return LayerPiece("norm", (Pass(2 * thin),), (Pass(3 * thin),), saved=saved, output=thin, input=thin)

    def column(self, name: str, k: int, n: int, *, norm: bool = True) -> LayerPiece:
        """Return a product whose columns are split, including the norm before it.

        The norm's input and its output are kept.
        """
        forward, of_input, of_weight = self.products(self.tokens, k, n)
        read = self.few * k * self.e
        norms: list[Kernel] = [Pass(2 * read)] if norm else []
        norms_back: list[Kernel] = [Pass(3 * read)] if norm else []
        gathered = self.layout.splits_sequence
        gathers = self.gather(of_input) if of_weight else []
        return LayerPiece(
            name,
            (*norms, *self.gather_for(forward)),
            (*gathers, of_input, *self.scatter(*of_weight), *of_weight, *norms_back),
            saved=self.read_again(read) + (read + 4 * self.few if norm else 0),
            output=self.tokens * n * self.e,
            input=read,
            backward_extra=self.tokens * k * self.e if gathered else 0,
        )

    def row(self, name: str, k: int, n: int, *, saved: bool = True) -> LayerPiece:
        """Return a product whose rows are split, and the addition to the residual."""
        forward, of_input, of_weight = self.products(self.tokens, k, n)
        add = 3 * self.few * n * self.e
        mask = self.few * n if self.batch.dropout else 0
        dropout: list[Kernel] = [Pass(2 * self.thin + mask)] if mask else []
        # blocks of 32 and of 16 are quantized again along columns, for the weight gradient
        twice = of_weight and self.batch.kept not in (None, 1.0)
        return LayerPiece(
            name,
            (*self.scatter_after(forward), *dropout, Pass(add)),
            (*dropout, *self.gather_for(of_input, 2 if twice else 1), *of_weight, Pass(add)),
            saved=(self.read_again(self.tokens * k * self.e) if saved else 0) + mask,
            output=self.few * n * self.e,
            input=self.tokens * k * self.e,
            extra=self.wide if self.layout.splits_sequence else 0,
        )

    def plain(self, name: str, k: int, n: int, saved: int = 0) -> LayerPiece:
        """Return a product that every rank has whole, for the tokens that it keeps."""
        forward, of_input, of_weight = self.products(self.few, k, n)
        output, read = self.few * n * self.e, self.few * k * self.e
        return LayerPiece(name, (forward,), (of_input, *of_weight), saved, output, read)

    # -- DeepSeek-V4: its attention, and the mixing of residual streams around parts of a layer -----------
    #
    #     x ─ norm ─┬─ q down ─ norm ─ q up ─ norm ─ rotary ────────────────────┐
    #               ├─ one key, which is also its value ─ norm ─ rotary ────────┤
    #               ├─ pool: keys of 4 tokens, or of 128 ───────────────────────┼─ attention ─ o group ─ proj
    #               └─ index: keys of 4 tokens ─ scores of all ─ the best 512 ──┘
    #
    #     streams   4h ─ mix: input of a part, h ─ part ─ mix out: 4h
    #
    # A query sees the last 128 tokens and the pooled keys in one kernel, which costs as much as attention in
    # a window of as many keys: for 4,096 tokens, 64 heads and 512 or 1,024 keys its backward is within 4 % of
    # the measurement on a B200 (NVIDIA/cudnn-frontend, pull request 318). The indexer is trained on the keys
    # that it chose: their scores in attention, its own scores again, and two gradients.
    #
    # Sources: DeepSeek-AI, DeepSeek-V4-Flash (config.json); Megatron-LM, core/transformer/
    # experimental_attention_variant/{deepseek_v4_hybrid_attention,csa}.py (which products stay in 16 bits,
    # what runs again with ``mla_up_proj``), core/transformer/hyper_connection.py; arXiv 2512.24880 (bytes
    # that fused kernels of mixing read and write).

    def sparse_attention(self, part: str) -> list[LayerPiece]:
        """Return the pieces of a part: ``w``, ``C`` or ``H`` (`scenarios.builders.train.architecture`).

        Raises
        ------
        MisfitError
            Tensor or context parallelism would split it.
        InputError
            The options ask to keep its scores.
        """
        for name, ranks in (("tp", self.t), ("cp", self.c)):
            reason = f"{name}: attention with pooled keys is whole on each rank, not shared by {ranks}"
            refuse_misfit(ranks > 1, f"{name} with pooled keys", reason)
        if self.batch.attention == "eager":
            message = "attention with pooled keys is one kernel, which keeps no scores"
            raise InputError(message, path=("attention",))
        m, e, tokens, thin = self.model, self.e, self.tokens, self.thin
        q, key = tokens * m.heads * m.head * e, tokens * m.head * e
        norms = Pass(2 * q), Pass(2 * q * m.rotary_head // m.head)
        up = self.column("q up", m.q_rank, m.heads * m.head)
        pieces = [
            self.norm(thin),
            self.plain("q down", m.hidden, m.q_rank, thin),
            replace(up, forward=(*up.forward, *norms), backward=(norms[1], Pass(3 * q), *up.backward)),
            _add_pass(self.plain("kv up", m.hidden, m.head), Pass(2 * key), Pass(3 * key)),
        ]
        if part in POOLED:
            pieces.append(self._pool("pool", part, m.head))
        if part == "C":
            pieces += self._indexer()
        groups, wide = m.o_groups, m.heads * m.head // m.o_groups
        grouped, of_input, of_weight = self.products(tokens, wide, m.o_rank, groups)
        output = tokens * groups * m.o_rank * e
        return [
            *pieces,
            self._sparse_core(part),
            LayerPiece("o group", (grouped,), (of_input, *of_weight), 0, output, q).computed_in(WIDE),
            self.row("proj", groups * m.o_rank, m.hidden),
        ]

    def _pool(self, name: str, part: str, head: int) -> LayerPiece:
        """Return the piece that makes keys of width `head`: values, gates (16 bits), and weighted sums."""
        width = self.model.pool_width(part, head)
        read = self.tokens * width * self.e
        output = self.tokens // POOLED[part] * head * self.e
        product = self.plain(name, self.model.hidden, width, read).computed_in(WIDE)
        return replace(_add_pass(product, Pass(read + output), Pass(2 * read + output)), output=output)

    def _indexer(self) -> list[LayerPiece]:
        """Return the pieces that score pooled keys of 4 tokens, with heads of their own, and choose the best.

        Its queries are rotated by a Hadamard matrix. It learns from the keys that it chose: its inputs get no
        gradient from it.
        """
        m, e, tokens = self.model, self.e, self.tokens
        queries = tokens * m.index_heads * m.index_head * e
        turned = Pass(2 * queries * m.rotary_head // m.index_head + 2 * queries)
        pieces = [
            _add_pass(self.plain("index q", m.q_rank, m.index_heads * m.index_head, queries), turned, turned),
            self.plain("index weights", m.hidden, m.index_heads).computed_in(WIDE),
            self._pool("index pool", "C", m.index_head),
        ]
        run: list[Kernel] = []
        back: list[Kernel] = []
        chosen = 0
        for length, count in self.batch.sequences(self.batch.samples, self.batch.sequence).items():
            keys = length // POOLED["C"]
            best = min(m.index_top_k, keys)
            if not best:
                continue
            rows, chosen = length * m.index_heads, chosen + count * length * best
            run += [Product(rows, m.index_head, -(-keys // 2), "S", count), Pass(8 * count * length * keys)]
            again = Product(rows, m.index_head, best, "S", count)
            back += [Product(length * m.heads, m.head, best, "S", count), again]
            back += [Product(rows, best, m.index_head, "S", count), again]
        trained = () if self.batch.lora else tuple(back)
        detached = (
            replace(p, backward=tuple(k for k in p.backward if not _is_input_grad(k))) for p in pieces
        )
        return [*detached, LayerPiece("index", tuple(run), trained, saved=4 * chosen)]

    def _sparse_core(self, part: str) -> LayerPiece:
        """Return attention itself: over the tokens in a window and the pooled keys."""
        m, e, tokens = self.model, self.e, self.tokens
        q, key = tokens * m.heads * m.head * e, tokens * m.head * e
        runs = [
            Attention(count, length, m.heads, 1, m.head, m.head, window=min(length, m.reach(part, length)))
            for length, count in self.batch.sequences(self.batch.samples, self.batch.sequence).items()
        ]
        backs = tuple(run._replace(backward=True) for run in runs)
        read = 2 * (q + key)  # inputs and outputs of the norms
        lse = 4 * tokens * m.heads
        pooled = tokens // POOLED[part] * m.head * e if part in POOLED else 0
        saved = read + pooled + lse + q
        return LayerPiece("attention", (*runs,), backs, saved=saved, output=q, input=read, dropped=lse)

    def mix_streams(self, part: Iterable[LayerPiece], number: int) -> list[LayerPiece]:
        """Return the pieces of a part of a layer, with those that mix residual streams for it.

        Each is one fused kernel beside the product. The mixing replaces the part's own addition to the
        residual, so its reads and writes are subtracted.
        """
        n, thin = self.model.streams, self.thin
        into, columns = self.model.mix_weights
        product = self.plain(f"mix {number}", into, columns, n * thin).computed_in(WIDE)
        before = _add_pass(product, Pass((n + 1) * thin), Pass((3 * n + 1) * thin))
        run, back = Pass((2 * n + 1 - 3) * thin), Pass((3 * n + 2 - 3) * thin)
        behind = LayerPiece("mix out", (run,), (back,), saved=thin, output=n * thin, input=thin)
        return [replace(before, output=thin, input=n * thin), *part, behind]


def _add_pass(piece: LayerPiece, forward: Pass, backward: Pass) -> LayerPiece:
    """Return a product followed by a pass."""
    return replace(piece, forward=(*piece.forward, forward), backward=(backward, *piece.backward))


def _is_input_grad(kernel: Kernel) -> bool:
    return isinstance(kernel, Product) and kernel.part == "I"
