"""NPU: tiles through scratchpads, matrix and vector units, and two ops at once on one core.

All times by hand: DMA moves 1 byte/ns each way, units do 1 flop/ns, unless a test says otherwise.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.cost.cost_models import MATRIX_KINDS
from devices.cost.kernel_costs import CONVS, PRODUCTS
from devices.cost.npu_tiles import TileStages, best_tiles, blockings, tiled_ns
from devices.machine import described_devices, make_device
from policies.issue.program_order import InOrder
from policies.streams import PerKind
from sim import GraphBuilder, Machine, simulate
from sim.base.errors import InfeasibleError, InputError, UnknownNameError

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "npu_tiles.yaml"
CORE = {
    "kind": "npu",
    "scratchpad": "4096B",
    "granule": "256B",
    "core_bandwidth": "1GB/s",
    "peak": "1GFLOP/s",
}


def duration_ns(spec: dict[str, Any], *, nbytes: int = 1024, flops: int = 0, **op: Any) -> int:
    """Return the time of an op that reads and writes `nbytes`."""
    b = GraphBuilder("one")
    b.input("x", nbytes)
    b.op("a", inputs=["x"], outputs=nbytes, flops=flops, **op)
    return simulate(b.build(), Machine((make_device("npu0", spec),)), InOrder()).makespan_ns


# -- the formula ---------------------------------------------------------------------------------


def pipeline_ns(load: int, compute: int, store: int, tiles: int) -> int:
    """Return when the last tile is stored, tile by tile, with two buffers on either side."""
    loaded: list[int] = []
    computed: list[int] = []
    stored: list[int] = []
    for i in range(tiles):
        start = max(loaded[-1] if i else 0, computed[i - 2] if i > 1 else 0)
        loaded.append(start + load)
        start = max(loaded[i], computed[-1] if i else 0, stored[i - 2] if i > 1 else 0)
        computed.append(start + compute)
        stored.append(max(computed[i], stored[-1] if i else 0) + store)
    return stored[-1]


times = st.integers(0, 50)


@given(times, times, times, st.integers(1, 20))
def test_double_buffering_is_the_pipeline_tile_by_tile(
    load: int, compute: int, store: int, tiles: int
) -> None:
    stages = TileStages(Fraction(tiles * load), Fraction(tiles * compute), Fraction(tiles * store))
    assert tiled_ns(stages, tiles) == pipeline_ns(load, compute, store, tiles)
    assert tiled_ns(stages, tiles, double_buffered=False) == tiles * (load + compute + store)


@given(times, times, times, st.integers(0, 5), st.integers(1, 30), st.integers(0, 30))
def test_the_best_number_of_tiles_is_the_best(
    load: int, compute: int, store: int, setup_ns: int, fewest: int, more: int
) -> None:
    stages = TileStages(Fraction(load), Fraction(compute), Fraction(store), setup_ns, setup_ns)
    every = range(fewest, fewest + more + 1)
    assert best_tiles(stages, fewest, fewest + more) == min(every, key=lambda n: tiled_ns(stages, n))


# -- ops that stream -----------------------------------------------------------------------------


def test_two_buffers_overlap_and_one_does_not() -> None:
    # 1024 bytes in granules of 256: 4 tiles of 256 ns to load and store. 4 x 2 x 2 x 256 = 4096 B: all fits.
    # Computing 2048 flop, 512 ns a tile: 256 + 512 + 256 + 3 x 512 = 2560; in a row 1024 + 2048 + 1024.
    assert duration_ns(CORE, flops=2048) == 2560
    assert duration_ns({**CORE, "double_buffered": False}, flops=2048) == 4096
    # Computing 512 flop, 128 ns a tile: DMA is what takes longest: 256 + 128 + 256 + 3 x 256 = 1408.
    assert duration_ns(CORE, flops=512) == 1408
    # Half of the scratchpad, 2048 B: whole it fits with nothing to spare (2 x 1024), and 4 tiles take 1024.
    assert duration_ns({**CORE, "scratchpad": "2048B"}, flops=2048) == 2560
    # Two cores for the op, half of it each: 2 tiles of 256 bytes. 256 + 512 + 256 + 512.
    assert duration_ns({**CORE, "cores": 2, "cores_per_op": 2, "peak": "2GFLOP/s"}, flops=2048) == 1536


def test_an_op_says_how_it_is_cut() -> None:
    # 2 tiles: 512 + 1024 + 512 + 1024. 8 granules of 128 B: 128 + 256 + 128 + 7 x 256.
    assert duration_ns(CORE, flops=2048, attributes={"tiles": 2}) == 3072
    assert duration_ns(CORE, flops=2048, attributes={"granule": 128}) == 2304
    assert duration_ns(CORE, flops=2048, attributes={"granule": "128B"}) == 2304
    # x stays: loaded first, 1024 ns; then 4 tiles of 512 to compute and 256 to store: 1024 + 768 + 3 x 512.
    assert duration_ns(CORE, flops=2048, attributes={"resident": ["x"]}) == 3328
    for wrong in ({"tiles": 0}, {"tiles": "two"}, {"granule": 0}, {"resident": 3}):
        with pytest.raises(InputError, match="op 'a'"):
            duration_ns(CORE, attributes=wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'x'"):
        duration_ns(CORE, attributes={"resident": ["xs"]})


def test_starting_a_dma_costs() -> None:
    # 100 ns a tile and way. 1 tile: 1124 + 2048 + 1124; 2: 612 + 1024 + 612 + 1024 = 3272;
    # 4: 356 + 512 + 356 + 3 x 512 = 2760, the best.
    assert duration_ns({**CORE, "latency": "100ns"}, flops=2048) == 2760
    # At 300 ns, 4 tiles: 556 + 512 + 556 + 3 x 556 = 3292, 3: (641.3) + 682.7 + 641.3 + 2 x 682.7 = 3330.7.
    assert duration_ns({**CORE, "latency": "300ns"}, flops=2048) == 3292
    # Without a bandwidth a DMA takes its latency alone: 100 + 512 + 100 + 3 x 512.
    at_once = {key: value for key, value in CORE.items() if "bandwidth" not in key}
    assert duration_ns({**at_once, "latency": "100ns"}, flops=2048, attributes={"tiles": 4}) == 2248


def test_both_ways_share_the_bandwidth_of_the_memory() -> None:
    # 1024 bytes each way at 1 byte/ns both together: never below 2048 ns, however short the pipeline is.
    spec = {key: value for key, value in CORE.items() if key != "core_bandwidth"} | {"bandwidth": "1GB/s"}
    assert duration_ns(spec, flops=512) == 2048
    assert duration_ns({**spec, "memory_efficiency": 0.5}, flops=512) == 4096
    assert duration_ns({**spec, "op_overhead": "7ns"}, flops=512) == 2055


def test_without_a_scratchpad_it_is_a_roofline() -> None:
    spec = {"kind": "npu", "core_bandwidth": "1GB/s", "vector": {"peak": "1GFLOP/s"}}
    assert duration_ns(spec, flops=2048) == 2048
    assert duration_ns(spec, flops=512) == 1024
    with pytest.raises(InputError, match=r"npu0\.granule: it takes effect only with a scratchpad"):
        make_device("npu0", {**spec, "granule": "1kB"})


def test_what_is_given_is_not_computed() -> None:
    assert duration_ns({**CORE, "scratchpad": "1B"}, duration_ns=5) == 5
    assert duration_ns({**CORE, "cost": {"fixed": "9ns"}}) == 9
    roofline = {**CORE, "cost": "roofline", "bandwidth": "2GB/s"}
    assert duration_ns(roofline, flops=512) == 1024


# -- too small -----------------------------------------------------------------------------------


def test_too_small_is_refused_with_the_least_that_would_do() -> None:
    # 2 operands x 2 buffers x 256 B = 1 KiB; with one buffer each half of it.
    assert duration_ns({**CORE, "scratchpad": "1KiB"}) == 1280
    with pytest.raises(InfeasibleError) as error:
        duration_ns({**CORE, "scratchpad": "1023B"})
    assert str(error.value) == (
        "op 'a' of kind 'op' can run on no device: npu0 (npu) cannot: it does not fit a scratchpad of "
        "1023 B, not even in the smallest tiles; 1 KiB (1024 bytes) would do"
    )
    assert duration_ns({**CORE, "scratchpad": "512B", "double_buffered": False}) == 2048
    with pytest.raises(
        InfeasibleError, match=r"in 2 tiles \(more take less\); 2 KiB \(2048 bytes\) would do"
    ):
        duration_ns({**CORE, "scratchpad": "1KiB"}, attributes={"tiles": 2})


@given(st.integers(1, 5000), st.integers(1, 700), st.booleans())
def test_the_least_is_enough_and_one_byte_less_is_not(nbytes: int, granule: int, double: bool) -> None:
    spec = {**CORE, "granule": f"{granule}B", "double_buffered": double}
    with pytest.raises(InfeasibleError) as error:
        duration_ns({**spec, "scratchpad": "1B"}, nbytes=nbytes)
    least = int(str(error.value).rpartition("(")[2].partition(" ")[0])
    assert duration_ns({**spec, "scratchpad": f"{least}B"}, nbytes=nbytes) > 0
    with pytest.raises(InfeasibleError, match=f"{least} bytes"):
        duration_ns({**spec, "scratchpad": f"{least - 1}B"}, nbytes=nbytes)


@given(st.integers(1024, 8192), st.integers(1, 4096), st.integers(0, 4096))
def test_a_larger_scratchpad_never_hurts(capacity: int, more: int, flops: int) -> None:
    small, large = (
        duration_ns({**CORE, "scratchpad": f"{size}B"}, nbytes=2048, flops=flops)
        for size in (capacity, capacity + more)
    )
    assert large <= small


def test_it_runs_on_another_device_where_it_fits() -> None:
    b = GraphBuilder("one")
    b.op("a", outputs=1024, flops=1000)
    cpu = make_device("cpu0", {"kind": "cpu", "peak": "1GFLOP/s"})
    machine = Machine((make_device("npu0", {**CORE, "scratchpad": "64B"}), cpu))
    assert simulate(b.build(), machine, InOrder()).makespan_ns == 1000


def test_a_scenario_is_refused_before_time_0_with_its_place() -> None:
    result = sim("run", SCENARIO, "--set", "machine.devices.npu0.scratchpad=32kB")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{SCENARIO}:")
    assert (
        "workload.ops.product: op 'product' of kind 'matmul' (and 1 more) can run on no device"
        in result.stderr
    )
    assert "not even in the smallest tiles; 62.5 KiB (64000 bytes) would do" in result.stderr
    fits = sim("run", SCENARIO, "--set", "machine.devices.npu0.scratchpad=64000B", "--json")
    assert json.loads(fits.stdout)["makespan_ns"] == 256_000


# -- products of matrices ------------------------------------------------------------------------


def test_a_product_loads_operands_again_for_every_block_of_the_other() -> None:
    # 32 x 16 by 16 x 32 in fp16: blocks of (16, 16, 16) take 3 x 512 B, twice: 3 KiB. Four of them: the left
    # matrix (1 KiB) is loaded for 2 columns of blocks, the right one (1 KiB) for 2 rows: 4 KiB.
    [only] = blockings((32, 32, 16), 2, 3072, unit=16)
    assert (only.block, only.tiles, only.load_bytes, only.store_bytes) == ((16, 16, 16), 4, 4096, 2048)
    # (32, 16, 16) takes 2 x (1024 + 512 + 1024) = 5120 B: left once, right for 1 row.
    found = {one.block: one for one in blockings((32, 32, 16), 2, 5120, unit=16)}
    assert found[(32, 16, 16)].load_bytes == 1024 * 2 + 1024
    # The whole in one tile needs no second buffer: 1024 + 1024 + 2048.
    whole = next(one for one in blockings((32, 32, 16), 2, 4096, unit=16) if one.tiles == 1)
    assert (whole.load_bytes, whole.nbytes) == (2048, 4096)
    with pytest.raises(InfeasibleError, match=r"smallest blocks; 3 KiB \(3072 bytes\) would do"):
        blockings((32, 32, 16), 2, 3071, unit=16)


def test_the_time_of_a_product() -> None:
    # The four blocks above at 1 byte/ns and 16 flop/ns: 4096 ns to load, 32768 / 16 = 2048 ns to compute,
    # 2048 ns to store. 1024 + 512 + 512 + 3 x 1024 = 5120 ns.
    spec = {
        "kind": "npu", "scratchpad": "3072B", "core_bandwidth": "1GB/s",
        "matrix": {"peak": "16GFLOP/s", "block_size": 16}, "vector": {"peak": "1GFLOP/s"},
    }  # fmt: skip
    shape = {"m": 32, "n": 32, "k": 16}
    op: dict[str, Any] = {"kind": "matmul", "dtype": "fp16", "flops": 32768, "attributes": shape}
    assert duration_ns(spec, **op) == 5120
    # In 4096 B it fits whole: 2048 + 2048 + 2048 = 6144, which is more. In 5120 B (32, 16, 16) does it in two
    # tiles: 3072 to load, 1536 + 1024 + 1024 + 1536 = 5120; what is loaded less is lost by coarser tiles.
    assert duration_ns({**spec, "scratchpad": "4096B"}, **op) == 5120
    assert duration_ns({**spec, "scratchpad": "5120B"}, **op) == 5120
    # Without scratchpad: whatever takes longest.
    assert duration_ns({**spec, "scratchpad": "unlimited"}, **op) == 2048
    # On two cores, each 16 x 32: two blocks; 2 x 512 left, 2 x 512 right: 1024 + 512 + 512 + 1024 (the matrix
    # units do 16 flop/ns together, 8 each: a block takes 8192 / 8 = 1024): 1024 + 1024 + 512 + 1024 = 3584.
    assert duration_ns({**spec, "cores": 2, "cores_per_op": 2}, **op) == 3584


def test_sizes_are_rounded_up_to_what_the_unit_multiplies() -> None:
    # One row: 16 are computed. 2 x 16 x 16 x 16 flop at 16 flop/ns = 512 ns, DMA free.
    spec = {"kind": "npu", "scratchpad": "1MiB", "matrix": {"peak": "16GFLOP/s", "block_size": 16}}
    op: dict[str, Any] = {"kind": "matmul", "dtype": "fp16", "attributes": {"m": 1, "n": 16, "k": 16}}
    assert duration_ns(spec, **op) == 512
    assert duration_ns({**spec, "matrix": {"peak": "16GFLOP/s"}}, **op) == 32


# -- units ---------------------------------------------------------------------------------------


def test_each_unit_has_its_rate() -> None:
    matrix = {"peak": {"fp16": "16GFLOP/s"}}
    spec = {"kind": "npu", "matrix": matrix, "vector": {"peak": {"default": "1GFLOP/s"}}}
    for kind, dtype, ns in (
        ("matmul", "fp16", 100),
        ("conv", "fp16", 100),
        *((f"{kind}_grad", "fp16", 100) for kind in ("einsum", "lstm", "conv2d", "bmm")),
        ("relu", "fp16", 1600),
        *((f"depthwise_conv{grad}", "fp16", 1600) for grad in ("", "_grad")),
        ("matmul", "fp32", 1600),  # the matrix unit has no fp32
    ):
        assert duration_ns(spec, kind=kind, dtype=dtype, flops=1600) == ns
    spec["matrix"] = {**matrix, "kinds": ["relu"]}
    assert duration_ns(spec, kind="relu", dtype="fp16", flops=1600) == 100
    assert duration_ns(spec, kind="conv", dtype="fp16", flops=1600) == 1600


def test_what_gpus_compute_as_products_runs_on_the_matrix_unit() -> None:
    """Except sums within channels. Two lists, as a small run should not read the kinds of a GPU's kernels."""
    assert {*PRODUCTS, *CONVS} - MATRIX_KINDS == {"depthwise_conv", "depthwise_conv_grad"}


