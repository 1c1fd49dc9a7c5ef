"""Cost models on graphs: which op gets which number, and who is asked first."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.calibration import save_table
from devices.cost.cost_description import make_cost
from devices.cost.cost_models import FirstCost, FixedCost, KindEfficiency, RooflineCost, TableCost
from devices.cost.cost_table import Axis, CostTable, Measured
from devices.describe.field_types import dtype_name
from devices.describe.fields import DEVICE_FIELDS, read_fields
from devices.machine import make_device
from sim import Device, Graph, GraphBuilder, Machine
from sim.base import plugins
from sim.base.errors import InfeasibleError, InputError
from sim.base.plugins import Origin
from sim.base.units import round_half_up
from sim.job.build_job import make_job
from sim.job.costs import costs_ns

GPU = Device("gpu0")


def ops(*facts: dict[str, Any]) -> Graph:
    b = GraphBuilder("ops")
    for i, fact in enumerate(facts):
        b.op(f"op{i}", **fact)
    return b.build()


def test_fixed_by_kind_and_default() -> None:
    graph = ops({"kind": "a"}, {"kind": "b"}, {"kind": "a"})
    assert FixedCost(7).durations_ns(graph, GPU).tolist() == [7, 7, 7]
    assert FixedCost(7, {"a": 1}).durations_ns(graph, GPU).tolist() == [1, 7, 1]
    assert FixedCost(None, {"a": 1}).durations_ns(graph, GPU).tolist() == [1, -1, 1]


def test_roofline_takes_the_longer_side() -> None:
    model = RooflineCost({"fp32": 10**12}, 10**9)
    # 1 MFLOP at 1 TFLOP/s is 1 us; 3 kB at 1 GB/s is 3 us (read and written bytes count together).
    graph = ops(
        {"flops": 10**6},
        {"flops": 10**6, "bytes_read": 2000, "bytes_written": 1000},
        {"flops": 10**7, "bytes_read": 3000},
        {},
    )
    assert model.durations_ns(graph, GPU).tolist() == [1000, 3000, 10_000, 0]


def test_each_data_type_has_its_roof() -> None:
    model = RooflineCost({"fp32": 10**12, "bf16": 10**13, "fp64": 10**11})
    graph = ops(
        *(
            {"flops": 10**7, "dtype": d}
            for d in ("fp32", "bf16", "torch.bfloat16", "float64", "int64", "fp8")
        ),
        {"flops": 10**7},
    )
    # int64 and fp8 have no rate of their own: fp32. No data type: the default, fp32.
    assert model.durations_ns(graph, GPU).tolist() == [10_000, 1000, 1000, 100_000, 10_000, 10_000, 10_000]


def test_a_data_type_without_any_rate_is_unknown_unless_it_does_no_arithmetic() -> None:
    model = RooflineCost({"bf16": 10**12}, 10**9)
    graph = ops(
        {"flops": 5, "dtype": "fp64"}, {"bytes_read": 5, "dtype": "fp64"}, {"flops": 5, "dtype": "bf16"}
    )
    assert model.durations_ns(graph, GPU).tolist() == [-1, 5, 0]
    everything = RooflineCost({"default": 10**9})
    assert everything.durations_ns(graph, GPU).tolist() == [5, 0, 5]


def test_efficiency_is_by_kind() -> None:
    model = RooflineCost(
        {"fp32": 10**12},
        by_kind={"matmul": KindEfficiency(0.8), "default": KindEfficiency(0.5, overhead_ns=100)},
    )
    graph = ops({"flops": 10**6, "kind": "matmul"}, {"flops": 10**6, "kind": "add"})
    assert model.durations_ns(graph, GPU).tolist() == [1250, 2100]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**15),
            st.integers(0, 10**12),
            st.sampled_from(["fp32", "bf16"]),
            st.sampled_from("ab"),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 10**15),
    st.integers(1, 10**13),
)
def test_roofline_is_exact(rows: list[tuple[int, int, str, str]], peak: int, bandwidth: int) -> None:
    """Against the formula in fractions, one op at a time."""
    graph = ops(*({"flops": f, "bytes_read": n, "dtype": d, "kind": k} for f, n, d, k in rows))
    model = RooflineCost({"fp32": peak, "bf16": 2 * peak}, bandwidth, {"a": KindEfficiency(0.7, 0.9)})
    expected = []
    for flops, nbytes, dtype, kind in rows:
        rate = peak * (2 if dtype == "bf16" else 1) * (Fraction(7, 10) if kind == "a" else 1)
        memory = bandwidth * (Fraction(9, 10) if kind == "a" else 1)
        expected.append(round_half_up(max(Fraction(flops * 10**9) / rate, Fraction(nbytes * 10**9) / memory)))
    if max(expected) < 2**62:
        assert model.durations_ns(graph, GPU).tolist() == expected


def table() -> CostTable:
    return CostTable.from_rows(
        "toy", "matmul", [Axis("m"), Axis("n")], [(8, 8, 100), (8, 16, 200), (16, 16, 300)]
    )


def test_tables_need_the_shape_as_attributes() -> None:
    graph = ops(
        {"kind": "matmul", "attributes": {"m": 8, "n": 16, "transposed": True}},
        {"kind": "matmul", "attributes": {"m": 8}},
        {"kind": "matmul"},
        {"kind": "add", "attributes": {"m": 8, "n": 8}},
    )
    assert TableCost((table(),)).durations_ns(graph, GPU).tolist() == [200, -1, -1, -1]


def test_the_first_model_that_knows_an_op_counts() -> None:
    graph = ops({"kind": "matmul", "attributes": {"m": 8, "n": 8}}, {"kind": "matmul"}, {"kind": "add"})
    model = FirstCost((TableCost((table(),)), FixedCost(None, {"matmul": 5}), FixedCost(9)))
    assert model.durations_ns(graph, GPU).tolist() == [100, 5, 9]


def test_descriptions_of_cost_models(tmp_path: Path) -> None:
    save_table(table(), tmp_path / "t.json.gz")
    graph = ops({"kind": "matmul", "attributes": {"m": 8, "n": 8}}, {"kind": "add", "flops": 1000})

    def durations(**keys: Any) -> list[int]:
        device = make_device("gpu0", {"kind": "gpu", **keys}, origin=Origin(tmp_path))
        return costs_ns(graph, device).tolist()

    assert durations(cost={"fixed": "10us"}) == [10_000, 10_000]
    assert durations(cost={"fixed": {"add": "1us", "default": "2us"}}) == [2000, 1000]
    assert durations(cost={"table": "t.json.gz"}) == [100, -1]
    assert durations(cost=[{"table": ["t.json.gz"]}, "roofline"], peak="1GFLOP/s") == [100, 1000]
    assert durations(cost=[{"table": "t.json.gz"}, {"roofline": {"peak": "2GFLOP/s"}}]) == [100, 500]
    assert durations(peak="1GFLOP/s", op_overhead={"add": "3us"}) == [0, 4000]
    assert durations(bandwidth="1GB/s") == [0, 0]


def test_a_plugin_is_given_its_parameters_and_the_device() -> None:
    seen = []

    def factory(parameters: Any, values: Any) -> FixedCost:
        seen.append((parameters, values["sms"]))
        return FixedCost(parameters["ns"])

    plugins.register("sim.costs", "mine", factory)
    try:
        device = make_device("gpu0", {"kind": "gpu", "sms": 4, "cost": {"mine": {"ns": 3}}})
        assert costs_ns(ops({}), device).tolist() == [3]
        assert seen == [({"ns": 3}, 4)]
    finally:
        plugins.unregister("sim.costs", "mine")


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({"fixed": 10}, "x.cost.fixed: 10 has no unit"),
        ({"a": 1, "b": 2}, "is no cost model"),
        ({"table": "absent.json"}, "absent.json"),
        ({"table": 5}, "x.cost.table"),
        ({"fitted": "h20-sxm"}, "unknown fitted device 'h20-sxm'; did you mean 'h200-sxm'"),
        ({"roofline": {"gap": "1us"}}, "x.cost.roofline: unknown key 'gap'"),
        ([{"fixed": "10us"}, 7], r"x.cost\[1\]: 7 is no cost model"),
    ],
)
def test_wrong_descriptions_are_refused(cost: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_device("x", {"kind": "gpu", "cost": cost})


def test_nothing_known_is_no_model() -> None:
    assert make_cost(read_fields({"kind": "gpu", "sms": 4}, DEVICE_FIELDS, "x")) is None


def test_data_type_names() -> None:
    for name, spellings in {
        "fp32": ("float32", "FLOAT", "torch.float32", "np.float32", "f32"),
        "fp16": ("half", "Float16"),
        "bf16": ("bfloat16", "BF16"),
        "int8": ("int8", "INT8", "uint8", "torch.quint8"),
    }.items():
        assert {dtype_name(spelling) for spelling in spellings} == {name}


def test_an_op_that_cannot_run_where_it_is_pinned_names_only_its_pin() -> None:
    """The CPU could run it, so it is not among those that have no cost for it."""
    b = GraphBuilder("pinned")
    b.op("b", duration_by_kind={"cpu": 10}, device="gpu0")
    machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")))
    says = r"pinned to 'gpu0', can run on no device: gpu0 \(gpu\) has no cost model, and the op no duration$"
    with pytest.raises(InfeasibleError, match=says):
        make_job(b.build(), machine)


# -- what a table contains ---------------------------------------------------------------------------

SIZES = {"kind": "copy", "attributes": {"nbytes": 1024}}


def _table_file(folder: Path, **measured: list[str]) -> str:
    rows = [(1024, 5000), (4096, 500)]
    read = Measured.read(measured)
    save_table(CostTable.from_rows("toy", "copy", [Axis("nbytes")], rows, measured=read), folder / "t.json")
    return str(folder / "t.json")


def _table_ns(file: str, **op: Any) -> int:
    gpu = make_device("gpu0", {"kind": "gpu", "gap": "1us", "cost": {"table": file}})
    return int(costs_ns(ops({**SIZES, **op}), gpu)[0])


def test_a_gap_in_a_table_is_counted_once(tmp_path: Path) -> None:
    assert _table_ns(_table_file(tmp_path)) == 5000
    file = _table_file(tmp_path, contains=["gap"])
    assert _table_ns(file) == 4000
    assert _table_ns(file, attributes={"nbytes": 4096}) == 0  # shorter than the gap: the gap is all it takes


def test_a_table_answers_for_its_data_types(tmp_path: Path) -> None:
    file = _table_file(tmp_path, dtypes=["torch.bfloat16"])
    assert [_table_ns(file, dtype=dtype) for dtype in ("bf16", None, "fp8")] == [5000, 5000, -1]


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"contain": ["gap"]}, "measured: unknown key 'contain'; did you mean 'contains'"),
        ({"contains": ["gaps"]}, "unknown word 'gaps'; did you mean 'gap'"),
        ({"dtypes": ["bf61"]}, "measured.dtypes.0.: unknown dtype 'bf61'; did you mean 'bf16'"),
    ],
)
def test_what_a_table_contains_is_closed(measured: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Measured.read(measured)
