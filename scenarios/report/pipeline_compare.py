"""Pipeline schedules compared: time against memory, and measured bubbles beside the formula's.

::

    memory │ zb-h2 ●─┐                    ● on the front: nothing is both faster and smaller
           │         ● zb-v     ○ gpipe   ○ not on the front
           │             └───● v-half
           └───────────────────────────── time
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scenarios.fields.goals import front
from scenarios.run.execute import Result
from sim.export.tables import size, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_NEAR_POSITIONS: Final = 6
"""Number of positions next to a point, where its name needs no line to it."""


def is_pipelines(results: Sequence[Result]) -> bool:
    """Whether all results are of pipelines."""
    return bool(results) and all(result.summary["pipeline"] for result in results)


def pipeline_rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return one row of text per result, by the titles of its columns.

    In all rows, bubbles refer to the makespan and to the longest span of a rank, so they can be compared; the
    formula's refers to what it was published for. Activations are the micro-batches (times chunks) alive
    on the rank with most. Waits for transfers are communication that nothing hides, on the rank that waits
    longest.
    """
    rows = []
    for result in results:
        pipeline = result.summary["pipeline"]
        bubbles = {key: pipeline[key] for key in ("makespan_bubble", "span_bubble", "bubble_formula")}
        row = {key: "" if share is None else f"{100 * share:.2f}%" for key, share in bubbles.items()}
        maxima = {key: max(pipeline[key]) for key in ("span_ns", "peak_activations", "exposed_ns")}
        peak, rank = _peak_bytes(pipeline)
        peak_text = f"rank {rank}: {size(peak)}" if peak > 0 else size(peak)
        rows.append({**pipeline, **row, **maxima, "schedule": result.policy, "peak": peak_text})
    columns = ["schedule", "makespan_ns", "longest span: span_ns", "bubble: makespan_bubble", "span_bubble"]
    if any(row["bubble_formula"] for row in rows):
        columns += ["formula: bubble_formula", "formula for: formula_of"]
    columns += ["activations: peak_activations", "highest peak memory: peak"]
    columns += ["waits for transfers: exposed_ns", "bottleneck"]
    return text_table(rows, columns)


def _peak_bytes(pipeline: dict[str, Any]) -> tuple[int, int]:
    """Return the highest memory peak of a rank, and the first rank that has it."""
    peaks = [sum(of_rank.values()) for of_rank in pipeline["memory_bytes"]]
    return max(peaks), peaks.index(max(peaks))


def pareto(results: Sequence[Result], ax: Axes | None = None) -> Axes:
    """Draw time against memory, one point per schedule, and the Pareto front.

    Parameters
    ----------
    results : sequence of Result
        Results of pipelines with the same work. Memory is the peak of the rank that holds most, in bytes, or
        in live activations if the scenario has no sizes.
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    from sim.plot.figure import axes_or_new, elide, scale_time
    from sim.plot.legend import add_legend
    from sim.plot.memory import byte_unit
    from sim.plot.theme import OKABE_ITO, paper, plain

    ax = axes_or_new(ax, width=7.0, height=4.5)
    pipelines = [result.summary["pipeline"] for result in results]
    peaks = [_peak_bytes(one)[0] for one in pipelines]
    sized = any(peaks)
    memory = peaks if sized else [max(one["peak_activations"]) for one in pipelines]
    points = [
        (float(result.trace.makespan_ns), float(size)) for result, size in zip(results, memory, strict=True)
    ]
    scale = scale_time(ax, max((int(time) for time, _ in points), default=1))
    ax.autoscale(axis="x")  # not from 0
    unit, word = byte_unit(max(memory)) if sized else (1, "")
    best = front(points)
    xs, peaks_on_front = [points[i][0] / scale for i in best], [points[i][1] / unit for i in best]
    ax.plot(xs, peaks_on_front, "o-", color=OKABE_ITO[4], label="Pareto front")
    for i, (time, nbytes) in enumerate(points):
        face = OKABE_ITO[4] if i in best else paper()
        ax.plot([time / scale], [nbytes / unit], "o", markerfacecolor=face, markeredgecolor=OKABE_ITO[4])
    ax.margins(x=0.12, y=0.08)
    places = [(time / scale, size / unit) for time, size in points]
    plain(ax)
    named = [(elide(result.policy), point) for result, point in zip(results, places, strict=True)]
    _place_names(ax, named, [places[i] for i in best])
    add_legend(ax, alone=True)
    ax.set_ylabel(f"peak memory ({word})" if sized else "activations alive")
    return ax


def _place_names(
    ax: Axes, names: Sequence[tuple[str, tuple[float, float]]], line: Sequence[tuple[float, float]]
) -> None:
    """Write names beside their points, each at the first position where it covers nothing else.

    It must cover no point, no other name, and not the line. A thin line connects a distant name to its
    point.
    """
    from matplotlib.transforms import Bbox

    ax.autoscale_view()
    figure = ax.get_figure(root=True)
    assert figure is not None
    points = 72 / figure.dpi  # per pixel
    anchors = [(points * x, points * y) for x, y in (ax.transData.transform(point) for _, point in names)]
    frame = Bbox(points * ax.get_window_extent().get_points())
    occupied = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in anchors]
    around = [Bbox.from_bounds(x - 6, y - 14, 12, 28) for x, y in anchors]  # a name in it would seem its own
    corners = points * ax.transData.transform(line)
    for start, end in pairwise(corners):  # the line, as small boxes
        for share in np.linspace(0, 1, 2 + int(np.hypot(*(end - start)) / 4)):
            x, y = start + share * (end - start)
            occupied.append(Bbox.from_bounds(x - 1, y - 1, 2, 2))
    for i, ((name, point), (x, y)) in enumerate(zip(names, anchors, strict=True)):
        others = [*occupied, *around[:i], *around[i + 1 :]]
        width, height = 5.0 * len(name), 10.0
        beside = [(6, -4), (6, 4), (6, -12), (-6 - width, -4), (-6 - width, 4), (-6 - width, -12)]
        beside += [(dx, side * step) for step in (16, 26, 36) for side in (1, -1) for dx in (4, -width / 2)]
        boxes = [Bbox.from_bounds(x + dx, y + dy, width, height) for dx, dy in beside]
        within = [box.x0 > frame.x0 and box.x1 < frame.x1 for box in boxes]
        free = [k for k, box in enumerate(boxes) if within[k] and not box.count_overlaps(others)]
        best = free[0] if free else 0
        occupied.append(boxes[best])
        dx, dy = beside[best]
        thin = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        line_to = thin | {"relpos": (0.5, 0 if dy > 0 else 1)} if best >= _NEAR_POSITIONS else None
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "parse_math": False}
        ax.annotate(name, point, (dx, dy + 2), arrowprops=line_to, **look)