def test_each_unit_has_its_scratchpad() -> None:
    spec = {**CORE, "vector": {"scratchpad": "512B"}}
    with pytest.raises(InfeasibleError, match="scratchpad of 512 B"):
        duration_ns(spec, kind="relu")
    assert duration_ns(spec, kind="conv") == 1280


def test_two_queues_of_a_core_run_at_once_on_different_units() -> None:
    """Queue 0: matmul 10, matmul 10. Queue 1: relu 15, matmul 10 (the unit is taken until 20)."""
    b = GraphBuilder("two branches")
    b.op("m0", kind="matmul", duration_ns=10)
    b.op("m1", kind="matmul", duration_ns=10)
    b.op("r", kind="relu", duration_ns=15)
    b.op("g", kind="gemm", duration_ns=10)
    machine = Machine((make_device("npu0", {"kind": "npu", "queues_per_core": 2}),))
    trace = checked(
        b.build(),
        machine,
        InOrder(synchronisation="issue"),
        streams=PerKind({"matmul": 0, "relu": 1, "gemm": 1}),
    )
    rows = trace.to_pandas().set_index("op")
    assert rows.start_ns.to_dict() == {"m0": 0, "m1": 10, "r": 0, "g": 20}
    assert rows.wait["g"] == "resources"
    # Two cores with two queues each: nothing of one core waits for the other.
    two = Machine((make_device("npu0", {"kind": "npu", "cores": 2, "queues_per_core": 2}),))
    streams = PerKind({"matmul": 0, "relu": 1, "gemm": 2})
    trace = simulate(b.build(), two, InOrder(synchronisation="issue"), streams=streams)
    assert trace.to_pandas().set_index("op").start_ns["g"] == 0


