"""Who is told of costs that are lower bounds, or rates of another data type."""

from __future__ import annotations

import json
import re
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim

from devices.cost.calibration import save_table
from devices.cost.cost_table import Axis, CostTable, Measured
from devices.cost.cost_warnings import warn_of_plain_rooflines, warn_of_unknown_work, warn_of_unused_tables
from devices.cost.unreliable import (
    BorrowedRateWarning,
    PlainRooflineWarning,
    UnusedTableWarning,
)
from devices.describe.fields import value_at
from devices.machine import make_machine
from devices.presets import device_preset, presets
from scenarios.run.load import load_scenario
from sim import GraphBuilder
from sim.base.errors import InfeasibleError, UnknownNameError
from sim.job.build_job import make_job
from sim.job.job import Job

PEAK = {"fp32": "1TFLOP/s", "bf16": "2TFLOP/s"}
# Of an A100 SXM (devices/presets/a100-sxm-80.yaml): 312 TFLOP/s in bf16, 2.039 TB/s.
SHORT = {"bytes_read": 20_390_000, "dtype": "bf16"}  # 10 us:  30 + 10 / 0.85 = 41.8 > 20
LONG = {"bytes_read": 203_900_000, "dtype": "bf16"}  # 100 us: 30 + 100 / 0.85 = 147.6 < 200
RIDGE = {**LONG, "flops": 31_200_000_000}  # 100 us on both sides: 30 + 200 / 0.85 = 265.3 > 200
NOTHING = {"dtype": "bf16"}
ONE_OF_EACH = (SHORT, LONG, RIDGE, NOTHING)


# ------------------------------------------------------------------------------ who is told, of what


def job(device: dict[str, Any], *ops: dict[str, Any], count: int = 1, kind: str = "matmul") -> Job:
    """Return a job of a machine of equal GPUs, each with the same ops."""
    b = GraphBuilder("ops")
    for gpu in range(count):
        for i, op in enumerate(ops):
            b.op(f"{gpu}_{i}", **{"kind": kind, "device": f"gpu{gpu}", **op})
    machine = make_machine({"devices": {f"gpu{gpu}": device for gpu in range(count)}})
    return make_job(b.build(), machine)


def test_eight_equal_gpus_are_one_warning() -> None:
    with pytest.warns(PlainRooflineWarning) as caught:
        warn_of_plain_rooflines(job({"preset": "a100-sxm-80", "cost": "roofline"}, *ONE_OF_EACH, count=8))
    assert [str(one.message).partition(";")[0] for one in caught] == [
        "a100-sxm-80: 24 of 32 ops have no measured cost (24 matmul)"
    ]
    assert "data-sheet rooflines were used, which are lower bounds" in str(caught[0].message)
    assert [one.message.subject for one in caught] == ["a100-sxm-80"]  # type: ignore[union-attr]


def test_a_preset_of_an_npu_claims_as_much_and_a_plain_npu_nothing() -> None:
    op = {"kind": "matmul", "flops": 10**9, "dtype": "bf16"}
    with pytest.warns(
        PlainRooflineWarning, match="tpu-v5e: 1 of 1 op has no measured cost.*look fast beside"
    ):
        warn_of_plain_rooflines(job({"preset": "tpu-v5e"}, op))
    for description in (
        {"preset": "tpu-v5e", "ideal": True},
        {"preset": "tpu-v5e", "efficiency": {"matmul": 0.7}},
        {
            "kind": "npu",
            "cores": 1,
            "matrix": {"peak": {"bf16": "1TFLOP/s"}},
            "vector": {"peak": {"bf16": "1TFLOP/s"}},
        },
    ):
        warn_of_plain_rooflines(job(description, op))


def test_kinds_are_told_by_how_many_there_are() -> None:
    for kinds, told in (
        ("bccddd", "6 of 6 ops have no measured cost (3 d, 2 c, 1 b)"),
        ("bccdddef", "8 of 8 ops have no measured cost (3 d, 2 c, 1 b and 2 more)"),
    ):
        with pytest.warns(PlainRooflineWarning, match=re.escape(f"{told};")):
            warn_of_plain_rooflines(
                job(
                    {"preset": "a100-sxm-80", "cost": "roofline"},
                    *({**SHORT, "kind": kind} for kind in kinds),
                )
            )


def test_a_duration_counts_as_an_op_and_is_not_met() -> None:
    given_one = {**SHORT, "duration_ns": 10_000}  # by chance the roofline itself
    with pytest.warns(PlainRooflineWarning, match=r"1 of 3 ops has no measured cost \(1 matmul\)"):
        warn_of_plain_rooflines(
            job(
                {"preset": "a100-sxm-80", "cost": "roofline"},
                given_one,
                SHORT,
                {**SHORT, "duration_by_kind": {"gpu": 10_000}},
            )
        )


