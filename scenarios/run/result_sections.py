"""Sections of a result below the table of its devices, and notes, as lines and rows to print or to show.

::

    lines            33 ranks, 4 stages, ...        `sim.export.tables` provides what precedes them for
    rows             rank   span   ...              every run: a line about the makespan, a row per device
    notes            ...
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from policies.streams import SingleStream
from scenarios.expectations import Outcome
from scenarios.recorded.durations import is_of_model
from scenarios.training_run.plan import STATES, TrainingPlan
from sim.base import plugins
from sim.base.arrays import UNSET, group_pairs
from sim.base.errors import list_names
from sim.base.intervals import most_in_use
from sim.base.units import format_bytes, format_count, format_duration
from sim.explain.bounds import cores_of_ops
from sim.explain.time_use import cores_of
from sim.export.tables import largest, number_text, percent, size, text_table
from sim.job.job import Job, Tried
from sim.notebook import Section
from sim.trace import Trace

_LISTED: Final = 20
"""Number of links, and of layers of experts, that are shown."""
_UNUSED_SHOWN: Final = 8
"""Number of unused devices that are shown."""
_STALENESS_ROWS: Final = 12
"""Number of rows in the table of staleness."""
_FOLDED_ROWS: Final = 10
"""Number of devices for which the folded ones are listed."""
_HOUR_NS: Final = 3_600_000_000_000


def sections(summary: Mapping[str, Any], plan: TrainingPlan | None = None) -> Iterator[Section]:
    """Yield the sections of a run besides its devices: memory, links, a pipeline, experts, a training, ...

    Parameters
    ----------
    summary : mapping
        Summary of `scenarios.run.execute.Result`.
    plan : TrainingPlan, optional
        Plan of the training run, if the scenario has one.
    """
    for part in (_memory(summary.get("memory", {})), _links(summary["links"])):
        if any(part.tables):
            yield part
    if summary["pipeline"]:
        yield _pipeline(summary["pipeline"])
    if (experts := summary.get("experts", {})).get("layers"):
        yield _experts(experts)
    if staleness := summary.get("staleness"):
        yield _staleness(staleness)
    if loading := summary.get("data_loading"):
        from scenarios.builders.input_pipeline import limit_line

        yield Section([limit_line(loading)])
    if "train" in summary:
        yield _train(summary["train"])
    if served := summary.get("serving"):
        from scenarios.serving.serving_report import serving_section

        yield serving_section(served)
    if plan is not None:
        yield _training(plan, summary["training_run"])


def _memory(devices: Mapping[str, Mapping[str, Any]]) -> Section:
    rows = [
        {
            **use,
            "memory of": name,
            "holders": ", ".join(f"{one['tensor']} {size(one['nbytes'])}" for one in use["holders"][:3]),
        }
        for name, use in devices.items()
        if use["allocations"]
    ]
    columns = ["memory of", "peak in use: peak_in_use_bytes", "at: peak_ns", "reserved: peak_reserved_bytes"]
    columns += ["fragmentation_bytes", "largest holders at the peak: holders"]
    return Section([], [text_table(rows, columns)])


def _more_lines(n: int, text: str) -> list[str]:
    return [f"\n{n} more {text}; --json has them all"] if n > 0 else []


def _training(plan: TrainingPlan, summary: Mapping[str, Any]) -> Section:
    """Return a line about workers and checkpoint intervals, and a row for each recovery policy."""
    machines = format_count(plan.workers, "worker")
    machines += f", {plan.spares:,} spare" if plan.spares else ""
    columns = ["recovery", "goodput", "steps", "end", *STATES, "lost", "interruptions"]
    columns += ["fewest_workers", "by cause"]
    rows = []
    for name, life in summary["recovery"].items():
        spent_ns = {**life["time_ns"], "lost": life["lost_ns"]}
        shares = {state: ns / life["end_ns"] if life["end_ns"] else 0.0 for state, ns in spent_ns.items()}
        causes = _causes(life["interruptions_by_cause"])
        rows.append({**life, **shares, "recovery": name, "end": _hours(life["end_ns"]), "by cause": causes})
    line = f"training run: {machines}"
    if (interval := summary["interval"]) is not None:
        mtbf, young, daly, best = (_hours(interval[f"{key}_ns"]) for key in ("mtbf", "young", "daly", "best"))
        line += f"; a failure every {mtbf}: best saved every {best} (Daly {daly}, Young {young})"
    return Section([line], [text_table(rows, columns)])


def _experts(experts: Mapping[str, Any]) -> Section:
    """Return how tokens are spread over ranks that share experts; of many layers, the least balanced."""
    layers: Mapping[str, Mapping[str, Any]] = experts.get("layers", {})
    layer_names = sorted(layers, key=lambda name: -layers[name]["imbalance"])[:_LISTED]
    rows = (
        {
            **layer,
            "experts": name,
            "imbalance": f"{layer['imbalance']:.2f}",
            "its tokens": layer["tokens"][layer["fullest"]],
        }
        for name, layer in layers.items()
        if name in layer_names
    )
    columns = ["experts", "imbalance", "fullest", "its tokens", "dropped"]
    left_out = _more_lines(len(layers) - len(layer_names), "layers are better balanced")
    return Section([], [text_table(rows, columns)], left_out)


def _staleness(report: Mapping[str, Any]) -> Section:
    """Return the number of updates for each staleness; the largest ones share a row."""
    counts = report["counts"]
    few = counts if len(counts) <= _STALENESS_ROWS else counts[: _STALENESS_ROWS - 1]
    rows = [(str(stale), n) for stale, n in enumerate(few)]
    if len(few) < len(counts):
        rows.append((f"{len(few)} to {len(counts) - 1}", sum(counts[len(few) :])))
    total = report["updates"]
    table = [{"staleness": stale, "updates": f"{n:,}", "share": percent(n / total)} for stale, n in rows]

    return Section([], [table], [f"mean {report['mean']:.2f}, at most {report['max']}"])


def _links(links: Mapping[str, Mapping[str, Any]]) -> Section:
    """Return the use of the links; of many, those that were contended and busy longest."""
    links = {name: use for name, use in links.items() if use["bytes"]}
    ranked = sorted(links, key=lambda name: (-links[name]["contended_ns"], -links[name]["busy_ns"]))
    rows = ({**use, "link": name} for name, use in links.items() if name in ranked[:_LISTED])
    columns = ["link", "bytes", "busy_ns", "utilisation", "contended_ns"]
    columns += ["bandwidth used: bandwidth_utilisation"]
    return Section([], [text_table(rows, columns)], _more_lines(len(links) - _LISTED, "links were used"))


def _pipeline(report: Mapping[str, Any]) -> Section:
    """Return sizes, bubble and formula of a pipeline in one line, and a row for each rank."""
    formula = ""
    if report["bubble_formula"] is not None:
        formula = f"; formula {100 * report['bubble_formula']:.2f}% ({report['formula']})"
    sizes = {"rank": report["ranks"], "stage": report["stages"], "micro-batch": report["micro_batches"]}
    line = (
        f"{', '.join(format_count(n, part) for part, n in sizes.items())}: "
        f"bubble {100 * report['bubble']:.2f}% of the makespan, {100 * report['span_bubble']:.2f}% of the "
        f"longest span{formula}"
    )
    lines = [line]
    if (latency := report.get("latency_ns")) is not None:
        median, longest = (format_duration(latency[key]) for key in ("median", "max"))
        rate = f"{number_text('_per_s', report['micro_batches_per_s'])} micro-batches/s"
        if (batch := report.get("batch")) is not None:
            samples = report["micro_batches_per_s"] * batch / report["micro_batches"]
            rate += f", {number_text('_per_s', samples)} samples/s"
        lines.append(f"{rate}; each takes {median} (median), {longest} at most")
    rows = [
        {
            "rank": f"{rank} ({device})",
            "span_ns": report["span_ns"][rank],
            "idle_ns": report["idle_ns"][rank],
            "activations": report["peak_activations"][rank],
            "waits for": largest(report["waits_for"][rank]),
            "memory at the peak": largest(report["memory_bytes"][rank], size),
        }
        for rank, device in enumerate(report["devices"])
    ]
    columns = ["rank", "span_ns", "computes nothing: idle_ns", "activations", "waits for"]
    columns.append("memory at the peak")
    return Section(lines, [text_table(rows, columns)])


def _train(report: Mapping[str, Any]) -> Section:
    """Return time and rate of a training step, and where the time and memory of each rank go."""
    limit, peak = report["capacity_bytes"], report["peak_bytes"]
    copies = report.get("folded", {}).get("each_stands_for", 1)
    fits = ""
    if limit is not None:
        free = f"{size(limit - peak)} ({percent(1 - peak / limit)}) free"
        fits = f"; fits {size(limit)}, {free}{little_room(peak, limit)}"
    folded = f"; each rank below stands for {copies:,} GPUs that do the same at the same time" * (copies > 1)

    rates = []
    if "tokens_per_s" in report:
        rates += [f"{report['tokens_per_s']:,.0f} tokens/s", f"{report['tokens_per_s_per_gpu']:,.0f} a GPU"]
    elif "samples_per_s" in report:
        rates.append(f"{number_text('_per_s', report['samples_per_s'])} samples/s")
    if report["mfu"] is not None:
        rates.append(f"MFU {percent(report['mfu'])}")
    model = ""
    if "schedule" in report:
        adapters = report.get("trained_parameters", 0)
        trained = f" beside {adapters / 1e6:.4g} million of adapters, which are trained" if adapters else ""
        model = f"{report['parameters'] / 1e9:.4g} billion parameters{trained}; {report['schedule']}, "
    step = f"step {format_duration(report['step_ns'])} on {format_count(report['gpus'], 'GPU')}"
    if rates:
        step += f": {', '.join(rates)}"
    batches = format_count(report["micro_batches"], "micro-batch")
    lines = [f"{step}{fits}\n{model}{batches}{folded}", *report["notes"]]
    if report.get("imbalance", 1.0) != 1.0 or report.get("dropped"):
        lines.append(
            f"the fullest rank's experts have {report['imbalance']:.2f} times the mean; "
            f"{percent(report['dropped'])} of the choices are dropped"
        )
    spent, memory = [], []
    uses = dict.fromkeys(name for use in report["ranks"] for name in use["memory_bytes"])  # some have others
    for rank, use in enumerate(report["ranks"]):
        label, times = {"rank": _ranks(rank, use)}, use["time_ns"].items()
        spent.append(label | {part.replace("_", " "): format_duration(ns) for part, ns in times})
        parts = {kind: size(use["memory_bytes"].get(kind, 0)) for kind in uses}
        memory.append(label | {"peak memory": size(use["peak_bytes"])} | parts)
    return Section(lines, [spent, memory])


def _ranks(rank: int, rank_use: Mapping[str, Any]) -> str:
    """Return the name of a rank, its number or its device, and how many others do the same."""
    more = rank_use.get("stands_for", 1) - 1
    return f"{rank_use.get('device', rank)}" + (f" and {more:,} more" if more else "")


def outcome_sections(expected: bool, outcomes: Sequence[Outcome]) -> list[Section]:
    """Return the failed expectations, or that all are met, or none is checked; nothing if there are none."""
    failed = [f"not as expected: {outcome.message}" for outcome in outcomes if not outcome.passed]
    met = (
        "all as expected" if outcomes else "expect: is not checked, as it is about the file without settings"
    )
    return [Section(failed or [met])] if expected else []


def model_notes(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the models behind the times that nobody chose: of collectives, and of kernels."""
    notes = (summary.get(key) for summary in summaries for key in ("collectives", "note"))
    return list(dict.fromkeys(line for line in notes if line))


