"""A language model by its sizes: how many parameters it has, and how many flop a token costs.

::

    tokens ─► embedding ─► layer 0 ─► ... ─► layer n-1 ─► norm ─► head ─► loss

    layer   ┌────────────────────────────────────┐  ┌───────────────────────────────┐
         x ─┴─ norm ─ qkv ─ attention ─ proj ─ add ┴─ norm ─ up (, gate) ─ down ─ add

    qkv     h → (a + 2g)·d      a heads, g of keys and values (grouped queries), d wide
    mla     h → q_rank → a·(d + r),   h → kv_rank + r,   kv_rank → a·(d + v)       (DeepSeek)
    experts router h → e, k of e experts a token, shared experts beside them

The model's own work, which MFU counts, is that of its products with weights and of its attention, all scores
included: 72·B·s·l·h²·(1 + s/6h + V/12lh) for a GPT whose middle is 4h wide, as in Narayanan et al., arXiv
2104.04473, section 5.1, where full recomputation makes it 96·B·s·l·h²·(1 + s/6h + V/16lh). Half of the scores
are masked; ``causal`` leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sim.base.errors import InputError


@dataclass(frozen=True)
class Architecture:
    """Sizes of a decoder.

    Attributes
    ----------
    layers, hidden, heads, vocabulary : int
        Without words (0) there is neither embedding nor head.
    kv_heads : int
        Heads of keys and values; 0: as many as heads.
    head : int
        Width of a head; 0: hidden / heads.
    middle : int
        Width between the two products of a layer; 0: 4 hidden.
    gated : bool
        SwiGLU: a gate as wide as the middle beside it.
    tied : bool
        The head's weights are the embedding's.
    positions : int
        Learned positions; 0: none (rotary, or ALiBi).
    rotary : bool
    biases : bool
        Products and norms have biases.
    experts, top_k, expert_middle, shared_middle, dense_layers : int
        Mixture of experts: the first ``dense_layers`` layers have none.
    q_rank, kv_rank, rotary_head, value_head : int
        Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1); kv_rank 0: none.

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
    rotary: bool = False
    biases: bool = True
    experts: int = 0
    top_k: int = 0
    expert_middle: int = 0
    shared_middle: int = 0
    dense_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rotary_head: int = 0
    value_head: int = 0

    def __post_init__(self) -> None:
        """Fill in what follows from the other sizes; refuse what does not fit together."""
        if not self.head and self.hidden % self.heads:
            raise InputError(
                f"hidden {self.hidden} is no multiple of {self.heads} heads; give the width of a head"
            )
        defaults = {
            "kv_heads": self.heads,
            "head": self.hidden // self.heads,
            "middle": 4 * self.hidden,
            "value_head": self.head or self.hidden // self.heads,
            "expert_middle": self.middle or 4 * self.hidden,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads cannot share {self.kv_heads} heads of keys and values")
        if self.experts and not 0 < self.top_k <= self.experts:
            raise InputError(f"a token cannot go to {self.top_k} of {self.experts} experts")
        if self.dense_layers > self.layers:
            raise InputError(f"{self.dense_layers} dense layers are more than the {self.layers} there are")

    # -- widths -----------------------------------------------------------------------------------------

    @property
    def query_head(self) -> int:
        """Width of a head of queries and keys, its rotary part included."""
        return self.head + self.rotary_head if self.kv_rank else self.head

    def is_dense(self, layer: int) -> bool:
        """Whether a layer has no experts."""
        return not self.experts or layer < self.dense_layers

    # -- parameters -------------------------------------------------------------------------------------

    def attention_weights(self) -> tuple[tuple[int, int], ...]:
        """Return the products with weights around a layer's attention, as (inner, columns)."""
        h, a = self.hidden, self.heads
        out = (a * self.value_head, h)
        if not self.kv_rank:
            return (h, (a + 2 * self.kv_heads) * self.head), out  # of queries, keys and values
        wide = a * self.query_head
        queries = ((h, self.q_rank), (self.q_rank, wide)) if self.q_rank else ((h, wide),)
        latent = (h, self.kv_rank + self.rotary_head), (self.kv_rank, a * (self.head + self.value_head))
        return *queries, *latent, out

    def middle_weights(self, middle: int) -> tuple[tuple[int, int], ...]:
        """Return the products of a middle of that width."""
        return (self.hidden, middle * (1 + self.gated)), (middle, self.hidden)

    @property
    def norm_parameters(self) -> int:
        """Parameters of the norms of a layer."""
        of = 2 * self.hidden + (self.q_rank + self.kv_rank if self.kv_rank else 0)
        return of * (1 + self.biases)

    def layer_parameters(self, layer: int = 0) -> tuple[int, int]:
        """Return the parameters of a layer: of all but its experts, and of its experts."""
        middle = self.middle if self.is_dense(layer) else self.shared_middle
        products = [*self.attention_weights(), *(self.middle_weights(middle) if middle else ())]
        shared = sum(k * n + n * self.biases for k, n in products) + self.norm_parameters
        if self.is_dense(layer):
            return shared, 0
        one = sum(k * n + n * self.biases for k, n in self.middle_weights(self.expert_middle))
        return shared + self.hidden * self.experts, one * self.experts

    @property
    def parameters(self) -> int:
        """All parameters: layers, words and learned positions, the last norm, a head that has its own."""
        layers = sum(sum(self.layer_parameters(i)) for i in range(self.layers))
        rows = self.vocabulary * (2 - self.tied) + self.positions + 1 + self.biases
        return layers + rows * self.hidden

    # -- work -------------------------------------------------------------------------------------------

    def layer_flops(self, samples: int, sequence: int, layer: int = 0) -> int:
        """Return the flop of a layer's forward."""
        tokens = samples * sequence
        middle = self.middle_weights(self.middle if self.is_dense(layer) else self.shared_middle)
        products = sum(k * n for k, n in (*self.attention_weights(), *middle))
        if not self.is_dense(layer):
            one = sum(k * n for k, n in self.middle_weights(self.expert_middle))
            products += self.top_k * one + self.hidden * self.experts
        scores = self.heads * (self.query_head + self.value_head) * sequence
        return 2 * tokens * (products + scores)

    def flops(self, samples: int, sequence: int, *, recompute: bool = False) -> int:
        """Return the flop of a training step: forward, twice that backward, and the layers' forward again.

        Parameters
        ----------
        samples, sequence : int
        recompute : bool
            Count what full recomputation of the layers does besides.

        Examples
        --------
        Equation 3 of arXiv 2104.04473, F = 96 B s l h² (1 + s/6h + V/16lh):

        >>> gpt = Architecture(layers=96, hidden=12288, heads=96, vocabulary=51200)
        >>> gpt.flops(1, 2048, recompute=True) == 96 * 2048 * 96 * 12288**2 + (
        ...     96 * 2048**2 * 96 * 12288 // 6 + 96 * 2048 * 51200 * 12288 // 16)
        True
        """
        layers = sum(self.layer_flops(samples, sequence, i) for i in range(self.layers))
        return (3 + recompute) * layers + 6 * samples * sequence * self.vocabulary * self.hidden


# ----------------------------------------------------------------------------------------------------------
# Language models by name: their published sizes.
#
# Sources: Brown et al., arXiv 2005.14165, table 2.1 (GPT-3, vocabulary padded by Megatron-LM to 51,200);
# Touvron et al., arXiv 2307.09288 (Llama 2); Llama team, arXiv 2407.21783, table 3 (Llama 3); MosaicML
# llm-foundry, scripts/train/yamls (MPT, vocabulary 50,368); Narayanan et al., arXiv 2104.04473, table 1
# (Megatron); Jiang et al., arXiv 2401.04088 (Mixtral); DeepSeek-AI, arXiv 2405.04434 and 2412.19437
# (DeepSeek-V2, V3); Qwen team, arXiv 2505.09388 (Qwen3).


def _llama(*sizes: int) -> dict[str, Any]:
    names = ("layers", "hidden", "heads", "kv_heads", "middle", "vocabulary")
    ways = {"gated": True, "tied": False, "rotary": True, "biases": False}
    return {**dict(zip(names, sizes, strict=True)), **ways}


def _gpt(layers: int, hidden: int, heads: int, vocabulary: int = 51200) -> dict[str, Any]:
    return {"layers": layers, "hidden": hidden, "heads": heads, "vocabulary": vocabulary, "positions": 2048}


def _latent(
    of: dict[str, Any], experts: int, middle: int, shared: int, dense: int, chosen: int
) -> dict[str, Any]:
    latent = {"head": 128, "q_rank": 1536, "kv_rank": 512, "rotary_head": 64, "value_head": 128}
    layers = {"shared_middle": shared, "dense_layers": dense}
    return {**of, **latent, **_experts(experts, chosen, middle), **layers}


def _experts(experts: int, chosen: int, middle: int) -> dict[str, Any]:
    return {"experts": experts, "top_k": chosen, "expert_middle": middle}


MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek-v2": _latent(_llama(60, 5120, 128, 128, 12288, 102400), 160, 1536, 3072, 1, 6),
    "deepseek-v3": _latent(_llama(61, 7168, 128, 128, 18432, 129280), 256, 2048, 2048, 3, 8),
    "gpt3-175b": _gpt(96, 12288, 96),
    "llama2-7b": _llama(32, 4096, 32, 32, 11008, 32000),
    "llama2-70b": _llama(80, 8192, 64, 8, 28672, 32000),
    "llama3-8b": _llama(32, 4096, 32, 8, 14336, 128256),
    "llama3-70b": _llama(80, 8192, 64, 8, 28672, 128256),
    "llama3-405b": _llama(126, 16384, 128, 8, 53248, 128256),
    "megatron-18b": _gpt(40, 6144, 48),
    "megatron-39b": _gpt(48, 8192, 64),
    "megatron-145b": _gpt(80, 12288, 96),
    "megatron-530b": _gpt(105, 20480, 128),
    "megatron-1t": _gpt(128, 25600, 160),
    "mixtral-8x7b": {**_llama(32, 4096, 32, 8, 14336, 32000), **_experts(8, 2, 14336)},
    "mpt-1b": _gpt(24, 2048, 16, 50368),
    "mpt-7b": _gpt(32, 4096, 32, 50368),
    "mpt-13b": _gpt(40, 5120, 40, 50368),
    "mpt-30b": _gpt(48, 7168, 56, 50368),
    "mpt-70b": _gpt(80, 8192, 64, 50368),
    "qwen3-30b-a3b": {**_llama(48, 2048, 32, 4, 6144, 151936), "head": 128, **_experts(128, 8, 768)},
    "qwen3-235b-a22b": {**_llama(94, 4096, 64, 4, 12288, 151936), "head": 128, **_experts(128, 8, 1536)},
}
"""Keys of `Architecture` by the name of a model."""
