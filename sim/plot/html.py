"""The Gantt chart as one HTML file: zoom along time, point at a bar to read its story. No server, no network.

::

    ▪conv ▪pool                                           a legend that shows and hides kinds
    in-order: 65 µs
    gpu0/0     ▇▇conv▇▇▇▇pool▇▇   ▇▇            ┊
    gpu0/1                                      ┊         one time axis under all runs
    ready-queue: 45 µs                                    ┌───────────────────────────┐
    gpu0/0     ▇▇conv▇▇▇▇▇▇▇▇▇▇       ┊           at a bar │ block/conv1 (conv)        │
    gpu0/1        ▇▇pool▇▇            ┊                   │ ready, issued, start, end │
               0     10     20     30  time (µs)          │ waited 2 µs for: stream   │
                                                          └───────────────────────────┘

The file is data (`gantt_data`: the lanes, bars and colours of `sim.plot.gantt`) and a page that draws them
(``gantt_page.html``). A bar is as wide as it lasts. Where bars are narrower than a pixel, the column of
pixels is filled as high as they fill its time, kind by kind: a lane that is 7 % busy is 7 % full at any zoom.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from sim.files.atomic_files import write_text
from sim.plot.bars import Bars, arrows_of, bars_of, folded_note, name_of
from sim.plot.colours import LAUNCH, WAITING
from sim.plot.figure import time_unit
from sim.plot.gantt import colours_of, ink_on, legend_of
from sim.plot.strips import CAPACITY, IN_VAIN, RESERVED, Scale, Strip, band_labels, coloured_strips
from sim.record.record import WAITS, Record
from sim.words.arrays import UNSET, IntArray
from sim.words.units import format_bytes

__all__ = ["gantt_data", "save_html"]

_NARROW: Final = 20_000
"""Bars too narrow to be seen that all runs together may have; more become fewer (`Bars.packed`)."""
_INSTANTS: Final = 6_000
"""Instants that all strips together tell apart; each takes up to three steps of each band."""
_LINES: Final = {"reserved": RESERVED, "reserved, not in use": IN_VAIN, "capacity": CAPACITY}
"""Labels that stand in the legend below those of kinds, and their colours."""

_Data = dict[str, Any]


def save_html(
    traces: Record | Mapping[str, Record],
    path: str | os.PathLike[str],
    *,
    links: bool = True,
    issuers: bool = False,
    arrows: bool = False,
    memory: bool = True,
) -> None:
    """Write an interactive Gantt chart as one HTML file that needs no network, whole or not at all.

    Where an allocator kept a log, memory over time stands below the lanes of its run, as in the picture of
    `compare_gantt`. Same traces, same bytes.

    Parameters
    ----------
    traces : Trace, or mapping of str to Trace
        Of several, each gets lanes of its own below its title, on one time axis.
    path : path
    links, issuers : bool
        Whether transfers, and host threads with launches that cost time, get lanes.
    arrows : bool
        Whether arrows lead from producers to consumers on other lanes.
    memory : bool
        Whether memory is shown where there is a log of it. Without one nothing is different.

    Raises
    ------
    InputError
        A directory that does not exist.
    """
    named = {"": traces} if isinstance(traces, Record) else traces
    data = gantt_data(named, links=links, issuers=issuers, arrows=arrows, memory=memory)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(", ".join(dict.fromkeys(trace.job.graph.name for trace in named.values())))
    page = Path(__file__).with_name("gantt_page.html").read_text(encoding="utf-8")
    write_text(path, page.replace("__TITLE__", title, 1).replace("__DATA__", text, 1))


def gantt_data(
    traces: Mapping[str, Record],
    *,
    links: bool = True,
    issuers: bool = False,
    arrows: bool = False,
    memory: bool = True,
) -> _Data:
    """Return what the page draws, as plain values.

    Parameters
    ----------
    traces : mapping of str to Trace
        Title → trace, from top to bottom.
    links, issuers, arrows, memory : bool
        As for `save_html`.

    Returns
    -------
    dict
        ``until`` (ns), ``unit`` and ``word`` of the time axis; ``legend``: label, colour and ink of each
        entry; ``rows`` from top to bottom: one with ``bars`` for each run, followed by one with ``bands`` for
        each device whose memory is shown. A column ``entry`` numbers entries of the legend.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=1500)
    >>> data = gantt_data({"run": simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())})
    >>> (row,) = data["rows"]
    >>> row["title"], row["names"], row["bars"]["start"], row["bars"]["end"], data["legend"][0]["label"]
    ('run: 1,500 ns', [[0.25, 'gpu0/0']], [0], [1500], 'op')
    """
    runs = list(traces.values())
    until = max(max(trace.makespan_ns for trace in runs), 1)
    unit, word = time_unit(until)
    every = [bars_of(trace, links=links, issuers=issuers) for trace in runs]
    held, colours, sizes = coloured_strips(runs, colours_of(runs), memory=memory)
    strips = [strip for run in held for strip in run.shown]
    labels = [label for label, _ in legend_of(every, colours)]
    labels += [label for label in band_labels(held) if label not in labels]
    if any(strip.reserved is not None for strip in strips):
        labels += ["reserved", "reserved, not in use"]
    labels += ["capacity"] * any(strip.is_nearly_full for strip in strips)
    colours |= _LINES
    columns = _INSTANTS // max(1, len(strips))
    rows: list[_Data] = []
    for (name, trace), bars, below in zip(traces.items(), every, held, strict=True):
        bars = bars.some(np.flatnonzero(bars.end > bars.start)).packed(until, _NARROW // len(every))
        title = f"{name}: " * bool(name) + f"{trace.makespan_ns / unit:,.4g} {word}{folded_note(trace)}"
        rows.append({"title": title} | _lanes(trace, bars, labels, arrows=arrows))
        note = below.note
        for strip in below.shown:
            rows.append({"title": note} | _memory(strip, sizes[strip.kind], labels, until, columns))
            note = ""
    return {
        "until": until,
        "unit": unit,
        "word": word,
        "legend": [{"label": each, "colour": colours[each], "ink": ink_on(colours[each])} for each in labels],
        "rows": rows,
    }


def _lanes(trace: Record, bars: Bars, labels: list[str], *, arrows: bool) -> _Data:
    """Return the row of a run: lanes, bars, arrows as pairs of bars."""
    shown = max(2, len(bars.lanes))
    entry = np.array([labels.index(kind) if kind in labels else UNSET for kind in bars.kinds])
    edges = arrows_of(trace, bars) if arrows else ()
    return {
        "names": [[(k + 0.5) / shown, lane] for k, lane in enumerate(bars.lanes)],
        "lanes": len(bars.lanes),
        "makespan_ns": trace.makespan_ns,
        "arrows": np.stack(edges, axis=1).tolist() if arrows else [],
        "bars": {
            "start": bars.start.tolist(),
            "end": bars.end.tolist(),
            "lane": bars.lane.tolist(),
            "level": bars.level.tolist(),
            "levels": bars.n_levels.tolist(),
            "entry": entry[bars.kind].tolist(),
            "name": [
                "" if row == UNSET else name_of(trace, row).rpartition("/")[2] for row in bars.row.tolist()
            ],
            "story": _stories(trace, bars),
        },
    }


def _memory(strip: Strip, size: Scale, labels: list[str], until_ns: int, columns: int) -> _Data:
    """Return the row of a device's memory: bands from bottom to top, in bytes from each time on."""
    seen = strip.seen(until_ns, columns)

    def entry(label: str, nbytes: IntArray) -> _Data:
        return {"entry": labels.index(label), "nbytes": nbytes.tolist()}

    bands = [entry(label, held) for label, held in seen.bands.items()]
    row: _Data = {}
    if seen.reserved is not None:
        bands.append(entry("reserved, not in use", np.maximum(seen.reserved - seen.in_use, 0)))
        row["reserved"] = entry("reserved", seen.reserved)
    if strip.is_nearly_full and strip.capacity_bytes is not None:
        row["capacity"] = {"entry": labels.index("capacity"), "nbytes": strip.capacity_bytes}
    most = f"{size.top_bytes / size.unit:,.3g} {size.name}"
    return row | {
        "names": [[1 - 1 / 1.35, most], [0.64, strip.device]],
        "times": seen.times_ns.tolist(),
        "bands": bands,
        "top": size.top_bytes,
        "peak": f"peak {format_bytes(strip.peak_bytes, iec=True)}",
        "peak_ns": strip.peak_ns,
    }


