"""Why a run took so long, as the page tells it: time of devices, explanation, longest idle stretches."""

from __future__ import annotations

from typing import Any, Final

from sim.explain.facts.derived_columns import Facts
from sim.explain.told.gaps import largest_gaps
from sim.explain.told.text import explain_text
from sim.plot.theme import on_dark
from sim.plot.use.devices import USE_COLOURS, use_of_devices

__all__ = ["told"]

_GAPS: Final = 20
"""How many idle stretches are listed."""
_DEVICES: Final = 40
"""How many bars there are; of more devices the first ones have one."""


def told(facts: Facts, title: str) -> dict[str, Any]:
    """Return what stands below the chart of one run.

    Parameters
    ----------
    facts : Facts
    title : str

    Returns
    -------
    dict
        ``title``; ``use``: names of devices that spent their time alike, and the share of each part; the
        ``colours`` of the parts, on light and dark paper (None: ink); ``text``: what `sim explain` prints;
        ``gaps``: the longest idle stretches.
    """
    trace = facts.trace
    total = max(trace.makespan_ns, 1)
    alike: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for name, parts in use_of_devices(trace, facts).items():
        shares = tuple((part, round(ns / total, 6)) for part, ns in parts.items() if ns)
        if shares != (("idle", 1.0),):  # it has no work at all
            alike.setdefault(shares, []).append(name)
    use = [
        [f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0], shares]
        for shares, names in list(alike.items())[:_DEVICES]
    ]
    seen = {part for shares in alike for part, _ in shares}
    return {
        "title": title,
        "use": use,
        "colours": {
            part: None if colour == "black" else (colour, on_dark(colour))
            for part, colour in USE_COLOURS.items()
            if part in seen
        },
        "text": explain_text(trace, title=title, facts=facts).partition("\n")[2].strip("\n"),
        "gaps": [gap._asdict() for gap in largest_gaps(trace, _GAPS, facts)],
    }
