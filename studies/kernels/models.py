"""Whole models in fp32 in eager PyTorch (BERT and GPT-2, NeuSight), compared with simulated runs.

::

    python -m studies.kernels.models --data DIR [--left-out]

Each was recorded op by op for one layer. With --left-out a GPU gets the models it would have if its own
kernels had not been measured.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from devices.cost.kernel_costs import FittedCost, load_fits
from devices.cost.kernel_fits import KernelFits
from devices.cost.kernel_model import Model
from devices.machine import make_device
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, simulate
from sim.explain.time_use import uncertainty
from studies.kernels.fitting import alone
from studies.kernels.judge import without
from studies.kernels.tables import general_tables, preset_of
from studies.program import Data, run

WIDTH: Final = 4  # bytes per number
_FUNCTIONS: Final = {"truediv": "div", "contiguous": "transpose", "addmm": "matmul", "pow": "square"}
_KINDS: Final = frozenset(
    ("add", "sub", "mul", "div", "square", "tanh", "gelu", "where", "softmax", "matmul", "transpose")
)


class Run(NamedTuple):
    """A model on a GPU, in ms: as measured, as simulated, and the limits of its 80 % interval."""

    gpu: str
    name: str
    measured: float
    simulated: float
    low: float
    high: float

    @property
    def off(self) -> float:
        """Relative difference of the simulated time from the measured one."""
        return self.simulated / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies between the limits."""
        return self.low <= self.measured <= self.high


class _Op(NamedTuple):
    kind: str
    attributes: Mapping[str, Any]
    read: int
    written: int


