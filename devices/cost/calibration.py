"""A calibration: the measured costs of a real machine, as a file (schema ``sim.calibration/1``).

::

    {"schema": "sim.calibration/1", "backend": "timer", "device": "...", "provenance": {...},
     "quantities": {"issue_ns": {"median": 4100, "mad": 200, ..., "n": 390}, ...},
     "tables": [{"kind": "matmul", "axes": ["size", "repeat"], "context": "warm",
                 "rows": [[256, 1, 480000], ...], "statistics": [{...}, ...]}, ...],
     "sentinels": [{"block": ..., "before": ..., "after": ..., "accepted": true}, ...]}

Quantities become the numbers of a `sim.Device`; tables become cost tables, in a scenario by
``cost: {table: calibration.json}``. A context is kept with its table, because a duration without
the company it was measured in is biased; `warm` is what a scenario gets, or ``warm, fp32`` where an op
has that data type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from devices.cost import cost_table as table_file
from devices.cost.cost_table import Axis, CostTable
from devices.cost.measured import Measured, read_record, well_formed
from sim.base.arrays import LATEST_NS
from sim.base.errors import InputError

SCHEMA: Final = "sim.calibration/1"
_KEYS: Final = ("schema", "backend", "device", "provenance", "quantities", "tables", "sentinels")


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes
    ----------
    backend, device : str
    provenance : mapping
        Device, driver, library versions, clocks, protocol, date.
    quantities : mapping of str to mapping
        Summaries (`validation.real.statistics.Summary`) by name; medians are used.
    tables : sequence of mapping
        As in the file.
    sentinels : sequence of mapping
        Every block that was measured, with the ones that were thrown away.
    """

    backend: str
    device: str
    provenance: Mapping[str, Any]
    quantities: Mapping[str, Mapping[str, Any]]
    tables: Sequence[Mapping[str, Any]]
    sentinels: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def what_was_measured(self, context: str) -> Measured:
        """Return what the durations of a context contain, and in which data types they were measured.

        On a GPU a duration is that of a chain over its length, so the gap is in it, and plans compute in bf16
        (`validation.calibrate.gpu_costs`). Host backends time each op by itself.
        """
        _, _, dtype = context.partition(", ")
        if self.backend != "cuda":
            return Measured((dtype,) if dtype else ())
        return Measured((dtype or "bf16",), ("gap",))

    @cached_property
    def by_context(self) -> dict[str, dict[str, CostTable]]:
        """The tables of each context, by kind of op."""
        found: dict[str, dict[str, CostTable]] = {}
        for table in self.tables:
            axes, measured = [Axis(name) for name in table["axes"]], self.what_was_measured(table["context"])
            made = CostTable.from_rows(
                self.device, table["kind"], axes, table["rows"], self.provenance, measured=measured
            )
            found.setdefault(table["context"], {})[made.kind] = made
        return found


def load_tables(path: str | Path) -> list[CostTable]:
    """Return the tables of a file: one of a cost table, the warm ones of a calibration, of each data type.

    Raises
    ------
    InputError
        The file is neither.
    """
    content = read_record(path, "a cost table", table_file.SCHEMA, SCHEMA)
    if content["schema"] == SCHEMA:
        kept = _calibration(content, path).by_context.items()
        return [t for context, kinds in kept if context.partition(", ")[0] == "warm" for t in kinds.values()]
    return [table_file.table_of(content, path)]


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration.

    Raises
    ------
    InputError
        The file is none; the message names it and what is wrong.
    """
    return _calibration(read_record(path, "a calibration", SCHEMA), path)


def _check(calibration: Calibration) -> None:
    """Refuse what no calibration says: the file may have been edited."""
    kinds = {"backend": str, "device": str, "provenance": dict, "quantities": dict, "sentinels": list}
    for key, kind in kinds.items():
        if not isinstance(found := getattr(calibration, key), kind):
            raise InputError(f"{key!r} is {found!r:.60}")
    for name, summary in calibration.quantities.items():
        median = summary["median"]
        if not isinstance(median, (int, float)) or not 0 <= median <= LATEST_NS:
            raise InputError(f"the median of {name!r} is {median!r:.60}, should be a number, 0 or more")
    for block in calibration.sentinels:
        if not (isinstance(block["block"], str) and isinstance(block["accepted"], bool)):
            raise InputError(f"a block of 'sentinels' is {block!r:.60}")
    for table in calibration.tables:
        if not all(isinstance(axis, str) for axis in table["axes"]):
            raise InputError(f"the axes of a table are {table['axes']!r:.60}")


def _calibration(content: Mapping[str, Any], path: str | Path) -> Calibration:
    with well_formed(path):
        if set(content) != set(_KEYS):
            found = ", ".join(content)
            raise InputError(f"a calibration has the keys {', '.join(_KEYS)}; found {found}")
        calibration = Calibration(**{key: content[key] for key in _KEYS[1:]})
        _check(calibration)
        _ = calibration.by_context  # refuses tables that are none
        return calibration
