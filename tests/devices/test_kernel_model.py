"""Physics of a kernel, grids that correct it, and the fits that ship: small cases, bounds, round trips."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.cost import load_fits, shift_model
from devices.cost.general_kernels import by_bytes, elementwise_work, linear_work
from devices.cost.kernel_fits import FAMILIES, FOLDER, LAYERS, KernelFits, fits, models_of, read_fits
from devices.cost.kernel_model import Family, KernelGrid, KernelWork, Model, Parameters, Sheet, knots, physics
from devices.cost.language_kernels import (
    MOE_SIZES,
    attention_work,
    decode_work,
    delta_work,
    moe_work,
    product_work,
    seen_pairs,
)
from studies.kernels.__main__ import record_of

CHIP = Sheet("chip", "", 100, 1e9, 1e12, 1e6, {"fp16": 1e14, "fp32": 1e13})
LOSSLESS = Parameters(0, 1, 64, 0, 0, 0, 1, 1, 1e-9, 1, 1, 10, 1000)


def ns_of(work: KernelWork, parameters: Parameters = LOSSLESS) -> float:
    return float(physics(work, CHIP, parameters)[0][0])


def one(x: float) -> np.ndarray[Any, Any]:
    return np.array([x])


@pytest.mark.parametrize(
    ("work", "ns"),
    [
        (KernelWork(flops=one(1e6), blocks=100), 10),  # 1e6 flop at 1e5 a ns
        (KernelWork(flops=one(1e6), blocks=101), 2 * 1e6 / 101 / 1e3),  # a second wave for one block
        (KernelWork(flops=one(1e6), blocks=1), 1000),  # on one SM
        (KernelWork(dram_bytes=one(1e6)), 1000),
        (KernelWork(warm_bytes=one(1e3)), 1),  # in L2: 10 bytes a cycle and SM
        (KernelWork(warm_bytes=one(1e8)), 100_000),  # does not fit
        (KernelWork(warm_bytes=one(1e5), fresh=0.5), 100),  # half of it from DRAM
        (KernelWork(load_bytes=one(6400), blocks=100), 1),  # 64 bytes a cycle and SM
        (KernelWork(flops=one(1e6), blocks=100, dram_bytes=one(1e6)), 1000),  # the longer side
        (KernelWork(flops=one(1e8), blocks=100, dram_bytes=one(1e6), strided=True), 300 + 1000 * 2**0.4),
        (KernelWork(flops=one(1e6), blocks=100, dtype="fp32"), 100),
        (KernelWork(missed_bytes=one(1e6), blocks=100), 1000 / 0.3),  # pieces of rows: 0.3 of the rate
    ],
)
def test_physics_of_small_cases(work: KernelWork, ns: float) -> None:
    assert ns_of(work) == pytest.approx(ns, rel=2e-3)


def test_heat_slows_a_kernel_that_goes_on_and_none_that_leaves_sms_idle() -> None:
    """Half of the clock is left: a short one keeps it, as does one that computes on half of the SMs."""
    hot = replace(CHIP, sustained={"fp16": 0.5})

    def slower(flops: float, blocks: int) -> float:
        work = KernelWork(flops=one(flops), blocks=blocks)
        return float(physics(work, hot, LOSSLESS)[0][0]) / ns_of(work)

    times = [slower(1e8, 100), slower(1e11, 100), slower(1e11, 50)]
    assert times == pytest.approx([1, 1.77, 1], abs=0.01)


def test_the_quickest_candidate_is_taken() -> None:
    work = KernelWork(flops=np.array([[4e6, 1e6, 2e6]]), blocks=np.array([[100.0, 100.0, 100.0]]))
    assert ns_of(work) == pytest.approx(10, rel=1e-2)


@pytest.mark.parametrize(
    ("gpu", "m", "n", "k", "tile", "grid"),
    [
        ("p4", 64, 53038, 154, (64, 64), 829),
        ("p4", 384, 58737, 183, (32, 128), 5508),
        ("p4", 128, 168, 2703, (128, 32), 80),
        ("p100-pcie-16", 64, 13175, 496, (64, 64), 412),
        ("p100-pcie-16", 256, 6577, 5237, (32, 128), 412),
        ("p100-pcie-16", 192, 513, 83, (128, 32), 30),
    ],
)
def test_pascal_takes_the_tiles_and_cuts_that_the_library_was_seen_to_launch(
    gpu: str, m: float, n: float, k: float, tile: tuple[int, int], grid: int
) -> None:
    """As names and grids of recorded kernels say; k alone decides nothing."""
    sizes = {"batch": np.ones(1), "m": np.array([m]), "n": np.array([n]), "k": np.array([k])}
    work = linear_work(sizes, load_fits(gpu).sheet, "fp32")
    assert work.blocks.tolist() == [[grid]]
    loaded = work.load_bytes / (4 * work.blocks * 8 * np.ceil(work.steps))
    assert loaded.tolist() == [[sum(tile)]]
    assert np.ceil(n / tile[0]) * np.ceil(m / tile[1]) in (grid, grid / 2, grid / 5, grid / 10)


def test_steps_joins_and_fixed_time_add_up() -> None:
    p = Parameters(100, 1, 64, 2, 5, 7, 1, 1, 1e-9, 1, 1, 10, 1000)
    work = KernelWork(blocks=one(250.0), steps=one(10.0), joins=one(1.0), join_bytes=one(3000.0))
    assert ns_of(work, p) == pytest.approx(100 + 3 * (20 + 5) + 7 + 3, rel=1e-6)


def test_a_grid_is_linear_between_knots_and_constant_beyond() -> None:
    grid = KernelGrid(("a", "b"), (knots("1 4"), (0.0, 1.0)), np.array([[0.0, 4.0], [8.0, 0.0]]))
    at = {"a": np.array([0.0, 1.0, 2.0, -5.0, 9.0]), "b": np.array([0.5, 0.5, 0.25, 0.0, 1.0])}
    assert grid.at(at).tolist() == [2.0, 3.0, 6.0, 0.0, 0.0]


def test_masks_and_caches_count_pairs_and_bytes() -> None:
    assert seen_pairs(one(4.0), one(0.0), causal=False).tolist() == [16]
    sizes = {"batch": one(2), "seq_len": one(256), "heads": one(8), "kv_heads": one(2), "head_dim": one(64)}
    assert decode_work(sizes, CHIP, "fp16").warm_bytes.tolist() == [2 * 2 * 2 * 2 * 256 * 64]
    assert attention_work(sizes, CHIP, "fp16").dram_bytes.tolist() == [2 * 2 * 256 * 64 * 2 * (8 + 2)]
    work = product_work({"m": one(100), "n": one(64), "k": one(32)}, CHIP, "fp16")
    assert work.flops.min() == 2 * 128 * 64 * 32  # the padded tile
    assert (work.warm_bytes, work.cycled_bytes, work.dram_bytes) == (6400, 4096, 12800)


def test_weights_of_experts_and_states_of_heads_are_in_l2_if_they_fit() -> None:
    """As a measured kernel has them, which runs again and again."""
    sizes = dict(zip(MOE_SIZES.split(), map(one, (4, 64, 32, 2, 8, 1, 1)), strict=True))
    weights, moved = 2 * 8 * 3 * 64 * 32, 2 * (2 * 4 * 64 + 8 * (2 * 64 + 3 * 32))
    states = {"batch": one(2), "seq_len": one(1), "heads": one(4)}
    works = moe_work(sizes, CHIP, "bf16"), delta_work(states, CHIP, "bf16")
    assert [work.warm_bytes.tolist() for work in works] == [[weights + moved], [8 * (2**17 + 2**11)]]
    assert all(work.dram_bytes == 0 for work in works)


def test_what_reads_much_more_than_it_writes_is_priced_by_what_it_reads() -> None:
    [sizes] = by_bytes("reduce_sum", one(4e6), one(4.0), "fp32")
    assert sizes["elements"].tolist() == [1e6]
    assert (sizes["elements"] * (sizes["operands"] + 1) * 4)[0] == pytest.approx(4e6 + 4)


def test_a_reduction_takes_steps_of_its_threads() -> None:
    """1,024 rows of 96 and 128 columns, as PyTorch launched them on an A100; the latter in blocks that share
    outputs. Without a launch a thread has 32 numbers, of few numbers a block takes all.
    """

    def work(numbers: float, **launch: Any) -> list[float]:
        [sizes] = by_bytes("reduce", one(4 * numbers), one(0.0), "fp32", [launch])
        found = elementwise_work(sizes, CHIP, "fp32")
        return [float(x[0]) for x in (found.steps, found.blocks, found.joins, found.fresh)]

    kernel = {"kernel": "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>"}
    assert work(1024 * 96, **kernel, grid=[2, 1, 1], block=[16, 8, 1]) == [24 + 4, 0.5, 0, 0]
    assert work(1024 * 128, **kernel, grid=[1, 16, 1], block=[32, 4, 1]) == [4 + 4, 4, 1, 0]
    assert work(2**20, aten="aten.sum.default") == [8 + 4, 16, 0, 1]
    assert work(1024)[0] == 0.5 + 4
    assert work(1024, kernel="triton_red_fused_mean_0") == [0, 1 / 8, 0, 0]


def test_tensor_cores_of_half_rate_are_nearly_never_idle() -> None:
    """A GeForce's, which sum in fp32 at half the rate of other cards; of vector units nothing changes, nor
    of a GPU that has no others, as a GTX 1660 or a Radeon VII.
    """
    work = KernelWork(flops=one(1e6), blocks=100)
    halved = replace(CHIP, peak={"fp16": 5e13, "fp32": 2.5e13})
    without = replace(CHIP, peak={"fp16": 2.5e13, "fp32": 1.25e13})
    sheets = (CHIP, "fp16", 20), (halved, "fp16", 20 / 0.97), (halved, "fp32", 80), (without, "fp16", 80)
    for sheet, dtype, ns in sheets:
        found, _ = physics(replace(work, dtype=dtype), sheet, replace(LOSSLESS, flop_share=0.5))
        assert float(found[0]) == pytest.approx(ns, rel=2e-3)


@pytest.mark.parametrize(("gpu", "longer"), [("v100-pcie-32", 189.6 / 156.9), ("t4", 597.2 / 516.4)])
def test_a_softmax_of_rows_that_begin_within_a_sector_takes_longer(gpu: str, longer: float) -> None:
    """13,719 rows of 967 columns beside 13,021 of 984, as NeuSight measured them."""
    odd, even = load_fits(gpu).predict("softmax", "fp32", rows=[13719, 13021], columns=[967, 984])[0]
    assert odd / even == pytest.approx(longer, rel=0.06)  # 1.03 where all rows were alike


def test_a_thread_block_alone_computes_at_a_quarter_of_its_sm() -> None:
    few, many = ({"elements": one(n), "operands": 1.0, "eager": 1.0} for n in (512.0, 512.0 * 1600))
    alone, full = (elementwise_work(sizes, CHIP, "fp32") for sizes in (few, many))
    assert (alone.flops / alone.blocks * 4 == full.flops / full.blocks).all()


SIZE = st.integers(0, 15).map(lambda e: float(2**e))
TABLES = ["h200-sxm", "h100-pcie", "a100-sxm-80", "l4", "t4", "rtx-pro-6000", "mi300x"]


@given(st.sampled_from(TABLES), st.sampled_from(["bf16", "fp8", "fp32"]), SIZE, SIZE, SIZE)
@examples(80)
def test_products_answer_everywhere_and_doubling_helps_nobody_much(
    gpu: str, dtype: str, m: float, n: float, k: float
) -> None:
    table = "linear" if dtype == "fp32" else "products"
    ns, width = load_fits(gpu).predict(table, dtype, m=np.array([m, 4 * m]), n=n, k=k, batch=1)
    assert np.isfinite(ns).all()
    assert (ns > 500).all()
    assert ((width > 0) & (width < 2)).all()
    # A library has better tiles for some, and splits k for more rows: an L40S takes 18 us for 4 x 64 x 4096
    # and 4 for 8 rows. Otherwise nothing is twice as fast with more to do.
    assert ns[1] > 0.5 * ns[0] or max(m, n) <= 32


@given(st.floats(1e3, 1e12), st.floats(1, 1e10), st.floats(1, 1e5))
@examples(80)
def test_physics_grows_with_work(flops: float, nbytes: float, steps: float) -> None:
    def of(factor: float) -> float:
        work = KernelWork(
            flops=one(factor * flops), dram_bytes=one(factor * nbytes), steps=one(factor * steps), blocks=7
        )
        return ns_of(work, Parameters())

    assert of(1) <= of(1.5) <= of(3)


def test_models_go_to_json_and_back() -> None:
    for name in fits():
        for key, record in read_fits(name).items():
            model = Model.from_json(FAMILIES[record["family"]], json.loads(json.dumps(record)))
            assert record_of(Model.from_json(model.family, record_of(model))) == record_of(model), (name, key)


def test_files_are_small_and_readable() -> None:
    for path in FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert len(text) <= 30_000, path
        assert text.count("\n") >= len(json.loads(text)["families"])


def test_twenty_kernels_of_another_gpu_shift_the_model() -> None:
    """A GPU whose kernels all take 1.5 times as long is met after 20 of them, and the model is surer."""
    rng = np.random.default_rng(0)
    sizes = {name: np.rint(2 ** rng.uniform(6, 13, 220)) for name in "mnk"}
    fits_ = load_fits("h100-pcie")
    model = fits_.model("products", "bf16")
    ns = 1.5 * model.predict(sizes, fits_.sheet)[0]
    near = shift_model(model, {k: v[:20] for k, v in sizes.items()}, fits_.sheet, ns[:20])
    rest = {k: v[20:] for k, v in sizes.items()}
    found, width = near.predict(rest, fits_.sheet)
    assert np.abs(found / ns[20:] - 1).mean() < 0.15
    assert width.mean() < 1.2 * model.predict(rest, fits_.sheet)[1].mean()


def test_a_gpu_that_is_like_a_lender_is_met_through_it() -> None:
    """Twelve kernels that take what an L40S' model says move an A100's towards it everywhere."""
    rng = np.random.default_rng(1)
    sizes = {"batch": np.rint(2 ** rng.uniform(0, 9, 212)), "seq_len": np.rint(2 ** rng.uniform(5, 14, 212))}
    sizes |= {"heads": np.full(212, 32.0), "kv_heads": np.full(212, 8.0), "head_dim": np.full(212, 128.0)}
    fits_, lenders = load_fits("a100-sxm-80"), models_of("decode", "bf16", but="a100-sxm-80")
    sheet, model = fits_.sheet, fits_.model("decode", "bf16").wider(0.55)
    ns = load_fits("l40s").model("decode", "bf16").predict(sizes, sheet)[0]
    few, rest = {k: v[:12] for k, v in sizes.items()}, {k: v[12:] for k, v in sizes.items()}

    def off(some: Model) -> float:
        return float(np.abs(some.predict(rest, sheet)[0] / ns[12:] - 1).mean())

    alone = shift_model(model, few, sheet, ns[:12])
    assert off(shift_model(model, few, sheet, ns[:12], lenders)) < 0.75 * off(alone) < 0.75 * off(model)
    as_modelled = shift_model(model, few, sheet, model.predict(few, sheet)[0], lenders).shift
    assert as_modelled is not None
    assert not as_modelled.lenders  # none would change what it says


def test_far_from_measured_layers_a_model_is_less_sure() -> None:
    """By what is added at a doubling, and no more beyond; a shift takes no note of it, but of new layers."""
    fits_ = load_fits("h200-sxm")
    model = replace(fits_.model("gated_delta", "bf16"), spread=(0.3,), spread_edges=(), away=0.4)
    model = replace(model, layers={"heads": [16, 64]})
    sizes = {"batch": 1.0, "seq_len": 4096.0, "heads": np.array([16.0, 24, 32, 128, 512])}
    ns, width = model.predict(sizes, fits_.sheet)
    assert width == pytest.approx([0.3, np.hypot(0.3, 0.4 * np.log2(1.5)), 0.5, 0.5, 0.5])
    few = {**sizes, "heads": sizes["heads"][-2:]}
    moved = shift_model(model, few, fits_.sheet, 1.5 * ns[-2:])
    near_only = shift_model(replace(model, away=0.0), few, fits_.sheet, 1.5 * ns[-2:])
    assert moved.shift is not None
    assert near_only.shift is not None
    assert moved.shift.weights.tolist() == near_only.shift.weights.tolist()
    near = 0.3 * moved.shift.narrower
    after = [near, np.hypot(near, 0.4 * np.log2(1.5)), np.hypot(near, 0.4), near, near]
    assert moved.predict(sizes, fits_.sheet)[1] == pytest.approx(after)


def test_layers_are_those_that_were_measured() -> None:
    """Mixtral's experts, 8 of 4096 x 14336, are known in 16 bits; twice as many, twice as wide, are not."""
    for gpu in ("h100-sxm", "h100-pcie", "b300-sxm"):
        fits_, sizes = load_fits(gpu), {"tokens": 512.0, "topk": 2.0, "tp": 1.0, "ep": 1.0, "hidden": 4096.0}
        model = fits_.model("moe", "bf16")
        experts, intermediate = np.array([8.0, 16.0]), np.array([14336.0, 28672.0])
        width = model.predict({**sizes, "experts": experts, "intermediate": intermediate}, fits_.sheet)[1]
        assert width[0] in model.spread
        assert width[1] > 1.3 * width[0]
    assert {key for key in LAYERS if not any(key in read_fits(name) for name in fits())} == set()


