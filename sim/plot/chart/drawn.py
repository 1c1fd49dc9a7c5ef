"""Bars as polygons, and the lanes that they stand on.

All bars of a chart are one collection of polygons for each hatch: 20,000 of them draw in well under a second.
Narrow ones get no edges, which would be all that one sees, and are blended, not snapped to pixels, so that a
column of the picture has the colours of what ran then, as strong as the lane was busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sim.plot.chart.bars import Bars
from sim.plot.figure import elided
from sim.plot.theme import hatches, ink, paper, shade
from sim.words.arrays import BoolArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["HEIGHT", "draw_bars", "name_lanes", "points_of"]

HEIGHT: Final = 0.8
"""Of a bar, as a share of its lane."""
_PALE: Final = 0.2
"""Opacity of bars that are not marked."""
_LARGEST, _SMALLEST = 10.0, 5.5
"""Points of the names of lanes; where lanes are lower, not all have theirs."""


def draw_bars(
    ax: Axes,
    bars: Bars,
    colours: Mapping[str, str],
    scale: int,
    until: int,
    marked: BoolArray | None = None,
) -> None:
    """Draw bars into axes whose unit of time has `scale` ns, and which end at `until` ns.

    Where some are `marked`, the others are pale.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba_array

    palette = to_rgba_array([shade(colours[kind]) for kind in bars.kinds])
    hatch = hatches(colours)
    face = palette[bars.kind]
    if marked is not None:
        face[~marked, 3] = _PALE
    height = HEIGHT / bars.n_levels
    top = bars.lane - HEIGHT / 2 + bars.level * height
    left, right, bottom = bars.start / scale, bars.end / scale, top + height
    corners = np.stack((left, top, left, bottom, right, bottom, right, top), axis=-1).reshape(-1, 4, 2)
    wide = bars.end - bars.start > until / 400  # an edge around a thinner bar would hide it
    groups: list[tuple[BoolArray, float, Any, str]] = [(~wide, 0.0, "none", "")]
    for pattern in sorted(set(hatch.values())):
        kinds = [k for k, kind in enumerate(bars.kinds) if hatch[kind] == pattern]
        here = wide & np.isin(bars.kind, kinds)
        groups.append((here, 0.5, paper(), pattern))
        if marked is not None:
            groups.append((here & marked, 1.0, ink(), pattern))
    for some, edge, colour, pattern in groups:
        if some.any():
            collection = PolyCollection(
                corners[some],  # type: ignore[arg-type]  # an array is drawn much faster than a list
                facecolors=face[some],
                edgecolors=colour,
                linewidths=edge,
                hatch=pattern or None,
            )
            collection.set_snap(bool(edge))
            ax.add_collection(collection, autolim=False)


def name_lanes(ax: Axes, lanes: Sequence[str], points: float) -> None:
    """Write the names of lanes, in letters that have room; where that is too small, of every second or so.

    Parameters
    ----------
    ax : Axes
    lanes : sequence of str
        From top to bottom.
    points : float
        Height of a lane.
    """
    step = max(1, int(np.ceil(_SMALLEST / max(points, 0.01))))
    size = float(np.clip(0.8 * points * step, _SMALLEST, _LARGEST))
    ax.set_yticks(range(0, len(lanes), step), [elided(lane) for lane in lanes[::step]], fontsize=size)
    ax.set_ylim(max(len(lanes), 1) - 0.5, -0.5)


def points_of(ax: Axes, share_of: int = 1) -> tuple[float, float]:
    """Return the width of axes, and their height over `share_of`, in points, as known before layout."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    (width, height), place = figure.get_size_inches(), ax.get_position()
    return place.width * width * 72, place.height * height * 72 / max(1, share_of)