@pytest.mark.parametrize(
    "device",
    [
        {"preset": "a100-sxm-80", "ideal": True},
        {"preset": "a100-sxm-80", "efficiency": 0.7},
        {"preset": "a100-sxm-80", "efficiency": 1},
        {"preset": "a100-sxm-80", "efficiency": {"matmul": 1}},
        {"preset": "a100-sxm-80", "op_overhead": {"matmul": "3us"}},
        {"preset": "a100-sxm-80", "cost": {"roofline": {"efficiency": 0.7}}},
        {"preset": "a100-sxm-80", "cost": {"fixed": "10us"}},
        {"preset": "a100-sxm-80", "cost": [{"fixed": {"matmul": "15us"}}, "roofline"]},
        {"preset": "h200-sxm"},  # kernels are fitted
        {"preset": "xeon-8480c"},  # nothing was measured of CPUs
        {"kind": "gpu", "peak": {"bf16": "989.4TFLOP/s"}, "bandwidth": "3.35TB/s"},
    ],
    ids=str,
)
def test_who_said_something_is_told_nothing(device: dict[str, Any]) -> None:
    warn_of_plain_rooflines(job(device, *ONE_OF_EACH))  # a warning is an error here


ROOFLINE = {"kind": "gpu", "peak": "1TFLOP/s", "bandwidth": "1TB/s"}
SIZES = {"attributes": {"m": 9, "n": 9, "k": 9}}


@pytest.mark.parametrize(
    ("device", "more", "warned"),
    [
        (ROOFLINE, {}, True),
        (
            ROOFLINE,
            SIZES,
            True,
        ),
        (ROOFLINE, {"flops": 9}, False),
        (ROOFLINE, {"duration_ns": 9}, False),
        ({"preset": "h100-sxm"}, {}, True),
        ({"preset": "h100-sxm"}, SIZES, False),
    ],
)
def test_a_product_without_flop_is_told(device: dict[str, Any], more: dict[str, Any], warned: bool) -> None:
    """A roofline goes by flop, a fit by sizes, too; else a product takes as long as a copy of its bytes."""
    jobs = job(device, {"dtype": "fp16", "bytes_read": 10**6, **more}, {"kind": "relu", "bytes_read": 10**6})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_unknown_work(jobs)
    expected = ["op '0_0' (matmul): priced by bytes alone, for want of flops."] if warned else []
    assert [str(one.message) for one in caught] == expected


def test_a_loss_of_another_kind_says_nothing_of_this_one() -> None:
    with pytest.warns(PlainRooflineWarning, match="3 of 4 ops"):
        warn_of_plain_rooflines(
            job({"preset": "a100-sxm-80", "cost": "roofline", "efficiency": {"conv": 0.7}}, *ONE_OF_EACH)
        )


def test_what_a_fit_answered_is_not_met() -> None:
    shape = {"attributes": {"m": 64, "n": 64, "k": 64}, "flops": 2 * 64**3, "bytes_read": 3 * 64**2}
    for dtype in ("bf16", "fp32"):
        warn_of_plain_rooflines(job({"preset": "a100-sxm-80"}, {**shape, "dtype": dtype}))


def test_a_fit_that_says_the_shortest_kernel_as_the_roofline_does_has_answered() -> None:
    sizes = {"rows": 32, "columns": 1024}
    tiny = {
        "kind": "softmax",
        "bytes_read": 65536,
        "bytes_written": 65536,
        "dtype": "fp16",
        "attributes": sizes,
    }
    made = job({"preset": "t4"}, tiny)
    assert made.duration_ns.tolist() == [2000]
    warn_of_plain_rooflines(made)


def test_an_op_beside_a_gpu_of_another_preset() -> None:
    b = GraphBuilder("two")
    for gpu in ("gpu0", "gpu1"):
        b.op(gpu, kind="matmul", device=gpu, bytes_read=3_350_000)  # 1 us, and 9.7 us on the P40
    machine = make_machine(
        {
            "devices": {
                "gpu0": {"preset": "a100-sxm-80", "cost": "roofline"},
                "gpu1": {"preset": "p40", "cost": "roofline"},
            }
        }
    )
    with pytest.warns(PlainRooflineWarning) as caught:
        warn_of_plain_rooflines(make_job(b.build(), machine))
    assert sorted(one.message.subject for one in caught) == ["a100-sxm-80", "p40"]  # type: ignore[union-attr]


