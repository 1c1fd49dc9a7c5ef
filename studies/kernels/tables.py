"""Measured kernels as tables: a family, and for each GPU columns of sizes and nanoseconds.

DIR has the folders ``kernels`` and ``h200``, whose README gives the source of each file. Names of GPUs become
those of presets, and names of columns those of families. Products of DeepBench (training in fp16 on tensor
cores, cuBLAS 10.1, sizes as padded) are here, in ``gemm_deepbench.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from devices.cost.general_kernels import KINDS
from devices.cost.kernel_costs import load_fits
from devices.cost.kernel_fits import FAMILIES
from devices.cost.kernel_model import Family, Sheet, Sizes, take
from devices.cost.language_kernels import MOE_SIZES
from sim.base.arrays import FloatArray
from sim.base.errors import UnknownNameError

_PRESETS: Final = {
    "a100": "a100-sxm-80",
    "a100-sxm": "a100-sxm-80",
    "h100": "h100-sxm",
    "p100": "p100-pcie-16",
    "v100": "v100-sxm",
}
"""Presets of short names."""
FP32: Final = ("p100-pcie-16", "p4", "t4", "v100-pcie-32", "a100-pcie-40")
_PRODUCTS: Final = {"fp16": "products_few", "fp8_block": "products_coarse", "nvfp4": "products_coarse"}
FEW_LAYERS: Final = 22
"""Up to which the half width of a model depends on how near they are: of more, a layer left out is as near as
any row."""
HBM, GDDR = ("v100-pcie-32", "a100-pcie-40"), ("p4", "t4")


@dataclass(frozen=True)
class Rows:
    """Measured kernels of one GPU: sizes, nanoseconds, the least time that measuring can show (0: none),
    whether a kernel waits for that time, and which sizes are a layer's.
    """

    sizes: Sizes
    ns: FloatArray
    layer: Any
    floor_ns: Any = 0.0
    waits: bool = False
    shape: tuple[str, ...] = ()

    def layers(self) -> Sizes:
        """Return the sizes of the layers, a column a size of `shape`; none if they are many."""
        columns = [np.broadcast_to(self.sizes[name], len(self.ns)) for name in self.shape]
        found = np.unique(columns, axis=1) if columns else np.zeros((0, 0))
        return dict(zip(self.shape, found, strict=True)) if found.shape[1] <= FEW_LAYERS else {}

    def take(self, rows: Any) -> Rows:
        """Return the chosen rows."""
        floor = self.floor_ns[rows] if np.ndim(self.floor_ns) else self.floor_ns
        each = {"ns": self.ns[rows], "layer": self.layer[rows], "floor_ns": floor}
        return replace(self, sizes=take(self.sizes, rows), **each)


@dataclass(frozen=True, eq=False)
class Table:
    """One family in one data type.

    Attributes
    ----------
    name, dtype : str
    family : Family
    rows : mapping of str to Rows
        By preset.
    logs : tuple of str
        Columns of the local regression with which it is compared.
    lenders : callable or None
        GPUs whose rows an unmeasured GPU takes, in fits where each has its own fixed time; None: those of its
        generation, or the nearest, in one fit.
    stiff : mapping of str to float
        Penalties of that fit.
    fine : tuple of str
        GPUs whose grid has more knots.
    """

    name: str
    dtype: str
    family: Family
    rows: Mapping[str, Rows]
    logs: tuple[str, ...]
    lenders: Callable[[str], list[str]] | None = None
    stiff: Mapping[str, Any] = field(default_factory=dict)
    fine: tuple[str, ...] = ()

    def family_of(self, gpu: str) -> Family:
        """Return the family in the variant of a GPU."""
        return FAMILIES["products_fine"] if gpu in self.fine else self.family

    def sheet(self, gpu: str) -> Sheet:
        """Return a GPU's data sheet."""
        return load_fits(gpu).sheet

    def part(self, gpu: str) -> tuple[Rows, Sheet]:
        """Return the rows and the data sheet of a GPU."""
        return self.rows[gpu], self.sheet(gpu)


def _rows(
    d: pd.DataFrame, columns: tuple[str, ...], layer: tuple[str, ...], shape: str, text: str = ""
) -> Rows:
    sizes: dict[str, Any] = {c: d[c].to_numpy(float) for c in columns if c != text}
    if text in columns:
        sizes[text] = str(d[text].iloc[0])
    key = reduce(lambda a, b: a + "," + b, (d[name].astype(str) for name in layer)).to_numpy()
    floor = d.floor_ns.to_numpy(float) if "floor_ns" in d else 0.0
    return Rows(
        sizes,
        d.us.to_numpy(float) * 1e3,
        key,
        floor,
        "waits" in d,
        tuple(n for n in shape.split() if n in columns),
    )


