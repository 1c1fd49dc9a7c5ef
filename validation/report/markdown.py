"""The report as Markdown: one table for all experiments, then one section each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def to_markdown(report: Mapping[str, Any], figures: Sequence[str] = ()) -> str:
    """Return the report as Markdown.

    Parameters
    ----------
    report : mapping
        Result of `validation.report.experiment_report.report`.
    figures : sequence of str
        Names of image files beside the report.
    """
    date = report["calibrated"].get("date", "")
    lines = [
        f"# Simulated against measured: {report['device']}",
        "",
        f"Backend `{report['backend']}`, calibrated {date}. Every quiet run counts; none is dropped. "
        "*Prediction*: simulated with a calibration that never saw the graph. *Replay*: simulated with the "
        "durations and decisions of the measured run. *Noise floor*: the median of the other runs of the "
        "same case as predictor. Errors are of makespans, mean / maximum.",
        "",
        "| experiment | cases | runs | prediction | bias | replay | noise floor | tau | ratio | regret "
        "| verdict |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
        *[_row(result) for result in report["experiments"]],
        "",
    ]
    lines += [f"![{name}]({name})" for name in figures]
    for result in report["experiments"]:
        lines += ["", *_section(result)]
    lines += ["", "## Provenance", ""]
    lines += [f"- {key}: {value}" for key, value in report["calibrated"].items()]
    lost = report.get("not_calibrated", {})
    if lost:
        lines += ["", "## Not calibrated", "", *(f"- {block}: {why}" for block, why in lost.items())]
    return "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _row(result: Mapping[str, Any]) -> str:
    """Return a row of the table: for an experiment not run, one about bytes, or one about time."""
    m, verdict = result.get("metrics"), result["status"]
    if m is None:
        cells = [result.get("cases", 0), 0, *[""] * 7, f"{verdict}: {result['why']}"]
    elif "memory" in result:
        rows = result["memory"]
        cells = [len({row["case"] for row in rows}), len(rows), *[""] * 7, f"{verdict}: {_bytes(m)}"]
    else:
        prediction, replay, floor = (
            f"{_percent(m.get(f'{name}.mean'))} / {_percent(m.get(f'{name}.max'))}"
            for name in ("prediction", "replay", "floor")
        )
        noise = " (indistinguishable from noise)" if m["prediction.mean"] <= m["floor.mean"] else ""
        lost = len(result["inconclusive"])
        verdict += f": {result['why']}" if result["why"] else ""
        verdict += f", {lost} cases inconclusive" if lost else ""
        verdict += "" if result["predicted_before_measuring"] else ", predicted after measuring"
        tau, ratio, regret = (m.get(name) for name in ("tau.mean", "ratio.max", "regret.max"))
        cells = [
            result["cases"] - lost, int(m["prediction.n"]), f"{prediction}{noise}",
            _percent(m["prediction.bias"]), replay, floor, "nan" if tau is None else f"{tau:.3f}",
            _percent(ratio), _percent(regret), verdict,
        ]  # fmt: skip
    return f"| {' | '.join(map(str, [result['experiment'], *cells]))} |"


def _section(result: Mapping[str, Any]) -> list[str]:
    m = result.get("metrics")
    lines = [f"## {result['experiment']}", ""]
    if m is None:
        return [*lines, f"Inconclusive: {result['why']}."]
    if "memory" in result:
        return [*lines, *_memory(result)]
    goals = ", ".join(f"{name} <= {bound:g}" for name, bound in result["goals"].items()) or "none"
    lines += [f"Goals: {goals}. Rejected runs: {result['runs_rejected']}.", ""]
    naive = {
        k.removeprefix("naive ").removesuffix(".mean"): v for k, v in m.items() if k.startswith("naive ")
    }
    lines += ["| predictor | mean error |", "|---|--:|", f"| simulation | {_percent(m['prediction.mean'])} |"]
    lines += [f"| {name} | {_percent(value)} |" for name, value in naive.items()]
    lines += [
        "",
        f"With the decisions of the measured run, the prediction error is {_percent(m['decided.mean'])}. "
        "Pairs of ops that started in the other order, more than 2 % of the makespan apart: "
        f"{int(m['inversions'])}.",
    ]
    if result["groups"]:
        lines += [
            "",
            "| group | predicted, ms | measured, ms | error of the ratio | tau | regret |",
            "|---|---|---|--:|--:|--:|",
        ]
        for group in result["groups"]:
            shown = [_times(group["labels"], group[key]) for key in ("predicted_ns", "measured_ns")]
            lines.append(
                f"| {group['group']} | {shown[0]} | {shown[1]} | {_percent(group.get('ratio'))} | "
                f"{group['tau']:.2f} | {_percent(group['regret'])} |"
            )
    lines += [f"\n{entry['case']} is inconclusive: {entry['why']}." for entry in result["inconclusive"]]
    return lines


def _bytes(m: Mapping[str, Any]) -> str:
    """Return in how many steps the bytes differ."""
    differ = (f"{what} bytes differ in {int(m[f'{what}.mismatches'])}" for what in ("allocated", "reserved"))
    return f"{', '.join(differ)} of {int(m['steps'])} steps"


def _memory(result: Mapping[str, Any]) -> list[str]:
    """Return the section of an experiment about bytes: nothing in it takes time, so nothing is noise."""
    lines = [
        "Bytes that the device's allocator has allocated and reserved after every step, against its model.",
        "",
        "| program | steps | allocated differs | reserved differs | reserved, largest difference |",
        "|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['case']} | {row['steps']} | {row['allocated.mismatches']} | {row['reserved.mismatches']} | "
        f"{_percent(row['reserved.max'])} of the peak |"
        for row in result["memory"]
    ]
    if result["why"]:
        lines += ["", f"The first difference: {result['why']}."]
    lines += [f"\n{entry['case']} was not run: {entry['why']}." for entry in result["inconclusive"]]
    return lines


def _times(labels: Sequence[str], times_ns: Sequence[float]) -> str:
    return ", ".join(f"{label} {ns / 1e6:.2f}" for label, ns in zip(labels, times_ns, strict=True))
