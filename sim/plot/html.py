"""A run as one HTML file: zoom along time, hover over a bar for its details. No server, no network.

::

    ▪conv ▪pool              a legend that shows and hides kinds      ☑ critical path  ◐ dark
    in-order: 65 us
    gpu0/0     ▇▇conv▇▇▇▇pool▇▇   ▇▇            ┊
    gpu0/1                                      ┊         one time axis under all runs
    memory     ▁▂▃▃▅▅▅▇▇▇▅▅▅▅▅▃▃▃▂▂▁            ┊         ┌───────────────────────────┐
    links      ░░▒▒▒▓▓▓░░░░░▒▒▒▒▒░░░            ┊  at a bar │ block/conv1 (conv)        │
               0     10     20     30  time (us)          │ ready, issued, start, end │
    why it took so long · longest idle stretches          │ waited 2 us for: stream   │
    ops        a table that sorts and filters             └───────────────────────────┘

The file contains data (`gantt_data`: the lanes, bars and colours of `sim.plot.gantt`) and a page that draws
them (the folder ``page``: HTML, a style sheet, JavaScript without a library). A bar is as wide as it lasts.
If bars are narrower than a pixel, the column of pixels is filled in proportion to their share of its time,
kind by kind: a lane that is 7 % busy is 7 % full at any zoom.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from sim.base.arrays import UNSET, Codes, FloatArray, IntArray
from sim.base.errors import list_names
from sim.base.files import write_text
from sim.base.units import format_bytes
from sim.explain.communication import LinkLoad, link_loads
from sim.explain.derived import DerivedColumns
from sim.explain.narration import explain_text, largest_gaps
from sim.graph.failures import STATUSES
from sim.notebook import Section
from sim.plot.bars import Bars, arrows_of, bars_of, micro_batches, path_of, title_of
from sim.plot.figure import time_unit
from sim.plot.legend import Entry, colours_of, legend_of, with_bands
from sim.plot.memory import (
    CAPACITY,
    NOT_IN_USE,
    RESERVED,
    Strip,
    band_labels,
    byte_unit,
    coloured_strips,
    fold_strips,
    line_labels,
)
from sim.plot.theme import LAUNCH, WAITING, chosen, on_dark
from sim.plot.utilisation import USE_COLOURS, most_used, use_of_devices
from sim.record.record import WAITS, Record

# ----------------------------------------------------------------------------------------------------------
# The bars of a run as columns of numbers, from which the page builds its texts and its table of ops.
#
# A column of equal numbers is one number, starts are differences to the previous start, and names are stored
# once for all runs: a task takes some 40 bytes of the file besides its name.

UNNAMED: Final = -1
SEVERAL: Final = -2
"""Codes of bars without a name: launches and waits for ranks, and bars that stand for several."""


def pack_column(column: IntArray) -> int | list[int]:
    """Return a column in the form stored in the file.

    Examples
    --------
    >>> pack_column(np.array([3, 3])), pack_column(np.array([3, 4])), pack_column(np.array([], int))
    (3, [3, 4], 0)
    """
    if not len(column):
        return 0
    return int(column[0]) if (column == column[0]).all() else column.tolist()


def bar_columns(trace: Record, bars: Bars, entry: IntArray, names: Codes[str]) -> dict[str, Any]:
    """Return the columns of bars.

    Parameters
    ----------
    trace : Trace
    bars : Bars
    entry : array of int64
        Legend entry of each kind.
    names : Names
        Names of all runs of the page; those of this run are added.

    Returns
    -------
    dict
        ``n`` bars; ``start`` (differences), ``lasted``, ``lane``, ``level``, ``levels``, ``entry``; ``name``
        (or `UNNAMED`, `SEVERAL`); ``slot``, the micro-batch in a pipeline (-1: none); how long before its
        start each was ``ready`` and ``issued``, and started to wait for its ranks (``met``); ``nbytes`` of
        transfers (-1: a task), ``reason``, ``iteration``, ``frame`` and ``status``, codes of the trace.
    """
    n, start = len(trace), bars.start
    columns = {name: np.zeros(len(bars), np.int64) for name in _OF_TASKS}
    columns |= {"nbytes": np.full(len(bars), UNSET), "name": np.full(len(bars), SEVERAL)}
    columns["name"][np.isin(bars.kind, [bars.kinds.index(LAUNCH), bars.kinds.index(WAITING)])] = UNNAMED
    named = bars.row != UNSET
    columns["name"][named] = names.of(map(trace.name_of, bars.row[named].tolist()))
    task, moves = named & (bars.row < n), bars.row >= n
    row, tasks = bars.row[task], trace.tasks
    columns["ready"][task] = start[task] - tasks["ready_ns"][row]
    columns["issued"][task] = start[task] - tasks["issue_ns"][row]
    columns["met"][task] = start[task] - tasks["start_ns"][row]
    columns["reason"][task] = tasks["wait"][row]
    columns["status"][task] = trace.status[row]
    columns["iteration"][task] = tasks["iteration"][row]
    if "frame" in tasks:
        columns["frame"][task] = tasks["frame"][row]
    row, transfers = bars.row[moves] - n, trace.transfers
    columns["ready"][moves] = start[moves] - transfers["ready_ns"][row]
    columns["nbytes"][moves] = transfers["nbytes"][row]
    columns["iteration"][moves] = transfers["iteration"][row]
    columns |= {"start": np.diff(start, prepend=0), "lasted": bars.end - start, "lane": bars.lane}
    columns |= {
        "slot": micro_batches(trace, bars),
        "level": bars.level,
        "levels": bars.n_levels,
        "entry": entry[bars.kind],
    }
    return {"n": len(bars)} | {name: pack_column(column) for name, column in columns.items()}


_OF_TASKS: Final = ("ready", "issued", "met", "reason", "status", "iteration", "frame")


# ----------------------------------------------------------------------------------------------------------
# Explanations of a run on the page: time of devices, text, longest idle stretches.

_MAX_GAPS: Final = 20
"""Maximum number of idle stretches listed."""
_MAX_DEVICES: Final = 40
"""Maximum number of bars for devices; of more devices only the first have one."""


def describe_run(derived: DerivedColumns, title: str, sections: Sequence[Section] = ()) -> dict[str, Any]:
    """Return the content below the chart of one run.

    Parameters
    ----------
    derived : DerivedColumns
    title : str
    sections : sequence of Section
        Further content on the run.

    Returns
    -------
    dict
        ``title``; ``use``: names of devices that spent their time alike, and the share of each part; the
        ``colours`` of the parts, on light and dark paper (None: ink); ``sections``, each with ``text`` and
        ``tables``; ``text``: the output of `sim explain`; ``gaps``: the longest idle stretches.
    """
    trace = derived.trace
    total = max(trace.makespan_ns, 1)
    devices: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for name, parts in use_of_devices(derived).items():
        shares = tuple((part, round(ns / total, 6)) for part, ns in parts.items() if ns)
        if shares != (("idle", 1.0),):  # it has no work at all
            devices.setdefault(shares, []).append(name)
    use = [[list_names(names), shares] for shares, names in list(devices.items())[:_MAX_DEVICES]]
    visible = {part for shares in devices for part, _ in shares}
    return {
        "title": title,
        "use": use,
        "colours": {
            part: None if colour == "black" else (colour, on_dark(colour))
            for part, colour in USE_COLOURS.items()
            if part in visible
        },
        "sections": [
            {"text": "\n".join([*part.lines, *part.notes]), "tables": [rows for rows in part.tables if rows]}
            for part in sections
        ],
        "text": explain_text(derived, title=title).partition("\n")[2].strip("\n"),
        "gaps": [gap._asdict() for gap in largest_gaps(derived, _MAX_GAPS)],
    }


# ----------------------------------------------------------------------------------------------------------

_MAX_NARROW: Final = 150_000
"""Maximum bars too narrow to be seen, over all runs; more are merged (`Bars.pack`)."""
_MAX_INSTANTS: Final = 16_000
"""Number of instants that all strips together distinguish; each takes up to three steps of each band."""
_MAX_LOADS: Final = 2_000
"""Number of instants of a link's load; more become means over as many equal parts of the run."""

