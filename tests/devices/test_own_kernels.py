"""A few kernels that somebody measured move the fitted model of a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from devices.cost.calibration import Calibration
from devices.machine import make_machine
from sim import GraphBuilder
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.plugins import Origin
from sim.graph.graph import Graph
from validation.cases.calibrated import save_calibration

SIZES = [(m, n, k) for m in (512, 2048, 8192) for n in (1024, 4096) for k in (1024, 4096, 8192)]


def products(dtype: str = "bf16", sizes: list[tuple[int, int, int]] = SIZES) -> Graph:
    b = GraphBuilder("products")
    for m, n, k in sizes:
        b.op(f"{m}x{n}x{k}", kind="matmul", dtype=dtype, attributes={"m": m, "n": n, "k": k})
    b.op("add", kind="add", dtype=dtype, bytes_read=2**27, bytes_written=2**26)
    b.op("softmax", kind="softmax", dtype=dtype, attributes={"rows": 4096, "columns": 4096})
    return b.build()


def durations(fitted: object, graph: Graph, here: Path, preset: str = "h100-sxm") -> IntArray:
    cost = [{"fitted": fitted} if fitted else "fitted", "roofline"]
    machine = make_machine(
        {"devices": {"gpu0": {"preset": preset, "cost": cost, "gap": "0ns"}}}, origin=Origin(here)
    )
    [gpu] = machine.devices
    assert gpu.cost is not None
    return gpu.cost.durations_ns(graph, gpu)


def table(rows: list[tuple[int, int, int]], ns: IntArray, factor: float) -> str:
    lines = [f"matmul,bf16,{m},{n},{k},{factor * t / 1000}" for (m, n, k), t in zip(rows, ns, strict=False)]
    return "\n".join(["kind,dtype,m,n,k,us", *lines]) + "\n"


def test_products_that_take_longer_move_products_alone(tmp_path: Path) -> None:
    few, rest = SIZES[::2], SIZES[1::2]
    before, asked = durations(None, products(sizes=few), tmp_path), products(sizes=rest)
    plain = durations(None, asked, tmp_path)
    (tmp_path / "mine.csv").write_text(table(few, before, 1.3))
    moved = durations("mine.csv", asked, tmp_path)
    longer = moved[:-2] / plain[:-2]
    assert np.all((longer > 1.1) & (longer < 1.4))  # shrunk where there was nothing like it
    assert longer.mean() == pytest.approx(1.25, abs=0.05)
    assert moved[-2:].tolist() == plain[-2:].tolist()
    assert durations("mine.csv", products("fp16", rest), tmp_path)[0] == moved[0]  # as quick as bf16
    (tmp_path / "mine.csv").write_text(table(few[:1], before, 1.3))
    one = durations("mine.csv", asked, tmp_path)  # one kernel moves the others, by less
    assert np.all(one[:-2] < moved[:-2])
    assert 1.03 < (one[:-2] / plain[:-2]).mean() < longer.mean()


def test_times_in_another_unit_and_slips_are_told(tmp_path: Path) -> None:
    ns = durations(None, products(), tmp_path)
    (tmp_path / "ns.csv").write_text(table(SIZES, ns, 1000))
    with pytest.warns(UserWarning, match=rf"ns.csv:2: took .* {len(SIZES)} of {len(SIZES)} took .* in us"):
        durations("ns.csv", products(), tmp_path)
    slow = table(SIZES, ns, 5)
    (tmp_path / "slip.csv").write_text(f"{slow}matmul,bf16,4096,4096,4096,1\n")
    says = rf"slip.csv:{len(SIZES) + 2}: took 1 us where .*; 1 of {len(SIZES) + 1} took"
    with pytest.warns(UserWarning, match=says):
        durations("slip.csv", products(), tmp_path)


def test_the_fits_of_two_machines_are_alike_if_their_kernels_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("kind,dtype,bytes_read,bytes_written,us\nadd,fp32,64MB,32MB,370\n")
    (tmp_path / "b.csv").write_text("kind,dtype,bytes_read,bytes_written,us\nadd,fp32,64MB,32MB,390\n")
    gpus = [
        make_machine(
            {"devices": {"gpu0": {"preset": "t4", "cost": {"fitted": name}}}}, origin=Origin(tmp_path)
        )
        for name in ("a.csv", "a.csv", "b.csv")
    ]
    a, same, other = (gpu.devices[0].cost for gpu in gpus)
    assert a == same
    assert a != other


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "k.csv:1: the column dtype is missing"),
        ("kind,dtype,ns\n", "k.csv:1: a kernel has no 'ns'; did you mean 'n'"),
        ("kind,dtype,us\n", "k.csv: has no kernel that was measured alone"),
        ("kind,dtype,us\nmatmul,bf16\n", "k.csv:2: 2 values, not 3"),
        ("kind,dtype,us\nmatmul,,3\n", "k.csv:2: dtype is not given"),
        ("kind,dtype,us\nmatmul,bf17,3\n", "k.csv:2: unknown dtype 'bf17'; did you mean 'bf16'"),
        ("kind,dtype,us\nmatmul,bf16,fast\n", "k.csv:2: could not convert string to float: 'fast'"),
        ("kind,dtype,us\nmatmul,bf16,-1\n", "k.csv:2: -1 us is no time"),
        ("kind,dtype,m,us\nmatmul,bf16,64,3\n", "k.csv:2: a matmul of m=64 is not one kernel whose sizes"),
        (
            "kind,dtype,batch,in_channels,out_channels,input_shape,kernel_shape,us\n"
            "conv_grad,fp32,8,64,64,56x56,3x3,500\n",
            "input_shape=[56, 56], kernel_shape=[3, 3] is several kernels",
        ),
    ],
)
def test_a_row_that_is_no_kernel_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "k.csv").write_text(text)
    with pytest.raises(InputError, match=re.escape(says)):
        durations("k.csv", products(), tmp_path)


def test_a_calibration_of_a_gpu_moves_the_fits(tmp_path: Path) -> None:
    rows = [[size, repeat, repeat * size**3 // 300_000] for size in (2048, 4096) for repeat in (1, 4)]
    tables = [
        {"kind": "matmul", "axes": ["size", "repeat"], "context": "warm", "rows": rows},
        {"kind": "copy", "axes": ["size", "repeat"], "context": "warm", "rows": [[4096, 1, 40_000]]},
        {"kind": "attention", "axes": ["size", "repeat"], "context": "warm", "rows": [[1024, 1, 9]]},
    ]
    for backend in ("cuda", "threads"):
        save_calibration(Calibration(backend, "GPU", {}, {}, tables), tmp_path / f"{backend}.json")
    plain, moved = (durations(name, products(), tmp_path) for name in (None, "cuda.json"))
    assert np.all(moved[:-1] > plain[:-1])  # products, and what memory bounds
    with pytest.raises(InputError, match="is a calibration of GPU, and no GPU's"):
        durations("threads.json", products(), tmp_path)