def _stories(trace: Record, bars: Bars) -> list[str]:
    """Return what is read at each bar, line by line; times are exact."""
    repeated = bool(trace.tasks["iteration"].any())
    columns = bars.lane, bars.kind, bars.start, bars.end, bars.row
    stories = []
    for lane, kind, start, end, row in zip(*(column.tolist() for column in columns), strict=True):
        where, word = bars.lanes[lane], bars.kinds[kind]
        span = f"start {_exact(start)} · end {_exact(end)} · lasted {_exact(end - start)}"
        if row != UNSET and row < len(trace):
            head, before, after = _of_task(trace, row)
            if repeated:
                where = f"{where} · iteration {int(trace.tasks['iteration'][row])}"
            lines = [f"{head} ({word})", where, before, span, *after]
        elif row != UNSET:
            moved = {name: int(column[row - len(trace)]) for name, column in trace.transfers.items()}
            before = f"{format_bytes(moved['nbytes'])} · ready {_exact(moved['ready_ns'])}"
            lines = [f"{name_of(trace, row)} ({word})", where, before, span]
        elif word in (LAUNCH, WAITING):
            lines = [word, where, span]
        else:  # stands for many: it has its place in a column of the picture, and no times of its own
            lines = [f"several ({word})", where, f"{_exact(end - start)} together, each too short to be seen"]
        stories.append("\n".join(lines))
    return stories


def _of_task(trace: Record, row: int) -> tuple[str, str, list[str]]:
    """Return the name of a task (with its loops), what was before its start, and why it waited."""
    task = {name: int(column[row]) for name, column in trace.tasks.items()}
    frame = trace.frames[task["frame"]] if "frame" in task else ""
    name = name_of(trace, row) + (f" in {frame}" if frame else "")
    before = f"ready {_exact(task['ready_ns'])} · issued {_exact(task['issue_ns'])}"
    waited, reason = task["start_ns"] - task["ready_ns"], WAITS[task["wait"]]
    story = f"waited {_exact(waited)}" + (f" for: {reason}" if reason else "")
    return name, before, [story] if waited else []


def _exact(at_ns: int) -> str:
    """Return a time with all its digits; in integers, for `format_duration` takes seconds for 20,000 bars."""
    unit, word = time_unit(2 * at_ns)  # a time axis wants at least two of its unit, a number one
    whole, part = divmod(at_ns, unit)
    return f"{whole}.{part:0{len(str(unit)) - 1}d}".rstrip("0") + f" {word}" if part else f"{whole} {word}"
