"""Published training steps (`cluster/training_steps.csv.gz`), each as a `Training`, or why it is not one.

::

    row ──► model by name, layout, batch, recomputation ──► Training, whose calibration is still to be found
        └─► Undescribed: data missing in the row, or features that this project does not model

Our assumptions about data that a source does not print are in `ASSUMED`; the page of results repeats them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.layout import ORDER, ParallelLayout
from scenarios.builders.train.training import FULL_ITERATION, Training
from sim.base.errors import InputError
from sim.base.files import read_table

ASSUMED: Final[Mapping[str, str]] = {
    "vtrain-a100-multi": "ranks in the order tp, dp, pp, as in Megatron-DeepSpeed; kernels around the scores "
    "of attention are not fused",
    "megatron-2104.04473-T1": "micro-batch 1 and no interleaving, which the paper does not print for each "
    "row",
    "megatron-2104.04473-T2": "ZeRO-3 with DeepSpeed's defaults, each product a module",
    "llama3-2407.21783-T4": "four stages per rank; the printed flop count all scores",
    "torchtitan-2024-12": "the loss is compiled from 2025 on; asynchronous tensor parallelism hides "
    "as much of a collective as a product takes; the speed of passes is fitted, as fitting that of products "
    "left errors of 13.0 %",
    "nemo-megatron-bridge": "nodes of 64 (GB200, GB300) or 8 GPUs; order tp, cp, dp, pp; no recomputation; a "
    "row without a known recipe takes that of another release, on GB300 also GB200's, and without any runs "
    "eagerly; adapters of rank 16 beside queries, keys and values; a pack is one sequence",
}
"""What a source leaves open, and our assumption."""

RECIPES_FILE: Final = "cluster/megatron_bridge_recipes.csv"
"""Settings of Megatron Bridge's rows: dispatcher, overlaps, CUDA graphs; a file in the data folder."""

_MEGATRON_ORDER: Final = ("tp", "cp", "dp", "pp")
"""Data-parallel ranks are adjacent, pipeline ranks farthest apart.

Megatron-LM, core/parallel_state.py (``order="tp-cp-ep-dp-pp"``), and of 2021 megatron/mpu/initialize.py.
vTrain's steps were measured with Megatron-DeepSpeed (its data/README.md): DeepSpeed, runtime/pipe/topology.py
(axes pipe, data, model, the last one fastest).
"""

_PLACEHOLDER: Final = TrainingCalibration("none", 1.0, 1.0)


def _plain(name: str) -> str:
    """Return the letters and digits of a model's name, by which the names of all sources agree.

    >>> _plain("Qwen3_30B_a3B"), _plain("LLAMA3.1_405B"), _plain("DeepSeekV3 (w/o MTP)")
    ('qwen330ba3b', 'llama3405b', 'deepseekv3')
    """
    return re.sub(r"\(w.*\)|[^a-z0-9(]", "", name.lower().replace("3.1", "3"))


_NAMES: Final = {_plain(name): name for name in MODELS}


class Undescribed(Exception):
    """A row that cannot be described as a training step; the message says why."""


@dataclass(frozen=True)
class Published:
    """A published row.

    Attributes
    ----------
    id, source, group : str
    hardware : str
        Key of a calibration: GPU, and precision of the products.
    step_ms : float
        Measured step.
    training : Training
    memory_gib : tuple of float
        Measured peak of each pipeline rank (the fullest of its GPUs); empty if not published.
    peer_ms : float or None
        Prediction of the source's own tool.
    """

    id: str
    source: str
    group: str
    hardware: str
    step_ms: float
    training: Training
    memory_gib: tuple[float, ...]
    peer_ms: float | None


def read_published(path: Path) -> tuple[list[Published], list[tuple[str, str]]]:
    """Return the rows of the file, and the source of each that cannot be described, with the reason.

    A file beside it has the settings of Megatron Bridge's rows.
    """
    found, refused = [], []
    recipes = {row["id"]: row for _, row in read_table(path.parent.parent / RECIPES_FILE)[1]}
    for _, row in read_table(path)[1]:
        try:
            found.append(_published({**_recipe(row["id"], recipes), **row}))
        except (Undescribed, InputError) as error:
            refused.append((row["source"], str(error)))
    return found, refused