def test_kernels_of_another_data_type_lend_too() -> None:
    assert {m.dtype for m in models_of("moe", "bf16")} == {"bf16"}
    assert len(models_of("moe", "bf16")) == len(models_of("moe", "fp8")) > 10
    assert len(models_of("moe", "bf16", but="gb200")) == len(models_of("moe", "bf16")) - 4


def test_a_window_keeps_query_heads_apart_in_flash_attention_2() -> None:
    """As on Ampere and Ada: as many blocks as query heads; on Hopper as many as key-value heads."""
    sizes = {"batch": 64, "seq_len": 128, "heads": 64, "kv_heads": 8, "head_dim": 64}
    for gpu, least, most in (("l40s", 3, 8), ("h100-sxm", 0.9, 1.2)):
        fits_ = load_fits(gpu)
        whole, window = (fits_.predict("decode", "bf16", **sizes, window=w)[0][0] for w in (0, 128))
        assert least < window / whole < most


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_one_head_over_a_long_sequence_fills_a_gpu_as_eight_over_an_eighth_of_it_do(gpu: str) -> None:
    """Longer sequences than the 16,384 tokens that were measured have as many thread blocks."""
    sizes: dict[str, int] = {"batch": 1, "kv_heads": 1, "head_dim": 128, "window": 0}
    of = load_fits(gpu)
    (long,), _ = of.predict("prefill", "bf16", seq_len=131_072, heads=1, **sizes)
    (short,), _ = of.predict("prefill", "bf16", seq_len=16_384, heads=8, **sizes)
    assert 0.7 < 8 * short / long < 1.3


