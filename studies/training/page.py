"""The page of results: the text of ``page.md`` around tables of all sources, memory, and rows by layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from string import Template
from typing import Final

import numpy as np

from scenarios.builders.train.step import step_trace
from scenarios.workloads.train_report import train_report
from sim.base.arrays import group_pairs
from studies.program import markdown_table
from studies.training.judge import Error, Judged, Judgement, shipped
from studies.training.published import ASSUMED, Published

_FAR = 0.1
"""Layouts with a larger error appear on the page; ``--only`` prints all of a source."""


def page(
    judgements: Sequence[Judgement],
    rows: Sequence[Published],
    refused: Sequence[tuple[str, str]],
    memory: Sequence[tuple[Published, int, float, float]],
) -> str:
    """Return the page as Markdown."""
    template = Template(Path(__file__).with_name("page.md").read_text(encoding="utf-8"))
    tables = {
        "summary": summary(judgements),
        "memory": _memory(memory),
        "assumed": "".join(f"- `{source}`: {assumed}.\n" for source, assumed in ASSUMED.items()),
        "sources": "".join(source_rows(each, _FAR) for each in judgements),
        "bridge": _bridge(judgements),
        "where": _where(rows),
        "undescribed": _undescribed(refused),
    }
    return template.substitute({name: text.rstrip("\n") for name, text in tables.items()})


def _percent(share: float, sign: bool = False) -> str:
    return f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"


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
    text = "## All sources\n\n" + markdown_table(head, rows)
    text += "\nThe last two columns are mean (median) errors of the simpler rules.\n\n"
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
        + markdown_table(head, list(seen.values()))
        + f"\nMean error {100 * np.abs(off).mean():.2f} %, bias {100 * off.mean():+.2f} %; "
        + "nothing was calibrated.\n\n"
    )


def source_rows(judgement: Judgement, least: float = 0.0) -> str:
    """Return the rows of a judgement, by group, for groups whose mean error is at least `least`."""
    groups = group_pairs(
        (one.row.group.partition("|")[2] or one.row.group, one.predicted / one.row.step_ms - 1)
        for one in judgement.judged
    )
    rows = [
        [label.replace("|", " "), str(len(off)), ", ".join(_percent(each, True) for each in off)]
        for label, off in groups.items()
        if sum(map(abs, off)) >= least * len(off)
    ]
    text = f"## {judgement.title}\n\nCalibrated on: {judgement.how}.\n"
    text += f"{judgement.beside}.\n" if judgement.beside else ""
    if not rows:
        return text + f"No layout is off by more than {100 * least:.0f} % on average.\n\n"
    return f"{text}\n{markdown_table(('layout', 'rows', 'errors'), rows)}\n"


def _bridge(judgements: Sequence[Judgement]) -> str:
    """Return the errors of Megatron Bridge's rows by model, GPU and precision."""
    every = [one for each in judgements for one in each.judged if one.row.source == _BRIDGE]
    if not every:
        return ""
    rows = []
    for key, of in sorted(group_pairs((_kind(one.row), one) for one in every).items()):
        error = Error.of([one.predicted for one in of], [one.row.step_ms for one in of])
        rows.append([*key, str(error.rows), _percent(error.mean), _percent(error.bias, True)])
    head = ("model", "GPU", "precision", "rows", "mean error", "bias")
    told = [
        f"- {what}: {_percent(right / pairs)} of {pairs:,} pairs (constant MFU: {_percent(naive / pairs)})\n"
        for what, (pairs, right, naive) in (
            ("one model", faster(every, lambda row: row.training.model)),
            (
                "one model on one GPU in one precision",
                faster(every, lambda row: (row.hardware, row.training.model)),
            ),
        )
    ]
    return (
        "## Megatron Bridge by model, GPU and precision\n\n"
        + markdown_table(head, rows)
        + "\n"
        + "How often is the faster of two rows found, if their tokens/s per GPU differ by more than 10 %?\n\n"
        + f"{''.join(told)}\n"
    )


def _kind(row: Published) -> tuple[str, str, str]:
    """Return model, GPU and precision of a row of Megatron Bridge."""
    _, gpu, model, task = row.group.split("|")
    what = f"{model.replace('_', ' ')}{'' if task == 'Pre-Training' else f', {task}'}"
    return what, gpu.removeprefix("DGX-"), row.hardware.rpartition(" ")[2].replace("fp4", "nvfp4")


def faster(judged: Sequence[Judged], alike: Callable[[Published], object]) -> tuple[int, int, int]:
    """Return how many pairs of rows alike differ by more than a tenth in tokens/s per GPU, and for how many
    the prediction, and constant MFU, are right about which is faster.
    """
    found = Counter[str]()
    groups: dict[object, list[tuple[float, float, float]]] = {}
    for one in judged:
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


def _where(rows: Sequence[Published]) -> str:
    """Return the breakdown of the steps of two rows, on the first pipeline rank."""
    shares: dict[str, list[str]] = {what: [] for what in _PARTS}
    head = ["part of the step"]
    for row in (row for name in _SHOWN for row in rows if row.id == name):
        of = replace(row.training, calibration=shipped(row.hardware))
        report = train_report(step_trace(of), of, of.schedule, None)
        head.append(f"{row.group.split('|')[2].replace('_', ' ')}, {row.hardware}")
        for what, said in shares.items():
            said.append(_percent(report["ranks"][0]["time_ns"].get(what, 0) / report["step_ns"]))
    return markdown_table(head, [[_PARTS[what], *said] for what, said in shares.items()])


def _undescribed(refused: Sequence[tuple[str, str]]) -> str:
    lines = [[source, str(count), reason] for (source, reason), count in sorted(Counter(refused).items())]
    return markdown_table(("source", "rows", "why"), lines)