def _recipe(row: str, recipes: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Return the settings of a row; if missing, those of the release before it, or of the first one.

    If no release has any, GB300 takes those of GB200.
    """
    if row in recipes or not row.startswith("mbridge:"):
        return recipes.get(row, {})
    release, *of = row.split(":")[1:6]
    known = {each: each.split(":")[1:6] for each in recipes}
    if of not in [said[1:] for said in known.values()]:
        of[2] = of[2].replace("GB300", "GB200")
    alike = sorted((said[0], each) for each, said in known.items() if said[1:] == of)
    before = [each for number, each in alike if number < release]
    return recipes[before[-1] if before else alike[0][1]] if alike else {}


def _published(row: Mapping[str, str]) -> Published:
    training = _SOURCES[row["source"]](row)
    return Published(
        row["id"],
        row["source"],
        row["group"],
        f"{row['gpu']} {_precision(row)}",
        _step_ms(row, training),
        training,
        _memory(row, training),
        float(row["peer_prediction_ms"]) if row["peer_prediction_ms"] else None,
    )


def _precision(row: Mapping[str, str]) -> str:
    text = row["precision"].lower()
    if "mxfp8" in text or "fp8-mx" in text:
        return "mxfp8"
    return "fp4" if "fp4" in text else "fp8" if "fp8" in text else "bf16"


def _step_ms(row: Mapping[str, str], training: Training) -> float:
    if row["step_ms"]:
        return float(row["step_ms"])
    if row["tokens_per_s_per_gpu"]:
        return 1e3 * training.tokens / (float(row["tokens_per_s_per_gpu"]) * training.layout.ranks)
    return 1e3 * training.flops / (1e12 * float(row["model_tflops_per_gpu"]) * training.layout.ranks)


def _memory(row: Mapping[str, str], training: Training) -> tuple[float, ...]:
    """Return the peak of each pipeline rank, if the note lists all GPUs."""
    _, found, numbers = row["note"].partition("max_allocated_mb by rank:")
    if not found:
        return ()
    each, ranks = [float(number) / 1024 for number in numbers.split()], training.layout.pp
    share = len(each) // ranks
    return tuple(max(each[r * share : (r + 1) * share]) for r in range(ranks))


def _size(row: Mapping[str, str], key: str, default: int = 1) -> int:
    return int(row[key]) if row[key] else default


def _named(row: Mapping[str, str], **changes: Any) -> Architecture:
    name = _NAMES.get(_plain(row["model"]))
    if name is None:
        raise Undescribed(_NO_MODEL.get(row["model"], f"no sizes of {row['model']} are known here"))
    sizes = {**MODELS[name], **changes}
    if row["layers"]:
        sizes["layers"] = int(row["layers"])
    if sizes.get("dense_layers", 0) > 1 and sizes["layers"] < MODELS[name]["layers"]:
        sizes["dense_layers"] = 1
    return Architecture(**sizes)


_NO_MODEL: Final = {
    "Qwen3_235B_a22B (tokendrop)": "drops tokens, and does not print how many",
    "Qwen3_30B_a3B (tokendrop)": "drops tokens, and does not print how many",
}


def _layout(row: Mapping[str, str], **changes: Any) -> ParallelLayout:
    sizes: dict[str, Any] = {
        **{key: _size(row, key) for key in ("tp", "cp", "pp", "dp", "ep")},
        "chunks": _size(row, "vpp"),
        "sharding": "zero-1",
        "order": _MEGATRON_ORDER,
    }
    layout = ParallelLayout(**{**sizes, **changes})
    if layout.ranks != int(row["gpus"]):
        raise Undescribed(f"tp·cp·pp·dp = {layout.ranks} are not its {row['gpus']} GPUs")
    return layout


def _training(
    row: Mapping[str, str], model: Architecture, layout: ParallelLayout, **settings: Any
) -> Training:
    """Return the step of a row, whose sequence, micro-batch and batch it is unless `settings` say others."""
    sizes = {"sequence": int(row["seq"]), "micro_batch": _size(row, "mbs"), "batch": _size(row, "gbs")}
    return Training(model, layout, _PLACEHOLDER, **{**sizes, **settings})


def _simumax(row: Mapping[str, str]) -> Training:
    """Llama and DeepSeek on eight B200, Megatron-LM: nothing overlaps."""
    layout = _layout(row)
    batch = _size(row, "micro_batches") * layout.dp * _size(row, "mbs")
    kv = {"kv_heads": 16} if row["model"] == "llama3-405b" else {}  # as in their launcher, unlike Meta's
    return _training(row, _named(row, **kv), layout, batch=batch)


def _vtrain(row: Mapping[str, str]) -> Training:
    """GPT on A100, without sequence parallelism, all layers recomputed, gradients in one piece in fp16."""
    return _gpt(row, _layout(row, sharding="none", sequence_parallel=False), gradient_bytes=2)


def _gpt(row: Mapping[str, str], layout: ParallelLayout, **changes: Any) -> Training:
    sizes: dict[str, Any] = {name: int(row[name]) for name in ("layers", "hidden", "heads")}
    gpt = Architecture(**sizes, vocabulary=51200, positions=2048)
    unfused: dict[str, Any] = {"attention": "eager", "dropout": True, "transformer_engine": False}
    return _training(row, gpt, layout, **{**unfused, "recompute": "full", **changes})


def _megatron(row: Mapping[str, str]) -> Training:
    if row["sharding"] == "ZeRO-3":
        return _gpt(row, _layout(row, sharding="zero-3"), gradient_bytes=2)
    return _vtrain(row)


def _selective(row: Mapping[str, str]) -> Training:
    selective = row["recompute"].startswith("selective")
    layout = _layout(row, sharding="none", sequence_parallel=selective)
    return _gpt(row, layout, recompute="selective" if selective else "full")


def _mosaic(row: Mapping[str, str]) -> Training:
    return _training(
        row,
        _named(row, positions=int(row["seq"])),
        ParallelLayout(dp=int(row["gpus"]), sharding="fsdp"),
        recompute="full" if row["recompute"] == "full" else "none",
        gradient_bytes=2,
        transformer_engine=False,
    )


def _torchtitan(row: Mapping[str, str]) -> Training:
    if _size(row, "pp") > 1:
        raise Undescribed("does not print the schedule's micro-batches: 32 is the local batch")
    if "fp8" in row["precision"] and "rowwise" in row["precision"]:
        raise Undescribed(
            "fp8 products with a scale per row, in two layouts of one kind: no other to calibrate on"
        )
    layout = _layout(row, dp=_size(row, "dp"), sharding="fsdp")
    older = row["source"] == "torchtitan-2024-12" and "2025-06" not in row["options"]
    return _training(
        row,
        _named(row),
        layout,
        batch=_size(row, "gbs", _size(row, "mbs") * layout.dp),
        recompute="full" if row["recompute"] == "full" else "selective-op",
        gradient_bytes=2,
        transformer_engine=False,
        context="ring",
        loss="eager" if older else "compiled",
    )


def _llama(row: Mapping[str, str]) -> Training:
    if int(row["seq"]) > 8192:
        raise Undescribed("does not say which flop its TFLOP/s count; scores are more than half of them")
    layout = _layout(row, sharding="fsdp", chunks=4, order=ORDER)  # arXiv 2407.21783, section 3.3.2
    return _training(row, _named(row), layout, overlap=True)


def _further_tokens(row: Mapping[str, str]) -> int:
    """Return how many tokens a row predicts besides the next one.

    Recipes of Nemotron 3 Super and Ultra say two; DeepSeek-V3's give it in the pipeline's layout (``m``).
    """
    if row["model"] in ("Nemotron_3_Super", "Nemotron_3_Ultra"):
        return 2
    return int("(w/ MTP)" in row["model"] or "m" in row.get("pp_layout", ""))


def _stages(layout: str) -> tuple[int, ...]:
    """Return the layers of each stage from Megatron-LM's notation.

    >>> _stages("Et*4|(t*2|)*2tmL")
    (4, 2, 2, 1)
    """
    for what in (r"\(([^)]*)\)\*(\d+)", r"(\w)\*(\d+)"):
        layout = re.sub(what, lambda found: found[1] * int(found[2]), layout)
    return tuple(stage.count("t") for stage in layout.split("|")) if layout else ()


_NVFP4_SUPER: Final[Mapping[str, Any]] = {
    "wide_layers": (0, 14),
    "dtypes": {
        **dict.fromkeys(("qkv", "proj", "latent", "predicted"), "bf16"),
        "mamba_out": "mxfp8",
    },
}
"""Megatron Bridge, training/mixed_precision.py and perf_recipes/nemotronh/te_quant.cfg."""


_MISPRINTED: Final[Mapping[str, Mapping[str, str]]] = {
    **{
        f"mbridge:26.02.01:Pre-Training:LLAMA3_70B:DGX-GB300:{of}:64": {
            "mbs": "1",
            "pp": "4",
            "vpp": "5",
            "dp": "16",
        }
        for of in ("MXFP8", "NVFP4")
    },
    "mbridge:25.11:Pre-Training:GPT_OSS_120B:DGX-H100:BF16:64": {"mbs": "1"},
}
"""Rows whose printed layout needs more memory than their GPU has → layout in the release's recipes
(tags v0.2.0 and v0.3.1)."""


def _bridge(row: Mapping[str, str]) -> Training:
    row = {**row, **_MISPRINTED.get(row["id"], {})}
    model = _named(row, predicted=_further_tokens(row))
    domain = 64 if row["gpu"].startswith("GB") else 8
    ultra = row["model"] == "Nemotron_3_Ultra"
    fsdp = row["sharding"].startswith("FSDP") or ultra
    shard = 64 // _size(row, "tp") if ultra else 0
    layout = _layout(row, sharding="fsdp" if fsdp else "zero-1", node=domain, shard=shard)
    training = _training(row, model, layout, overlap=True)
    if training.micro_batches < layout.pp or (layout.chunks > 1 and training.micro_batches % layout.pp):
        raise Undescribed("fewer micro-batches than an interleaved schedule takes")
    if ultra:  # perf_recipes/nemotronh, tag v0.6.0
        row = {**row, "moe_flex_dispatcher_backend": "hybridep", "recompute_modules": "moe_act"}
    graphs = tuple(row.get("cuda_graph_scope", "").split())
    whole = "full_iteration" in (row.get("cuda_graph_impl"), *graphs)
    return replace(
        training,
        context="ring" if layout.cp > 1 else training.context,
        dispatcher=row.get("moe_flex_dispatcher_backend") or "all-to-all",
        expert_overlap=row.get("moe_a2a_overlap") == "True",
        tensor_overlap=row.get("tp_comm_overlap") == "yes" and layout.splits_sequence,
        offload_layers=int(row.get("cpu_offloading_num_layers") or 0) if training.parameters_apart else 0,
        offload=("moe_act",) if ultra else (),  # in experts, tensors above 350 or 500 million numbers
        partition=_stages(row.get("pp_layout", "")),
        recompute=tuple(row.get("recompute_modules", "").split()) or "none",
        gradient_bytes=2,  # default of its recipes
        lora={"qkv": 16} if "|LoRA" in row["group"] else {},  # llama3_llm_finetune.py
        cuda_graph=FULL_ITERATION if whole else graphs if row.get("cuda_graph_impl") != "none" else (),
        **(_NVFP4_SUPER if row["model"] == "Nemotron_3_Super" and "FP4" in row["precision"] else {}),
    )


_SOURCES: Final = {
    "simumax-b200-v1.2": _simumax,
    "vtrain-a100-multi": _vtrain,
    "mosaicml-llm-foundry": _mosaic,
    "megatron-2104.04473-T1": _megatron,
    "megatron-2104.04473-T2": _megatron,
    "megatron-2205.05198-T5": _selective,
    "torchtitan-2024-12": _torchtitan,
    "torchtitan-trainy-h200-2025-06": _torchtitan,
    "llama3-2407.21783-T4": _llama,
    "nemo-megatron-bridge": _bridge,
}
