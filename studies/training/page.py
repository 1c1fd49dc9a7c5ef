"""The page of results: a table of all sources, memory, rows by layout, rows that cannot be described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

import numpy as np

from scenarios.builders.train.step import step_trace
from scenarios.workloads.train_report import train_report
from studies.training.judge import Error, Judged, Judgement, shipped
from studies.training.published import ASSUMED, Published

_HEAD = """# Training steps, predicted and measured

How far can `workload: {train: ...}` be trusted? This page compares its predictions with published
measurements (`cluster/training_steps.csv.gz`). `python -m studies.training DATA docs/clusters_training.md`
writes it; `tests/project/test_training_judged.py` has its goals.

No row was calibrated on itself: rows of one layout (the file's `group`) are left out together, and predicted
from the others. Errors are predicted / measured − 1. Two simpler rules compare: *constant MFU* is the median
MFU of the same other rows, and *formula* adds the pipeline's bubble, 1 + (p − 1)/(v·m). Below the first
tables, each source lists the layouts that are off by more than 10 % on average.

"""


_FAR = 0.1
"""Layouts with a larger error appear on the page; ``--only`` prints all of a source."""
_FAR_OFF = """## What is far off, and why

- **ZeRO-3 in Megatron's paper** is predicted a quarter to three fifths too fast. From 768 to 1,536 GPUs the
  predicted steps get shorter, the measured ones do not. Each product is gathered by itself: in the forward,
  again if its layer is recomputed, mostly once more in the backward. Work of hosts is left out: DeepSpeed
  of 2021 copies each rank's part by itself, 1,536 copies per gather. If every hop of a ring crossed nodes,
  these rows would be only a fifth to a third too fast, but only 191 of 1,535 hops of NCCL's ring do.
- **Megatron-LM's steps of 2021** are predicted 3 to 8 % too fast by a calibration on vTrain's rows. For
  GPT-3 175B on the same GPU the two sources are 6 % apart, whatever the calibration.
- **Llama 3's steps** are predicted 3 to 13 % too slow: how much a collective slows the computation beside
  it is taken from MosaicML's eager programs.
- **Megatron Bridge, dense models**: nothing was fitted to these steps. Releases of the software differ by
  up to 25 % on one layout, and all get the same prediction. Products for GB300 and B300 were measured on
  GB200 and B200 and are faster by the ratio of power (1,400 W to 1,200, 1,100 to 1,000; data sheets), which
  limits large products. Without that, GB300's dense steps would be 15 % too slow. Three rows (two of Llama
  3 70B on GB300, one of gpt-oss on H100) print a layout that needs more memory than their GPU has; they
  take that of the release's recipes. LoRA is predicted a tenth too fast on GB200 and GB300; which sequences
  a pack holds is not printed.
- **DeepSeek-V2 on B200** is predicted 7 to 9 % too fast. Routing with a capacity sorts and scatters tokens
  in kernels whose times the system file lacks. Predicted memory is 0.3 GiB too low for each micro-batch in
  flight; one more copy of a layer's queries would explain it.
- **Qwen3 and DeepSeek-V3 in Megatron Bridge** have a recipe for each row: dispatcher, overlaps, CUDA
  graphs. The host's cost of launches, three numbers for all GPUs, was chosen on these rows by hand. Chosen
  among 36 candidates on the other models, it leaves a model 9.1 % off (4.5 % at the median); chosen on the
  other GPUs, a GPU 6.4 % (`--only bridge_left_out`). Attention in fp8 and fused grouped products are left
  out. DeepEP and HybridEP send tokens as they are; here they copy them first, as an all-to-all does. The
  copy stands for what both take besides their kernels: 30 to 110 us per call on GB200 by HybridEP's own
  figures (deepseek-ai/DeepEP, branch hybrid-ep), and more. Without it these steps would be 3 % faster, and
  too fast. Two layouts of Qwen3 30B on H100 (pp 2) took 1.8 times as long in one release as in the next;
  their recipe is unknown.
- **Nemotron 3**: Mamba-2's scan was not measured, but the gated delta rule was. A flop of the scan takes
  1.4 times as long, according to published steps of Mamba-2 on other GPUs: its kernels read and write
  memory. Its backward has 2.7 times the flop of its forward. With equally long flop and twice the forward,
  steps would be a sixth too fast. With NVFP4 they are a tenth too fast on GB200: quantizing with Hadamard
  transforms was not measured.
- **gpt-oss** runs kernels that Megatron Core does not fuse: biases of experts, clamps of gates, YaRN's
  scaled positions. Without them it would be a third too fast. In MXFP8 it is 7 % too fast on GB300, 18 % on
  B300. In bf16 Transformer Engine has the products that give the gradients of experts' weights also sum the
  gradient of the bias (CUBLASLT_EPILOGUE_BGRADB); in low precision it sums as it quantizes. No such product
  is measured. On H100, B300 and GB300, steps look as if these products took four to five times as long; at
  their usual time steps would be 16 to 28 % too fast. So one factor for all GPUs (5) was chosen on these
  rows; chosen without those of a GPU, it leaves them 11.9 % off (`--only bridge_biases_left_out`). Two rows
  are outliers: 26.06.01 on GB300 took 1.6 times as long as others of its layout, and 26.02 on B300, with ep
  64, 1.8 times as long as those with ep 8.
