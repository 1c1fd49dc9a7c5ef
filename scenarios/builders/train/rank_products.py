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

from typing import Final

from devices.collectives.groups import CollectiveKind
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.kernels import (
    Attention,
    Collective,
    Kernel,
    LayerPiece,
    Pass,
    Product,
    products,
)
from scenarios.builders.train.layout import ParallelLayout, ReplicaBatch
from sim.base.errors import InputError, MisfitError

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
        for what, size in shared:
            if size % t:
                raise MisfitError(
                    f"tp: {t} ranks cannot share {size} {what}", reason=f"tp does not divide the {what}"
                )
        if batch.sequence % (t * c if layout.splits_sequence else c):
            raise MisfitError(
                f"a sequence of {batch.sequence} cannot be shared by tp·cp = {t * c} ranks",
                reason="tp·cp does not divide the sequence",
            )
        if c > 1 and batch.context == "all-to-all" and (model.heads // t) % c:
            raise MisfitError(
                f"cp: {c} ranks cannot share {model.heads // t} heads; use context: ring",
                reason="cp does not divide the heads of a rank",
            )
        by_heads = c if batch.context == "all-to-all" else 1
        for key, ranks, kv in (("tp", t, model.kv_heads), ("cp", by_heads, max(1, model.kv_heads // t))):
            if kv % ranks and ranks % kv:  # heads are replicated if there are fewer than ranks
                raise MisfitError(
                    f"{key}: {ranks} ranks cannot share {kv} heads of keys and values",
                    reason=f"{key} and the heads of keys and values are no multiples",
                )
        if batch.packed and c > 1 and batch.context == "ring":
            raise MisfitError(
                "packed: sequences are not known to go round a ring; use context: all-to-all or all-gather",
                reason="packed sequences with context: ring",
            )
        if model.experts % layout.ep:
            raise MisfitError(
                f"ep: {layout.ep} ranks cannot share {model.experts} experts",
                reason="ep does not divide the experts",
            )
        if not model.experts and (batch.imbalance != 1.0 or batch.routes is not None):
            what = "imbalance" if batch.routes is None else "routing"
            raise InputError("has no effect: the model has no experts", path=(what,))
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
        """Return the product of m rows with a weight, its input gradient, and, unless frozen, weight's."""
        forward, of_input, of_weight = products(m, k, n, groups)
        return forward, of_input, () if self.batch.lora else (of_weight,)

    def read_again(self, nbytes: int) -> int:
        """Return the bytes of a product's input kept for its weight gradient."""
        return 0 if self.batch.lora else self.kept(nbytes)

    def kept(self, nbytes: int) -> int:
        """Return the bytes kept of the input of a product with weights, quantized if products are."""
        return nbytes if self.batch.kept is None else round(nbytes * self.batch.kept / self.e)

    def gather(self, hidden_by: Product | Attention | None = None, copies: int = 1) -> list[Kernel]:
        """Gather the hidden state over the ranks that share a layer, quantized if products are."""
        if not self.layout.splits_sequence:
            return []
        return [Collective("all_gather", copies * self.kept(self.wide), "tp", hidden_by)]

    def gathered(self, product: Product, copies: int = 1) -> list[Kernel]:
        """Gather the hidden state for one of its products."""
        if not (self.batch.tensor_overlap and self.layout.splits_sequence):
            return [*self.gather(copies=copies), product]
        return self._ring(product, copies * self.kept(self.wide))

    def scattered(self, product: Product) -> list[Kernel]:
        """Sum a product's contributions to the hidden state; each rank keeps its tokens."""
        if not (self.batch.tensor_overlap and self.layout.splits_sequence):
            return [product, *self.scatter()]
        if self.batch.kept is None:
            return self._pipelined(product)
        return [*self._ring(product, self.wide), Pass((self.t + 1) * self.thin)]

    def _ring(self, product: Product, nbytes: int) -> list[Kernel]:
        """Return a product block by block, with a message of a rank's part beside each block but the last.

        Source: Transformer Engine, common/comm_gemm_overlap (``CommOverlapP2PBase``: ring exchange);
        pytorch/module/base.py (``initialize_ub``: by copy engines). Messages take NCCL's time: at the
        rate of copy engines (256 of 288 bytes of NVLink) published steps on H100 come out 7 to 12 % too fast.
        """
        block = product._replace(m=product.m // self.t)
        send = Collective("send", nbytes // self.t, "tp", block, copied=True)
        beside: list[Kernel] = [send, block]
        return [*beside * (self.t - 1), block]

    def _pipelined(self, product: Product) -> list[Kernel]:
        """Return a product in four splits, each scattered by SMs beside the next.

        Source: Megatron Bridge, training/comm_overlap.py (``PipelineOverlapCfg`` in 16 bits; in 8 bits nearly
        all configurations take a ring exchange).
        """
        split = product._replace(m=-(-product.m // _SPLITS))
        message = Collective("reduce_scatter", self.wide // _SPLITS, "tp")
        beside: list[Kernel] = [message._replace(hidden_by=split), split]
        return [split, *beside * (_SPLITS - 1), message]

    def scatter(self, hidden_by: Product | Attention | None = None) -> list[Kernel]:
        """Sum the parts of the hidden state; each rank keeps its tokens, or all of them."""
        if self.t == 1:
            return []
        kind: CollectiveKind = "reduce_scatter" if self.layout.splits_sequence else "all_reduce"
        return [Collective(kind, self.wide, "tp", hidden_by)]

    def norm(self, saved: int) -> LayerPiece:
        """Return a norm that is a kernel of its own and keeps `saved` bytes of its input and output."""
        thin = self.thin
        return LayerPiece("norm", (Pass(2 * thin),), (Pass(3 * thin),), saved=saved, made=thin, took=thin)

    def column(self, name: str, k: int, n: int, *, norm: bool = True) -> LayerPiece:
        """Return a product whose columns are split, including the norm before it.

        The norm's input and its output are kept.
        """
        forward, of_input, of_weight = self.products(self.tokens, k, n)
        read = self.few * k * self.e
        norms: list[Kernel] = [Pass(2 * read)] if norm else []
        norms_back: list[Kernel] = [Pass(3 * read)] if norm else []
        gathered = self.layout.splits_sequence
        again = self.gather(of_input) if of_weight else []
        return LayerPiece(
            name,
            (*norms, *self.gathered(forward)),
            (*again, of_input, *self.scatter(*of_weight), *of_weight, *norms_back),
            saved=self.read_again(read) + (read + 4 * self.few if norm else 0),
            made=self.tokens * n * self.e,
            took=read,
            backward_extra=self.tokens * k * self.e if gathered else 0,
        )

    def row(self, name: str, k: int, n: int, *, saved: bool = True) -> LayerPiece:
        """Return a product whose rows are split, and the addition to the residual."""
        forward, of_input, of_weight = self.products(self.tokens, k, n)
        add = 3 * self.few * n * self.e
        mask = self.few * n if self.batch.dropout else 0
        dropout: list[Kernel] = [Pass(2 * self.thin + mask)] if mask else []
        return LayerPiece(
            name,
            (*self.scattered(forward), *dropout, Pass(add)),
            # blocks of 32 and of 16 are quantized again along columns, for the weight gradient
            (
                *dropout,
                *self.gathered(of_input, 1 + (bool(of_weight) and self.batch.kept not in (None, 1.0))),
                *of_weight,
                Pass(add),
            ),
            saved=(self.read_again(self.tokens * k * self.e) if saved else 0) + mask,
            made=self.few * n * self.e,
            took=self.tokens * k * self.e,
            extra=self.wide if self.layout.splits_sequence else 0,
        )

    def plain(
        self, name: str, k: int, n: int, before: tuple[Kernel, ...], behind: tuple[Kernel, ...], saved: int
    ) -> LayerPiece:
        """Return a product that every rank has whole, for the tokens that it keeps."""
        forward, of_input, of_weight = self.products(self.few, k, n)
        return LayerPiece(
            name,
            (*before, forward),
            (of_input, *of_weight, *behind),
            saved=saved,
            made=self.few * n * self.e,
            took=self.few * k * self.e,
        )
