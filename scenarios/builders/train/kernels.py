"""Kernels of a rank: products, attention, passes over memory, and collectives, as records without a time.

::

    a piece    forward   kernels, in order             saved   bytes kept for its backward
               backward  kernels, in order             extra   further bytes needed while it runs

A `Collective` may name a kernel that hides it: it runs beside that kernel on a stream of its own, and only
the rest is exposed. A calibration gives the times (`scenarios.builders.train.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import add
from typing import Final, Literal, NamedTuple

from devices.collectives.groups import CollectiveKind

WIDE: Final = "16 bits"
"""Type of the products that a low-precision recipe leaves out."""


class Product(NamedTuple):
    """A product of matrices (m, k) and (k, n), `groups` times with m rows each if experts share a kernel.

    `part` is F, I (gradient of the input), W (gradient of the weight, accumulated in place) or S (of
    attention that writes its scores; a group is a head). `dtype` is its type if it is not the step's
    (`WIDE`: 16 bits). With `bias` it also computes the gradient of a bias.
    """

    m: int
    k: int
    n: int
    part: Literal["F", "I", "W", "S"] = "F"
    groups: int = 1
    dtype: str = ""
    bias: bool = False

    @property
    def in_16_bits(self) -> bool:
        """Whether no low-precision recipe applies to it."""
        return self.dtype == WIDE or self.part == "S"

    @property
    def flops(self) -> int:
        """Flop; a multiply-add counts as two."""
        return 2 * self.groups * self.m * self.k * self.n

    @property
    def elements(self) -> int:
        """Number of elements, each read or written once."""
        return self.groups * (self.m * self.k + self.k * self.n + self.m * self.n)


def products(m: int, k: int, n: int, groups: int = 1) -> tuple[Product, Product, Product]:
    """Return the product of m rows with a weight (k, n), and its backward products: of input and weight."""
    return Product(m, k, n, "F", groups), Product(m, n, k, "I", groups), Product(n, m, k, "W", groups)


def computed_in(dtype: str, kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels with their products in the given type; products with a type of their own keep it."""
    return tuple(k._replace(dtype=k.dtype or dtype) if isinstance(k, Product) else k for k in kernels)


