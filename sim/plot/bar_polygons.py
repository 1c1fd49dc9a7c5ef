"""Bars as polygons, and the lanes that they stand on.

All bars of a chart form one collection of polygons per hatch: 20,000 of them draw in well under a second.
Narrow bars get no edges, which would hide their colour, and are mixed: a column of the picture has the
colours of the tasks that ran then, as strong as the lane was busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sim.base.arrays import UNSET, BoolArray, FloatArray, IntArray
from sim.plot.bars import Bars, PathSteps, arrows_of, micro_batches
from sim.plot.figure import elide, time_unit
from sim.plot.theme import hatches, ink, is_print, paper, shade
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HEIGHT: Final = 0.8
"""Height of a bar, as a share of its lane."""
_PALE: Final = 0.2
"""Opacity of bars that are not marked."""
_LARGEST, _SMALLEST = 10.0, 5.5
"""Font sizes of lane names, in points; if lanes are lower, only some get names."""


def draw_bars(
    ax: Axes, bars: Bars, colours: Mapping[str, str], end_ns: int, marked: BoolArray | None = None
) -> None:
    """Draw bars into axes that end at `end_ns` ns (`sim.plot.figure.scale_time`).

    If some are `marked`, the others are pale.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba_array

    palette = to_rgba_array([shade(colours[kind]) for kind in bars.kinds])
    hatch = hatches(colours)
    face = palette[bars.kind]
    if marked is not None:
        face[~marked, 3] = _PALE
    height, scale = HEIGHT / bars.n_levels, time_unit(end_ns)[0]
    top = bars.lane - HEIGHT / 2 + bars.level * height
    left, right, bottom = bars.start / scale, bars.end / scale, top + height
    corners = np.stack((left, top, left, bottom, right, bottom, right, top), axis=-1).reshape(-1, 4, 2)
    wide = bars.end - bars.start > end_ns / 400  # an edge around a thinner bar would hide it
    if not wide.all():
        _draw_mixed(ax, corners[~wide, 0], corners[~wide, 2], face[~wide])
    edges = [(wide, 0.5, paper()), *([] if marked is None else [(wide & marked, 1.0, ink())])]
    for pattern, (mask, edge, colour) in product(sorted(set(hatch.values())), edges):
        some = mask & np.isin(bars.kind, [k for k, kind in enumerate(bars.kinds) if hatch[kind] == pattern])
        if some.any():
            collection = PolyCollection(
                corners[some],  # an array is drawn much faster than a list
                facecolors=face[some],
                edgecolors=colour,
                linewidths=edge,
                hatch=pattern or None,
            )
            collection.set_snap(True)
            ax.add_collection(collection, autolim=False)


def _draw_mixed(ax: Axes, start: FloatArray, end: FloatArray, face: FloatArray) -> None:
    """Draw narrow bars, mixing their colours in each column of pixels by their shares of it.

    Polygons that meet in a pixel would be blended over one another, so a busy lane would look transparent.
    """
    from matplotlib.artist import Artist

    (top, bottom), row = np.unique((start[:, 1], end[:, 1]), axis=1, return_inverse=True)
    ink = np.concatenate((face[:, :3] * face[:, 3:], face[:, 3:]), axis=1)

    class Mixed(Artist):
        def draw(self, renderer: Any) -> None:
            finer, box = renderer.get_image_magnification(), ax.bbox
            pixels = ax.transData.transform
            left, right = ((pixels(corner)[:, 0] - box.x0) * finer for corner in (start, end))
            columns = np.zeros((len(top), int(np.ceil(box.width * finer)) + 1, 4))
            first = np.floor(left).astype(np.int64)
            for pixel in (first + k for k in range(int(np.ceil((right - left).max())) + 1)):
                share = np.clip(np.minimum(right, pixel + 1) - np.maximum(left, pixel), 0, 1)
                visible = (share > 0) & (pixel >= 0) & (pixel < columns.shape[1])
                np.add.at(columns, (row[visible], pixel[visible]), share[visible, None] * ink[visible])
            columns[..., :3] /= np.maximum(columns[..., 3:], 1e-9)
            image = np.round(255 * np.minimum(columns, 1)).astype(np.uint8)
            context = renderer.new_gc()
            context.set_clip_rectangle(box)
            for high, low, line in zip(top, bottom, image, strict=True):
                y, above = (round(pixels((0, lane))[1]) for lane in (low, high))
                rows = max(1, round((above - y) * finer))
                renderer.draw_image(context, box.x0, y, np.tile(line, (rows, 1, 1)))

    ax.add_artist(Mixed()).set_zorder(1)