def _table(
    name: str, dtype: str, family: str, d: pd.DataFrame, columns: str, layer: str, **more: Any
) -> Table:
    names, text = tuple(columns.split()), "direction" if "direction" in columns else ""
    shape = more.pop("shape", layer)
    by_gpu = {g: _rows(each, names, tuple(layer.split()), shape, text) for g, each in d.groupby("gpu")}
    found = {str(g): rows for g, rows in by_gpu.items()}
    more.setdefault("logs", tuple(c for c in names if c != text))
    return Table(name, dtype, FAMILIES[family], found, **more)


def preset_of(name: str) -> str:
    """Return the preset of a GPU by its name in the files.

    >>> preset_of("a100_sxm"), preset_of("Tesla V100-PCIE-32GB"), preset_of("l40s")
    ('a100-sxm-80', 'v100-pcie-32', 'l40s')
    """
    plain = name.lower().removesuffix("gb").replace("_", "-").replace(" ", "-")
    plain = plain.removeprefix("nvidia-").removeprefix("tesla-")
    return _PRESETS.get(plain, plain)


def _read(path: Path, **names: str) -> pd.DataFrame:
    d = pd.read_csv(path).rename(columns=names)
    if "gpu" in d:
        d["gpu"] = d.gpu.map({name: preset_of(name) for name in d.gpu.unique()})
    if "us" in d:
        d = d[d.us > 0].reset_index(drop=True)
    return d


def _bf16(d: pd.DataFrame) -> pd.DataFrame:
    return d.assign(dtype=d.dtype.replace({"bfloat16": "bf16", "w4a8_mxfp4_mxfp8": "mxfp4"}))


def _in_programs(products: pd.DataFrame) -> pd.DataFrame:
    """Return products as programs have them.

    DeepBench sums in fp16, which reaches 102.5 TFLOP/s on a V100, PyTorch in fp32: 94.8 and 94.9 at best
    (github.com/zzc0721/torch-performance-test-data, mli/transformers-benchmarks); on a T4 both reach 42.
    """
    us_per_flop = (products.gpu == "v100-sxm") * (1 / 94.9e6 - 1 / 102.5e6)
    return products.assign(us=products.us + 2 * products.m * products.n * products.k * us_per_flop)