_Data = dict[str, Any]


def save_page(
    traces: Record | Mapping[str, Record],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    issuers: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    sections: Mapping[str, Sequence[Section]] | None = None,
) -> None:
    """Write everything about a run, or several that are compared, as one HTML file that needs no network.

    It has a zoomable Gantt chart with a switch for the critical path; memory over time, with or without an
    allocator; the used share of each link; how each device spent its time; the output of `sim explain`; the
    longest idle stretches; and all ops as a table that sorts and filters. The file is written whole or not at
    all. Equal traces give equal bytes.

    Parameters
    ----------
    traces : Trace, or mapping of str to Trace
        If there are several, each gets lanes of its own below its title, on one time axis.
    path : path
    title : str, optional
        Title of the page; by default the names of the graphs.
    issuers : bool
        Whether host threads with launches that cost time get lanes.
    arrows : bool
        Whether arrows lead from producers to consumers on other lanes.
    critical_path : bool
        Whether the critical path is shown from the beginning.
    sections : mapping of str to sequence of Section, optional
        Further content on each run.

    Raises
    ------
    InputError
        The directory does not exist.
    """
    named = {"": traces} if isinstance(traces, Record) else traces
    data = gantt_data(named, issuers=issuers, arrows=arrows, critical_path=critical_path, sections=sections)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(title or ", ".join(dict.fromkeys(trace.job.graph.name for trace in named.values())))
    folder = Path(__file__).with_name("page")
    files = ("page.html", "page.css", "columns.js", "chart.js", "below_chart.js")
    page, style, *scripts = [(folder / name).read_text(encoding="utf-8") for name in files]
    page = page.replace("__STYLE__", style.strip()).replace("__SCRIPT__", "\n".join(scripts).strip())
    page = page.replace("__TITLE__", title).replace("__DATA__", text)  # last, for it may hold any text
    write_text(path, page)


