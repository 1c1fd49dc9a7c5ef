"""Models from the ``config.json`` of Hugging Face: the same sizes as those that are known by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.workloads.model_config import model_sizes
from scenarios.workloads.train_workload import ModelFields, architecture_of
from sim.base.errors import InputError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
DEEPSEEK_V4: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "compress_ratios": [0, 0, 4, *[128, 4] * 20, 0],
    "hc_mult": 4,
    "head_dim": 512,
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 43,
    "num_key_value_heads": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "vocab_size": 129280,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-v4-flash": DEEPSEEK_V4,
    "llama3-8b": LLAMA,
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "sliding_window": None,
        "vocab_size": 151936,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss",
        "head_dim": 64,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "sliding_window": 128,
        "vocab_size": 201088,
    },
    "nemotron-3-nano": {
        "model_type": "nemotron_h",
        "head_dim": 128,
        "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "intermediate_size": 1856,
        "mamba_head_dim": 64,
        "mamba_num_heads": 64,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "n_groups": 8,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_attention_heads": 32,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 52,
        "num_key_value_heads": 2,
        "ssm_state_size": 128,
        "vocab_size": 131072,
    },
}


def written(tmp_path: Path, config: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_says_what_the_name_says(tmp_path: Path, name: str) -> None:
    assert Architecture(**model_sizes(written(tmp_path, CONFIGS[name]))) == Architecture(**MODELS[name])


def test_gpt2_has_the_published_parameters(tmp_path: Path) -> None:
    """124 million (openai/gpt-2, README.md), without the dropout and masks that are no parameters."""
    small = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}
    sizes = model_sizes(written(tmp_path, {**small, "n_positions": 1024}))
    assert Architecture(**sizes).parameters == 124_439_808


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "is no configuration of a model: it has no model_type"),
        ({**LLAMA, "model_type": "lama"}, "unknown model_type 'lama'; did you mean 'llama'?"),
        ({"model_type": "llava", "text_config": LLAMA}, "unknown model_type 'llava'"),
        ({**LLAMA, "hidden_size": "4096"}, "hidden_size: should be a whole number, not '4096'"),
        ({**LLAMA, "layer_types": ["chunked_attention"] * 32}, "'chunked_attention' is none of"),
        ({**LLAMA, "layer_types": ["sliding_attention"] * 32}, "has no sliding_window"),
        ({**DEEPSEEK_V4, "compress_ratios": [8] * 44}, "compress_ratios: 8 is none of 0, 4, 128"),
        ({**DEEPSEEK_V4, "compress_ratios": [0, 0, 4]}, "compress_ratios has 3 of 43 layers"),
        ({**LLAMA, "layer_types": ["full_attention"] * 3}, "layer_types has 3 of 32 layers"),
        ({**LLAMA, "layer_types": 3}, "layer_types: should be a list, not 3"),
        ({**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": 3}, "mlp_only_layers: should be a list, not 3"),
        ({**CONFIGS["qwen3-30b-a3b"], "decoder_sparse_step": "2"}, "decoder_sparse_step: should be a whole"),
        ({key: LLAMA[key] for key in LLAMA if key != "num_hidden_layers"}, "num_hidden_layers: is missing"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, config: object, said: str) -> None:
    with pytest.raises(InputError, match=r"config\.json: ") as caught:
        model_sizes(written(tmp_path, config))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("family", "more", "windows"),
    [
        ("mistral", {}, "wwwwww"),
        ("qwen2", {"use_sliding_window": False}, "******"),
        ("llama", {}, "******"),
        ("gpt_oss", {}, "w*w*w*"),
        ("gpt_oss", {"layer_types": ["sliding_attention"] * 6}, "wwwwww"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 6}, "******"),
        ("qwen3", {"layer_types": [*["sliding_attention"] * 3, "full_attention"] * 2}, "www*ww"),
        ("qwen3", {"layer_types": ["sliding_attention", *["full_attention"] * 5]}, "w*****"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 4}, "****ww"),
    ],
)
def test_layers_have_the_windows_that_a_configuration_says(
    tmp_path: Path, family: str, more: dict[str, Any], windows: str
) -> None:
    config = {**LLAMA, "model_type": family, "sliding_window": 4096, "num_hidden_layers": 6, **more}
    model = Architecture(**model_sizes(written(tmp_path, config)))
    assert "".join(model.kind(i)[0] for i in range(6)) == windows


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({"decoder_sparse_step": 2}, "-E-E-E"),
        ({"mlp_only_layers": [0, 5]}, "-EEEE-"),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, "-----E"),
    ],
)
def test_experts_are_in_the_layers_that_a_configuration_says(
    tmp_path: Path, more: dict[str, Any], parts: str
) -> None:
    config = {**CONFIGS["qwen3-30b-a3b"], "num_hidden_layers": 6, **more}
    model = Architecture(**model_sizes(written(tmp_path, config)))
    assert [model.kind(i) for i in range(6)] == [f"*{part}" for part in parts]


def test_a_scenario_takes_one(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    sizes = "calibration: h100-sxm, parallel: {tp: 2, dp: 4}, sequence: 4096, batch: 8"
    steps = []
    for model in ("./config.json", "llama3-8b", "{name: ./config.json, layers: 2}"):
        (tmp_path / "s.yaml").write_text(f"workload: {{train: {{model: {model}, {sizes}}}}}")
        shown = sim("run", str(tmp_path / "s.yaml"), "--json")
        assert shown.exit_code in (0, 1), shown.output
        steps.append(json.loads(shown.stdout)["makespan_ns"])
    assert steps[0] == steps[1] > 5 * steps[2]
    (tmp_path / "config.json").write_text("{")
    assert sim("run", str(tmp_path / "s.yaml")).exit_code == 2


def test_a_scenario_says_all_sizes() -> None:
    """A head, a middle and a latent have several; positions are learned, rotary or neither."""
    sizes = {
        key: value
        for key, value in MODELS["deepseek-v3"].items()
        if not key.endswith(("rank", "head", "middle")) and key != "rotary"
    }
    sizes |= {"head": {"query": 128, "value": 128, "rotary": 64}, "latent": {"q": 1536, "kv": 512}}
    sizes |= {"middle": {"layer": 18432, "expert": 2048, "shared": 2048}, "positions": "rotary"}
    assert described(sizes) == Architecture(**MODELS["deepseek-v3"])
    rotary = described({"name": "gpt3-175b", "positions": "yarn"})
    assert (rotary.positions, rotary.rotary) == (0, "yarn")
    learned = described({"name": "llama3-8b", "positions": 8192, "middle": 4096})
    assert (learned.positions, learned.rotary, learned.middle) == (8192, False, 4096)
    with pytest.raises(InputError, match=r"head.value: should be 1 or more"):
        described({"name": "llama3-8b", "head": {"value": 0}})
    with pytest.raises(InputError, match=r"head.value: should be 1 or more"):
        described({"name": "llama3-8b", "head": {"value": 0}})


def described(keys: dict[str, Any]) -> Architecture:
    """Return the model that a scenario says."""
    return architecture_of(ModelFields.model_validate(keys), document=None)  # type: ignore[arg-type]