def language_tables(data: Path) -> Iterator[Table]:
    """Return the tables of 16-, 8- and 4-bit kernels (ai-dynamo/aiconfigurator)."""
    here, h200 = data / "kernels", data / "h200"
    own = {"gpu": "h200-sxm", "dtype": "bf16"}
    d = pd.concat(
        [
            _read(here / "gemm_16_8_bit.csv.gz"),
            _read(here / "gemm_blackwell.csv.gz"),
            _read(h200 / "gemm_bf16.csv.gz", latency_us="us").assign(**own),
            _read(Path(__file__).with_name("gemm_deepbench.csv")),
        ],
        ignore_index=True,
    )
    for dtype, each in _bf16(d).groupby("dtype"):
        family = _PRODUCTS.get(str(dtype), "products")
        fine = () if dtype in _PRODUCTS else ("a100-sxm-80", "l40s")
        yield _table("products", str(dtype), family, _in_programs(each), "m n k", "n k", fine=fine)
    sizes = "batch seq_len heads kv_heads head_dim window"
    more = _read(
        h200 / "context_attention_bf16.csv.gz",
        batch_size="batch", isl="seq_len", num_heads="heads", num_key_value_heads="kv_heads",
        window_size="window", latency_us="us",
    ).assign(gpu="h200-sxm")  # fmt: skip
    prefill = pd.concat([_read(here / "attention_prefill.csv.gz"), more], ignore_index=True)
    layer = "heads kv_heads head_dim window"
    yield _table("prefill", "bf16", "attention_prefill", prefill, sizes, layer)
    yield _table("decode", "bf16", "attention_decode", _read(here / "attention_decode.csv.gz"), sizes, layer)
    d = _read(here / "encoder_attention.csv.gz", batch_size="batch", num_heads="heads")
    yield _table("encoder", "bf16", "attention_encoder", d, "batch seq_len heads head_dim", "heads head_dim")
    low = _read(
        here / "moe_low_bits.csv.gz",
        num_tokens="tokens", hidden_size="hidden", inter_size="intermediate", num_experts="experts",
        moe_tp_size="tp", moe_ep_size="ep",
    )  # fmt: skip
    d = pd.concat([_read(here / "moe.csv.gz").assign(dtype="bf16"), low], ignore_index=True)
    for dtype, each in _bf16(d).groupby("dtype"):
        family = "moe_low_bits" if dtype in ("fp8", "nvfp4") else "moe"
        yield _table("moe", str(dtype), family, each, MOE_SIZES, "hidden intermediate topk experts")
    mamba = _read(here / "mamba2.csv.gz", batch_size="batch")
    mamba["channels"] = mamba.nheads * mamba.head_dim + 2 * mamba.n_groups * mamba.d_state
    delta = _read(here / "gdn.csv.gz", batch_size="batch", num_v_heads="heads")
    delta["channels"] = delta.num_k_heads * delta.head_k_dim
    d = pd.concat([mamba, delta], ignore_index=True)
    d = d[d.kernel_source.str.startswith("causal")]
    d = d.drop_duplicates(["gpu", "kernel_source", "batch", "seq_len", "channels"])
    sizes, context = "batch seq_len channels", d.phase == "context"
    yield _table("conv1d", "bf16", "causal_conv1d", d[context], sizes, "channels")
    yield _table("conv1d_update", "bf16", "causal_conv1d_update", d[~context], sizes, "channels")
    ways = (
        ("gated_delta", "chunk", "gated_delta_chunk"),
        ("gated_delta_step", "fused", "gated_delta_step"),
    )
    for name, kernel, family in ways:
        each = delta[delta.kernel_source.str.startswith(kernel)]
        each = each.drop_duplicates(["gpu", "batch", "seq_len", "heads"])
        yield _table(name, "bf16", family, each, "batch seq_len heads", "heads")
    d = _read(here / "quantize.csv.gz")
    d = d[d.us > 0.2]  # 27 of 7,788 rows are differences of two timings, near nothing
    yield _table("quantize_scale", "fp8", "quantize", d[d.op_name == "compute_scale"], "m k", "k")
    yield _table("quantize", "fp8", "quantize", d[d.op_name == "scale_matrix"], "m k", "k")
    d = _read(
        here / "deepep.csv.gz",
        node_num="nodes", num_token="tokens", hidden_size="hidden", num_topk="topk", num_experts="experts",
    )  # fmt: skip
    for way in ("dispatch", "combine"):
        each = d.assign(sms=d[f"{way}_sms"], us=d[f"{way}_transmit_us"])
        sizes = "tokens hidden topk nodes sms experts"
        yield _table(f"deepep_{way}", "bf16", "deepep", each[each.us > 0], sizes, "hidden topk experts")


def _but(*gpus: str) -> Callable[[str], list[str]]:
    return lambda gpu: [g for g in gpus if g != gpu]


def _alike_tiles(gpu: str) -> list[str]:
    """Return the GPUs whose linear layers a GPU takes: those with the same library's tiles."""
    pascal = ("p100-pcie-16", "p4")
    return _but(*(pascal if gpu in pascal else ("t4", "v100-pcie-32", "a100-pcie-40")))(gpu)


def _alike_memory(gpu: str) -> list[str]:
    """Return the GPUs whose memory-bound loss a GPU takes: the newest with the same sort of memory."""
    if gpu == "p100-pcie-16":
        return [*GDDR, "v100-pcie-32"]
    return _but(*(GDDR if gpu in GDDR or gpu == "gddr" else HBM))(gpu)


