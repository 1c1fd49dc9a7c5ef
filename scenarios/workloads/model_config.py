"""The sizes of a language model, from the ``config.json`` that Transformers keep beside its weights.

::

    model_type    one of `_FAMILIES`: what its layers consist of besides the sizes
    hidden_size, num_hidden_layers, ...    sizes, by the names that the family uses

Sources: huggingface/transformers, src/transformers/models/*/configuration_*.py, for names and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from scenarios.builders.train.architecture import Architecture, windowed_or_full
from scenarios.file.faults import input_error
from scenarios.importers.files import read_json
from sim.base.errors import InputError, UnknownNameError, in_file


def _size_named(*names: str) -> Any:
    """Return a size by its names in a configuration; the first one present counts."""
    return Field(None, validation_alias=AliasChoices(*names))


class _Config(BaseModel, strict=True):
    """The sizes of a model, and keys from which further ones follow; those that are null are left out."""

    layers: int = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))
    hidden: int | None = _size_named("hidden_size", "n_embd")
    heads: int | None = _size_named("num_attention_heads", "n_head")
    vocabulary: int | None = _size_named("vocab_size")
    kv_heads: int | None = _size_named("num_key_value_heads")
    head: int | None = _size_named("qk_nope_head_dim", "head_dim")
    middle: int | None = _size_named("intermediate_size", "n_inner")
    tied: bool | None = _size_named("tie_word_embeddings")
    experts: int | None = _size_named("n_routed_experts", "num_local_experts", "num_experts")
    top_k: int | None = _size_named("num_experts_per_tok")
    expert_middle: int | None = _size_named("moe_intermediate_size")
    expert_latent: int | None = _size_named("moe_latent_size")
    dense_layers: int | None = _size_named("first_k_dense_replace")
    q_rank: int | None = _size_named("q_lora_rank")
    kv_rank: int | None = _size_named("kv_lora_rank")
    rotary_head: int | None = _size_named("qk_rope_head_dim")
    value_head: int | None = _size_named("v_head_dim")
    o_rank: int | None = _size_named("o_lora_rank")
    o_groups: int | None = None
    index_heads: int | None = _size_named("index_n_heads")
    index_head: int | None = _size_named("index_head_dim")
    index_top_k: int | None = _size_named("index_topk")
    streams: int | None = _size_named("hc_mult")
    pattern: str | None = _size_named("hybrid_override_pattern")
    mamba_heads: int | None = _size_named("mamba_num_heads")
    mamba_head: int | None = _size_named("mamba_head_dim")
    mamba_state: int | None = _size_named("ssm_state_size")
    mamba_groups: int | None = _size_named("n_groups")
    predicted: int | None = _size_named("num_nextn_predict_layers")

    model_type: str
    n_positions: int = 1024
    n_shared_experts: int = 0
    moe_shared_expert_intermediate_size: int | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    compress_ratios: list[int] | None = None
    mlp_only_layers: list[int] = []
    decoder_sparse_step: int = 1


# The biases of Qwen2's queries, keys and values (0.002 % of its parameters) are left out.
_TRANSFORMER: Final = {"gated": True, "rotary": True, "biases": False, "tied": False}
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v4", "kimi_k2"), _TRANSFORMER),
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2"), _TRANSFORMER),
    **{key: {**_TRANSFORMER, "head_norm": True} for key in ("qwen3", "qwen3_moe")},
    "gpt2": {"gated": False, "rotary": False, "biases": True, "tied": True},
    "gpt_oss": {**_TRANSFORMER, "biases": True, "clamped": True, "rotary": "yarn"},
    "nemotron_h": {**_TRANSFORMER, "gated": False, "rotary": False},
}

_FULL_EVERY: Final = {"gpt_oss": 2, "mistral": 0, "mixtral": 0}
"""Without `layer_types`, every n-th layer has full attention if there is a window; 0: none has."""


def model_sizes(path: Path) -> dict[str, Any]:
    """Return the sizes of a model, as `scenarios.builders.train.architecture.Architecture` names them.

    Raises
    ------
    InputError
        The file cannot be read, is not a configuration, or belongs to an unknown family.
    """
    content = read_json(path)
    with in_file(path):
        if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
            raise InputError("is no configuration of a model: it has no model_type")
        if content["model_type"] not in _FAMILIES:  # its sizes may have any names
            raise UnknownNameError("model_type", content["model_type"], sorted(_FAMILIES))
        present = {key: value for key, value in content.items() if value is not None}
        try:
            config = _Config.model_validate(present)
        except ValidationError as error:
            raise input_error(error, _Config, present) from None
        stated = config.model_dump(include={*Architecture.__annotations__}, exclude_none=True)
        sizes = {**_FAMILIES[config.model_type], **stated}
        for key in ("layer_types", "compress_ratios"):
            if key in present and len(present[key]) < config.layers:
                raise InputError(f"{key} has {len(present[key])} of {config.layers} layers")
        if config.experts:
            width = config.moe_shared_expert_intermediate_size or config.expert_middle or 0
            sizes["shared_middle"] = width * config.n_shared_experts
        if config.model_type == "gpt2":
            sizes["positions"] = config.n_positions
        if config.model_type == "deepseek_v4":
            return sizes | _pooled_layers(config)
        sizes |= _window(config)
        return sizes | (_pattern(config, sizes) if config.pattern is None else {})


_POOLED: Final[Mapping[Any, str]] = {
    0: "wE",
    4: "CE",
    128: "HE",
    "sliding_attention": "wE",
    "compressed_sparse_attention": "CE",
    "heavily_compressed_attention": "HE",
}
"""Parts of a layer of DeepSeek-V4, by the number of tokens per pooled key or by the layer type's name."""


