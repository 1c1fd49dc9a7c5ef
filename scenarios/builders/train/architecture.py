"""The architecture of a language model: its sizes, number of parameters, and flop per token.

::

    tokens ─► embedding ─► layer 0 ─► ... ─► layer n-1 ─► norm ─► head ─► loss

    layer   ┌────────────────────────────────────┐  ┌───────────────────────────────┐
         x ─┴─ norm ─ qkv ─ attention ─ proj ─ add ┴─ norm ─ up (, gate) ─ down ─ add

    qkv     h → (a + 2g)·d      a query heads, g key and value heads (grouped-query attention), of width d
    mla     h → q_rank → a·(d + r),   h → kv_rank + r,   kv_rank → a·(d + v)       (DeepSeek)
    experts router h → e, k of e experts a token, plus shared experts; latent: h → l → experts → l → h
    mamba   h → 2·i + 2·n·s + a,   convolution and scan of a heads,   i → h       (i = a·d; arXiv 2405.21060)
    sparse  h → q_rank → a·d,   h → d for the one key;   a·d → o_rank per group of heads, these → h
            C, H: h → 4·d, 2·d, pooled into a key per 4, per 128 tokens;   C: an indexer ranks those per 4

A letter stands for each part of a layer, as in Megatron-LM's ``hybrid_layer_pattern``: ``*`` attention, ``w``
attention in a window, ``C`` and ``H`` that window plus pooled keys of 4 tokens (chosen by an indexer)
or of 128 (DeepSeek-V4), ``-`` an MLP, ``E`` experts, ``M`` Mamba-2. Layers of a transformer have two
letters, such as ``*-`` or ``*E``; those of a hybrid have one.

The model's own work, which MFU counts, is that of its products with weights and of its attention, including
all scores: 72·B·s·l·h²·(1 + s/6h + V/12lh) for a GPT whose MLP is 4h wide, as in Narayanan et al., arXiv
2104.04473, section 5.1, where full recomputation makes it 96·B·s·l·h²·(1 + s/6h + V/16lh). Half of the scores
are masked; ``causal`` leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from typing import Any, Final, Literal

from scenarios.file.yaml_read import read_yaml_text
from sim.base.errors import InputError

LAYER_PARTS: Final = "*wCH-EM"
"""The letters of a pattern: kinds of attention, an MLP, experts, Mamba-2."""

ATTENTION: Final = frozenset("*wCH")
"""The letters of attention."""

POOLED: Final[Mapping[str, int]] = {"C": 4, "H": 128}
"""Tokens per pooled key (DeepSeek-V4: compressed sparse, heavily compressed attention)."""


def windowed_or_full(layer: int, window: int, full_every: int) -> str:
    """Return the letter of a layer's attention: windowed except in each `full_every`-th (0: in all)."""
    return "w" if window and not (full_every and (layer + 1) % full_every == 0) else "*"


