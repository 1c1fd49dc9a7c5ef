"""Fit all kernels and write one file per GPU, or judge the fits on rows left out.

::

    python -m studies.kernels fit   --data DIR [--out FOLDER] [TABLE ...]     about ten minutes for all
    python -m studies.kernels judge --data DIR [--out FILE.md] [TABLE ...]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import typer

from devices.cost.kernel_fits import FOLDER, GENERATIONS, LAYERS, SCHEMA
from devices.cost.kernel_model import Model
from devices.presets import device_preset
from studies.kernels.fitting import alone, as_sure_as
from studies.kernels.judge import (
    Line,
    added_width,
    judge,
    lent,
    markdown,
    own,
    pooled,
    sampled,
    without,
)
from studies.kernels.tables import GDDR, HBM, Table, tables
from studies.program import Data, Tables, run

_TENSOR_CONV_WIDTH: Final = 0.3
"""Half width that another card adds to a V100's convolutions in 16 bits: with it, the part of convolutions in
45 CNNs on four cards (`studies.kernels.cnns`) is inside in four of five."""
POOLED: Final = tuple(name for generation, name in GENERATIONS.items() if generation == name)


def fits_of(table: Table) -> dict[str, Model]:
    """Return the fits of a table by file: for a GPU, its generation, or all unmeasured ones."""
    found = {gpu: alone(own(table, gpu, rows), gpu) for gpu, rows in table.rows.items()}
    if table.name.startswith("conv_") and table.dtype == "fp16":  # a P100 has no tensor cores
        return found | {"unmeasured": found["v100-sxm"].wider(_TENSOR_CONV_WIDTH)}
    every = [*without(sampled(table)).values()]
    added = added_width(every, f"{table.name} {table.dtype}", far=False)
    for name, gpus in _shared(table).items():
        model = pooled(table, gpus, 8000) if table.lenders is None else lent(table, gpus)
        found[name] = alone(as_sure_as(model, [found[g] for g in gpus]).wider(added))
    return found


def _shared(table: Table) -> dict[str, list[str]]:
    """Return the files shared by several GPUs, each with the GPUs whose rows it uses."""
    if table.lenders is None:
        by_file = {name: [g for g in table.rows if device_preset(g)["generation"] == name] for name in POOLED}
        return {name: gpus for name, gpus in by_file.items() if gpus}
    if table.name in ("elementwise", "softmax", "layer_norm"):
        return {"unmeasured_hbm": [*HBM], "unmeasured_gddr": [*GDDR]}
    if table.name in ("bmm", "linear"):  # the newest generation counts twice: later ones use its kernels
        old = ("p100-pcie-16", "p4") if table.name == "linear" else ()
        return {"unmeasured": [*(g for g in table.rows if g not in old), "a100-pcie-40"]}
    return {"unmeasured": [*table.rows]}


def record_of(model: Model) -> dict[str, Any]:
    """Return readable numbers: parameters that the rows moved, in three digits; grids in hundredths of a
    logarithm.
    """
    start, free = vars(model.family.start), vars(model.parameters)
    rounded = {name: float(f"{value:.3g}") for name, value in free.items()}
    away = round(float(model.away), 3)
    return {
        "family": model.family.name,
        "dtype": model.dtype,
        "parameters": {n: v for n, v in rounded.items() if not np.isclose(v, start[n], rtol=0.005)},
        "grids": [np.rint(100 * grid.values).astype(int).ravel().tolist() for grid in model.grids],
        "spread_edges": [round(float(edge), 2) for edge in model.spread_edges],
        "spread": [round(float(width), 3) for width in model.spread],
        **({"away": away} if away else {}),
    }


def write(folder: Path, name: str, key: str, model: Model) -> None:
    """Put a model into the file of a GPU: one line each, readable and small."""
    path = folder / f"{name}.json"
    families = json.loads(path.read_text(encoding="utf-8"))["families"] if path.exists() else {}
    families[key] = record_of(model)
    lines = (f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in sorted(families.items()))
    head = f'{{\n"schema":"{SCHEMA}",\n"gpu":"{name}",\n"families":{{\n'
    path.write_text(head + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


def common_layers(table: Table) -> dict[str, list[int]]:
    """Return the layers with which every GPU was measured, a column a size; none if they are many."""
    of = [rows.layers() for rows in table.rows.values()]
    common = set.intersection(*({*zip(*each.values(), strict=True)} for each in of))
    return dict(zip(of[0], np.array(sorted(common), int).T.tolist(), strict=False))


def write_layers(path: Path, every: Mapping[str, Mapping[str, list[int]]]) -> None:
    """Write the layers of all tables, one a line, below what the file says of itself."""
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    rows = [f"{key}: {json.dumps(columns).replace(chr(34), '')}" for key, columns in sorted(every.items())]
    path.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


def main(
    what: Literal["fit", "judge"],
    data: Data,
    names: Tables = None,
    out: Annotated[Path | None, typer.Option(help="folder of fits, or file of errors")] = None,
) -> None:
    """Fit all kernels and write one file per GPU, or judge the fits on rows left out."""
    lines: list[Line] = []
    every_layer = dict(LAYERS)
    for table in tables(data, names):
        if what == "fit":
            for name, model in fits_of(table).items():
                write(out or FOLDER, name, f"{table.name} {table.dtype}", model)
            if layers := common_layers(table):
                every_layer[f"{table.name} {table.dtype}"] = layers
            print(table.name, table.dtype, flush=True)
            continue
        lines += judge(table)
        if out:
            out.write_text(markdown(lines), encoding="utf-8")
    if what == "fit" and not out:
        write_layers(FOLDER.parent / "layers.yaml", every_layer)
    if lines and not out:
        print(markdown(lines), end="")


if __name__ == "__main__":
    run(main)