def _pooled_layers(config: _Config) -> dict[str, Any]:
    """Return the window of DeepSeek-V4 and the pattern of its layers, which says which have pooled keys."""
    key = "layer_types" if config.compress_ratios is None else "compress_ratios"
    kinds = getattr(config, key)
    if kinds is None or config.sliding_window is None:
        raise InputError("has no compress_ratios, layer_types or sliding_window")
    if unknown := [kind for kind in kinds if kind not in _POOLED]:
        raise InputError(f"{key}: {unknown[0]!r} is none of {', '.join(map(str, _POOLED))}")
    return {"window": config.sliding_window, "pattern": [_POOLED[kind] for kind in kinds[: config.layers]]}


def _window(config: _Config) -> dict[str, int]:
    """Return the attention window and how often a layer has full attention; empty if all layers do.

    Qwen has windows only where `use_sliding_window` is set; by default it is not.
    """
    window, kinds = config.sliding_window, _attention(config)
    if kinds is None:
        every = _FULL_EVERY.get(config.model_type)
        return {} if every is None or window is None else {"window": window, "full_every": every}
    if "w" not in kinds:
        return {}
    if window is None:
        raise InputError("has no sliding_window, and layers with one")
    return {"window": window, "full_every": kinds.index("*") + 1 if "*" in kinds else 0}


def _attention(config: _Config) -> list[str] | None:
    """Return the letter of each layer's attention, or None if the configuration does not give it."""
    if config.layer_types is None and config.use_sliding_window:
        return ["*" if i < config.max_window_layers else "w" for i in range(config.layers)]
    letters = {"sliding_attention": "w", "full_attention": "*"}
    if unknown := [kind for kind in config.layer_types or () if kind not in letters]:
        raise InputError(f"layer_types: {unknown[0]!r} is none of {', '.join(letters)}")
    return config.layer_types and [letters[kind] for kind in config.layer_types]


def _pattern(config: _Config, sizes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the parts of each layer, if windows and experts do not follow from sizes alone."""
    layers, step, without = config.layers, config.decoder_sparse_step or 1, config.mlp_only_layers
    window, every = sizes.get("window", 0), sizes.get("full_every", 0)
    repeated = [windowed_or_full(i, window, every) for i in range(layers)]
    attention = (_attention(config) or repeated)[:layers]
    if attention == repeated and step == 1 and not without:
        return {}
    dense = (config.dense_layers or 0) if config.experts else layers
    experts = (i >= dense and (i + 1) % step == 0 and i not in without for i in range(layers))
    return {"pattern": [letter + "-E"[has] for letter, has in zip(attention, experts, strict=True)]}
