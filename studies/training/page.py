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

This page is for users who want to know how far to trust `workload: {train: ...}`. It is made by
`python -m studies.training DATA docs/clusters_training.md` from published measurements
(`cluster/training_steps.csv.gz`); `tests/project/test_training_judged.py` holds the goals.

No row was calibrated on itself: rows of one layout (the file's `group`) are left out together, and predicted
from what the others say. Below the first tables stand the layouts that are off by more than 10 % on average.
*Constant MFU* is the median MFU of the same other rows; *formula* is that with the pipeline's bubble,
1 + (p − 1)/(v·m). Errors are predicted / measured − 1.

"""


_FAR = 0.1
"""Layouts that are further off than this stand in the page; ``--only`` prints all of a source."""
_FAR_OFF = """## What is far off, and why

- **ZeRO-3 in Megatron's paper** is predicted a quarter to three fifths too fast. Its steps do not get
  shorter from 768 to 1,536 GPUs, and the predicted ones do. Each product is gathered by itself, in the
  forward, again where the layer is recomputed, and mostly once more in the backward. Left out is what hosts
  do: DeepSpeed of 2021 copies the part of each rank by itself, 1,536 copies a gather. These rows came out a
  fifth to a third too fast while every hop of a ring was taken for one between nodes, which is a wrong
  reason: of the 1,535 hops of NCCL's ring 191 are.
- **Megatron-LM's steps of 2021** are predicted 3 to 8 % too fast by what vTrain's rows say. Of GPT-3 175B
  on the same GPU the two sources are 6 % apart, whatever calibrates them.
- **Llama 3's steps** come out 3 to 13 % too slow: what a collective costs what runs beside it is taken from
  MosaicML's eager programs.
- **Megatron Bridge, dense models**: nothing was fitted to these steps. The same layouts are up to 25 %
  apart between releases of the software, and the prediction is one. Products of GB300 and B300 were measured
  on GB200 and B200: they are taken for faster as those have less power (1,400 W to 1,200, 1,100 to 1,000;
  data sheets), as large ones are bound by it. Without that GB300's dense steps come out 15 % too
  slow. Three rows (two of Llama 3 70B on GB300, one of gpt-oss on H100) print a layout that needs more memory
  than their GPU has: they take that of the release's recipes. Adapters come out a tenth too fast on GB200 and
  GB300; what packs of sequences hold is not printed.
- **DeepSeek-V2 on B200** is predicted 7 to 9 % too fast. Routing with a capacity sorts and scatters tokens in
  kernels that the system file has no times of. Its memory is short of 0.3 GiB for each micro-batch in flight;
  one more copy of a layer's queries would explain it.
- **Qwen3 and DeepSeek-V3 in Megatron Bridge** have a recipe a row: dispatcher, overlaps, CUDA graphs.
  What launches cost the host was chosen on them, by hand: three numbers for all GPUs. Chosen of 36 on the
  rows of the other models, they leave each at 9.1 % (4.5 % at the median), on those of the other GPUs at
  6.4 % (`--only bridge_left_out`). Left out are attention in fp8 and fused grouped products.
  DeepEP and HybridEP send tokens as they are, and here copy them first, as an all-to-all does: without that
  copy these steps come out 3 % faster, and too fast. It stands for what both take besides their kernels,
  30 to 110 us a call on GB200 by HybridEP's own figures (deepseek-ai/DeepEP, branch hybrid-ep), and more. Two
  layouts of Qwen3 30B on H100 (pp 2) took 1.8 times as long in one release as in the next,
  and their recipe is not known.
- **Nemotron 3** came out a sixth too fast while Mamba-2's scan took as long a flop as the gated delta rule,
  which was measured, and twice its forward to go back. Backward it does 2.7 times as much, and its kernels
  read and write memory; published steps of Mamba-2 on other GPUs say 1.4 times as long a flop. With NVFP4 it
  is still a tenth too fast on GB200: quantizing with Hadamard transforms was not measured.
- **gpt-oss** came out a third too fast before kernels were there that Megatron Core does not fuse: biases of
  experts, clamps of gates, YaRN's scaled positions. In MXFP8 it is 6 % too fast. In bf16 it was 16 to 28 %:
  on H100, B300 and GB300 alike as if products that give gradients of experts' weights took four to five times
  as long. Transformer Engine has the gradient of a bias summed in them (CUBLASLT_EPILOGUE_BGRADB) in 16 bits,
  and as it quantizes otherwise. No kernel of it is measured, so one number for all GPUs (5) is chosen on
  these rows; chosen without those of a GPU, it leaves them 11.9 % off (`--only bridge_biases_left_out`). Two
  rows, of 26.02 on B300 and of 26.06.01 on GB300, took almost twice as long as others of their layout.
- **MosaicML's smallest models** and its rows with one or two samples a GPU depend most on the gaps between
  kernels and on how much a collective disturbs what runs beside it: one number each stands for them.

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
    text += "The last two columns are mean (median) errors of the rules that know less.\n\n"
    own = [one for each in judgements for one in each.judged if one.row.peer_ms is not None]
    if own:
        peer = Error.of([one.row.peer_ms or 0.0 for one in own], [one.row.step_ms for one in own])
        text += "SimuMax's own predictions of its rows: "
        text += f"mean {_percent(peer.mean)}, bias {_percent(peer.bias, True)}.\n\n"
    return text


def _memory(found: Sequence[tuple[Published, int, float, float]]) -> str:
    """Return the memory of one row of each layout: it does not depend on how many micro-batches follow."""
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
    """Return the rows of a judgement, by group: of groups whose mean error is at least this."""
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
        + "Of two rows that differ by more than 10 % in tokens/s a GPU, the faster one is found:\n\n"
        + f"{''.join(told)}\n"
    )


def faster(judged: Sequence[Judged], alike: Callable[[Published], object]) -> tuple[int, int, int]:
    """Return how many pairs of rows alike differ by more than a tenth in tokens/s a GPU, and of how many the
    prediction, and constant MFU, say which one is faster.
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
"""A dense model and one with experts, whose steps are taken apart."""

_PARTS: Final[Mapping[str, str]] = {
    "products": "products",
    "attention": "attention",
    "passes": "passes over memory",
    "quantizing": "quantizing",
    "host": "waits for launches",
    "exposed_in_layers": "messages inside layers that nothing hides",
    "exposed_around": "messages between layers that nothing hides",
    "optimizer": "optimizer",
    "waits": "waits for other ranks",
    "hidden": "(messages beside all of these)",
}

_GUIDE: Final = """Megatron Bridge's performance guide (docs/performance-guide.md) says what is hidden:

- *Parameters are gathered beside the first forward, gradients scattered beside the last backward; with a
  virtual pipeline beside several.* Here, too.
- *Tensor parallelism passes beside products; of a product whose output is scattered a last part shows.* Llama
  3 70B has it on, in 8 bits as rings of copy engines, of which no part is last: inside layers shows what
  lasts longer than the product beside it, and what sums of gradients take from products.
- *Sends of the pipeline pass beside computation in the steady state, not as it fills and drains.* Here they
  are in the waits for other ranks.
- *The exchange of experts hides only beside another micro-batch (1F1B overlap).* Qwen3 235B runs without: all
  of it shows inside layers.
"""


def _where(rows: Sequence[Published]) -> str:
    """Return where the steps of two rows go, on the first pipeline rank."""
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