- **MosaicML's smallest models**, and its rows with one or two samples per GPU, depend most on the gaps
  between kernels and on how much a collective slows what runs beside it. Each is a single number here.

"""


def page(
    judgements: Sequence[Judgement],
    rows: Sequence[Published],
    memory: Sequence[tuple[Published, int, float, float]],
) -> str:
    """Return the page as Markdown."""
    parts = [_HEAD, summary(judgements), _memory(memory)]
    parts += [source_rows(each, _FAR) for each in judgements]
    parts += [_bridge(judgements), _where(rows), _FAR_OFF]
    parts.append(_undescribed(rows))
    return "".join(parts)


def _percent(share: float, sign: bool = False) -> str:
    return f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n\n"


def _cells(error: Error) -> list[str]:
    return [_percent(error.mean), _percent(error.median), _percent(error.bias, True), _percent(error.worst)]


def summary(judgements: Sequence[Judgement]) -> str:
    """Return the table of sources."""
    rows = []
    for each in judgements:
        naive = each.error(lambda one: one.constant), each.error(lambda one: one.formula)
        rows.append(
            [
                each.title,
                str(len(each.judged)),
                *_cells(each.error(lambda one: one.predicted)),
                *(f"{_percent(error.mean)} ({_percent(error.median)})" for error in naive),
            ]
        )
    head = ("source", "rows", "mean error", "median", "bias", "worst", "constant MFU", "formula")
    text = "## All sources\n\n" + _table(head, rows)
    text += "The last two columns are mean (median) errors of the simpler rules.\n\n"
    own = [one for each in judgements for one in each.judged if one.row.peer_ms is not None]
    if own:
        peer = Error.of([one.row.peer_ms or 0.0 for one in own], [one.row.step_ms for one in own])
        text += "SimuMax's own predictions of its rows: "
        text += f"mean {_percent(peer.mean)}, bias {_percent(peer.bias, True)}.\n\n"
    return text


def _memory(found: Sequence[tuple[Published, int, float, float]]) -> str:
    """Return the memory of one row of each layout: it does not depend on the number of micro-batches."""
    if not found:
        return ""
    seen: dict[tuple[str, int], list[str]] = {}
    for row, rank, predicted, measured in found:
        label = row.group.rpartition("|")[2]
        line = [
            label,
            str(rank),
            f"{predicted:.2f}",
            f"{measured:.2f}",
            f"{100 * (predicted / measured - 1):+.2f} %",
        ]
        seen.setdefault((label, rank), line)
    off = np.array([predicted / measured - 1 for _, _, predicted, measured in found])
    head = ("layout", "pipeline rank", "predicted GiB", "measured GiB", "error")
    return (
        "## Memory of each rank (SimuMax's B200 cases)\n\n"
        + _table(head, list(seen.values()))
        + f"Mean error {100 * np.abs(off).mean():.2f} %, bias {100 * off.mean():+.2f} %; "
        + "nothing was calibrated.\n\n"
    )


def source_rows(judgement: Judgement, least: float = 0.0) -> str:
    """Return the rows of a judgement, by group, for groups whose mean error is at least `least`."""
    groups: dict[str, list[float]] = {}
    for one in judgement.judged:
        label = one.row.group.partition("|")[2] or one.row.group
        groups.setdefault(label.replace("|", " "), []).append(one.predicted / one.row.step_ms - 1)
    rows = [
        [label, str(len(off)), ", ".join(_percent(each, True) for each in off)]
        for label, off in groups.items()
        if sum(map(abs, off)) >= least * len(off)
    ]
    text = f"## {judgement.title}\n\nCalibrated on: {judgement.how}.\n"
    sources = sorted({one.row.source for one in judgement.judged})
    for source in sources:
        if source in ASSUMED:
            text += f"Assumed: {ASSUMED[source]}.\n"
    text += f"{judgement.beside}.\n" if judgement.beside else ""
    if not rows:
        return text + f"No layout is off by more than {100 * least:.0f} % on average.\n\n"
    return text + "\n" + _table(("layout", "rows", "errors"), rows)


def _bridge(judgements: Sequence[Judgement]) -> str:
    """Return the errors of Megatron Bridge's rows by model, GPU and precision."""
    groups: dict[tuple[str, ...], list[Judged]] = {}
    for one in (one for each in judgements for one in each.judged if one.row.source == _BRIDGE):
        _, gpu, model, task = one.row.group.split("|")
        what = f"{model.replace('_', ' ')}{'' if task == 'Pre-Training' else f', {task}'}"
        of = gpu.removeprefix("DGX-"), one.row.hardware.rpartition(" ")[2].replace("fp4", "nvfp4")
        groups.setdefault((what, *of), []).append(one)
    rows = []
    for key in sorted(groups):
        error = Error.of([one.predicted for one in groups[key]], [one.row.step_ms for one in groups[key]])
        rows.append([*key, str(error.rows), _percent(error.mean), _percent(error.bias, True)])
    if not rows:
        return ""
    head = ("model", "GPU", "precision", "rows", "mean error", "bias")
    every = [one for of in groups.values() for one in of]
    told = [
        f"- {what}: {_percent(right / pairs)} of {pairs:,} pairs (constant MFU: {_percent(naive / pairs)})\n"
        for what, (pairs, right, naive) in (
            ("one model", faster(every, lambda row: row.training and row.training.model)),
            (
                "one model on one GPU in one precision",
                faster(every, lambda row: (row.hardware, row.training and row.training.model)),
            ),
        )
    ]
    return (
        "## Megatron Bridge by model, GPU and precision\n\n"
        + _table(head, rows)
        + "How often is the faster of two rows found, if their tokens/s per GPU differ by more than 10 %?\n\n"
        + f"{''.join(told)}\n"
    )


