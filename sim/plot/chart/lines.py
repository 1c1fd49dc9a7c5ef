"""What is drawn over the bars of a chart: arrows from lane to lane, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.plot.chart.bars import Bars, PathSteps, arrows_of
from sim.plot.chart.drawn import HEIGHT
from sim.plot.theme import ink, paper
from sim.record.record import Record
from sim.words.arrays import UNSET

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_arrows", "draw_path"]


def draw_path(ax: Axes, path: PathSteps, scale: int, until: int) -> None:
    """Draw a line from each step of the critical path to the next, from edge to edge of wide bars."""
    lines: list[list[tuple[float, float]]] = [[]]
    wide = (path.bar != UNSET) & (path.end - path.start > until / 400)
    for lane, start, end, ends_line in zip(path.lane, path.start, path.end, wide, strict=True):
        lines[-1].append((start / scale, lane))
        if ends_line:
            lines.append([])
        lines[-1].append((end / scale, lane))
    for k, line in enumerate(lines):
        for at, other in ((0, 1), (-1, -2)):  # all but the outermost ends are at bars
            if len(line) > 1 and (k > 0 or at) and (k < len(lines) - 1 or not at):
                (x, y), (_, towards) = line[at], line[other]
                line[at] = x, y + HEIGHT / 2 * np.sign(towards - y)
    for colour, width in ((paper(), 2.8), (ink(), 1.2)):  # a rim sets it off from bars of any colour
        for line in lines:
            if len(line) > 1:
                ax.plot(*zip(*line, strict=True), color=colour, linewidth=width, solid_capstyle="butt")


def draw_arrows(ax: Axes, trace: Record, bars: Bars, scale: int) -> None:
    """Draw arrows from the facing side of the producer's bar to that of the consumer's."""
    from matplotlib.collections import LineCollection

    source, target = arrows_of(trace, bars)
    if not len(source):
        return
    down = bars.lane[target] > bars.lane[source]
    side = np.where(down, HEIGHT / 2, -HEIGHT / 2)
    begin = np.stack((bars.end[source] / scale, bars.lane[source] + side), axis=-1)
    end = np.stack((bars.start[target] / scale, bars.lane[target] - side), axis=-1)
    faint = float(np.clip(40 / len(source), 0.25, 0.9))  # the more there are
    lines = LineCollection(
        np.stack((begin, end), axis=1),  # type: ignore[arg-type]
        colors=ink(),
        linewidths=0.7,
        alpha=faint,
    )
    ax.add_collection(lines, autolim=False)
    for heads, marker in ((down, "v"), (~down, "^")):
        ax.scatter(
            end[heads, 0],
            end[heads, 1],
            s=9,
            marker=marker,
            color=ink(),
            alpha=faint,
            linewidths=0,
            zorder=3,
        )
