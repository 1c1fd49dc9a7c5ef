"""Recordings where a scenario is expected: ``sim run trace.json.gz`` runs it as it was recorded."""

from __future__ import annotations

import os
from typing import Any

from scenarios.importers.files import StrPath, read_head
from scenarios.recorded.setup import AS_RECORDED, POLICY
from sim.words.errors import InputError

__all__ = ["as_scenario", "format_of"]

_ENDINGS = (".json", ".json.gz", ".et", ".et.gz", ".chakra")


def format_of(path: StrPath) -> str | None:
    """Return the workload's key for a recording: ``kineto``, ``chakra`` or ``graph``; None if it is none.

    A folder is that of the ranks of a job. Of a graph file the first ops tell whether they were recorded.

    Raises
    ------
    InputError
        A packed file that is damaged: no scenario is packed.
    """
    from scenarios.importers.neutral import graph_json
    from scenarios.importers.traces import chakra, kineto

    if os.path.isdir(path):
        return "kineto" if any(name.endswith(_ENDINGS) for name in os.listdir(path)) else None
    if not os.fspath(path).endswith(_ENDINGS):
        return None
    try:
        head = read_head(path)
    except InputError:
        if os.fspath(path).endswith(".gz"):
            raise
        return None  # whoever reads all of it says why
    name = os.path.basename(path)
    if graph_json.recognises(name, head):
        return "graph" if b'"recorded_start_ns"' in head else None
    formats = {"chakra": chakra, "kineto": kineto}
    return next((key for key, one in formats.items() if one.recognises(name, head)), None)


def as_scenario(path: StrPath) -> dict[str, Any]:
    """Return the scenario in which a recording runs as it was recorded; it names it relative to its folder.

    Raises
    ------
    InputError
        It is no recording.
    """
    key = format_of(path)
    if key is None:
        raise InputError(f"{path}: is no recording; known: traces of Kineto and Chakra, a folder of ranks")
    name = os.path.basename(os.path.realpath(path))
    return {"machine": {**AS_RECORDED, "devices": {}}, "workload": {key: name}, "policy": dict(POLICY)}
