"""Events of a Chrome trace as tests read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sim.export.chrome import Timeline, lines_of
from sim.record.record import Record


def chrome_events(trace: Record, *, arrows: int = 20_000) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace: names, slices, flows, counters."""
    return map(json.loads, lines_of(Timeline(trace), most=arrows))