SCENARIO = """\
name: short kernels
machine: {devices: {gpu: {preset: a100-sxm-80, count: 2, cost: roofline}}}
workload:
  ops:
    a: {kind: relu, bytes_read: 1MB, device: gpu0}
    b: {kind: relu, bytes_read: 1MB, device: gpu1, inputs: [a]}
policy: {name: in-order}
compare:
  - in-order
  - {label: larger, set: {workload.ops.a.bytes_read: 1GB}}
  - ready-queue
"""


@pytest.mark.filterwarnings("default::devices.cost.unreliable.PlainRooflineWarning")
def test_the_command_tells_it_in_one_line_and_keeps_it_out_of_the_result(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    for verb in ("run", "compare"):  # of three runs, one with another count, the first tells it
        result = sim(verb, path, "--json")
        assert result.exit_code == 0, result.output
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("warning: a100-sxm-80: 2 of 2 ops have no measured cost (2 relu)")
        assert "roofline" not in json.dumps(json.loads(result.stdout))


# -- data types --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "where"),
    [
        ({"preset": "a100-sxm-80", "efficiency": 0.7}, "a100-sxm-80|gpu"),
        ({"kind": "gpu", "peak": PEAK}, "gpu"),
    ],
    ids=str,
)
def test_the_rate_of_another_data_type_is_told(device: dict[str, Any], where: str) -> None:
    op = {"kind": "matmul", "flops": 10**9, "dtype": "int4"}
    index = {"kind": "add", "flops": 10**9, "dtype": "int64"}
    with pytest.warns(BorrowedRateWarning, match=rf"({where}): 2 ops in int4 compute at the rate of fp32"):
        warn_of_plain_rooflines(job(device, op, op, index, {**op, "duration_ns": 1}))


DTYPES = ["fp64", "fp32", "fp16", "bf16", "fp8", "int8", "int32"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset", [each.name for each in presets("sim.devices") if "switch" not in each.name]
)
def test_on_every_preset_arithmetic_takes_time_or_a_line_says_why_not(preset: str) -> None:
    values = device_preset(preset)
    own = {name for key in ("peak", "matrix.peak", "vector.peak") for name in value_at(values, key) or {}}
    costs = [{}, {"cost": "roofline"}] if values["kind"] == "gpu" else [{}]
    kinds = ["matmul", "conv", "gelu", "attention", "softmax", "op"]
    for dtype, rated in product(DTYPES, costs):
        asked = [{"kind": kind, "flops": 10**12, "dtype": dtype} for kind in kinds]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            each_kind = job({"preset": preset, **rated}, *asked)
            warn_of_plain_rooflines(each_kind)
        assert min(each_kind.duration_ns) >= 200_000 or not own  # the fastest: 5000 TFLOP/s of a GB200
        told = [str(each.message) for each in caught if isinstance(each.message, BorrowedRateWarning)]
        if dtype not in own:  # integers are counted by what is no product
            assert sum(map(borrowers, told)) >= (2 if dtype == "int32" else len(kinds)), (dtype, told)


def borrowers(told: str) -> int:
    """Return how many ops a warning says take another rate."""
    found = re.search(r"(\d+) ops? ", told)
    assert found is not None, told
    return int(found[1])


def test_a_fitted_gpu_computes_in_fp32_what_is_tf32_elsewhere_and_says_whose_rate_it_takes() -> None:
    ops = [{"kind": "matmul", "flops": 197 * 10**9, "dtype": dtype} for dtype in ("fp32", "tf32")]
    with pytest.warns(BorrowedRateWarning, match=r"v100-sxm: 1 op in tf32 computes at the rate of fp32, as"):
        warn_of_plain_rooflines(one := job({"preset": "v100-sxm"}, *ops))
    assert one.duration_ns[0] == one.duration_ns[1]
    with pytest.warns(BorrowedRateWarning, match=r"h100-sxm: 1 op in mxfp8 computes at the rate of fp8, as"):
        warn_of_plain_rooflines(job({"preset": "h100-sxm"}, {**ops[0], "dtype": "mxfp8"}))
    blocks = {**ops[0], "dtype": "fp8_block"}  # measured on it as such
    warn_of_plain_rooflines(job({"preset": "h100-sxm"}, {**blocks, "bytes_read": 10**8}))