def faster(judged: Sequence[Judged], alike: Callable[[Published], object]) -> tuple[int, int, int]:
    """Return how many pairs of rows alike differ by more than a tenth in tokens/s per GPU, and for how many
    the prediction, and constant MFU, are right about which is faster.
    """
    found = Counter[str]()
    groups: dict[object, list[tuple[float, float, float]]] = {}
    for one in judged:
        assert one.row.training is not None
        each = one.row.training.tokens / one.row.training.layout.ranks
        rates = each / one.row.step_ms, each / one.predicted, each / one.constant
        groups.setdefault(alike(one.row), []).append(rates)
    for a, b in (pair for of in groups.values() for pair in combinations(of, 2)):
        if max(a[0] / b[0], b[0] / a[0]) > 1.1:
            found["pairs"] += 1
            found["right"] += (a[0] > b[0]) == (a[1] > b[1])
            found["naive"] += (a[0] > b[0]) == (a[2] > b[2])
    return found["pairs"], found["right"], found["naive"]


_BRIDGE: Final = "nemo-megatron-bridge"
_SHOWN: Final = (
    "mbridge:26.04:Pre-Training:LLAMA3_70B:DGX-GB200:MXFP8:64",
    "mbridge:26.04:Pre-Training:Qwen3_235B_a22B:DGX-GB200:MXFP8:256",
)
"""A dense model and one with experts, whose steps are broken down."""

_PARTS: Final[Mapping[str, str]] = {
    "products": "products",
    "attention": "attention",
    "passes": "passes over memory",
    "quantizing": "quantizing",
    "host": "waits for launches",
    "exposed_in_layers": "exposed communication inside layers",
    "exposed_around": "exposed communication between layers",
    "optimizer": "optimizer",
    "waits": "waits for other ranks",
    "hidden": "(hidden communication, in addition)",
}

_GUIDE: Final = """What is hidden? Megatron Bridge's performance guide (docs/performance-guide.md) says:

- *Parameters are gathered beside the first forward, gradients scattered beside the last backward; with a
  virtual pipeline, beside several.* The same here.
- *Tensor parallelism communicates beside products; if a product's output is scattered, a last part is
  exposed.* Llama 3 70B has this on, in 8 bits as rings of copy engines, without a last part. Exposed inside
  layers are messages longer than the product beside them, and what sums of gradients take from products.
- *Pipeline sends overlap with computation in the steady state, not during fill and drain.* Here those are
  waits for other ranks.
- *The exchange of experts hides only beside another micro-batch (1F1B overlap).* Qwen3 235B runs without
  that, so all of it is exposed inside layers.
"""


def _where(rows: Sequence[Published]) -> str:
    """Return the breakdown of the steps of two rows, on the first pipeline rank."""
    shares: dict[str, list[str]] = {what: [] for what in _PARTS}
    head = ["part of the step"]
    for row in (row for name in _SHOWN for row in rows if row.id == name):
        assert row.training is not None
        of = replace(row.training, calibration=shipped(row.hardware))
        report = train_report(step_trace(of), of, of.schedule)
        head.append(f"{row.group.split('|')[2].replace('_', ' ')}, {row.hardware}")
        for what, said in shares.items():
            said.append(_percent(report["ranks"][0]["time_ns"].get(what, 0) / report["step_ns"]))
    table = _table(head, [[_PARTS[what], *said] for what, said in shares.items()])
    return f"## Where a step goes\n\n{table}{_GUIDE}\n"


def _undescribed(rows: Sequence[Published]) -> str:
    reasons = Counter((row.source, row.reason) for row in rows if row.training is None)
    lines = [[source, str(count), reason] for (source, reason), count in sorted(reasons.items())]
    return (
        "## Rows that cannot be described\n\n" + _table(("source", "rows", "why"), lines).rstrip("\n") + "\n"
    )