def name_lanes(ax: Axes, lanes: Sequence[str], points: float) -> None:
    """Write the names of lanes in a font that fits; if it would be too small, only every second one or so.

    Parameters
    ----------
    ax : Axes
    lanes : sequence of str
        Names from top to bottom.
    points : float
        Height of a lane.
    """
    step = max(1, int(np.ceil(_SMALLEST / max(points, 0.01))))
    size = float(np.clip(0.8 * points * step, _SMALLEST, _LARGEST))
    names = [elide(lane) for lane in lanes[::step]]
    ax.set_yticks(range(0, len(lanes), step), names, fontsize=size, parse_math=False)
    ax.set_ylim(max(len(lanes), 1) - 0.5, -0.5)


def points_of(ax: Axes, share_of: int = 1) -> tuple[float, float]:
    """Return the width of axes, and their height over `share_of`, in points, as known before layout.

    Long names of lanes, or of an existing legend, leave less width.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    (width, height), box = 72 * figure.get_size_inches(), ax.get_position()
    neighbours = [ax.get_yticklabels(), *(legend.get_texts() for legend in figure.legends)]
    widths = ([float(len(text.get_text()) * text.get_fontsize()) for text in texts] for texts in neighbours)
    names = sum(max(lengths, default=0.0) for lengths in widths)
    return min(box.width * width, width - 40 - names * _WIDTH), box.height * height / max(1, share_of)


# ----------------------------------------------------------------------------------------------------------
# Overlays on the bars of a chart: arrows from lane to lane, and the critical path.


def draw_path(ax: Axes, path: PathSteps, end_ns: int) -> None:
    """Draw a line from each step of the critical path to the next, from edge to edge of wide bars."""
    lines: list[list[tuple[float, float]]] = [[]]
    wide, scale = (path.bar != UNSET) & (path.end - path.start > end_ns / 400), time_unit(end_ns)[0]
    for lane, start, end, ends_line in zip(path.lane, path.start, path.end, wide, strict=True):
        lines[-1].append((start / scale, lane))
        if ends_line:
            lines.append([])
        lines[-1].append((end / scale, lane))
    for k, line in enumerate(lines):
        for index, other in ((0, 1), (-1, -2)):
            outermost = (k == 0 and index == 0) or (k == len(lines) - 1 and index == -1)
            if len(line) > 1 and not outermost:  # all other ends are at bars
                (x, y), (_, towards) = line[index], line[other]
                line[index] = x, y + HEIGHT / 2 * np.sign(towards - y)
    for colour, width in ((paper(), 2.8), (ink(), 1.2)):  # a rim contrasts with bars of any colour
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
    faint = float(np.clip(40 / len(source), 0.25, 0.9))  # fainter, the more arrows there are
    lines: Any = np.stack((begin, end), axis=1)
    ax.add_collection(LineCollection(lines, colors=ink(), linewidths=0.7, alpha=faint), autolim=False)
    for heads, marker in ((down, "v"), (~down, "^")):
        look = {"color": ink(), "alpha": faint, "linewidths": 0, "zorder": 3}
        ax.scatter(end[heads, 0], end[heads, 1], 9, marker=marker, **look)


# ----------------------------------------------------------------------------------------------------------
# Names in bars: the longest form of each that fits, in letters no higher than the bar.
#
#     gpu0/0   ▇▇▇block/conv1▇▇▇▇▇conv2▇▇        a name, or the part after one of its slashes
#     rank0/0  ▇0▇▇1▇▇▇0▇▇▇2▇▇▇▇1▇▇▇▇            slots of a pipeline without room for names: micro-batches

_MAX_NAMED: Final = 1_500
"""Maximum number of named bars in a chart; more take longer to draw than the rest of the picture."""
_WIDTH: Final = 4.5 / 7
"""Width of a letter relative to its size."""
_LARGEST_IN_BAR, _SMALLEST_IN_BAR = 7.0, 5.0
"""Font sizes in points."""
_CONTRAST: Final = 0.179
"""Relative luminance on which black and white are equally legible."""


def names_in_bars(
    ax: Axes,
    trace: Record,
    bars: Bars,
    fills: Sequence[str],
    end_ns: int,
    lane_points: float,
    marked: IntArray | None = None,
) -> None:
    """Write names into the bars of a trace that have room for them.

    In a pipeline whose slots are too narrow for all their names (``3F12``), all have the number of their
    micro-batch: the lane shows the stage, the colour the phase. If some rows are `marked`, the names of
    the others are as pale as their bars. In print, names stand on white.

    Parameters
    ----------
    ax : Axes
    trace : Trace
    bars : Bars
    fills : sequence of str
        Colour of each kind of bar, as drawn.
    end_ns : int
        Where the axes end, in ns.
    lane_points : float
        Height of a lane, in points.
    marked : array of int64, optional
    """
    length, slot = bars.end - bars.start, micro_batches(trace, bars)
    roomy = np.flatnonzero((length * points_of(ax)[0] > end_ns * 6) & (bars.row != UNSET))
    lanes = [lane.rpartition("/")[0] for lane in bars.lanes]

    def texts(k: int) -> list[str]:
        return forms(trace.name_of(int(bars.row[k])), lanes[int(bars.lane[k])])

    room = length / end_ns * points_of(ax)[0] - 3
    slots = roomy[slot[roomy] != UNSET].tolist()
    numbered = any(len(texts(k)[0]) * _WIDTH * _LARGEST_IN_BAR > room[k] for k in slots)

    write_names(
        ax,
        bars,
        roomy[np.argsort(-length[roomy], kind="stable")][:_MAX_NAMED],
        lambda k: [str(slot[k])] if numbered and slot[k] != UNSET else texts(k),
        fills,
        end_ns=end_ns,
        lane_points=lane_points,
        pale=None if marked is None else ~np.isin(bars.row, marked),
        smaller=numbered,
    )


def forms(name: str, device: str = "") -> list[str]:
    """Return shorter forms of a name: without its device, then the parts after a slash, but no bare number.

    Examples
    --------
    >>> forms("gpu0/ffn/up", "gpu0"), forms("serve/2/head/0"), forms("3F12")
    (['ffn/up', 'up'], ['serve/2/head/0', '2/head/0', 'head/0'], ['3F12'])
    """
    name = (name.removeprefix(f"{device}/") if device else name) or name
    parts = name.split("/")
    rests = ("/".join(parts[k:]) for k in range(1, len(parts)))
    return [name, *(suffix for suffix in rests if suffix and not suffix.isdecimal())]


def write_names(
    ax: Axes,
    bars: Bars,
    order: IntArray,
    texts: Callable[[int], Sequence[str]],
    fills: Sequence[str],
    *,
    end_ns: int,
    lane_points: float,
    pale: BoolArray | None = None,
    smaller: bool = False,
) -> None:
    """Write into each bar the first of its texts that fits, or none.

    Parameters
    ----------
    ax : Axes
    bars : Bars
    order : array of int64
        The bars that may get a name, in order.
    texts : callable
        Returns the possible texts for a bar, best first.
    fills, end_ns, lane_points
        As for `names_in_bars`.
    pale : array of bool, optional
        Bars that are pale, as are their names.
    smaller : bool
        Whether letters shrink if a text does not fit.
    """
    points, scale = points_of(ax)[0] / end_ns, time_unit(end_ns)[0]
    for k in order.tolist():
        room, height = (bars.end[k] - bars.start[k]) * points - 3, HEIGHT / bars.n_levels[k]
        size = min(_LARGEST_IN_BAR, 0.95 * height * lane_points)
        fits = (text for text in texts(k) if len(text) * _WIDTH * size <= room)
        if not (text := next(fits, "")) and smaller:
            text = texts(k)[-1]
            size = min(size, (room + 2) / (len(text) * _WIDTH))
        if not text or size < _SMALLEST_IN_BAR:
            continue
        y = bars.lane[k] - HEIGHT / 2 + (bars.level[k] + 0.5) * height
        faint = pale is not None and bool(pale[k])
        middle = (bars.start[k] + bars.end[k]) / 2 / scale
        where: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True, "parse_math": False}
        colour = ink() if faint or is_print() else ink_on(fills[int(bars.kind[k])])
        if is_print():  # hatches would be read as letters
            where["bbox"] = {"facecolor": paper(), "linewidth": 0, "pad": 0.6, "clip_on": True}
        ax.text(middle, y, text, fontsize=size, color=colour, alpha=0.4 if faint else 1.0, **where)


def ink_on(colour: str) -> str:
    """Return black or white, whichever has more contrast with `colour` (relative luminance, WCAG 2.2).

    Examples
    --------
    >>> ink_on("#0072B2"), ink_on("#CC79A7")
    ('white', 'black')
    """
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return "black" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > _CONTRAST else "white"