@pytest.mark.parametrize("preset", ["p100-pcie-16", "p4", "t4", "v100-pcie-32", "v100-sxm"])
@pytest.mark.parametrize("kind", ["matmul", "conv", "attention"])
def test_before_ampere_bf16_takes_the_arithmetic_of_fp32_and_says_so(preset: str, kind: str) -> None:
    ops = [{"kind": kind, "flops": 197 * 10**9, "bytes_read": 10**8, "dtype": d} for d in ("fp32", "bf16")]
    with pytest.warns(
        BorrowedRateWarning, match=f"{preset}: 1 op in bf16 computes at the rate of fp32, as peak"
    ):
        warn_of_plain_rooflines(one := job({"preset": preset}, *ops))
    assert one.duration_ns[0] == one.duration_ns[1]


def test_a_product_without_its_shape_takes_longer_the_more_it_computes() -> None:
    ops = [
        {"kind": "matmul", "flops": n * 10**11, "dtype": "bf16", "bytes_read": 10**8} for n in range(1, 40)
    ]
    for preset in ("a100-sxm-80", "h100-sxm"):
        times = job({"preset": preset}, *ops).duration_ns
        assert (np.diff(times) > 0).all()


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
def test_a_tpu_computes_products_in_fp32_as_six_in_bf16() -> None:
    ops = [{"kind": "matmul", "flops": 197 * 10**9, "dtype": dtype} for dtype in ("bf16", "fp32", "fp16")]
    with pytest.warns(BorrowedRateWarning, match=r"tpu-v5e: 1 op in fp16 computes at the rate of fp32 \(mat"):
        warn_of_plain_rooflines(one := job({"preset": "tpu-v5e"}, *ops))
    assert one.duration_ns.tolist() == [1_000_000, 6_000_609, 6_000_609]  # 197 / 32.83


@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize(
    ("preset", "kind", "ns"),
    [
        ("ascend-910", "matmul", 2_441_406),
        ("tpu-v5e", "gelu", 1_624_168),
        ("tpu-v5p", "gelu", 697_350),
    ],
)
def test_npus_say_that_bf16_computes_in_fp32(preset: str, kind: str, ns: int) -> None:
    op = {"kind": kind, "flops": 10**10, "dtype": "bf16"}
    with pytest.warns(BorrowedRateWarning, match=f"{preset}: 1 op in bf16 computes at the rate of fp32"):
        warn_of_plain_rooflines(one := job({"preset": preset}, op))
    assert one.duration_ns.tolist() == [ns]  # 10 GFLOP at the vector unit's rate


def test_an_npu_says_that_a_unit_without_a_peak_computes_in_no_time() -> None:
    device = {"kind": "npu", "matrix": {"peak": {"fp16": "1TFLOP/s"}}}
    with pytest.warns(
        BorrowedRateWarning, match=r"npu: 1 op in fp32 computes in no time, as vector.peak is not"
    ):
        warn_of_plain_rooflines(job(device, {"kind": "gelu", "flops": 10**9, "dtype": "fp32"}))


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"kind": "gpu", "peak": {"fp16": "1TFLOP/s"}}, {"flops": 10**9}),
        ({"kind": "npu", "peak": {"fp16": "1TFLOP/s"}}, {"flops": 10**9}),
        ({"kind": "npu", "matrix": {"peak": {"fp16": "1TFLOP/s"}}}, {"flops": 10**9}),
        (
            {"kind": "npu", "matrix": {"peak": {"fp16": "1TFLOP/s"}}},
            {"attributes": {"m": 8, "n": 8, "k": 8}},
        ),
    ],
    ids=str,
)
def test_a_product_without_any_rate_is_refused(spec: dict[str, Any], size: dict[str, Any]) -> None:
    told = (
        r"gpu0 \(.pu\) cannot: no peak is given for fp8, nor for fp32, at which others compute; known: fp16"
    )
    with pytest.raises(InfeasibleError, match=told):
        job(spec, {"kind": "matmul", "dtype": "fp8", **size})


def test_a_rate_for_all_data_types_is_not_borrowed() -> None:
    device = {"kind": "gpu", "peak": {"default": "1TFLOP/s", "bf16": "2TFLOP/s"}}
    warn_of_plain_rooflines(job(device, {"kind": "matmul", "flops": 10**9, "dtype": "int4"}))


def test_a_data_type_that_nobody_knows_has_no_rate() -> None:
    with pytest.raises(UnknownNameError, match="unknown dtype 'bf61'; did you mean 'bf16'"):
        job({"kind": "gpu", "peak": PEAK}, {"kind": "matmul", "flops": 10**9, "dtype": "bf61"})


# -- runs side by side -------------------------------------------------------------------------------

