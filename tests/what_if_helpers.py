"""What-ifs of recordings that are a few events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from test_import_kineto_what_if import starts_and_ends

from scenarios.importers.kineto.kineto import load
from scenarios.recorded.changes import WhatIf, apply_changes
from sim import Graph

US = 1000


def what_if(graph: Graph, *changes: dict[str, Any]) -> Graph:
    """Return a graph after changes, as a scenario has them."""
    return apply_changes(graph, [WhatIf.model_validate(change) for change in changes])


def trace_of(*events: dict[str, Any], path: Path) -> Graph:
    path.write_text(json.dumps({"traceEvents": [*events]}))
    return load(path)


def times(graph: Graph) -> dict[str, tuple[float, float]]:
    start, end = starts_and_ends(graph)
    return {name: (start[name] / US, end[name] / US) for name in graph.op_names}