def test_sources_widen_the_interval() -> None:
    """An unmeasured GPU of a measured generation is less sure, one of another generation still less."""
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    widths = [
        float(load_fits(g).predict("products", "bf16", **sizes)[1][0])
        for g in ("h100-sxm", "h100-pcie", "rtx-pro-6000")
    ]
    assert widths == sorted(widths)
    assert widths[2] > 0.25


def test_equal_fits_are_equal() -> None:
    assert load_fits("t4") == load_fits("t4") != load_fits("p4")
    assert hash(load_fits("t4")) == hash(load_fits("t4"))


def test_a_family_without_grids_is_its_physics() -> None:
    family = Family(
        "plain", lambda s, sheet, dtype: KernelWork(flops=s["n"], blocks=100), lambda s, sheet, dtype: {}, ()
    )
    ns, width = Model(family, "fp16", LOSSLESS).predict({"n": np.array([1e6, 2e6])}, CHIP)
    assert ns == pytest.approx([10, 20], rel=1e-3)
    assert width.tolist() == [0.5, 0.5]


def test_an_unknown_table_is_said() -> None:
    with pytest.raises(Exception, match="no GPU was measured with sorting in bf16"):
        KernelFits(CHIP).predict("sorting", "bf16", m=1)


def test_a_data_type_that_nobody_measured_takes_another_ones_times() -> None:
    """Quantizing was measured in fp8 alone."""
    sizes = {"m": [1024, 4096], "k": [4096, 4096]}
    fits = load_fits("h100-sxm")
    known, other = (fits.predict("quantize", dtype, **sizes) for dtype in ("fp8", "bf16"))
    assert other[0].tolist() == known[0].tolist()
    assert (other[1] > known[1]).all()
