"""Pieces of a layer, an embedding and a head on one rank, as Megatron-LM with Transformer Engine runs them.

::

    t ranks share a layer, T tokens a rank; with sequence parallelism, parts not split by t have T/t tokens

                x (T/t, h) ── norm ── AG ── qkv ── rotary ── attention ── proj ── RS ── add ──┐
    ┌─────────────────────────────────────────────────────────────────────────────────────────┘
    └── norm ── AG ── up ── gate ── down ── RS ── add ──► x (T/t, h)

    without sequence parallelism: AR after proj and down, forward, and after qkv and up, backward

    cp by all-to-all: (T, a) ─► (c·T, a/c) before attention, and back after it      (Ulysses)
    cp by ring: attention in c blocks; keys and values travel c−1 times, beside all blocks but the last

Sources: Narayanan et al., arXiv 2104.04473, and Korthikanti et al., arXiv 2205.05198, sections 4.2 and 5
(what is saved); MooreThreads/SimuMax, docs/b200 (context parallelism by all-to-all saves the output before
and after it). Flash attention: arXiv 2307.08691. All products are counted once, in whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from typing import Final, Literal

from scenarios.builders.train.architecture import ATTENTION
from scenarios.builders.train.kernels import (
    OTHER_MICRO_BATCH,
    WIDE,
    Attention,
    CausalConvolution,
    Collective,
    DeepEp,
    Kernel,
    LayerPiece,
    Pass,
    Product,
    Scan,
    with_adapters,
)
from scenarios.builders.train.rank_products import RankProducts
from sim.base.errors import InputError
from sim.machine.communicators import even_nbytes


@dataclass(frozen=True)
class ExpertLoad:
    """Load of the fullest of the ranks that share the experts.

    Attributes
    ----------
    copies : int
        Tokens that a rank sends, one copy for each expert.
    rows : int
        Tokens per expert of the fullest rank, on average.
    exchanged : int
        Tokens that each rank would send in an even exchange that takes as long.
    imbalance : float
        Tokens of the fullest rank / of the mean one.
    dropped : float
        Part of the choices that are dropped because no expert takes them.
    """

    copies: int
    rows: int
    exchanged: int
    imbalance: float
    dropped: float = 0.0


class RankWork(RankProducts):
    """The pieces of a model on one rank of a layout."""

    # -- attention --------------------------------------------------------------------------------------

    def attention(self, part: str = "*") -> list[LayerPiece]:
        """Return the attention pieces of a layer, by the letter of its attention."""
        m, t, e = self.model, self.t, self.e
        heads, kv = m.heads // t, max(1, m.kv_heads // t)
        if m.o_rank:
            return self.sparse_attention(part)
        if m.kv_rank:
            return self.latent_attention()
        width = (heads + 2 * kv) * m.head
        queries, keys = (self.tokens * count * m.head * e for count in (heads, kv))
        qkv = self.column("qkv", m.hidden, width)
        # queries are copied out of the product; with rotary positions queries and keys are rewritten;
        # YaRN's are scaled, op by op (Megatron-LM, core/models/common/embeddings/rope_utils.py)
        rotary = (12 if m.rotary == "yarn" else 2) * (queries + keys) if m.rotary else 0
        around: tuple[Kernel, ...] = (Pass(2 * queries), *((Pass(rotary),) if m.rotary else ()))
        back = (*((Pass(rotary),) if m.rotary else ()), Pass(2 * (queries + 2 * keys)))
        normed = queries + keys
        norms, norms_back = ((Pass(n * queries), Pass(n * keys)) for n in (2, 3))
        head_norms = LayerPiece("head norms", norms, norms_back, saved=normed, output=normed, input=normed)
        return [
            qkv,
            *([head_norms] if m.head_norm else ()),
            self.core(heads, kv, around, back, m.window if part == "w" else 0),
            self.row("proj", heads * m.value_head, m.hidden, saved=False),
        ]

    def core(
        self, heads: int, kv: int, around: tuple[Kernel, ...], back: tuple[Kernel, ...], window: int = 0
    ) -> LayerPiece:
        """Return attention itself, with the messages of context parallelism."""
        m, c, e, b = self.model, self.c, self.e, self.batch
        q = self.tokens * heads * m.query_head * e
        k = self.tokens * kv * m.query_head * e
        v = self.tokens * kv * m.value_head * e
        o = self.tokens * heads * m.value_head * e
        by_heads = c > 1 and b.context == "all-to-all"
        sizes = (b.sequence, heads // c, max(1, kv // c)) if by_heads else (b.sequence, heads, kv)
        forward = Attention(b.samples, *sizes, m.query_head, m.value_head, window=min(window, b.sequence))
        inputs, output = (_exchange_by_rank(q, k, v), _exchange_by_rank(o)) if by_heads else ([], [])
        before, before_back, behind_back = inputs, output, inputs
        if c > 1 and b.context == "all-gather":
            forward = forward._replace(parts=c)
            before = before_back = [Collective("all_gather", c * n, "cp") for n in (k, v)]
            behind_back = [Collective("reduce_scatter", c * n, "cp") for n in (k, v)]
        backward = forward._replace(backward=True)
        runs, runs_back = self._attend_packed(forward), self._attend_packed(backward)
        if c > 1 and b.context == "ring":
            runs, runs_back = self._attend_ring(forward, k + v), self._attend_ring(backward, k + v)
        unsent = o if by_heads else 0  # saved before it is sent, besides the output that proj saves
        lse = 4 * self.tokens * heads if b.attention == "flash" else 0
        scores = 0
        if b.attention == "eager":  # softmax and dropout each read and write all scores
            squares = sum(count * n**2 for n, count in b.sequences(b.samples, b.sequence).items())
            elements = squares * heads // c
            scores = elements * (2 * e + b.dropout)
            before = [*before, Pass(elements * (4 * e + b.dropout))]
            before_back = [*before_back, Pass(elements * (5 * e + b.dropout))]
        return LayerPiece(
            "attention",
            (*around, *before, *runs, *output),
            (*before_back, *runs_back, *behind_back, *back),
            saved=q + k + v + lse + o + unsent + scores,
            output=o,
            input=q + k + v,
            extra=3 * (q + k + v) if by_heads else 0,
            backward_extra=(2 * (q + k + v) + 2 * o) if by_heads else 0,
            dropped=scores + lse,
        )

    def _attend(self, attention: Attention) -> tuple[Kernel, ...]:
        """Return attention as one kernel, or as the products that write and read its scores."""
        if self.batch.attention == "flash":
            return (attention,)
        rows, keys = max(1, attention.sequence // attention.parts), attention.sequence
        query, value = attention.query_head, attention.value_head
        sizes = [(rows, query, keys), (rows, keys, value)]
        if attention.backward:  # gradients of values, scores, queries, keys
            sizes = [(keys, rows, value), (rows, value, keys), (rows, keys, query), (keys, rows, query)]
        return tuple(Product(*size, "S", attention.batch * attention.heads) for size in sizes)

    def _attend_packed(self, attention: Attention) -> tuple[Kernel, ...]:
        """Return attention within each of the sequences packed into a sample."""
        kernels: list[Kernel] = []
        for tokens, count in self.batch.sequences(attention.batch, attention.sequence).items():
            window = min(attention.window, tokens)
            kernels += self._attend(attention._replace(batch=count, sequence=tokens, window=window))
        return tuple(kernels)

    def _attend_ring(self, attention: Attention, kv: int) -> tuple[Kernel, ...]:
        """Return attention as keys and values pass round a ring, a message beside each block but the last.

        In the backward, gradients follow one message later, so that there is a message beside each block.
        """
        c = self.c  # a rank has chunks i and 2c−1−i of 2c, so that all blocks have equally many scores
        block = attention._replace(parts=c * c)
        sizes = [kv] * (c - 1)
        if attention.backward:
            sizes = [kv, *(2 * kv for _ in range(c - 2)), kv]
        runs: list[Kernel] = []
        for k in range(c):
            runs += [Collective("send", n, "cp", block) for n in sizes[k : k + 1]]
            runs += self._attend(block)
        return tuple(runs)

    def latent_attention(self) -> list[LayerPiece]:
        """Return the pieces of multi-head latent attention; every rank has its down-projections."""
        m, t, e, T = self.model, self.t, self.e, self.tokens
        heads = m.heads // t
        queries = [self.column("q", m.hidden, heads * m.query_head)]
        if m.q_rank:
            down = self.plain("q down", m.hidden, m.q_rank, self.thin)
            queries = [self.norm(self.thin), down, self.column("q up", m.q_rank, heads * m.query_head)]
        q, v = T * heads * m.query_head * e, T * heads * m.value_head * e
        around = (Pass(2 * q), Pass(2 * q), Pass(2 * (q + v)))  # rotary parts are joined to the others
        return [
            *queries,
            self.plain("kv down", m.hidden, m.kv_rank + m.rotary_head),
            self.column("kv up", m.kv_rank, heads * (m.head + m.value_head)),
            self.core(heads, heads, around, around),
            self.row("proj", heads * m.value_head, m.hidden, saved=False),
        ]

    def mamba(self) -> list[LayerPiece]:
        """Return the pieces of Mamba-2; its scan has the flop of the products in its chunks.

        For each head and chunk of q tokens: the tokens' scores (q, s, q), once per group, applied to
        the scanned input (q, q, d); the chunk's state (s, q, d) and what it adds to the tokens (q, s, d). The
        backward keeps only what the input product and the scan wrote: it repeats the convolution, states
        and scores; then come the gradients of states, of the scanned input, of both projections
        and of the scores. Each kernel reads and writes memory. Source: Dao and Gu, arXiv 2405.21060;
        state-spaces/mamba, ops/triton/ssd_combined.py (``MambaSplitConv1dScanCombinedFn``); Megatron-LM,
        core/ssm/mamba_mixer.py (chunks of 128; samples beside one another are copied apart, and back).
        """
        m, t, e, T, samples = self.model, self.t, self.e, self.tokens, self.batch.samples
        q = min(128, self.batch.sequence)
        heads, groups, inner = m.mamba_heads // t, m.mamba_groups // t, m.mamba_inner // t
        conv, width = m.mamba_conv // t, (m.mamba_inner + m.mamba_conv + m.mamba_heads) // t
        chunks, s, d = max(1, T // q), m.mamba_state, m.mamba_head
        flops, flops_back = (
            2 * chunks * q * (n_scores * q * s * groups + (n_scores * q + n_states * s) * d * heads)
            for n_scores, n_states in ((1, 2), (3, 5))
        )
        tokens = max(1, T // samples)
        scan = Scan(samples, tokens, heads, flops)
        conv1d = CausalConvolution(samples, tokens, conv)
        states, scores = 4 * chunks * heads * s * d, 4 * chunks * q * q * groups
        out, read = T * inner * e, T * width * e
        copies = [Pass(2 * (read + out))] if samples > 1 else []
        run: list[Kernel] = [*copies, conv1d, scan, Pass(5 * out + 3 * states + 2 * scores), Pass(2 * out)]
        back: list[Kernel] = [
            *copies,
            Pass(3 * out),
            conv1d,
            scan._replace(flops=flops_back),
            Pass(17 * out + 17 * states // 2 + 6 * scores),
            conv1d._replace(tensors=3),
        ]
        needed = T * conv * e + 3 * states // 2
        return [
            self.column("mamba in", m.hidden, width),
            LayerPiece("scan", (*run,), (*back,), read + 2 * out, out, read, needed, needed),
            self.row("mamba out", inner, m.hidden),
        ]

    # -- MLPs -------------------------------------------------------------------------------------------

    def dense(self, middle: int, *, norm: bool = True) -> list[LayerPiece]:
        """Return the pieces of an MLP of that width."""
        m, t = self.model, self.t
        share = middle // t
        up = self.column("up", m.hidden, share * (1 + m.gated), norm=norm)
        return [up, self.gate(self.tokens, share), self.row("down", share, m.hidden)]

    def gate(self, tokens: int, middle: int) -> LayerPiece:
        """Return the activation between two products, which keeps its inputs.

        Clamped inputs are clamped half by half before it and joined again (Megatron-LM, core/fusions/
        fused_bias_geglu.py): both are kept.
        """
        read, output = tokens * middle * (1 + self.model.gated) * self.e, tokens * middle * self.e
        clamps, joins = ((Pass(n * read),) * self.model.clamped for n in (4, 5))
        saved, run, back = read * (1 + self.model.clamped), Pass(read + output), Pass(2 * read + output)
        return LayerPiece("gate", (*clamps, run), (back, *joins), saved=saved, output=output, input=read)

    @cached_property
    def load(self) -> ExpertLoad:
        """Load of the fullest of the ranks that share the experts."""
        m, b, ep = self.model, self.batch, self.layout.ep
        if b.routes is None:
            # one copy of a token for each of its experts; each sender pads to an equal number for
            # each expert
            per_expert = -(-self.few * m.top_k // m.experts)
            copies = per_expert * m.experts
            return ExpertLoad(
                copies, round(per_expert * ep * b.imbalance), round(copies * b.imbalance), b.imbalance
            )
        if b.imbalance != 1.0:
            raise InputError("has no effect beside routing, which says it", path=("imbalance",))
        routed = b.routes(ranks=ep, experts=m.experts, tokens=self.few, top_k=m.top_k)
        return ExpertLoad(
            int(routed.sent.sum(axis=1).max()),
            -(-int(routed.arrived.max()) * ep // m.experts),
            even_nbytes(routed.between.tolist()),
            float(routed.imbalance),
            sum(routed.dropped) / (ep * routed.choices),
        )

    def experts(self) -> list[LayerPiece]:
        """Return the pieces of a mixture of experts, shared ones included."""
        m, rows, n_local = self.model, self.load.rows, self.model.experts // self.layout.ep
        # Products with block scales need multiples of 32 rows, those with tensor scales of 16: each expert's
        # are padded (Megatron-LM, core/transformer/moe/moe_utils.py, ``get_align_size_for_quantization``).
        align = {None: 1, 1.0: 16}.get(self.batch.kept, 32)
        rows = -(-rows // align) * align
        arrived = rows * n_local * m.expert_latent * self.e
        up, down = (self._expert_products(rows, *sizes, n_local) for sizes in m.expert_weights())
        gate = replace(self.gate(rows * n_local, m.expert_middle), name="experts gate")
        biased, biased_back = self._expert_biases(arrived)
        run, back = (down[0], *biased), (*biased_back, down[1], *down[2])
        dispatch, combine = self._exchange(n_local, arrived)
        shared = self.dense(m.shared_middle, norm=False) if m.shared_middle else []
        before: list[LayerPiece] = []
        after: list[LayerPiece] = []
        if m.expert_latent != m.hidden:
            before = [self.plain("latent down", m.hidden, m.expert_latent)]
            after = [self.plain("latent up", m.expert_latent, m.hidden, combine.output)]
        return [
            self.norm(0 if self.batch.lora or m.shared_middle else self.thin),
            self._router(),
            *(replace(piece, name=f"shared {piece.name}") for piece in shared),
            *before,
            dispatch,
            LayerPiece("experts up", up[:1], (up[1], *up[2]), self.read_again(arrived), gate.input, arrived),
            gate,
            LayerPiece("experts down", run, back, self.read_again(gate.output), arrived, gate.output),
            combine,
            *after,
        ]

    def _expert_products(
        self, rows: int, k: int, n: int, n_local: int
    ) -> tuple[Product, Product, tuple[Product, ...]]:
        """Return the products of experts; in 16 bits the weight's also computes the gradient of its bias.

        Source: Transformer Engine, pytorch/module/grouped_linear.py.
        """
        forward, of_input, of_weight = self.products(rows, k, n, n_local)
        bias = self.model.biases and self.batch.kept is None
        return forward, of_input, tuple(weight._replace(bias=bias) for weight in of_weight)

    def _expert_biases(self, nbytes: int) -> tuple[list[Kernel], list[Kernel]]:
        """Return the passes that add biases to `nbytes` of experts' outputs, and compute their gradients.

        Nothing fuses them: a bias times the weight of its token, added expert by expert, all joined again.
        Weights are in 32 bits after DeepEP and HybridEP. Source: Megatron-LM, core/transformer/moe/
        experts.py (``TEGroupedMLP._apply_bias``), token_dispatcher.py.
        """
        if not self.model.biases:
            return [], []
        forward, backward = (6, 8) if self.batch.dispatcher == "all-to-all" else (14, 20)
        return [Pass(forward * nbytes)], [Pass(backward * nbytes)]

    def _router(self) -> LayerPiece:
        """Return the router, which chooses each token's experts; it keeps the input of its norm."""
        m = self.model
        forward, of_input, of_weight = self.products(self.few, m.hidden, m.experts)
        scores = Pass(12 * self.few * m.experts)
        back: tuple[Kernel, ...] = (scores, of_input, *of_weight)
        saved, thin = self.thin + 4 * self.few + 2 * 4 * self.few * m.experts, self.thin
        return LayerPiece("router", (forward, scores), back, saved, thin, thin).computed_in(WIDE)

    def _copies_per_choice(self) -> float:
        """Return the copies of a token that the dispatcher sends / the experts that it goes to.

        A token with k of E experts misses a part that has n experts in C(E - n, k) / C(E, k) of
        the cases, if drawn from all. Sources: deepseek-ai/DeepEP, README.md (one per rank, across nodes one
        per node); its branch hybrid-ep likewise.
        """
        m, group = self.model, self.layout.group("ep")
        if self.batch.dispatcher == "all-to-all" or m.experts < m.top_k:
            return 1.0
        parts = group.nodes if group.nodes > 1 else group.size
        missed = comb(m.experts - m.experts // parts, m.top_k) / comb(m.experts, m.top_k)
        return parts * (1 - missed) / m.top_k

    def _exchange(self, n_local: int, arrived: int) -> tuple[LayerPiece, LayerPiece]:
        """Return the pieces that bring tokens to experts (`n_local` on a rank), and that bring them back."""
        m, e, load, ep = self.model, self.e, self.load, self.layout.ep
        sent, token_bytes = load.copies * m.expert_latent * e, self.few * m.expert_latent * e
        exchanged = round(load.exchanged * self._copies_per_choice() * m.expert_latent * e)
        hidden_by = OTHER_MICRO_BATCH if self.batch.expert_overlap else None
        even = load.copies / load.exchanged if load.exchanged else 1.0
        exchange = Collective("all_to_all", exchanged, "ep", hidden_by)
        send, send_back = (
            exchange._replace(deepep=DeepEp(way, self.few, m.expert_latent, m.top_k, m.experts, even))
            if self.batch.dispatcher == "deepep"
            else exchange
            for way in _DIRECTIONS
        )
        # DeepEP and HybridEP send tokens as they are; the copy stands for their time outside their
        # kernels (studies/training/results.md).
        sort = Pass(sent + token_bytes, "permute")
        sort_again = [Pass(2 * arrived, "permute")] if n_local > 1 else []
        forth: list[Kernel] = [sort, send, *sort_again] if ep > 1 else [sort]
        back: list[Kernel] = [*sort_again, send_back, sort] if ep > 1 else [sort]
        add = Pass(3 * self.thin)
        return (
            LayerPiece("dispatch", (*forth,), (*back,), 8 * load.copies, arrived, token_bytes, arrived),
            LayerPiece("combine", (*back, add), (add, *forth), 0, token_bytes, arrived, sent),
        )

    # -- whole layers -----------------------------------------------------------------------------------

    def layer(self, kind: str) -> list[LayerPiece]:
        """Return the pieces of a layer by the letters of its parts (`architecture`)."""
        others: dict[str, Callable[[], list[LayerPiece]]] = {
            "-": lambda: self.dense(self.model.middle),
            "E": self.experts,
            "M": self.mamba,
        }
        parts = [self.attention(part) if part in ATTENTION else others[part]() for part in kind]
        if self.model.streams > 1:
            parts = [self.mix_streams(part, number) for number, part in enumerate(parts, 1)]
        pieces = [piece for part in parts for piece in part]
        if not (lora := self.batch.lora):
            return pieces
        return with_adapters(pieces, lora, self.t, self.tokens)

    def predicting(self) -> list[LayerPiece]:
        """Return the piece before the layer that predicts a further token: two norms and a product."""
        h = self.model.hidden
        product = self.plain("predicting", 2 * h, h, 4 * self.thin)
        forward, backward = (Pass(4 * self.thin), *product.forward), (*product.backward, Pass(6 * self.thin))
        return [replace(product, forward=forward, backward=backward)]

    def embedding(self) -> list[LayerPiece]:
        """Return the embedding: rows of a table, summed over the ranks that share it."""
        sums = self.scatter()
        add = Pass(2 * self.wide)
        if self.batch.lora:  # the table is frozen
            return [LayerPiece("embedding", (add, *sums), (), output=self.thin, extra=self.wide)]
        sent = Collective("all_gather", self.wide, "tp")
        gradient: tuple[Kernel, ...] = (*[sent] * self.layout.splits_sequence, Pass(3 * self.wide))
        mask = self.few * self.model.hidden if self.batch.dropout else 0
        saved = 8 * self.tokens + mask
        return [LayerPiece("embedding", (add, *sums), gradient, saved, self.thin, extra=self.wide)]

    def head(self) -> list[LayerPiece]:
        """Return the last norm, the output layer, and the loss; its gradient replaces the logits."""
        if self.batch.kept is not None:  # the head stays in 16 bits
            return RankWork(self.model, self.layout, replace(self.batch, kept=None)).head()
        m, T = self.model, self.tokens
        width = -(-m.vocabulary // self.t)
        sums: list[Kernel] = [Collective("all_reduce", 12 * T, "tp")] if self.t > 1 else []
        out = self.column("head", m.hidden, width, norm=False)
        # The weight gradient that autograd gets although the sum of gradients was updated
        # in place.
        unused = out.backward_extra + (0 if self.batch.lora else width * m.hidden * self.e)
        out = replace(out, saved=self.read_again(self.thin), backward_extra=unused).computed_in(WIDE)
        forward, back, saved, extra, extra_back = (T * width * nbytes for nbytes in _LOSSES[self.batch.loss])
        run, run_back = (Pass(forward, "cross-entropy"), *sums), (Pass(back, "cross-entropy"),)
        loss = LayerPiece("loss", run, run_back, saved + 4 * T, extra=extra, backward_extra=extra_back)
        return [self.norm(self.thin), out, loss]


_LOSSES: Final[Mapping[str, tuple[int, int, int, int, int]]] = {
    "fused": (4, 4, 2, 0, 0),
    # cast 6, maximum 4, subtract 8, exp 8, sum 4, divide 8
    "fp32": (38, 14, 4, 2, 0),
    # cast 6, log-softmax 12, which stays beside logits in 16 and 32 bits; back: zeros 4, log-softmax 16,
    # cast 6, with two gradients in fp32
    "eager": (18, 26, 4, 6, 2),
    # one pass for the maximum and the sum, one for the loss
    "compiled": (4, 4, 2, 0, 2),
}
"""Loss → bytes per logit: passed in the forward and backward; kept; further needed; ... by the backward.

Sources: arXiv 2205.05198, section 4.3; Megatron-LM, core/tensor_parallel/cross_entropy.py; PyTorch,
native/cuda/SoftMax.cu and NLLLoss2d.cu.
"""

_DIRECTIONS: Final[tuple[Literal["dispatch", "combine"], ...]] = ("dispatch", "combine")


def _exchange_by_rank(*sizes: int) -> list[Kernel]:
    """Return the kernels that reorder each tensor by rank, exchange it, and restore its order."""
    return [kernel for n in sizes for kernel in (Pass(2 * n), Collective("all_to_all", n, "cp"), Pass(2 * n))]
