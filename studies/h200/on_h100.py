"""How costs of the preset ``h100-sxm``, fitted on an H200, agree with kernels recorded on an H100.

::

    recordings (PyTorch profiler, shapes)  ──► products, attention: shape, median ns
    preset h100-sxm, by its fit            ──► ns            error = predicted / recorded - 1
    the same, ideal: true                  ──► ns            the data sheet alone

    python -m studies.h200.on_h100 --data DIR                   prints the table of docs/costs.md

No number of the fit has seen these recordings. DIR has ``kineto/h100_*.json.gz``, of TraceLens.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from devices.machine import make_device
from sim import GraphBuilder
from sim.job.costs import costs_ns

__all__ = ["RECORDINGS", "Kernel", "errors", "recorded_kernels"]

RECORDINGS: Final = ("h100_bert_small", "h100_vit", "h100_qwen_0_5b")
_ATTENTION: Final = "aten::_flash_attention_forward"
_LONG_NS: Final = 20_000
_BF16: Final = "c10::BFloat16"


class Kernel(NamedTuple):
    """All kernels of one operator and shape in a recording, in bf16.

    Attributes
    ----------
    kind : str
        ``matmul`` or ``attention``.
    shape : mapping of str to int
        As attributes of an op.
    launches, ns : int
        How many, and what the one in the middle takes.
    """

    kind: str
    shape: Mapping[str, int]
    launches: int
    ns: int

    @property
    def facts(self) -> dict[str, Any]:
        """What an op of it says of its cost."""
        if self.kind == "matmul":
            m, n, k = (self.shape[axis] for axis in "mnk")
            return {"flops": 2 * m * n * k, "bytes_read": 2 * (m * k + k * n), "bytes_written": 2 * m * n}
        batch, length, heads, width = (self.shape[axis] for axis in ("batch", "seq_len", "heads", "head_dim"))
        tensor = 2 * batch * length * heads * width
        flops = 4 * batch * heads * length**2 * width
        return {"flops": flops, "bytes_read": 3 * tensor, "bytes_written": tensor}


def recorded_kernels(path: Path) -> list[Kernel]:
    """Return products with weights, and attention, of a recording, by shape."""
    found: dict[tuple[str, tuple[tuple[str, int], ...]], list[float]] = defaultdict(list)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    operators = [event for event in events if event.get("cat") == "cpu_op" and _shape(event) is not None]
    for kernel in (event for event in events if event.get("cat") == "kernel"):
        call = launches.get(kernel["args"].get("correlation"))
        for operator in operators:
            if call is not None and operator["ts"] <= call["ts"] <= operator["ts"] + operator["dur"]:
                found[_key(operator)].append(kernel["dur"] * 1000)
                break
    return [Kernel(kind, dict(shape), len(ns), round(median(ns))) for (kind, shape), ns in found.items()]


def _key(operator: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, int], ...]]:
    kind = "attention" if operator["name"] == _ATTENTION else "matmul"
    return kind, tuple((_shape(operator) or {}).items())


def _shape(event: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the sizes of an operator that launches one kernel here; None: it is another one."""
    sizes, types = event.get("args", {}).get("Input Dims"), event.get("args", {}).get("Input type", [""])
    first = {"aten::mm": 0, "aten::addmm": 1, _ATTENTION: 0}.get(event["name"])
    if first is None or types[0] != _BF16:
        return None
    if event["name"] == _ATTENTION:
        batch, length, heads, width = sizes[0]
        return {"batch": batch, "seq_len": length, "heads": heads, "kv_heads": heads, "head_dim": width}
    (m, k), (_, n) = sizes[first : first + 2]
    return {"m": m, "n": n, "k": k}


def errors(kernels: Sequence[Kernel], device: Mapping[str, Any]) -> list[float]:
    """Return predicted / recorded - 1 of each, on a device as described."""
    b = GraphBuilder("recorded")
    for i, one in enumerate(kernels):
        b.op(f"{i}", kind=one.kind, dtype="bf16", attributes=dict(one.shape), **one.facts)
    ns = costs_ns(b.build(), make_device("gpu0", device)).tolist()
    return [predicted / one.ns - 1 for predicted, one in zip(ns, kernels, strict=True)]


def table(kernels: Sequence[Kernel]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| kernels | shapes | kernels | fitted: mean error | time | data sheet: mean error | time |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    groups = {
        "products of 20 us and more": [k for k in kernels if k.kind == "matmul" and k.ns >= _LONG_NS],
        "shorter products": [k for k in kernels if k.kind == "matmul" and k.ns < _LONG_NS],
        "attention": [k for k in kernels if k.kind == "attention"],
        "all": list(kernels),
    }
    for name, some in groups.items():
        weights = [one.launches * one.ns for one in some]
        told = []
        for more in ({}, {"ideal": True}):
            off = errors(some, {"preset": "h100-sxm", **more})
            of_time = sum(w * e for w, e in zip(weights, off, strict=True)) / sum(weights)
            told.append(f"{sum(map(abs, off)) / len(off):.0%} | {of_time:+.0%}")
        yield f"| {name} | {len(some)} | {sum(one.launches for one in some)} | {' | '.join(told)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    folder = parser.parse_args().data / "kineto"
    every = [one for name in RECORDINGS for one in recorded_kernels(folder / f"{name}.json.gz")]
    print("\n".join(table(every)))


if __name__ == "__main__":
    main()