def _op(row: Any, training: bool) -> _Op | None:
    """Return the op of a recorded line, or None if it launches no kernel."""
    inputs, out = ast.literal_eval(row.inputs), ast.literal_eval(row.output)
    if not inputs or prod(out) == 1:
        return None
    sizes = [prod(shape) for shape in inputs]
    read, written = WIDTH * sum(sizes), WIDTH * prod(out)
    width = inputs[0][-1]
    if row.op == "call_module":
        name = row.target.split(".")[-1].lower()
        if "drop" in name:
            return _Op("dropout", {}, read, written + prod(out)) if training else None  # and a mask
        if name.startswith(("layernorm", "ln_")):
            return _Op("layer_norm", {"rows": sizes[0] // width, "columns": width}, read, written)
        if len(out) > len(inputs[0]):
            return _Op("embedding", {}, written, written)
        if name == "activation":
            return _Op("tanh", {}, read, written)
        operator = f"aten::{'mm' if name == 'lm_head' else 'addmm'}"
        made = {"m": sizes[0] // width, "n": out[-1], "k": width, "transposed": True, "operator": operator}
        return _Op("matmul", made, read + WIDTH * width * out[-1], written)
    name = str(row.target).split("method ")[-1].split("function ")[-1].split()[0].rstrip(">")
    kind = _FUNCTIONS.get(name, name)
    if kind not in _KINDS:
        return None
    sized: Mapping[str, Any] = {}
    if kind == "matmul":
        left, right = inputs[-2:]
        sized = {"m": left[-2], "n": right[-1], "k": left[-1], "batch": prod(left[:-2])}
        sized["operator"] = f"aten::{name}"
    elif kind == "softmax":
        sized = {"rows": sizes[0] // width, "columns": width}
    return _Op(kind, sized, read, written)


def _ops(recorded: pd.DataFrame, layers: int, training: bool) -> Iterator[_Op]:
    """Return the ops of a whole model: those of the layer, repeated for each of its layers."""
    targets = recorded.target.astype(str)
    inside = targets.str.contains(r"\.(?:layer|h)\.0\.")
    begin = int(np.flatnonzero(inside)[0])
    later = np.flatnonzero((recorded.op == "call_module") & ~inside)
    end = int(later[later > begin].min())
    for position, row in enumerate(recorded.itertuples()):
        op = _op(row, training)
        if op is not None:
            yield from [*_copies(row, op), op] * (layers if begin <= position < end else 1)


def _copies(row: Any, op: _Op) -> Iterator[_Op]:
    """Yield the copies that PyTorch's product of heads makes of them, as they are no matrices one after the
    other in memory; keys are transposed. Scores (square) are such matrices.
    """
    for shape in ast.literal_eval(row.inputs) if op.attributes.get("operator") == "aten::matmul" else ():
        if len(shape) == 4 and shape[-2] != shape[-1]:
            nbytes = WIDTH * prod(shape)
            yield _Op("transpose", {"columnwise": shape[-2] < shape[-1]}, nbytes, nbytes)


def _gradients(op: _Op) -> Sequence[str]:
    """Return the kinds of the kernels that compute an op's gradients; those of a sum are its output's."""
    if op.kind in ("add", "sub"):
        return ()
    if op.kind == "transpose":
        return (op.kind,)
    if op.kind in ("mul", "div", "where"):  # one like the op for each operand that is no number
        return (op.kind,) * round(op.read / op.written)
    return (f"{op.kind}_grad",)


def run_of(ops: Sequence[_Op], training: bool, device: Device) -> tuple[float, float, float]:
    """Return the simulated time of a model in ms, and its limits."""
    builder, last = GraphBuilder("model"), None
    steps = [(op.kind, op) for op in ops]
    if training:
        steps += [(kind, op) for op in reversed(ops) for kind in _gradients(op)]
    for number, (kind, op) in enumerate(steps):
        sizes = [op.attributes.get(size, 1) for size in ("batch", "m", "n", "k")]
        flops = 2 * prod(sizes) if op.kind == "matmul" else 0
        last = builder.op(
            f"{number}",
            kind=kind,
            dtype="fp32",
            inputs=[] if last is None else [last],
            flops=flops * (1 + kind.endswith("_grad")),
            bytes_read=op.read + op.written * kind.endswith("_grad"),
            bytes_written=op.written,
            attributes=op.attributes,
        )
    trace = simulate(builder.build(), Machine((device,)), ReadyQueue())
    told = uncertainty(trace)
    assert told is not None
    return trace.makespan_ns / 1e6, told["low_ns"] / 1e6, told["high_ns"] / 1e6


def models_left_out(data: Path) -> dict[str, dict[tuple[str, str], Model]]:
    """Return, by GPU, the models of the fp32 tables fitted to the other GPUs."""
    found: dict[str, dict[tuple[str, str], Model]] = {}
    for table in general_tables(data):
        if table.name in ("bmm", "linear", "elementwise", "softmax", "layer_norm"):
            for gpu, borrowed in without(table).items():
                found.setdefault(gpu, {})[table.name, table.dtype] = alone(borrowed.sure)
    return found


def runs(data: Path, *, left_out: bool = False) -> Iterator[Run]:
    """Yield each measured model with its simulation."""
    models = models_left_out(data) if left_out else {}
    whole = pd.read_csv(data / "kernels" / "fp32_models.csv.gz")
    parts = dict(list(pd.read_csv(data / "kernels" / "fp32_models_by_op.csv.gz").groupby(["gpu", "run"])))
    for row in whole.to_dict("records"):
        gpu, training = preset_of(row["gpu"]), row["mode"] == "train"
        name = "-".join(str(row[column]) for column in ("model", "mode", "seq_len", "batch"))
        device = make_device("gpu0", {"preset": gpu})
        if left_out:
            fits = KernelFits(load_fits(gpu).sheet, gpu, models=models[gpu])
            device = replace(device, cost=FittedCost(fits))
        ops = list(_ops(parts[row["gpu"], name], row["layers"], training))
        yield Run(gpu, name, row["ms"], *run_of(ops, training, device))


def main(data: Data, left_out: bool = False) -> None:
    """Print a line for each model, and the mean error."""
    found = list(runs(data, left_out=left_out))
    for each in found:
        limits = f"{each.low / each.simulated - 1:+4.0%} {each.high / each.simulated - 1:+4.0%}"
        print(
            f"{each.gpu:13} {each.name:26} {each.measured:7.0f} ms, simulated {each.simulated:7.0f} ms "
            f"({each.off:+4.0%}), {limits} {'inside' if each.inside else 'outside'}"
        )
    inside = sum(each.inside for each in found)
    print(f"mean error {np.mean([abs(each.off) for each in found]):.1%}, {inside} of {len(found)} inside")


if __name__ == "__main__":
    run(main)
