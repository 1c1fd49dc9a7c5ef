"""What a GPU costs beside kernels, measured on a fake one of which it is known."""

from __future__ import annotations

from typing import Any

import fake_torch
import pytest
from fake_torch import Driver, Torch
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.calibration import Calibration
from sim.base.errors import InfeasibleError, InputError, RunError
from validation.calibrate.calibration_probes import ALLOCATION_BYTES, COPY_BYTES, fit_pieces, probes
from validation.calibrate.session import Session
from validation.cases.calibrated import lookup
from validation.gpu import gpu_probes as probing
from validation.gpu.cuda import Cuda
from validation.gpu.gpu_probes import issue_costs_ns
from validation.gpu.torch_memory import idle_streams

KERNEL_NS = 100_000


@pytest.fixture
def torch() -> Torch:
    return Torch()


@pytest.fixture
def session(torch: Torch) -> Session:
    return Session("cuda", Cuda(torch, Driver()))


def test_the_queue_holds_the_host_up_when_it_is_full(torch: Torch) -> None:
    found = probing.queue_depth(torch)
    assert found == (fake_torch.QUEUE_DEPTH - 1, True)  # the spin has a place of its own


def test_a_queue_without_end_is_only_bounded(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_torch, "QUEUE_DEPTH", 10_000)
    assert probing.queue_depth(torch, most=200) == (200, False)