class Attention(NamedTuple):
    """Attention in one kernel that keeps no scores; half of them are masked.

    It computes one of `parts` equal parts of the scores, as ranks or blocks of a ring do; with a `window` a
    query sees that many keys. In serving, `cached` tokens of each sequence precede it.
    """

    batch: int
    sequence: int
    heads: int
    kv_heads: int
    query_head: int
    value_head: int
    backward: bool = False
    parts: int = 1
    window: int = 0
    cached: int = 0

    @property
    def flops(self) -> int:
        """All scores: two products forward, five backward (arXiv 2307.08691, section 2.3)."""
        visible = self.window or self.sequence + self.cached
        scores = self.batch * self.heads * (self.sequence * visible // self.parts)
        if self.backward:
            return 2 * scores * (3 * self.query_head + 2 * self.value_head)
        return 2 * scores * (self.query_head + self.value_head)


_FLOP_TIME_RATIO: Final = 1.4
"""Time per flop of Mamba-2's scan / of the measured gated delta rule: with it, training Mamba-2 with
1.3 billion parameters comes out within 6 % on an H200 (239 TFLOP/s) and on a GB200 (360; state-spaces/mamba,
issue 904)."""


class Scan(NamedTuple):
    """The chunked scan of a state-space layer, with its flop.

    A flop takes `_FLOP_TIME_RATIO` times as long as in the gated delta rule with as many heads: both update
    a state in chunks, with kernels in Triton.
    """

    batch: int
    sequence: int
    heads: int
    flops: int

    @property
    def parts(self) -> float:
        """The time of that gated delta rule, whose heads have a state of 128 x 128, over the scan's own."""
        return self.batch * self.sequence * self.heads * 8 * 128 * 128 / (_FLOP_TIME_RATIO * self.flops)


class CausalConvolution(NamedTuple):
    """A causal convolution along the sequence, four tokens wide; its backward reads a third tensor."""

    batch: int
    sequence: int
    channels: int
    tensors: int = 2

    @property
    def nbytes(self) -> int:
        """Bytes read and written, in 16 bits."""
        return 2 * self.tensors * self.batch * self.sequence * self.channels

    @property
    def parts(self) -> float:
        """The two tensors of a forward, over the number of its own."""
        return 2 / self.tensors


class Experts(NamedTuple):
    """A layer's experts on so many tokens in inference, measured as one kernel: routing, permuting, two
    grouped products and the activation between them. `tp` ranks share each expert, or `ep` ranks share all.
    """

    tokens: int
    hidden: int
    middle: int
    top_k: int
    experts: int
    tp: int = 1
    ep: int = 1

    @property
    def flops(self) -> int:
        """Flop of the products of a rank."""
        return 6 * self.tokens * self.top_k * self.hidden * self.middle // (self.tp * self.ep)


class Pass(NamedTuple):
    """A kernel that only reads and writes; a `purpose` (such as ``permute``) may have its own rate."""

    nbytes: int
    purpose: str = "elementwise"


class DeepEp(NamedTuple):
    """DeepEP's kernel that sends tokens to the ranks of their experts, or back, on nodes of eight GPUs.

    The fullest rank has 1 / `parts` times the mean number of tokens. Megatron-LM gives it 20 SMs
    (core/transformer/transformer_config.py, ``moe_deepep_num_sms``).
    """

    way: Literal["dispatch", "combine"]
    tokens: int
    hidden: int
    top_k: int
    experts: int
    parts: float = 1.0
    nodes: int = 1
    sms: int = 20


class Collective(NamedTuple):
    """A collective of a group of the layout; bytes as nccl-tests count them.

    `hidden_by` is the kernel beside which it runs; None: it is exposed. `OTHER_MICRO_BATCH` stands for
    all kernels of another micro-batch, which lose SMs to it. `deepep` replaces it on GPUs and
    groups for which that was measured. With copy engines (`copied`) it takes nothing from the
    kernel.
    """

    kind: CollectiveKind
    nbytes: int
    group: str
    hidden_by: Product | Attention | str | None = None
    deepep: DeepEp | None = None
    copied: bool = False


OTHER_MICRO_BATCH = "another micro-batch"

Timed = Product | Attention | Scan | CausalConvolution | Experts | Pass | DeepEp
"""A kernel that a device runs by itself."""

Kernel = Timed | Collective


class Spent(NamedTuple):
    """Time of kernels by kind, in ns.

    `hidden` overlaps the others and adds nothing; `host` is the GPU's wait for launches;
    `quantizing` is the extra memory traffic of a low-precision recipe.
    """

    products: float = 0.0
    attention: float = 0.0
    passes: float = 0.0
    exposed: float = 0.0
    hidden: float = 0.0
    host: float = 0.0
    quantizing: float = 0.0

    @property
    def ns(self) -> float:
        """Elapsed time."""
        return sum(self) - self.hidden

    def plus(self, other: Spent) -> Spent:
        """Return the sum with another."""
        return Spent(*map(add, self, other))

    def add_copies(self, ns: float) -> Spent:
        """Return the sum with copies that run beside all of it; only their excess is exposed."""
        hidden = min(max(0.0, ns), self.ns)
        return self._replace(exposed=self.exposed + max(0.0, ns) - hidden, hidden=self.hidden + hidden)

    def add_wait(self, ns: float) -> Spent:
        """Return the sum with a wait for the host."""
        return self._replace(host=self.host + ns)


@dataclass(frozen=True)
class LayerPiece:
    """A part of a layer: its kernels, forward and backward, and its memory.

    Attributes
    ----------
    name : str
    forward, backward : tuple of Kernel
    saved : int
        Bytes kept from the forward to the backward.
    output : int
        Bytes of its output; the gradient is as large.
    input : int
        Bytes of its input.
    extra : int
        Further bytes that both directions need while they run.
    backward_extra : int
        Further bytes that only the backward needs.
    again : tuple of Kernel
        The part of its forward that recomputation runs again.
    dropped : int
        The part of what is saved that selective recomputation does not keep.
    kept : int
        Bytes that a recomputed layer keeps of it, besides its own input.
    adapts : bool
        Whether it is an adapter.
    offloaded : bool
        Whether its saved bytes go to the host until its backward.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved: int = 0
    output: int = 0
    input: int = 0
    extra: int = 0
    backward_extra: int = 0
    again: tuple[Kernel, ...] = ()
    dropped: int = 0
    kept: int = 0
    adapts: bool = False
    offloaded: bool = False

    def computed_in(self, dtype: str) -> LayerPiece:
        """Return the piece with its products in the given type."""
        parts = (computed_in(dtype, kernels) for kernels in (self.forward, self.backward, self.again))
        forward, backward, rerun = parts
        return replace(self, forward=forward, backward=backward, again=rerun)


OFFLOADED: Final[Mapping[str, str]] = {
    "core_attn": "attention",
    "expert_fc1": "experts up",
    "moe_act": "experts gate",
}
"""Modules whose inputs are offloaded to the host, by name → the piece that saves them.

Source: Megatron-LM, core/transformer/transformer_config.py (``offload_modules``).
"""


MODULES: Final[Mapping[str, frozenset[str]]] = {
    "qkv": frozenset({"qkv", "q", "q down", "q up", "kv down", "kv up"}),
    "proj": frozenset({"proj"}),
    "mlp": frozenset({"up", "down"}),
    "shared": frozenset({"shared up", "shared down"}),
    "experts": frozenset({"experts up", "experts down"}),
    "latent": frozenset({"latent down", "latent up"}),
    "mamba_in": frozenset({"mamba in"}),
    "mamba_out": frozenset({"mamba out"}),
}
"""Modules with products, by name → their pieces. ``predicted`` are the layers of further tokens."""


GRAPHED: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys("*wCH", ("attn",)),
    "M": ("mamba",),
    "-": ("mlp",),
    "E": ("moe_router", "moe_preprocess"),
}
"""Part of a layer → CUDA graph scopes that launch equal shares of it (Megatron-LM, ``cuda_graph_scope``)."""


# ----------------------------------------------------------------------------------------------------------
# Low-rank adapters (LoRA) beside frozen products: which pieces of a layer have one, and its kernels.
#
#     x (m, k) ─┬─ frozen product (k, n) ──────────────┬─ add ──► (m, n)
#               └─ (k, r) ─ (r, n) ─ times alpha / r ──┘
#
# Both products are in 16 bits and trained. If a product's columns are split over t ranks, the first one's r
# columns are split and its output is gathered; if its rows are split, that output is summed, and
# the columns of the second are exchanged for tokens. Sources: Hu et al., arXiv 2106.09685; Megatron Bridge,
# peft/utils.py (``ParallelLinearAdapter``).

_ROW_SPLIT: Final = {"proj", "down", "shared down", "mamba out"}
"""Pieces whose product is split by rows (`layers.RankWork.row`)."""


def with_adapters(
    pieces: Iterable[LayerPiece], lora: Mapping[str, int], t: int, tokens: int
) -> list[LayerPiece]:
    """Return the pieces of a layer on one of t ranks, with an adapter behind each adapted piece.

    `lora` maps a module (`MODULES`) to the rank of its adapters; `tokens` is the number of tokens in
    products that the ranks share.
    """
    adapted = {name: rank for module, rank in lora.items() for name in MODULES[module]}
    result = []
    for piece in pieces:
        result.append(piece)
        if piece.name in adapted:
            result.append(_make_adapter(piece, adapted[piece.name], t, tokens))
    return result


def _make_adapter(piece: LayerPiece, rank: int, t: int, tokens: int) -> LayerPiece:
    blocks = [kernel for kernel in piece.forward if isinstance(kernel, Product) and kernel.part == "F"]
    m, by_rows = sum(kernel.m for kernel in blocks), piece.name in _ROW_SPLIT
    k, n = blocks[0].k, blocks[0].n
    first = products(m, k, rank if by_rows else -(-rank // t))
    second = products(m, rank, -(-n // t) if by_rows else n)
    messages: list[Kernel] = []
    if t > 1 and m == tokens:  # otherwise each rank has the whole product for its own tokens
        messages = [Collective("all_reduce" if by_rows else "all_gather", 2 * m * rank, "tp")]
    swap: list[Kernel] = [Collective("all_to_all", piece.output, "tp")] * (bool(messages) and by_rows)
    return LayerPiece(
        f"{piece.name} adapter",
        (first[0], *messages, second[0], *swap, Pass(5 * piece.output)),
        (Pass(2 * piece.output), *swap, *second[1:], *messages, *first[1:], Pass(3 * piece.input)),
        # attention itself saves what is needed of proj's input
        saved=(piece.input if piece.name != "proj" else 0) + 2 * m * rank,
        output=piece.output,
        input=2 * m * rank,
        adapts=True,
    ).computed_in(WIDE)