@dataclass(frozen=True)
class Architecture:
    """Sizes of a decoder.

    Attributes
    ----------
    layers, hidden, heads, vocabulary : int
        Vocabulary 0: there is neither embedding nor head.
    kv_heads : int
        Key and value heads; 0: as many as heads.
    head : int
        Width of a head; 0: hidden / heads.
    middle : int
        Width between the two products of an MLP; 0: 4 hidden.
    gated : bool
        SwiGLU: a gate as wide as the middle, beside it.
    tied : bool
        The head's weights are the embedding's.
    positions : int
        Learned positions; 0: none (rotary, or ALiBi).
    rotary : bool or "yarn"
        Rotary positions; YaRN's are scaled (arXiv 2309.00071).
    head_norm : bool
        Each head's queries and keys are normalized (Qwen3, arXiv 2505.09388, section 2).
    biases : bool
        Products and norms have biases.
    clamped : bool
        The inputs of gates are clamped.
    experts, top_k, expert_middle, shared_middle, dense_layers : int
        Mixture of experts: the first ``dense_layers`` layers have none.
    expert_latent : int
        Width of the experts' input (LatentMoE of Nemotron 3); 0: hidden.
    q_rank, kv_rank, rotary_head, value_head : int
        Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1); kv_rank 0: none.
    o_rank, o_groups : int
        The output of attention is projected to ``o_rank`` for each of ``o_groups`` groups of heads, then to
        ``hidden``; keys also serve as values, and are normalized (DeepSeek-V4). 0: one projection.
    index_heads, index_head, index_top_k : int
        Heads of the indexer, their width, and how many keys (of 4 tokens each) it chooses.
    streams : int
        Residual streams, mixed before and after each part of a layer (manifold-constrained
        hyper-connections, arXiv 2512.24880).
    window, full_every : int
        Window of attention in tokens (0: none); every ``full_every``-th layer has none (0: all have it).
    pattern : sequence of str
        The parts of each layer; a string has one letter per layer. Empty: a transformer.
    mamba_heads, mamba_head, mamba_state, mamba_groups : int
        Mamba-2: heads, their width, the width of their state, and groups that share its projections.
    predicted : int
        Tokens predicted besides the next one, each by a layer of its own and the shared head (DeepSeek-V3,
        arXiv 2412.19437, section 2.2).

    Examples
    --------
    GPT-3 has 175 billion parameters, Llama 3 has 8:

    >>> gpt3 = Architecture(layers=96, hidden=12288, heads=96, vocabulary=51200, positions=2048)
    >>> llama = Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, middle=14336, vocabulary=128256,
    ...                      gated=True, tied=False, rotary=True, biases=False)
    >>> round(gpt3.parameters / 1e9, 1), round(llama.parameters / 1e9, 2)
    (174.6, 8.03)
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    kv_heads: int = 0
    head: int = 0
    middle: int = 0
    gated: bool = False
    tied: bool = True
    positions: int = 0
    rotary: bool | Literal["yarn"] = False
    head_norm: bool = False
    biases: bool = True
    clamped: bool = False
    experts: int = 0
    top_k: int = 0
    expert_middle: int = 0
    shared_middle: int = 0
    dense_layers: int = 0
    expert_latent: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rotary_head: int = 0
    value_head: int = 0
    o_rank: int = 0
    o_groups: int = 1
    index_heads: int = 0
    index_head: int = 0
    index_top_k: int = 0
    streams: int = 1
    window: int = 0
    full_every: int = 2
    pattern: Sequence[str] = ()
    mamba_heads: int = 0
    mamba_head: int = 64
    mamba_state: int = 128
    mamba_groups: int = 8
    predicted: int = 0

    def __post_init__(self) -> None:
        """Fill in sizes that follow from others; raise if sizes do not fit together."""
        if self.head_norm and (self.kv_rank or self.o_rank):
            raise InputError("head: norm is for attention whose keys are not compressed")
        if not self.head and self.hidden % self.heads:
            message = f"hidden {self.hidden} is no multiple of {self.heads} heads"
            raise InputError(f"{message}; give the width of a head")
        defaults = {
            "kv_heads": self.heads,
            "head": self.hidden // self.heads,
            "middle": 4 * self.hidden,
            "value_head": self.head or self.hidden // self.heads,
            "expert_middle": self.middle or 4 * self.hidden,
            "expert_latent": self.hidden,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.heads % self.kv_heads:
            raise InputError(f"heads, {self.heads}, should be a multiple of kv_heads, {self.kv_heads}")
        if self.experts and not 0 < self.top_k <= self.experts:
            raise InputError(f"a token cannot go to {self.top_k} experts of {self.experts}")
        object.__setattr__(self, "pattern", tuple(self.pattern))
        if self.pattern:
            self._check_pattern()

    def _check_pattern(self) -> None:
        """Raise if a letter is unknown or lacks its sizes, or if the pattern does not cover all layers."""
        letters = {*"".join(self.pattern)}
        if unknown := sorted(letters - {*LAYER_PARTS}):
            known = ", ".join(map(repr, LAYER_PARTS))
            raise InputError(f"layers: {unknown[0]!r} is no layer; a layer is one of {known}")
        if len(self.pattern) < self.layers:
            raise InputError(f"layers: there are {self.layers}, and letters of {len(self.pattern)}")
        like_v4 = "the name of a model that has it (deepseek-v4-flash)"
        needed = (
            ("M", self.mamba_heads, "mamba.heads"),
            ("E", self.experts, "experts"),
            ("w", self.window, "window"),
            ("C", self.index_top_k and self.o_rank, like_v4),
            ("H", self.o_rank, like_v4),
        )
        for letter, size, missing in needed:
            if letter in letters and not size:
                raise InputError(f"{letter!r} in layers: give {missing}")

    # -- widths -----------------------------------------------------------------------------------------

    @property
    def query_head(self) -> int:
        """Width of a query or key head, including its rotary part."""
        return self.head + self.rotary_head if self.kv_rank else self.head

    def kind(self, layer: int) -> str:
        """Return the parts of a layer; layers after the last predict further tokens."""
        if self.pattern:
            if layer < self.layers:
                return self.pattern[layer]
            return ("w" if self.o_rank else "*") + ("E" if self.experts else "-")
        attention = windowed_or_full(layer, self.window, self.full_every)
        return attention + ("E" if self.experts and layer >= self.dense_layers else "-")

    def reach(self, part: str, sequence: int) -> int:
        """Return how many keys a token sees under a letter of attention, masked or not."""
        near = min(self.window, sequence) if part != "*" else sequence
        if part not in POOLED:
            return near
        pooled = sequence // POOLED[part]
        return near + (min(self.index_top_k, pooled) if part == "C" else pooled)

    @property
    def mamba_inner(self) -> int:
        """Total width of Mamba-2's heads."""
        return self.mamba_heads * self.mamba_head

    @property
    def mamba_conv(self) -> int:
        """Channels of Mamba-2's convolution: the scan's input and the projections of the state."""
        return self.mamba_inner + 2 * self.mamba_groups * self.mamba_state

    # -- parameters -------------------------------------------------------------------------------------

    @property
    def mix_weights(self) -> tuple[int, int]:
        """Shape of the product that computes how residual streams are mixed, for each part of a layer."""
        return self.streams * self.hidden, self.streams**2 + 2 * self.streams

    def pool_width(self, part: str, head: int) -> int:
        """Return the columns pooled into keys of width `head`: values and gates, twice if keys overlap."""
        return {"C": 4, "H": 2}[part] * head

    def sparse_weights(self, part: str) -> tuple[tuple[int, int], ...]:
        """Return the products with weights around DeepSeek-V4's attention, as (inner, columns)."""
        h, wide = self.hidden, self.heads * self.head
        always = (h, self.q_rank), (self.q_rank, wide), (h, self.head)
        output = (wide // self.o_groups, self.o_groups * self.o_rank), (self.o_groups * self.o_rank, h)
        if part not in POOLED:
            return *always, *output
        pooled = (h, self.pool_width(part, self.head))
        if part == "H":
            return *always, pooled, *output
        queries = (self.q_rank, self.index_heads * self.index_head)
        index = queries, (h, self.index_heads), (h, self.pool_width(part, self.index_head))
        return *always, pooled, *index, *output

    def attention_weights(self, part: str = "*") -> tuple[tuple[int, int], ...]:
        """Return the products with weights around a layer's attention, as (inner, columns)."""
        if self.o_rank:
            return self.sparse_weights(part)
        h, a = self.hidden, self.heads
        output = (a * self.value_head, h)
        if not self.kv_rank:
            return (h, (a + 2 * self.kv_heads) * self.head), output
        wide = a * self.query_head
        queries = ((h, self.q_rank), (self.q_rank, wide)) if self.q_rank else ((h, wide),)
        latent = (h, self.kv_rank + self.rotary_head), (self.kv_rank, a * (self.head + self.value_head))
        return *queries, *latent, output

    def middle_weights(self, middle: int) -> tuple[tuple[int, int], ...]:
        """Return the products of an MLP of that width."""
        return (self.hidden, middle * (1 + self.gated)), (middle, self.hidden)

    def weights(self, part: str) -> tuple[tuple[int, int], ...]:
        """Return the weight products of a part of a layer, as (inner, columns); experts are not included."""
        if part in ATTENTION:
            return self.attention_weights(part)
        if part == "M":
            width = self.mamba_inner + self.mamba_conv + self.mamba_heads
            return (self.hidden, width), (self.mamba_inner, self.hidden)
        if part == "-":
            return self.middle_weights(self.middle)
        shared = self.middle_weights(self.shared_middle) if self.shared_middle else ()
        latent = ((self.hidden, self.expert_latent), (self.expert_latent, self.hidden))
        return *shared, *(latent if self.expert_latent != self.hidden else ())

    def expert_weights(self) -> tuple[tuple[int, int], ...]:
        """Return the products of an expert."""
        up, down = self.middle_weights(self.expert_middle)
        return (self.expert_latent, up[1]), (down[0], self.expert_latent)

    def norm_parameters(self, kind: str) -> int:
        """Return the parameters of a layer's norms, and those of Mamba-2 outside its products."""
        latent = self.q_rank + self.kv_rank if self.kv_rank and ATTENTION & {*kind} else 0
        latent += 2 * self.head if self.head_norm and ATTENTION & {*kind} else 0
        count = (len(kind) * self.hidden + latent) * (1 + self.biases)
        if self.o_rank and ATTENTION & {*kind}:  # norms of queries and keys, and a sink per head
            count += self.q_rank + self.head + self.heads
        for part in POOLED.keys() & {*kind}:  # norms of pooled keys, and positions within a key
            for head in (self.head, self.index_head) if part == "C" else (self.head,):
                count += head + POOLED[part] * self.pool_width(part, head) // 2
        if self.streams > 1:  # biases and three scales
            count += len(kind) * (self.mix_weights[1] + 3)
        if "M" in kind:  # four taps and a bias per channel, the gated norm, and A, D and the bias of steps
            count += 5 * self.mamba_conv + self.mamba_inner + 3 * self.mamba_heads
        return count

    def layer_parameters(self, layer: int = 0) -> tuple[int, int]:
        """Return the parameters of a layer: of all but its experts, and of its experts."""
        kind = self.kind(layer)
        shared = self.norm_parameters(kind)
        for part in kind:
            shared += sum(k * n + n * self.biases for k, n in self.weights(part))
            shared += prod(self.mix_weights) if self.streams > 1 else 0
        if "E" not in kind:
            return shared, 0
        per_expert = sum(k * n + n * self.biases for k, n in self.expert_weights())
        return shared + (self.hidden + self.biases) * self.experts, per_expert * self.experts

    @property
    def parameters(self) -> int:
        """All parameters: layers, embedding and learned positions, the last norm, the head unless tied."""
        layers = sum(sum(self.layer_parameters(i)) for i in range(self.layers + self.predicted))
        further = self.predicted * (2 * self.hidden + 2 * self.hidden**2)  # each has two norms and a product
        rows = self.vocabulary * (2 - self.tied) + self.positions + 1 + self.biases
        return layers + further + rows * self.hidden

    # -- work -------------------------------------------------------------------------------------------

    def used_parameters(self, layer: int = 0) -> int:
        """Return the parameters of a layer's products that process each token."""
        kind = self.kind(layer)
        products = sum(k * n for part in kind for k, n in self.weights(part))
        products += len(kind) * prod(self.mix_weights) if self.streams > 1 else 0
        if "E" in kind:
            products += self.top_k * sum(k * n for k, n in self.expert_weights()) + self.hidden * self.experts
        return products

    def product_flops(self, tokens: int) -> int:
        """Return the flop of all products with weights, forward."""
        layers = sum(map(self.used_parameters, range(self.layers + self.predicted)))
        further = self.predicted * 2 * self.hidden**2
        return 2 * tokens * (layers + further + (1 + self.predicted) * self.vocabulary * self.hidden)

    def layer_flops(self, samples: int, sequence: int, layer: int = 0) -> int:
        """Return the flop of a layer's forward."""
        tokens, kind = samples * sequence, self.kind(layer)
        flops = 2 * tokens * self.used_parameters(layer)
        if "M" in kind:  # the recurrence: each token updates the state and reads it (arXiv 2405.21060)
            flops += 4 * tokens * self.mamba_inner * self.mamba_state
        for part in ATTENTION & {*kind}:
            per_key = self.heads * (self.query_head + self.value_head)
            flops += 2 * per_key * tokens * self.reach(part, sequence)
            if part == "C":  # the indexer ranks all pooled keys
                flops += 2 * self.index_heads * self.index_head * tokens * (sequence // POOLED[part])
        return flops

    def flops(self, samples: int, sequence: int, *, recompute: bool = False) -> int:
        """Return the flop of a training step: forward, twice that backward, and any recomputation of layers.

        Parameters
        ----------
        samples, sequence : int
        recompute : bool
            Include full recomputation of the layers.

        Examples
        --------
        Equation 3 of arXiv 2104.04473, F = 96 B s l h² (1 + s/6h + V/16lh):

        >>> gpt = Architecture(layers=96, hidden=12288, heads=96, vocabulary=51200)
        >>> gpt.flops(1, 2048, recompute=True) == 96 * 2048 * 96 * 12288**2 + (
        ...     96 * 2048**2 * 96 * 12288 // 6 + 96 * 2048 * 51200 * 12288 // 16)
        True
        """
        layers = sum(self.layer_flops(samples, sequence, i) for i in range(self.layers + self.predicted))
        further = self.predicted * 2 * samples * sequence * 2 * self.hidden**2
        heads = (1 + self.predicted) * 2 * samples * sequence * self.vocabulary * self.hidden
        return (3 + recompute) * (layers + further) + 3 * heads


# ----------------------------------------------------------------------------------------------------------

MODELS: Final[Mapping[str, Mapping[str, Any]]] = read_yaml_text(
    (files(__package__) / "language_models.yaml").read_text("utf-8"), "language_models.yaml"
).plain()
"""Keys of `Architecture` by model name: published sizes."""
