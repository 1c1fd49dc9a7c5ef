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

from scenarios.builders.train.architecture import windowed_or_full
from scenarios.importers.files import read_json
from sim.base.errors import InputError, UnknownNameError, in_file

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "vocabulary": ("vocab_size",),
    "kv_heads": ("num_key_value_heads",),
    "head": ("qk_nope_head_dim", "head_dim"),
    "middle": ("intermediate_size", "n_inner"),
    "tied": ("tie_word_embeddings",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_middle": ("moe_intermediate_size",),
    "expert_latent": ("moe_latent_size",),
    "dense_layers": ("first_k_dense_replace",),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "rotary_head": ("qk_rope_head_dim",),
    "value_head": ("v_head_dim",),
    "o_rank": ("o_lora_rank",),
    "o_groups": ("o_groups",),
    "index_heads": ("index_n_heads",),
    "index_head": ("index_head_dim",),
    "index_top_k": ("index_topk",),
    "streams": ("hc_mult",),
    "pattern": ("hybrid_override_pattern",),
    "mamba_heads": ("mamba_num_heads",),
    "mamba_head": ("mamba_head_dim",),
    "mamba_state": ("ssm_state_size",),
    "mamba_groups": ("n_groups",),
    "predicted": ("num_nextn_predict_layers",),
}
"""Key of a model here -> names of it in a configuration; the first one present counts."""

# The biases of Qwen2's queries, keys and values (0.002 % of its parameters) are left out.
_TRANSFORMER: Final = {"gated": True, "rotary": True, "biases": False, "tied": False}
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek_v2": _TRANSFORMER,
    "deepseek_v3": _TRANSFORMER,
    "deepseek_v4": _TRANSFORMER,
    "gpt2": {"gated": False, "rotary": False, "biases": True, "tied": True},
    "gpt_oss": {**_TRANSFORMER, "biases": True, "clamped": True, "rotary": "yarn"},
    "kimi_k2": _TRANSFORMER,
    "llama": _TRANSFORMER,
    "mistral": _TRANSFORMER,
    "mixtral": _TRANSFORMER,
    "nemotron_h": {**_TRANSFORMER, "gated": False, "rotary": False},
    "qwen2": _TRANSFORMER,
    "qwen3": {**_TRANSFORMER, "head_norm": True},
    "qwen3_moe": {**_TRANSFORMER, "head_norm": True},
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
    given = read_json(path)
    with in_file(path):
        if not isinstance(given, dict) or not isinstance(given.get("model_type"), str):
            raise InputError("is no configuration of a model: it has no model_type")
        family = given["model_type"]
        if family not in _FAMILIES:
            raise UnknownNameError("model_type", family, sorted(_FAMILIES))
        sizes = {**_FAMILIES[family], **_read(given)}
        if "layers" not in sizes:
            raise InputError(f"has no {_NAMES['layers'][0]}")
        _check_lists(given, sizes["layers"])
        if sizes.get("experts"):
            width = given.get("moe_shared_expert_intermediate_size", sizes.get("expert_middle", 0))
            sizes["shared_middle"] = width * (given.get("n_shared_experts") or 0)
        if family == "gpt2":
            sizes["positions"] = given.get("n_positions", 1024)
        if family == "deepseek_v4":
            return sizes | _pooled_layers(given, sizes["layers"])
        sizes |= _window(given, sizes["layers"])
        return sizes | (_pattern(given, sizes) if "pattern" not in sizes else {})


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that a configuration states by name."""
    found = {}
    for name, theirs in _NAMES.items():
        key = next((key for key in theirs if given.get(key) is not None), None)
        if key is None:
            continue
        kind = {"tied": bool, "pattern": str}.get(name, int)
        if type(value := given[key]) is not kind:
            wanted = {bool: "true or false", str: "text", int: "a whole number"}[kind]
            raise InputError(f"{key} should be {wanted}, not {value!r}")
        found[name] = value
    return found


_POOLED: Final[Mapping[Any, str]] = {
    0: "wE",
    4: "CE",
    128: "HE",
    "sliding_attention": "wE",
    "compressed_sparse_attention": "CE",
    "heavily_compressed_attention": "HE",
}
"""Parts of a layer of DeepSeek-V4, by the number of tokens per pooled key or by the layer type's name."""