def general_tables(data: Path) -> Iterator[Table]:
    """Return the tables in fp32 (NeuSight's training set), convolutions (DeepBench), and LLM ops (Vidur)."""
    here = data / "kernels"
    stiff, loose = {"smooth": 100.0, "ridge": 50.0}, {"smooth": 10.0, "ridge": 0.5}
    # The table calls the shared dimension N and the columns of the output K, as shown by its grids of thread
    # blocks: batch * ceil(K / tile) * ceil(M / tile) in every one of 87,000 bmm.
    d = _read(here / "fp32_matmul.csv.gz", B="batch", M="m", N="k", K="n")
    d["floor_ns"] = d.groupby(["gpu", "op"]).us.transform(lambda x: x.quantile(0.003)) * 1e3
    d["waits"] = True
    for op, lenders in (("bmm", _but(*FP32)), ("linear", _alike_tiles)):
        yield _table(op, "fp32", op, d[d.op == op], "batch m n k", "n k", lenders=lenders, stiff=stiff)
    e = _read(here / "fp32_elementwise.csv.gz", B="rows", H="columns")
    flat = e.groupby(["gpu", "op"]).us.transform(lambda x: x[x < 1.25 * x.quantile(0.02)].median())
    e["floor_ns"] = flat * 1e3
    e["elements"], e["operands"] = e["rows"] * e["columns"], e.op.isin(["add", "mul", "div", "pow"]) + 1
    names = {"softmax": "softmax", "ln": "layer_norm", "powu": "pow", "divu": "div"}
    kinds = e.op.replace(names)
    e["element_flops"] = [KINDS.get(kind, {}).get("flops", 2.0) for kind in kinds]
    rest, sizes = e[~e.op.isin(["softmax", "ln"])], "elements operands element_flops"
    own: dict[str, Any] = {"lenders": _alike_memory, "stiff": loose}
    yield _table("elementwise", "fp32", "elementwise", rest, sizes, "columns", **own)
    own["logs"], sizes = ("rows", "columns"), "rows columns element_flops"
    for name, op in (("softmax", "softmax"), ("layer_norm", "ln")):
        yield _table(name, "fp32", name, e[e.op == op], sizes, "columns", **own)
    yield from _convolutions(here)
    d = _read(here / "llm_ops_fp16.csv.gz").assign(dtype="fp16", element_flops=10.0)
    head, tp = d.n_embd / d.n_head, d.num_tensor_parallel_workers
    wide = d.n_head * head / tp + np.maximum(d.n_kv_head / tp, 1) * head
    inner = d.n_expanded_embd / tp
    d["rows"] = d.num_tokens
    d["columns"] = np.select([d.op == "attn_rope", d.op == "mlp_act"], [wide, inner], d.n_embd)
    d["tensors"] = np.where((d.op == "mlp_act") & d.use_gated_mlp, 3.0, 2.0)
    ops = {
        "embedding": "emb",
        "rms_norm": "input_layernorm",
        "rope": "attn_rope",
        "gated_activation": "mlp_act",
    }
    own["lenders"], sizes = _but("a100-sxm-80", "h100-sxm"), "rows columns tensors element_flops"
    for name, op in ops.items():
        yield _table(name, "fp16", "llm_rows", d[d.op == op], sizes, "model", shape="columns", **own)


def _convolutions(here: Path) -> Iterator[Table]:
    """Return convolutions by the algorithm that torch chooses (3x3, fp32), and by the fastest (DeepBench)."""
    sizes = "batch in_channels out_channels height width kernel_h kernel_w pad_h pad_w stride_h stride_w"
    sizes += " direction"
    layer = "in_channels out_channels height"
    d = _read(here / "fp32_conv.csv.gz", B="batch").assign(direction="forward")
    for square, pair in (("input_size", "height width"), ("kernel_size", "kernel_h kernel_w")):
        d = d.assign(**dict.fromkeys(pair.split(), d[square]))
    d = d.assign(pad_h=d.padding, pad_w=d.padding, stride_h=d.stride, stride_w=d.stride)
    lenders = _but("p100-pcie-16", "p4", "t4", "v100-pcie-32")
    logs, stiff = ("batch", "in_channels", "out_channels", "height"), {"smooth": 5.0, "ridge": 1.0}
    yield _table("conv_3x3", "fp32", "conv", d, sizes, layer, lenders=lenders, stiff=stiff, logs=logs)
    b = _read(
        here / "conv_deepbench.csv.gz",
        filters="out_channels",
        filter_height="kernel_h",
        filter_width="kernel_w",
    )
    every, loose = (*logs, "width", "kernel_h", "kernel_w"), {"smooth": 10.0, "ridge": 0.5}
    for dtype in ("fp32", "fp16"):
        for way in ("forward", "backward_data", "backward_weights"):
            part = b[b.dtype == dtype].assign(us=b[f"{way}_us"], direction=way).dropna(subset=["us"])
            gpus = ("p100-pcie-16", "v100-sxm") if dtype == "fp32" else ()  # in fp16 one has tensor cores
            more: dict[str, Any] = {"lenders": _but(*gpus), "stiff": loose, "logs": every}
            yield _table(f"conv_{way}", dtype, "conv_any", part, sizes, layer, **more)


def tables(data: Path, names: Sequence[str] | None = None) -> Iterator[Table]:
    """Return the tables of some names in a folder of data, or all."""
    known = set()
    for table in chain(language_tables(data), general_tables(data)):
        known.add(table.name)
        if not names or table.name in names:
            yield table
    if unknown := sorted({*(names or ())} - known):
        raise UnknownNameError("table", unknown[0], known)