def tuning_line(tried: Sequence[Tried]) -> str:
    """Return a line with the first and the best makespan that a searching placement found."""
    first = next(one for one in tried if one.makespan_ns is not None)
    assert first.makespan_ns is not None
    assert tried[-1].best_ns is not None
    range_text = (
        f"from {format_duration(first.makespan_ns)} ({first.what}) to {format_duration(tried[-1].best_ns)}"
    )
    return f"placement: {len(tried):,} tried, {range_text}"


def folding_lines(fold: Mapping[str, Any]) -> str:
    """Return lines that say which devices stand for how many, and what sets them apart."""
    into = fold["into"]
    lines = [
        f"{fold['devices']:,} devices folded into {len(into):,}; figures of each hold for all it stands for"
    ]
    for name, device in list(into.items())[:_FOLDED_ROWS]:
        differences = f": {device['differs']}" if device["differs"] else ""
        lines.append(f"  {name} stands for {device['stands_for']:,}{differences}")
    if len(into) > _FOLDED_ROWS:
        lines.append(f"  ... and {len(into) - _FOLDED_ROWS:,} more; --json has them all")
    return "\n".join(lines)


def _hours(ns: int) -> str:
    """Return a formatted duration, in hours from two hours on."""
    return format_duration(ns) if ns < 2 * _HOUR_NS else f"{float(f'{ns / _HOUR_NS:.4g}'):,.10g} h"