def test_queues_of_a_core_divide_scratchpad_and_dma() -> None:
    # Half of 4096 B and of 1 byte/ns: 4 tiles of 512 ns, 512 + 512 + 512 + 3 x 512.
    assert duration_ns({**CORE, "queues_per_core": 2}, flops=2048) == 3072
    with pytest.raises(InfeasibleError, match="scratchpad of 1023 B"):
        duration_ns({**CORE, "queues_per_core": 2, "scratchpad": "2047B"})


def test_the_ascend_910_is_what_its_sources_say() -> None:
    device = make_device("npu0", {"preset": "ascend-910"})
    details = described_devices({"devices": {"npu0": {"preset": "ascend-910"}}})["npu0"]
    assert (details["scratchpad"], details["vector"]["scratchpad"]) == (1 << 20, 256 << 10)
    assert details["vector"]["peak"]["fp32"] == 2048 // 32 * 2 * 10**9 * details["cores"]
    assert details["vector"]["peak"]["fp16"] == 2048 // 16 * 2 * 10**9 * details["cores"]
    # 4096 multiply-adds at 1 GHz on 32 cores are 262 TFLOP/s; the vendor rounds to 256.
    assert details["matrix"]["peak"]["fp16"] == pytest.approx(16**3 * 2 * 10**9 * 32, rel=0.03)
    b = GraphBuilder("ops")
    b.op("large", kind="matmul", dtype="fp16", attributes={"m": 8192, "n": 8192, "k": 8192})
    b.op("row", kind="matmul", dtype="fp16", attributes={"m": 1, "n": 4096, "k": 4096})
    assert device.cost is not None
    large, row = device.cost.durations_ns(b.build(), device).tolist()
    assert 1 <= large / (2 * 8192**3 / 256e3) < 1.01  # bound by the cube units
    assert 1 <= row / (2 * 4096**2 / 1200) < 1.01  # bound by the memory