def test_a_spin_that_ends_early_is_no_depth(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_QUEUE_GATE_CYCLES", 100_000)
    with pytest.raises(RunError, match="the queue was not full"):
        probing.queue_depth(torch)


@pytest.mark.parametrize("direction", ["h2d", "d2h", "d2d"])
@pytest.mark.parametrize("pinned", [True, False])
def test_copies_take_what_they_take(torch: Torch, direction: str, pinned: bool) -> None:
    assert probing.copy_ns(torch, direction, 1 << 20, 3, pinned=pinned) == [KERNEL_NS] * 3


def test_copies_both_ways_overlap_on_two_streams(torch: Torch) -> None:
    found = probing.duplex_ns(torch, 1 << 20, 2)
    assert found == {name: [KERNEL_NS] * 2 for name in ("h2d", "d2h", "both")}


def test_neighbours_that_are_gone_are_noticed(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch() -> None:
        torch.cuda.launch(lambda: None)

    assert probing.kernel_ns(torch, launch, "neighbours busy", 2) == [KERNEL_NS] * 2
    assert probing.kernel_ns(torch, launch, "cold", 2) == [KERNEL_NS] * 2
    monkeypatch.setattr(probing._Neighbours, "_PRODUCTS", 0)
    with pytest.raises(RunError, match="were not busy"):
        probing.kernel_ns(torch, launch, "neighbours busy", 2)


def test_hops_cost_nothing_on_a_device_where_they_cost_nothing(torch: Torch) -> None:
    found = probing.event_hop_ns(torch, 2, length=6)
    assert found == {"within": [0, 0], "across": [0, 0]}


def test_hops_that_cost_are_found(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = fake_torch.Stream.wait_event

    def slow(self: fake_torch.Stream, event: fake_torch.Event) -> None:
        wait(self, event)
        self.ms += 0.003

    monkeypatch.setattr(fake_torch.Stream, "wait_event", slow)
    found = probing.event_hop_ns(torch, 2, length=6)
    assert found["within"] == pytest.approx([3000] * 2)
    assert found["across"] == pytest.approx([3000] * 2)


def test_streams_that_hold_memory_are_left_alone(torch: Torch) -> None:
    [first] = idle_streams(torch, 1)
    with torch.cuda.stream(first):
        held = torch.empty(100, dtype=torch.uint8, device="cuda")
    assert first.handle not in [stream.handle for stream in idle_streams(torch, 3)]
    assert held.place is not None
    torch.cuda.Stream = lambda: first  # type: ignore[method-assign]
    with pytest.raises(InfeasibleError, match="only 0 of torch's streams"):
        idle_streams(torch, 1)


@pytest.mark.slow
def test_all_probes_land_in_a_calibration(session: Session, torch: Torch) -> None:
    probes(session, torch)
    assert all(entry["accepted"] for entry in session.sentinels), session.sentinels
    tables = {(table["kind"], table["context"]): table for table in session.tables}
    copies = [
        ("copy-d2d", "on the device"),
        *[(f"copy-{way}", memory) for way in ("h2d", "d2h") for memory in ("pinned", "pageable")],
    ]
    kernels = [
        (kind, context)
        for kind in ("matmul", "elementwise", "softmax")
        for context in ("cold", "isolated", "neighbours busy", "warm, fp16", "warm, fp32")
    ]
    allocations = [("allocation", context) for context in ("fresh", "reuse", "release")]
    assert set(tables) == {*copies, *kernels, *allocations}
    for key in copies:
        assert [row[0] for row in tables[key]["rows"]] == COPY_BYTES
        assert tables[key]["pieces"][-1]["to_nbytes"] == COPY_BYTES[-1]
        assert {"median", "mad", "p05", "p95", "low", "high", "n"} <= set(tables[key]["statistics"][0])
    assert [row[0] for row in tables["allocation", "fresh"]["rows"]] == ALLOCATION_BYTES
    assert set(session.samples) == {
        "duplex_slowdown_ppm", "event_across_added_ns", "event_within_added_ns",
        "queue_depth", *(f"issue_{kind}_ns" for kind in ("copy", "graph", "kernel", "record", "wait")),
    }  # fmt: skip
    found = Calibration("cuda", "fake", {}, {}, session.tables)
    assert lookup(found, "copy-h2d", context="pageable", nbytes=1 << 20) == KERNEL_NS


def test_each_kind_of_call_has_its_cost(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only calls move: 3 us a launch, 1 us an event, and nothing else takes time."""
    clock = {"ns": 0}

    def spend(what: str, tensor: Any = None) -> None:
        clock["ns"] += {"launch": 3000, "event": 1000}.get(what, 0)

    monkeypatch.setattr(torch.cuda, "spend", spend)
    monkeypatch.setattr("validation.gpu.gpu_probes.now_ns", lambda: clock["ns"])
    found = issue_costs_ns(torch, 4)
    assert {kind: set(samples) for kind, samples in found.items()} == {
        "kernel": {3000}, "copy": {3000}, "graph": {3000}, "record": {1000}, "wait": {1000},
    }  # fmt: skip
    assert {len(samples) for samples in found.values()} == {4}


def test_a_probe_that_fails_says_so_and_loses_no_other(session: Session, torch: Torch) -> None:
    def broken() -> None:
        raise RuntimeError("CUDA error: no such thing\nand more")

    torch.cuda.empty_cache = broken  # type: ignore[method-assign]
    probes(session, torch)
    lost = [entry for entry in session.sentinels if not entry["accepted"]]
    assert len(lost) == len(ALLOCATION_BYTES)
    assert {entry["why"] for entry in lost} == {"not measured: RuntimeError: CUDA error: no such thing"}
    assert "queue_depth" in session.samples


# -- pieces of alpha + beta n -----------------------------------------------------------------------


def test_two_pieces_are_found_where_there_are_two() -> None:
    sizes = [1 << k for k in range(12, 28, 2)]
    ns = [2000 + n // 4 if n < 1 << 20 else 20_000 + n // 50 for n in sizes]
    small, large = fit_pieces(sizes, ns)
    assert small.to_nbytes == 1 << 18
    assert small.alpha_ns == pytest.approx(2000, rel=0.01)
    assert large.bandwidth_bytes_per_s == pytest.approx(50e9, rel=0.01)
    assert max(small.max_error, large.max_error) < 0.001


@given(st.integers(0, 10**6), st.integers(10**8, 10**11))  # faster, 4 KiB take so few ns that rounding shows
def test_one_line_is_found_again(alpha_ns: int, rate: int) -> None:
    sizes = [1 << k for k in range(12, 30, 2)]
    ns = [max(1, alpha_ns + n * 10**9 // rate) for n in sizes]
    for piece in fit_pieces(sizes, ns):
        for n, right in zip(sizes, ns, strict=True):
            if piece.from_nbytes <= n <= piece.to_nbytes:
                said = piece.alpha_ns + (n * 1e9 / piece.bandwidth_bytes_per_s if piece[3] else 0)
                assert said == pytest.approx(right, rel=0.05, abs=2)


@pytest.mark.parametrize("sizes", [[1], [2, 1], [1, 1]])
def test_pieces_of_nothing_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InputError, match="two rising sizes"):
        fit_pieces(sizes, [1] * len(sizes))
