"""Kernels of one size on pairs of GPUs: what one says about the other, and how recordings convert.

::

    python -m studies.kernels.moved --data DIR [--left-out] [TABLE ...]

The time of a kernel on one GPU is converted to the other as in `scenarios.recorded.durations`, and
compared with the measurement there; and so is the ratio of the rooflines, for kernels that compute
the geometric mean of those of memory and arithmetic. With --left-out the other GPU was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Final, NamedTuple

import numpy as np

from devices.cost.kernel_costs import load_fits
from scenarios.recorded.durations import moved_ns
from sim.base.arrays import FloatArray
from studies.kernels.fitting import alone, kernel_ns
from studies.kernels.judge import MOST, without
from studies.kernels.tables import Rows, Table, tables
from studies.program import Data, Tables, run

MOVES: Final = frozenset(
    ("elementwise", "softmax", "layer_norm", "rms_norm", "rope", "gated_activation", "embedding")
)
LEAST_NS: Final = 1500.0  # shorter ones, or near the host's time, show how they were timed
FEWEST: Final = 30


class Moved(NamedTuple):
    """A table on two GPUs: mean errors of the conversion, and by rates; and how far the ratios of actual to
    modelled time agree (the slope of their logarithms).
    """

    same_generation: bool
    error: float
    by_rates: float
    shared: float


def _pairs(one: Rows, other: Rows) -> tuple[Rows, Rows]:
    """Return the rows of both GPUs with equal sizes."""

    def sizes(rows: Rows) -> list[tuple[float, ...]]:
        columns = [np.broadcast_to(x, len(rows.ns)) for x in rows.sizes.values() if not isinstance(x, str)]
        return [*zip(*columns, strict=True)]

    first = {each: i for i, each in enumerate(sizes(one))}
    found = [(first[each], j) for j, each in enumerate(sizes(other)) if each in first]
    mine, theirs = np.array(found, int).reshape(-1, 2)[:: len(found) // MOST + 1].T
    here, there = one.take(mine), other.take(theirs)
    told = [rows.ns > np.maximum(LEAST_NS, 2 * np.asarray(rows.floor_ns)) for rows in (here, there)]
    return here.take(told[0] & told[1]), there.take(told[0] & told[1])


def moved(table: Table, *, left_out: bool = False) -> Iterator[Moved]:
    """Yield the result for each pair of GPUs of a table."""
    lent = without(table) if left_out else {}
    for one, other in permutations(table.rows, 2):
        here, there = _pairs(table.rows[one], table.rows[other])
        if len(here.ns) >= FEWEST:
            before, after = table.sheet(one), table.sheet(other)
            own, theirs = (load_fits(gpu).model(table.name, table.dtype) for gpu in (one, other))
            if other in lent:
                theirs = alone(lent[other].sure)
            ns, took = kernel_ns(here), kernel_ns(there)
            says, would = own.predict(here.sizes, before)[0], theirs.predict(there.sizes, after)[0]
            same = before.generation == after.generation
            memory = before.dram_bytes_per_s / after.dram_bytes_per_s
            compute = before.peak_of(table.dtype) / after.peak_of(table.dtype)
            rates = memory if table.name in MOVES else (memory * compute) ** 0.5
            x, y = (np.clip(np.log(each), -1, 1) for each in (ns / says, took / would))
            yield Moved(
                same,
                _off(moved_ns(ns, says, would, same_generation=same), took),
                _off(rates * ns, took),
                float((x * y).sum() / (x * x).sum()),
            )


def _off(ns: FloatArray, took: FloatArray) -> float:
    return float(np.abs(ns / took - 1).mean())


def main(data: Data, names: Tables = None, left_out: bool = False) -> None:
    """Print a line for each table, and how much GPUs share."""
    every: list[Moved] = []
    for table in tables(data, names):
        found = [*moved(table, left_out=left_out)]
        if found:
            error, rates = (np.mean([getattr(m, key) for m in found]) for key in ("error", "by_rates"))
            name = f"{table.name} {table.dtype}"
            print(f"{name:30} {len(found):3} pairs {error:6.1%}, by rates {rates:6.1%}", flush=True)
        every += found
    for same, name in ((True, "one generation"), (False, "another")):
        shared = [m.shared for m in every if m.same_generation == same]
        if shared:
            print(f"shared with a GPU of {name}: {np.mean(shared):.2f}")


if __name__ == "__main__":
    run(main)
