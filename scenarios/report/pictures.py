"""Pictures of what-ifs, sweeps and benchmarks; what-ifs also as ranked rows and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import yaml

from scenarios.fields.results import column_of_result, label_result
from scenarios.variants.variant import Row, WhatIfText, short_names
from sim.base.errors import InputError
from sim.base.units import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WHAT_IFS_SCHEMA: Final = "sim.whatif/1"


def as_yaml_line(what_if: WhatIfText) -> str:
    """Return a what-if as one line of YAML.

    Examples
    --------
    >>> as_yaml_line({"scale": {"gemm": "x0.5"}})
    '{scale: {gemm: x0.5}}'
    """
    if not what_if:
        return ""
    return yaml.safe_dump(what_if, default_flow_style=True, width=10**6, sort_keys=False).strip()


def rank_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the base and the what-ifs that could be applied, sorted by what they save."""
    base, *others = (row for row in rows if row["makespan_ns"] is not None)
    return [base, *sorted(others, key=lambda row: row["makespan_ns"])]


def to_json(name: str, recorded_ns: int | None, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what ``sim whatif --json`` prints."""
    base, *what_ifs = rank_rows(rows)
    what_ifs += [row for row in rows if row["makespan_ns"] is None]
    head = {"schema": WHAT_IFS_SCHEMA, "name": name, "recorded_ns": recorded_ns}
    return {**head, "makespan_ns": base["makespan_ns"], "what_ifs": what_ifs}


def draw_what_ifs(name: str, rows: Sequence[Row]) -> Axes:
    """Draw the time that each what-if saves, the largest on top.

    Parameters
    ----------
    name : str
        Name of the recording.
    rows : sequence of dict
        Rows as `scenarios.variants.what_ifs.try_all` yields them.
    """
    from sim.plot.figure import elide, new_figure
    from sim.plot.theme import OKABE_ITO, plain

    base, *others = rank_rows(rows)
    base_ns = base["makespan_ns"]
    _, [ax] = new_figure(width=9.0, height=1.2 + 0.28 * max(1, len(others)))
    saved = [row["saved_ns"] for row in others]
    shares = [100 * ns / base_ns if base_ns else 0.0 for ns in saved]
    blue, red = OKABE_ITO[0], OKABE_ITO[5]
    ax.barh(range(len(others)), shares, color=[red if share < 0 else blue for share in shares], height=0.7)
    labels = [elide(row["label"], 60) for row in others]
    ax.set_yticks(range(len(others)), labels, fontsize=8, parse_math=False)
    ax.invert_yaxis()
    for row, (share, ns) in enumerate(zip(shares, saved, strict=True)):
        ax.annotate(f" {format_duration(ns, digits=3)}", (max(share, 0.0), row), va="center", fontsize=8)
    ax.set_xlabel(f"% of the {format_duration(base_ns)} saved")
    ax.margins(x=0.12)
    ax.axvline(0, color="0.6", linewidth=0.8)
    plain(ax, name)
    return ax


# ----------------------------------------------------------------------------------------------------------
# A sweep as a picture: a result over the first key, one line per combination of the others.


def sweep_plot(
    rows: Sequence[Mapping[str, Any]],
    settings: Sequence[str],
    what: str = "makespan",
    ax: Axes | None = None,
    *,
    most: bool = False,
) -> Axes:
    """Draw a result of a sweep over its first key.

    Parameters
    ----------
    rows : sequence of mapping
        Rows as `scenarios.variants.sweep.sweep` returns them; failed ones are left out.
    settings : sequence of str
        Columns of the varied keys.
    what : str
        A result of ``expect:`` that the rows have.
    ax : Axes, optional
    most : bool
        Whether more is better: of many lines, the seven with the best points have a name and a colour, and
        the others are grey.

    Raises
    ------
    InputError
        Every point failed, so there is nothing to draw.
    """
    from sim.plot.figure import axes_or_new, elide
    from sim.plot.legend import add_legend
    from sim.plot.theme import OKABE_ITO, plain

    column = column_of_result(what)
    lines: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    endings = short_names([key.removeprefix("varied ") for key in settings]).values()
    words = dict(zip(settings, endings, strict=True))
    policies = len({row["policy"] for row in rows}) > 1 and "policy" not in words.values()
    # Where policy.name varies, a line has its policy's name already.
    policies &= any(row["policy"] not in [row[key] for key in settings] for row in rows)
    for row in rows:
        others = [f"{words[key]}={row[key]}" for key in settings[1:]]
        if row.get(column) is not None and not row["error"]:
            name = (*others, *([str(row["policy"])] if policies else []))
            lines.setdefault(name, []).append((str(row[settings[0]]), row[column]))
    if not lines:
        raise InputError("there is nothing to draw: every point failed")
    order = list(dict.fromkeys(str(row[settings[0]]) for row in rows))
    positions = _positions(order)
    ax = axes_or_new(ax, width=8.0, height=4.2)
    best = max if most else min
    ranked = sorted(lines, key=lambda name: best(y for _, y in lines[name]), reverse=most)
    named = [name for name in lines if name in ranked[: len(OKABE_ITO)]]
    handles: dict[str, Any] = {}  # not the labels of lines, of which a legend hides those that begin with _
    for name, points in sorted(lines.items(), key=lambda line: line[0] not in named):  # the others last
        k = named.index(name) if name in named else None
        style = "-" if k is None else ("o-", "s--", "^:", "D-.")[k % 4]  # lines may coincide
        colour = "0.7" if k is None else OKABE_ITO[k]
        xs, ys = [positions[value] for value, _ in points], [y for _, y in points]
        label = f"{len(lines) - len(named):,} others" if k is None else ", ".join(map(elide, name))
        [handles[", ".join(name) if k is not None and label in handles else label]] = ax.plot(
            xs, ys, style, markersize=4, color=colour, zorder=1 if k is None else 2
        )
    labels = [elide(value, 30) for value in order]
    turned: dict[str, Any] = {"parse_math": False}
    if sum(map(len, labels)) > _LINE_CHARACTERS:
        turned |= {"rotation": 25, "ha": "right"}
    ax.set_xticks([positions[value] for value in order], labels, **turned)
    ax.set_xlabel(settings[0].removeprefix("varied "), parse_math=False)
    label_result(ax.yaxis, what)
    ax.set_ylim(bottom=0)
    plain(ax)
    if lines.keys() != {()}:
        add_legend(ax, handles, alone=True)
    return ax


def profile_plot(profile: Mapping[str, Sequence[tuple[Any, Any]]]) -> Axes:
    """Draw the share of the instances on which each method is within a factor of the best.

    Parameters
    ----------
    profile : mapping
        Profile as `scenarios.variants.bench.profile` returns it.
    """
    from sim.plot.figure import elide, new_figure
    from sim.plot.legend import add_legend
    from sim.plot.theme import OKABE_ITO, plain

    _, [ax] = new_figure(width=8.0, height=4.2)
    last = max((float(ratio) for steps in profile.values() for ratio, _ in steps), default=1.0)
    handles: dict[str, Any] = {}
    for k, (name, steps) in enumerate(profile.items()):
        xs = [1.0, *(float(ratio) for ratio, _ in steps), 1 + (last - 1) * 1.05]
        share = [0.0, *(float(part) for _, part in steps)]
        style = ("-", "--", ":", "-.")[k % 4]  # lines may coincide
        colour = OKABE_ITO[k % len(OKABE_ITO)]
        steps_to = [*share, share[-1]]
        label = name if elide(name) in handles else elide(name)
        [handles[label]] = ax.plot(xs, steps_to, style, color=colour, drawstyle="steps-post")
    ax.set_xlabel("makespan, as a multiple of the best of these methods")
    ax.set_ylabel("share of the instances")
    ax.set_ylim(0, 1.02)
    plain(ax)
    add_legend(ax, handles, alone=True)
    return ax


_LINE_CHARACTERS: Final = 80
"""Number of characters that fit on one line below a picture."""


def _positions(values: Sequence[str]) -> dict[str, float]:
    """Return the positions of values: evenly spaced numbers by their size, all others side by side."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return {value: float(k) for k, value in enumerate(values)}
    steps = {round(b - a, 9) for a, b in pairwise(numbers)}
    even = len(steps) == 1
    return dict(zip(values, numbers if even else map(float, range(len(values))), strict=True))
