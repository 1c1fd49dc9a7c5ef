"""What-ifs side by side: what helps how much, as rows, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import yaml

from scenarios.run.trials.trials import Outcome
from sim.words.units import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["WHAT_IFS_SCHEMA", "draw_what_ifs", "ranked", "to_json", "written"]

WHAT_IFS_SCHEMA: Final = "sim.whatif/1"


def written(what_if: dict[str, Any]) -> str:
    """Return a what-if as one line of YAML.

    Examples
    --------
    >>> written({"scale": {"gemm": "x0.5"}})
    '{scale: {gemm: x0.5}}'
    """
    if not what_if:
        return ""
    return yaml.safe_dump(what_if, default_flow_style=True, width=10**6, sort_keys=False).strip()


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that ran, the base first, then what saves most."""
    base, *others = (each for each in outcomes if each.makespan_ns is not None)
    return [base, *sorted(others, key=lambda each: each.makespan_ns or 0)]


def to_json(name: str, recorded_ns: int | None, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what ``sim whatif --json`` prints."""
    base_ns = outcomes[0].makespan_ns or 0
    return {
        "schema": WHAT_IFS_SCHEMA,
        "name": name,
        "recorded_ns": recorded_ns,
        "makespan_ns": base_ns,
        "what_ifs": [
            {
                "label": each.label,
                "what_if": each.what_if,
                "makespan_ns": each.makespan_ns,
                "saved_ns": None if each.makespan_ns is None else base_ns - each.makespan_ns,
                "other_saved_ns": each.other_saved_ns,
                "notes": list(each.notes),
            }
            for each in (*ranked(outcomes)[1:], *(each for each in outcomes if each.makespan_ns is None))
        ],
    }


def draw_what_ifs(name: str, outcomes: Sequence[Outcome], ax: Axes | None = None) -> Axes:
    """Draw how much time each what-if saves, the largest on top.

    Parameters
    ----------
    name : str
        Of what was recorded.
    outcomes : sequence of Outcome
    ax : Axes, optional
    """
    from sim.plot.colours import OKABE_ITO
    from sim.plot.figure import elided, new_figure
    from sim.plot.theme import plain

    base, *others = ranked(outcomes)
    base_ns = base.makespan_ns or 0
    if ax is None:
        _, (ax,) = new_figure(width=9.0, height=1.2 + 0.28 * max(1, len(others)))
    saved = [base_ns - (each.makespan_ns or 0) for each in others]
    shares = [100 * ns / base_ns if base_ns else 0.0 for ns in saved]
    blue, red = OKABE_ITO[0], OKABE_ITO[5]
    ax.barh(range(len(others)), shares, color=[red if share < 0 else blue for share in shares], height=0.7)
    ax.set_yticks(range(len(others)), [elided(each.label, 60) for each in others], fontsize=8)
    ax.invert_yaxis()
    for row, (share, ns) in enumerate(zip(shares, saved, strict=True)):
        text = f" {format_duration(ns, digits=3) if ns >= 0 else '-' + format_duration(-ns, digits=3)}"
        ax.annotate(text, (max(share, 0.0), row), va="center", fontsize=8)
    ax.set_xlabel(f"% of the {format_duration(base_ns)} saved")
    ax.margins(x=0.12)
    ax.axvline(0, color="0.6", linewidth=0.8)
    plain(ax, name)
    return ax