def _causes(counts: Mapping[str, int]) -> str:
    """Return the three most frequent causes of interruptions with counts, and the count of all others."""
    ranked = sorted((item for item in counts.items() if item[1]), key=lambda item: -item[1])
    others = sum(count for _, count in ranked[3:])
    listed = [*ranked[:3], *([("others", others)] if others else [])]
    return ", ".join(f"{cause} {count:,}" for cause, count in listed)


def little_room(peak: int, limit: int) -> str:
    """Return a caveat if a peak of tensors leaves less than a twentieth of memory free, else nothing.

    PyTorch's caching allocator needed a device 3 % larger than the tensors of a ResNet-50, TensorFlow's 9 %
    (docs/memory.md); a CUDA context and NCCL's buffers come on top.

    Examples
    --------
    >>> little_room(70, 100), little_room(98, 100)[:24]
    ('', ', too little to rely on:')
    """
    if limit - peak >= limit / 20:
        return ""
    return (
        ", too little to rely on: an allocator leaves gaps between tensors (PyTorch's needed 3% more, "
        "docs/memory.md), CUDA and NCCL take some"
    )


# ----------------------------------------------------------------------------------------------------------
# Notes beside results: unused devices, missing lower bounds, unused streams.


def unused_notes(unused: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each set of devices that some runs left unused.

    Parameters
    ----------
    unused : mapping of str to sequence of str
        Run -> its unused devices; if runs differ, each line names its runs.

    Examples
    --------
    >>> unused_notes({"heft": ["gpu1"], "single": ["gpu1"]})
    ['unused: gpu1']
    >>> unused_notes({"heft": [], "tp=1, pp=1": ["gpu1", "gpu2"], "single": ["gpu1", "gpu2"]})
    ['unused under tp=1, pp=1; single: gpu1, gpu2']
    """
    runs_of = group_pairs((tuple(devices), run) for run, devices in unused.items())
    return [
        ("unused" if len(runs_of) == 1 else f"unused under {'; '.join(runs)}")
        + f": {list_names(devices, _UNUSED_SHOWN)}"
        for devices, runs in runs_of.items()
        if devices
    ]


def no_gap_notes(reasons: Iterable[str | None]) -> list[str]:
    """Return a line for each reason why runs are not compared with a lower bound.

    Examples
    --------
    >>> no_gap_notes([None, "an op failed", "an op failed"])
    ['no lower bound: an op failed']
    """
    return [f"no lower bound: {reason}" for reason in dict.fromkeys(filter(None, reasons))]


# ----------------------------------------------------------------------------------------------------------
# Streams that no assignment uses.
#
#     gpu0 (streams: 4)   stream 0  a b c d e f      policy.streams says nothing: all ops are on the first,
#                         stream 1                   so `streams: 4` changes nothing, and a sweep over it
#                         stream 2                   has equal rows
#                         stream 3
#
#  a: {attributes: {stream: compute}}             ops that name their streams, as those of a recording or of
#  b: {attributes: {stream: all_reduce}}          parallel training do: only `recorded` follows them


def stream_notes(runs: Mapping[str, Trace], chosen: Container[str] = ()) -> list[str]:
    """Return a line for each device whose ops all ran on one of its streams for lack of an assignment.

    Parameters
    ----------
    runs : mapping of str to Trace
        Runs of one scenario; if there are several, each line names the runs it is about.
    chosen : container of str
        Those whose streams the scenario itself assigns: one stream is meant, and no runtime's default.

    Examples
    --------
    >>> from scenarios.run.load import load_scenario
    >>> from scenarios.run.execute import run_scenario
    >>> changes = ["policy=in-order", "machine.ideal=true"]
    >>> scenario = load_scenario("scenarios/examples/quickstart.yaml", sets=changes)
    >>> stream_notes({"in-order": run_scenario(scenario).trace})
    ['gpu0 used 1 of 4 streams; to use more, set policy.streams (per-branch, per-kind, ...)']
    """
    runs_by_default = {policy: trace for policy, trace in runs.items() if policy not in chosen}
    unfollowed = _unfollowed_streams(runs_by_default, several=len(runs) > 1)
    followed = {policy: trace for policy, trace in runs_by_default.items() if policy not in unfollowed}
    policies_of = group_pairs(
        (device, policy) for policy, trace in followed.items() for device in _on_one_stream(trace)
    )
    jobs = [trace.job for trace in runs.values()]
    notes = [*unfollowed.values(), *_free_transfers(jobs), *_recorded_elsewhere(jobs), *_shared_twice(jobs)]
    notes += _on_one_core([*runs.values()])
    needed = {name for job in jobs for needs in job.graph.attribute("resources").values() for name in needs}
    unused = [name for name in jobs[0].machine.resources if name not in needed]
    notes += [f"no op takes {name}, of the machine's resources" for name in unused]
    if not policies_of:
        return notes
    assignments = ", ".join(name for name in plugins.names("sim.streams") if name not in ("replay", "single"))
    advice = f"to use more, set policy.streams ({assignments})"
    return notes + [
        f"{name} used 1 of {streams} streams"
        + (f" under {', '.join(labels)}" if len(labels) < len(runs) else "")
        + f"; {advice}"
        for (name, streams), labels in policies_of.items()
    ]


def _unfollowed_streams(runs: Mapping[str, Trace], *, several: bool) -> dict[str, str]:
    """Return a line for each run that ignores streams of ops: it assigns none, or puts ranks on one."""
    lines = {}
    for policy, trace in runs.items():
        job = trace.job
        ranks = bool(job.graph.in_communicators) and isinstance(job.streams, SingleStream)
        if job.streams is not None and not ranks:
            continue
        named: dict[int, dict[object, None]] = {}
        for op, stream in job.graph.attribute("stream").items():
            device = int(job.device_of[op])
            if not job.machine.devices[device].workers:
                named.setdefault(device, {})[stream] = None
        with_several = [device for device, streams in named.items() if len(streams) > 1]
        if with_several:
            first = with_several[0]
            some = ", ".join(map(str, list(named[first])[:4])) + (", ..." if len(named[first]) > 4 else "")
            under = f" under {policy}" if several else ""
            devices = _and_others(job.machine.devices[first].name, len(with_several))
            lines[policy] = (
                f"ops of {devices} name {len(named[first])} streams ({some}), "
                f"which nothing follows{under}; to let them overlap as they say, set policy.streams: recorded"
                + (", or runtime: pytorch-distributed, where each rank launches its own" if ranks else "")
            )
    return lines


def _free_transfers(jobs: Iterable[Job]) -> list[str]:
    """Return a line if transfers to or from a preset device take no time because there are no links."""
    for job in jobs:
        if job.machine.links or job.machine.network is not None:
            continue
        edges, nbytes, device = job.graph.edges, job.graph.tensor_nbytes, job.device_of
        source, target = device[edges.producer], device[edges.consumer]
        real = np.array([bool(used.details.preset) for used in job.machine.devices])
        moves = np.flatnonzero((edges.tensor != UNSET) & (source != target) & (real[source] | real[target]))
        moves = moves[nbytes[edges.tensor[moves]] > 0]
        if len(moves):
            names = [job.machine.devices[ends[moves[0]]].name for ends in (source, target)]
            bytes_ = format_bytes(int(nbytes[np.unique(edges.tensor[moves])].sum()))
            return [
                f"{bytes_} move between devices in no time, as from {names[0]} to {names[1]}: "
                "the machine has no links"
            ]
    return []


def _recorded_elsewhere(jobs: Iterable[Job]) -> list[str]:
    """Return a line if kernels recorded on one GPU keep their durations on a preset of another."""
    for job in jobs:
        facts, used = job.graph.device_facts, set(job.device_of.tolist())
        every = [fact["description"] for fact in facts.values() if "description" in fact]
        for index, device in enumerate(job.machine.devices):
            gpu = facts.get(device.name, {}).get("description", every[0] if every else "")
            preset = device.details.preset
            if index in used and gpu and preset and not is_of_model(gpu, preset):
                return [
                    f"{device.name} is a {preset}, and kernels take as long as they were recorded on {gpu}; "
                    f"workload.what_if: {{device: {{from: ..., to: {preset}}}}} moves them"
                ]
    return []


def _on_one_core(traces: Sequence[Trace]) -> list[str]:
    """Return a line for each CPU on which ops that a cost model times only ever used one of several cores."""
    most_used: dict[tuple[str, int], int] = {}  # of runs on several machines, by name and cores of a device
    timed = set()
    for trace in traces:
        job = trace.job
        several = {index: device for index, device in enumerate(job.machine.devices) if cores_of(device) > 1}
        rows = np.flatnonzero(np.isin(trace.device, [*several]))
        op, start, end = (trace.tasks[name][rows] for name in ("op", "start_ns", "end_ns"))
        n = len(job.machine.devices)
        used = most_in_use(start, end, cores_of_ops(job)[op], trace.device[rows], n).tolist()
        for index, device in several.items():
            key = device.name, cores_of(device)
            most_used[key] = max(most_used.get(key, 0), used[index])
            given_ns = job.graph.given_ns(device.kind, device.name)
            if (given_ns[(job.device_of == index) & (job.duration_ns > 0)] == UNSET).any():
                timed.add(key)
    return [
        f"{name} used 1 of {cores} cores, and ops take as long as on one core; to give each all of them, set "
        f"machine.devices.{name}.cores_per_op: {cores}"
        for (name, cores), used in most_used.items()
        if used == 1 and (name, cores) in timed
    ]


def _shared_twice(jobs: Iterable[Job]) -> list[str]:
    """Return a line if kernels that shared SMs when they were recorded share them again."""
    names = [
        device.name
        for job in jobs
        if job.graph.attribute("recorded_start_ns")
        for index, device in enumerate(job.machine.devices)
        if device.kind == "gpu" and device.processor is not None and index in job.device_of
    ]
    if not names:
        return []
    devices = _and_others(names[0], len(set(names)))
    return [
        f"kernels share the SMs of {devices}, and did so when their durations were recorded: that counts "
        "twice; give the device sharing: none"
    ]


def _and_others(first: str, n: int) -> str:
    """Return the name of the first of `n` devices, and how many others there are."""
    return f"{first} and {format_count(n - 1, 'other device')}" if n > 1 else first


def _on_one_stream(trace: Trace) -> list[tuple[str, int]]:
    """Return name and number of streams of each device that by default ran all its ops on one stream."""
    if not isinstance(trace.job.streams, SingleStream | None):
        return []
    machine = trace.job.machine
    streams = trace.tasks["stream"]
    used = np.bincount(streams[streams >= 0], minlength=machine.first_stream[-1])
    idle = []
    for device, (first, end) in zip(machine.devices, pairwise(machine.first_stream), strict=True):
        counts = used[first:end]
        if not device.workers and device.streams > 1 and np.count_nonzero(counts) == 1 and counts.sum() > 1:
            idle.append((device.name, device.streams))
    return idle
