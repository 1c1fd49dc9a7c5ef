"""Memory over time in the HTML Gantt chart: a strip for each device, of areas that Plotly stacks.

Labels and colours are those of the bars, and the legend shows and hides both at once: without ``conv`` its
bars and the memory of its outputs are gone, and what is left is stacked anew.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sim.plot.figure import time_unit
from sim.plot.strips import CAPACITY, IN_VAIN, RESERVED, Scale, Strip
from sim.words.arrays import IntArray
from sim.words.units import format_bytes

__all__ = ["LINES", "PLAIN_AXIS", "peak_label", "strip_areas", "strip_axis"]

LINES: Final = {"reserved": RESERVED, "reserved, not in use": IN_VAIN, "capacity": CAPACITY}
"""Labels that stand in the legend below those of kinds, and their colours."""

_Figure = dict[str, Any]
PLAIN_AXIS: Final[_Figure] = {"automargin": True, "fixedrange": True, "showgrid": False, "zeroline": False}
"""What the vertical axes of lanes and of memory have in common."""


def strip_areas(
    strip: Strip, axis: str, colours: Mapping[str, str], size: Scale, until_ns: int, columns: int
) -> list[tuple[str, _Figure]]:
    """Return what Plotly draws for a device, each with the label of its legend entry.

    Parameters
    ----------
    strip : Strip
    axis : str
        Name of its vertical axis.
    colours : mapping of str to str
        Label of a band → colour.
    size : Scale
    until_ns : int
        Right end of the time axis.
    columns : int
        Instants that can be told apart, in a page that is not zoomed into.
    """
    seen = strip.seen(until_ns, columns)
    ns, word = time_unit(until_ns)
    times = (seen.times_ns / ns).tolist()
    device = html.escape(strip.device, quote=False)
    at = f"<br>{device} · %{{x}} {word}<extra></extra>"
    found: list[tuple[str, _Figure]] = []

    def add(label: str, held: IntArray, line: _Figure, at: str = at, **look: object) -> None:
        said = f"<b>{html.escape(label, quote=False)}</b> %{{y:.4~g}} {size.name}{at}"
        drawn = {"type": "scatter", "mode": "lines", "x": times, "y": (held / size.unit).tolist()}
        found.append((label, drawn | {"line": line, "hovertemplate": said} | look))

    def area(label: str, held: IntArray, colour: str) -> None:
        add(label, held, {"shape": "hv", "width": 0}, fillcolor=colour, stackgroup=axis)

    for label, held in seen.bands.items():
        area(label, held, colours[label])
    if seen.reserved is not None:
        area("reserved, not in use", np.maximum(seen.reserved - seen.in_use, 0), IN_VAIN)
        add("reserved", seen.reserved, {"shape": "hv", "width": 1, "color": RESERVED})
    if strip.is_nearly_full and strip.capacity_bytes is not None:
        ends, line = [0, until_ns / ns], {"width": 1, "color": CAPACITY, "dash": "dash"}
        add("capacity", np.full(2, strip.capacity_bytes), line, f"<br>{device}<extra></extra>", x=ends)
    return found


def strip_axis(strip: Strip, size: Scale) -> _Figure:
    """Return the vertical axis of a strip, without its place."""
    return PLAIN_AXIS | {
        "range": [0, 1.35 * size.top_bytes / size.unit],  # room for the peak's label
        "nticks": 4,
        "title": {"text": f"{html.escape(strip.device, quote=False)}<br>({size.name})", "font": {"size": 11}},
        "tickfont": {"size": 10},
    }


def peak_label(strip: Strip, until_ns: int) -> _Figure:
    """Return what is written beside the line at the peak."""
    late = strip.peak_ns > until_ns / 2
    return {
        "text": f"peak {format_bytes(strip.peak_bytes, iec=True)}",
        "font": {"size": 10},
        "xanchor": "right" if late else "left",
        "yanchor": "top",
    }