def gantt_data(
    traces: Mapping[str, Record],
    *,
    issuers: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    sections: Mapping[str, Sequence[Section]] | None = None,
) -> _Data:
    """Return the data that the page draws, as plain values.

    Parameters
    ----------
    traces : mapping of str to Trace
        Title → trace, from top to bottom.
    issuers, arrows, critical_path : bool
        As for `save_page`.
    sections : mapping of str to sequence of Section, optional
        As for `save_page`.

    Returns
    -------
    dict
        ``end_ns`` (ns), ``unit`` and ``word`` of the time axis; ``kinds``: label and colour of each kind of
        bar or band; ``legend``: label of each entry, and its kinds; ``theme``, or None; ``names`` of ops and
        tensors; ``rows`` from top to bottom: one with ``bars`` per run (`sim.plot.html.bar_columns`), then
        one with ``bands`` per device whose memory is shown and one with ``links``. A column ``entry`` has
        indices of kinds. ``stories``: one `sim.plot.html.describe_run` per run.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=1500)
    >>> data = gantt_data({"run": simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())})
    >>> (row,) = data["rows"]
    >>> row["title"], row["names"], row["bars"]["start"], row["bars"]["lasted"], data["legend"][0]
    ('run: 1,500 ns', [[0.5, 'gpu0/0']], 0, 1500, {'label': 'a', 'kinds': [0]})
    """
    runs = list(traces.values())
    end_ns = max(max(trace.makespan_ns for trace in runs), 1)
    unit, word = time_unit(end_ns)
    every = [bars_of(trace, issuers=issuers) for trace in runs]
    run_strips, colours, tops = coloured_strips(runs, colours_of(runs), memory=True, without_log=True)
    strips = [strip for run in run_strips for strip in run.shown]
    key = with_bands(legend_of(every, colours), band_labels(strips), colours)
    key += [Entry(line, (line,), (colours[line],)) for line in line_labels(strips)]
    named = (kind for entry in key for kind in entry.kinds)
    labels = list(dict.fromkeys([*named, *(kind for bars in every for kind in bars.kinds)]))
    columns = _MAX_INSTANTS // max(1, len(strips))
    names = Codes[str]()
    rows: list[_Data] = []
    stories: list[_Data] = []
    for (name, trace), all_bars, below in zip(traces.items(), every, run_strips, strict=True):
        title = title_of(name, trace, end_ns)
        all_bars, n_lanes = all_bars.empty_last()
        bars = all_bars.pack(end_ns, _MAX_NARROW // len(every))
        bars = bars.select(np.flatnonzero((bars.end > bars.start) | (bars.row != UNSET)))
        entry = np.array([labels.index(kind) for kind in bars.kinds])
        row = {
            "title": title,
            "run": name,
            "names": [[(k + 0.5) / n_lanes, lane] for k, lane in enumerate(bars.lanes[:n_lanes])],
            "lane_names": bars.lanes,
            "makespan_ns": trace.makespan_ns,
            "arrows": np.stack(arrows_of(trace, bars), axis=1).tolist() if arrows else [],
            "frames": list(trace.frames) or [""],
            "repeated": bool(trace.tasks["iteration"].any()),
            "bars": bar_columns(trace, bars, entry, names),
        }
        derived = DerivedColumns(trace, name or None)
        steps = path_of(derived, all_bars, bars)
        row["path"] = {key: column.tolist() for key, column in steps._asdict().items()}
        rows.append(row)
        note = below.note or "memory"
        for strip in fold_strips(below.shown):
            rows.append({"title": note} | _memory(strip, tops[strip.kind], labels, end_ns, columns))
            note = ""
        stories.append(describe_run(derived, title, (sections or {}).get(name, ())))
        if loads := link_loads(trace):
            rows.append(_links(loads, end_ns))
    return {
        "until": end_ns,
        "unit": unit,
        "word": word,
        "kinds": [{"label": text, "colour": colours[text], "dark": _dark(colours[text])} for text in labels],
        "legend": [
            {"label": entry.label, "kinds": [labels.index(kind) for kind in entry.kinds]} for entry in key
        ],
        "theme": chosen(),
        "names": list(names),
        "reasons": list(WAITS),
        "statuses": list(STATUSES),
        "path_shown": critical_path,
        "rows": rows,
        "stories": stories,
    }


def _dark(colour: str) -> str:
    """Return a colour as drawn on dark paper; the page has its own ink."""
    return colour if colour == "black" else on_dark(colour)


def _links(loads: list[LinkLoad], until_ns: int) -> _Data:
    """Return the row of a run's links: steps of the used share, for the links with the highest load."""
    links, left_out = most_used(loads)
    less = f"; without {left_out} that are used less" if left_out else ""
    return {
        "title": f"links: share of the bandwidth in use{less}",
        "names": [[(k + 0.5) / len(links), load.link] for k, load in enumerate(links)],
        "links": [
            {
                "name": load.link,
                "bytes_per_s": load.bytes_per_s,
                "nbytes": load.nbytes,
                "mean": round(load.mean, 6),
                "times": times.tolist(),
                "values": share.tolist(),
            }
            for load in links
            for times, share in [_visible_steps(load, until_ns)]
        ],
    }


def _visible_steps(load: LinkLoad, until_ns: int) -> tuple[IntArray, FloatArray]:
    """Return the steps of a load, or means over equal parts of the run if there are fewer of those."""
    if len(load.times_ns) <= _MAX_LOADS:
        return load.times_ns, load.share
    edges = np.unique(np.linspace(0, until_ns, _MAX_LOADS + 1).round().astype(np.int64))
    return edges, np.append(np.round(load.means(edges), 4), 0.0)


def _memory(strip: Strip, top_bytes: int, labels: list[str], until_ns: int, columns: int) -> _Data:
    """Return the row of a device's memory: bands from bottom to top, in bytes from each time on."""
    visible, (unit, unit_name) = strip.thin_out(until_ns, columns), byte_unit(top_bytes)

    def entry(label: str, nbytes: IntArray) -> _Data:
        return {"entry": labels.index(label), "nbytes": nbytes.tolist()}

    bands = [entry(label, size) for label, size in visible.bands.items()]
    row: _Data = {}
    if visible.reserved is not None:
        bands.append(entry(NOT_IN_USE, np.maximum(visible.reserved - visible.in_use, 0)))
        row["reserved"] = entry(RESERVED, visible.reserved)
    if (capacity := strip.shown_capacity) is not None:
        row["capacity"] = {"entry": labels.index(CAPACITY), "nbytes": capacity}
    return row | {
        "names": [[1 - 1 / 1.35, f"{top_bytes / unit:,.3g} {unit_name}"], [0.64, strip.device]],
        "times": visible.times_ns.tolist(),
        "bands": bands,
        "top": top_bytes,
        "peak": f"peak {format_bytes(strip.peak_bytes, iec=True)}",
        "peak_ns": strip.peak_ns,
    }