def _pooled_layers(given: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the window of DeepSeek-V4 and the pattern of its layers, which says which have pooled keys."""
    key = "compress_ratios" if given.get("compress_ratios") is not None else "layer_types"
    kinds = given.get(key)
    if kinds is None or not isinstance(given.get("sliding_window"), int):
        raise InputError("has no compress_ratios, layer_types or sliding_window")
    if unknown := [each for each in kinds if each not in _POOLED]:
        raise InputError(f"{key}: {unknown[0]!r} is none of {', '.join(map(str, _POOLED))}")
    pattern = [_POOLED[each] for each in kinds[:layers]]
    return {"window": given["sliding_window"], "pattern": pattern}


def _check_lists(given: Mapping[str, Any], layers: int) -> None:
    """Raise if a per-layer key is not a list, has values of the wrong type, or covers too few layers."""
    for key, kind in (("layer_types", str), ("compress_ratios", int), ("mlp_only_layers", int)):
        of = given.get(key)
        if of is not None and not (isinstance(of, list) and all(type(each) is kind for each in of)):
            items = "text" if kind is str else "whole numbers"
            raise InputError(f"{key} should be a list of {items}, not {of!r}")
        if of is not None and key != "mlp_only_layers" and len(of) < layers:
            raise InputError(f"{key} has {len(of)} of {layers} layers")
    for key in ("decoder_sparse_step", "max_window_layers"):
        if type(given.get(key, 1) or 1) is not int:
            raise InputError(f"{key} should be a whole number, not {given[key]!r}")


def _window(given: Mapping[str, Any], layers: int) -> dict[str, int]:
    """Return the attention window and how often a layer has full attention; empty if all layers do.

    Qwen has windows only where `use_sliding_window` is set; by default it is not.
    """
    window, kinds = given.get("sliding_window"), _attention(given, layers)
    if kinds is None:
        every = _FULL_EVERY.get(given["model_type"])
        return {} if every is None or not isinstance(window, int) else {"window": window, "full_every": every}
    if "w" not in kinds:
        return {}
    if not isinstance(window, int):
        raise InputError("has no sliding_window, and layers with one")
    return {"window": window, "full_every": kinds.index("*") + 1 if "*" in kinds else 0}


def _attention(given: Mapping[str, Any], layers: int) -> list[str] | None:
    """Return the letter of each layer's attention, or None if the configuration does not give it."""
    kinds = given.get("layer_types")
    if kinds is None and given.get("use_sliding_window"):
        first = given.get("max_window_layers", 28)
        return ["*" if i < first else "w" for i in range(layers)]
    letters = {"sliding_attention": "w", "full_attention": "*"}
    if unknown := [kind for kind in kinds or () if kind not in letters]:
        raise InputError(f"layer_types: {unknown[0]!r} is none of {', '.join(letters)}")
    return kinds and [letters[kind] for kind in kinds]


def _pattern(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the parts of each layer, if windows and experts do not follow from sizes alone."""
    layers, window, every = sizes["layers"], sizes.get("window", 0), sizes.get("full_every", 0)
    step, without = given.get("decoder_sparse_step") or 1, given.get("mlp_only_layers") or ()
    repeated = [windowed_or_full(i, window, every) for i in range(layers)]
    attention = (_attention(given, layers) or repeated)[:layers]
    if attention == repeated and step == 1 and not without:
        return {}
    dense = sizes.get("dense_layers", 0) if sizes.get("experts") else layers
    experts = (i >= dense and (i + 1) % step == 0 and i not in without for i in range(layers))
    return {"pattern": [of + "-E"[has] for of, has in zip(attention, experts, strict=True)]}
