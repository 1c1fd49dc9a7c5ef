"""The sizes of a language model, from the ``config.json`` that Transformers keep beside its weights.

::

    model_type    one of `_FAMILIES`: what its layers are made of beside what the sizes say
    hidden_size, num_hidden_layers, ...    the names of sizes; families that name them otherwise say so

Sources: huggingface/transformers, src/transformers/models/*/configuration_*.py, for names and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scenarios.importers.files import read_json
from sim.base.errors import InputError, hint, in_file

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
    "pattern": ("hybrid_override_pattern",),
    "mamba_heads": ("mamba_num_heads",),
    "mamba_head": ("mamba_head_dim",),
    "mamba_state": ("ssm_state_size",),
    "mamba_groups": ("n_groups",),
    "predicted": ("num_nextn_predict_layers",),
}
"""Keys of a model here: where a configuration has them, the first that is there."""

# the biases of Qwen2's queries, keys and values (0.002 % of its parameters) are left out
_TRANSFORMER: Final = {"gated": True, "rotary": True, "biases": False, "tied": False}
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek_v2": _TRANSFORMER,
    "deepseek_v3": _TRANSFORMER,
    "gpt2": {"gated": False, "rotary": False, "biases": True, "tied": True},
    "gpt_oss": {**_TRANSFORMER, "biases": True, "clamped": True, "rotary": "yarn"},
    "kimi_k2": _TRANSFORMER,
    "llama": _TRANSFORMER,
    "mistral": _TRANSFORMER,
    "mixtral": _TRANSFORMER,
    "nemotron_h": {**_TRANSFORMER, "gated": False, "rotary": False},
    "qwen2": _TRANSFORMER,
    "qwen3": _TRANSFORMER,
    "qwen3_moe": _TRANSFORMER,
}

_FULL_EVERY: Final = {"gpt_oss": 2, "mistral": 0, "mixtral": 0}
"""Without `layer_types`: which layers look at everything, where there is a window; 0: none."""


def model_sizes(path: Path) -> dict[str, Any]:
    """Return the sizes of a model, as `scenarios.builders.train.architecture.Architecture` names them.

    Raises
    ------
    InputError
        The file cannot be read, is no configuration, or is of a family that is not known.
    """
    given = read_json(path)
    with in_file(path):
        if not isinstance(given, dict) or not isinstance(given.get("model_type"), str):
            raise InputError("is no configuration of a model: it has no model_type")
        family = given["model_type"]
        if family not in _FAMILIES:
            known = f"those known here are {', '.join(_FAMILIES)}"
            raise InputError(f"unknown model_type {family!r}{hint(family, _FAMILIES)} ({known})")
        sizes = {**_FAMILIES[family], **_read(given)}
        if sizes.get("experts"):
            width = given.get("moe_shared_expert_intermediate_size", sizes.get("expert_middle", 0))
            sizes["shared_middle"] = width * (given.get("n_shared_experts") or 0)
        if family == "gpt2":
            sizes["positions"] = given.get("n_positions", 1024)
        sizes |= _window(given)
        if family == "qwen3_moe" and given.get("decoder_sparse_step", 1) != 1:
            raise InputError("decoder_sparse_step: layers with experts in between have no pattern here")
        return sizes


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that stand in a configuration by their names."""
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


def _window(given: Mapping[str, Any]) -> dict[str, int]:
    """Return how far layers look back, and which of them look at everything; nothing: all do.

    Qwen has windows where `use_sliding_window` says so, by default nowhere.
    """
    window, kinds = given.get("sliding_window"), given.get("layer_types")
    if given.get("use_sliding_window"):
        raise InputError("use_sliding_window: windows from max_window_layers on are not known here")
    if kinds is None:
        every = _FULL_EVERY.get(given["model_type"])
        return {} if every is None or not isinstance(window, int) else {"window": window, "full_every": every}
    if "sliding_attention" not in kinds:
        return {}
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else 0
    layers = range(1, len(kinds) + 1)
    repeated = ["full_attention" if every and i % every == 0 else "sliding_attention" for i in layers]
    if kinds != repeated or not isinstance(window, int):
        raise InputError("layer_types: attention to everything is known in every so many layers alone")
    return {"window": window, "full_every": every}