PIPELINE = """\
machine: {devices: {gpu: {preset: h100-sxm, count: 2}}}
workload:
  pipeline:
    stages: 2
    micro_batches: 2
    model: {layers: 4, hidden: 4096, heads: 32, sequence: 2048, vocabulary: 32000}
policy: gpipe
compare: [gpipe, {label: other, set: {machine.devices.gpu: {preset: a100-sxm-80, count: 2, cost: roofline}}}]
"""


@pytest.mark.filterwarnings("default::devices.cost.unreliable.UnreliableCostWarning")
def test_a_pipeline_tells_of_the_kernels_that_its_stages_are_made_of(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(PIPELINE.replace("h100-sxm", "b200-sxm, cost: roofline"), encoding="utf-8")
    told = "b200-sxm: 21 of 21 ops of the model have no measured cost (17 matmul, 4 attention)"
    assert told in sim("run", path).stderr
    one, other = (load_scenario(path, sets=[f"policy={name}"]) for name in ("gpipe", "1f1b"))
    kernels = one.content.workload.ops_to_time(one.document)
    assert kernels is other.content.workload.ops_to_time(other.document), (
        "they are made once for all schedules"
    )
    assert "no measured" not in sim("run", path, "--set", "workload.pipeline.model.rate=100TFLOP/s").stderr
    assert "no measured" not in sim("run", path, "--set", "machine.devices.gpu.cost=fitted").stderr


COPIES = CostTable.from_rows(
    "toy", "copy", [Axis("pages")], [(1, 100), (2, 200)], measured=Measured(dtypes=("bf16",))
)
COPY = {"kind": "copy", "dtype": "bf16", "attributes": {"pages": 2}}


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (SHORT, "ops are of other kinds (matmul)"),
        ({**COPY, "duration_ns": 5}, "ops of this kind have durations of their own"),
        ({**COPY, "dtype": "fp32"}, "ops of this kind compute in other data types than were measured"),
        (
            {**COPY, "attributes": {"bytes": 2}},
            "ops of this kind have no whole numbers pages, or a cost model",
        ),
    ],
    ids=["kind", "duration", "dtype", "axes"],
)
def test_a_table_that_times_no_op_is_told(tmp_path: Path, op: dict[str, Any], why: str) -> None:
    save_table(COPIES, tmp_path / "t.json")
    device = {"kind": "gpu", "cost": [{"table": str(tmp_path / "t.json")}, {"fixed": "7ns"}]}
    says = re.escape(f"gpu0: no op takes its duration from the measured copy: {why}")
    with pytest.warns(UnusedTableWarning, match=says):
        warn_of_unused_tables(job(device, op))
    warn_of_unused_tables(job(device, op, COPY))  # one does: nothing is said


def test_a_table_that_another_model_hides_is_told(tmp_path: Path) -> None:
    save_table(COPIES, tmp_path / "t.json")
    with pytest.warns(
        UnusedTableWarning, match=r"the measured copy: .*a cost model that stands before it knows"
    ):
        warn_of_unused_tables(
            job({"kind": "gpu", "cost": [{"fixed": "7ns"}, {"table": str(tmp_path / "t.json")}]}, COPY)
        )


def test_measured_kernels_that_move_no_op_are_told(tmp_path: Path) -> None:
    (tmp_path / "k.csv").write_text("kind,dtype,m,n,k,us\nmatmul,bf16,4096,4096,4096,300\n")
    device = {"preset": "h100-sxm", "cost": [{"fitted": str(tmp_path / "k.csv")}, "roofline"]}
    product = {"dtype": "bf16", "attributes": {"m": 512, "n": 512, "k": 512}}
    says = (
        "gpu0: no op takes its duration from the measured products: of this kind and data type there are none"
    )
    with pytest.warns(UnusedTableWarning, match=says):
        warn_of_unused_tables(job(device, {**product, "dtype": "fp8"}, SHORT, kind="relu"))
    warn_of_unused_tables(job(device, product))


@pytest.mark.filterwarnings("default::devices.cost.unreliable.UnusedTableWarning")
def test_a_run_tells_of_a_table_without_effect(tmp_path: Path) -> None:
    save_table(COPIES, tmp_path / "t.json")
    (tmp_path / "s.yaml").write_text(
        "machine: {devices: {g: {kind: gpu, cost: [{table: t.json}, {fixed: 7us}]}}}\n"
        "workload: {ops: {a: {kind: matmul}}}\n"
    )
    result = sim("run", tmp_path / "s.yaml")
    assert result.exit_code == 0, result.output
    assert result.stderr == (
        "warning: g: no op takes its duration from the measured copy: ops are of other kinds (matmul).\n"
    )
