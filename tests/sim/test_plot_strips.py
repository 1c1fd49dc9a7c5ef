"""Memory below the Gantt chart: one time axis, one strip a device, bands that add up to what was in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from drawn_runs import draw_graph
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scenario_texts import THREE_BLOCKS, write

from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, Trace, simulate
from sim.base.arrays import IntArray
from sim.plot import compare_gantt, gantt, memory, new_figure, save, save_page
from sim.plot.html import gantt_data
from sim.plot.memory import Strip, Strips, alike, draw_strip, strip_of, strips_of, tops_of
from sim.plot.theme import OTHER, RESIDENT, colour_of

ALLOCATORS = ("pool", "bfc", "caching", "counted", "planned")


def chain(allocator: str | None = "counted", *, memory_bytes: int | None = None, ns: int = 10_000) -> Trace:
    """Return a run on one GPU; from 0, 10, 20 and 30 us on 105, 175, 85 and 5 bytes are in use.

    ::

        w   ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇  5, stays         a   ▇▇▇▇▇▇▇▇▇▇  100, until b has read it
        b        ▇▇▇▇▇▇▇▇▇▇  70                c             ▇▇▇▇▇  10
    """
    b = GraphBuilder("chain")
    b.parameter("w", 5)
    b.op("a", kind="conv", duration_ns=ns, outputs=100)
    b.op("b", kind="relu", duration_ns=ns, outputs=70, inputs=["a", "w"])
    b.op("c", kind="conv", duration_ns=ns, outputs=10, inputs=["b"])
    machine = Machine((Device("gpu0", memory_bytes=memory_bytes),))
    spec = None if allocator is None else tensor_memory({"gpu0": MemorySpec(allocator)})
    return simulate(b.build(), machine, ReadyQueue(), memory=spec)


def on_devices(n: int, *, falling: bool = False, allocate: bool = True) -> Trace:
    """Return a run in which device k holds 100 (k + 1) bytes while its only op runs, or 90 (n - k)."""
    b = GraphBuilder("many")
    for k in range(n):
        b.op(
            f"op{k}",
            kind="conv",
            duration_ns=10_000,
            outputs=90 * (n - k) if falling else 100 * (k + 1),
            device=f"gpu{k}",
        )
    machine = Machine(tuple(Device(f"gpu{k}") for k in range(n)))
    specs = {f"gpu{k}": MemorySpec("counted") for k in range(n)}
    return simulate(b.build(), machine, ReadyQueue(), memory=tensor_memory(specs) if allocate else None)


def held_at(strip: Strip, time_ns: int) -> dict[str, int]:
    """Return the bands at an instant, as a step function is read: after its last step."""
    row = int(np.searchsorted(strip.times_ns, time_ns, side="right")) - 1
    return {label: int(held[row]) if row >= 0 else 0 for label, held in strip.bands.items()}


def logged_at(trace: Trace, device: int, time_ns: int, column: str = "in_use") -> int:
    """Return what the log says of an instant."""
    assert trace.memory is not None
    rows = np.flatnonzero((trace.memory["device"] == device) & (trace.memory["time_ns"] <= time_ns))
    return int(trace.memory[column][rows[-1]]) if len(rows) else 0


def legend(figure: Figure) -> list[str]:
    """Return the entries of the legend beside the figure."""
    (shown,) = figure.legends
    return [text.get_text() for text in shown.get_texts()]


def texts(ax: Axes) -> list[str]:
    """Return what is written into a strip."""
    return [text.get_text() for text in ax.texts]


def test_a_strip_shares_the_time_axis_of_its_chart() -> None:
    figure = compare_gantt(chain())
    above, below = figure.axes
    assert below in above.get_shared_x_axes().get_siblings(above)
    assert above.get_xlim() == below.get_xlim() == (0.0, 30.0)
    assert (above.get_xlabel(), below.get_xlabel()) == ("", "time (us)")
    assert below.get_ylabel() == "gpu0\n(B)"
    figure.canvas.draw()
    left, right = above.get_window_extent(), below.get_window_extent()
    assert (left.x0, left.x1) == pytest.approx((right.x0, right.x1)), "a vertical line hits the same instant"
    assert right.y1 < left.y0, "below, not over it"


def test_bands_of_a_strip_by_hand() -> None:
    """w is 5; a is 100 until 20 us, b 70 from 10 to 30 us, c 10 from 20 to 30 us."""
    (strips,) = strips_of([chain()])
    (strip,) = strips.shown
    at = [held_at(strip, ns) for ns in (0, 10_000, 20_000, 29_999, 30_000)]
    assert at == [
        {RESIDENT: 5, "conv": 100, "relu": 0},
        {RESIDENT: 5, "conv": 100, "relu": 70},
        {RESIDENT: 5, "conv": 10, "relu": 70},
        {RESIDENT: 5, "conv": 10, "relu": 70},
        {RESIDENT: 5, "conv": 0, "relu": 0},
    ]
    assert (strip.peak_bytes, strip.peak_ns, strip.capacity_bytes) == (175, 10_000, None)
    assert texts(compare_gantt(chain()).axes[1]) == ["peak 175 B"]


def test_steps_within_an_instant_are_not_drawn() -> None:
    """At 20 us a is freed before c is taken: one step in the picture, two in the log."""
    trace = chain()
    assert trace.memory is not None
    times = trace.memory["time_ns"]
    assert np.count_nonzero(times == 20_000) == 2
    reserved = np.asarray(compare_gantt(trace).axes[1].lines[0].get_xdata())
    assert reserved.tolist() == [0, 10, 20, 30]


def test_bands_have_the_colours_of_the_bars() -> None:
    trace = chain()
    below = compare_gantt(trace).axes[1]
    from matplotlib.colors import to_hex

    drawn = [to_hex(each.get_facecolor()[0]).upper() for each in below.collections]  # type: ignore[index]
    assert drawn[1:3] == [colour_of("conv"), colour_of("relu")]
    alone = memory(trace, "gpu0").collections
    assert [to_hex(each.get_facecolor()[0]).upper() for each in alone] == drawn  # type: ignore[index]


def test_what_is_drawn_adds_up_to_what_was_in_use() -> None:
    """The upper edge of the last band, read off the polygons."""
    trace = chain("bfc")
    below = compare_gantt(trace).axes[1]
    *bands, vain = below.collections
    assert (len(bands), below.get_ylabel()) == (3, "gpu0\n(MiB)")
    for us in (1, 11, 21, 29):
        tops = [_upper_edge(each, us) for each in bands]
        assert tops == sorted(tops)
        assert tops[-1] * (1 << 20) == logged_at(trace, 0, us * 1_000)
        assert _upper_edge(vain, us) * (1 << 20) == logged_at(trace, 0, us * 1_000, "reserved")


def _upper_edge(area: Any, us: float) -> float:
    """Return the highest y of an area of steps at a time between its corners."""
    corners = area.get_paths()[0].vertices
    flat = (np.minimum(corners[:-1, 0], corners[1:, 0]) <= us) & (
        np.maximum(corners[:-1, 0], corners[1:, 0]) > us
    )
    return float(corners[:-1, 1][flat].max())


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_bands_add_up_under_every_allocator(allocator: str) -> None:
    trace = chain(allocator)
    strip = strip_of(trace, "gpu0")
    assert strip.reserved is not None
    for ns in range(0, 31_000, 1_000):
        row = int(np.searchsorted(strip.times_ns, ns, side="right")) - 1
        assert sum(held_at(strip, ns).values()) == logged_at(trace, 0, ns)
        assert int(strip.reserved[row]) == logged_at(trace, 0, ns, "reserved")


@pytest.mark.parametrize("seed", range(len(ALLOCATORS)))
def test_bands_of_random_runs_add_up(seed: int) -> None:
    """At every instant at which something happened, in what a picture shows of it."""
    graph = draw_graph(np.random.default_rng(seed), 40, distances=False)
    spec = tensor_memory({"gpu0": MemorySpec(ALLOCATORS[seed])}, lifetime="issue")
    trace = simulate(graph, Machine((Device("gpu0"),)), InOrder(), memory=spec)  # the order of the plan
    strip = strip_of(trace, "gpu0").thin_out(trace.makespan_ns)
    assert strip.reserved is not None
    assert len(strip.times_ns) > 10
    logged = [logged_at(trace, 0, ns) for ns in strip.times_ns.tolist()]
    assert strip.in_use.tolist() == logged
    assert (strip.reserved >= strip.in_use).all()
    assert all((held >= 0).all() for held in strip.bands.values())


def test_runs_without_a_log_look_as_if_there_were_no_strips(tmp_path: Path) -> None:
    """The same bytes with and without; and the log changes nothing when memory is not wanted."""
    plain = {"one": chain(None), "two": on_devices(2, allocate=False)}
    files = [tmp_path / f"{wanted}.svg" for wanted in (True, False)]
    for wanted, path in zip((True, False), files, strict=True):
        save(compare_gantt(plain, memory=wanted), path)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(compare_gantt(plain).axes) == 2
    save(compare_gantt({"run": chain(None)}), tmp_path / "none.svg")
    save(compare_gantt({"run": chain()}, memory=False), tmp_path / "unwanted.svg")
    assert (tmp_path / "none.svg").read_bytes() == (tmp_path / "unwanted.svg").read_bytes()


def test_every_run_has_its_strips_below_its_lanes_and_one_legend() -> None:
    figure = compare_gantt({"two": on_devices(2), "plain": chain(None), "one": chain(ns=30_000)})
    kinds = ["chart" if ax.get_title(loc="left") else ax.get_ylabel() for ax in figure.axes]
    # The one without a log shows what its tensors need, as the others have one.
    assert kinds == ["chart", "gpu0\n(B)", "gpu1\n(B)", "chart", "gpu0\n(B)", "chart", "gpu0\n(B)"]
    assert {ax.get_xlim() for ax in figure.axes} == {(0.0, 90.0)}
    assert {ax.get_ylim() for ax in figure.axes if ax.get_ylabel()} == {(0.0, 1.35 * 200)}, "one scale"
    assert legend(figure) == [
        "conv",
        "relu",
        f"memory: {RESIDENT}",
        "reserved",
        "reserved, not in use",
    ]
    assert all(ax.get_legend() is None for ax in figure.axes)


def test_host_and_gpu_have_scales_of_their_own() -> None:
    b = GraphBuilder("two kinds")
    b.op("small", duration_ns=10, outputs=100, device="cpu0")
    b.op("large", duration_ns=10, outputs=5 << 20, device="gpu0")
    machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")))
    trace = simulate(b.build(), machine, ReadyQueue(), memory=tensor_memory())
    _, cpu, gpu = compare_gantt(trace).axes
    assert (cpu.get_ylabel(), gpu.get_ylabel()) == ("cpu0\n(B)", "gpu0\n(MiB)")


@pytest.mark.parametrize(("memory_bytes", "shown"), [(None, False), (234, False), (233, True), (175, True)])
def test_capacity_is_shown_where_three_quarters_are_held(memory_bytes: int | None, shown: bool) -> None:
    """175 bytes are the peak; 0.75 x 233 = 174.75 is less, 0.75 x 234 = 175.5 more."""
    figure = compare_gantt(chain(memory_bytes=memory_bytes))
    below = figure.axes[1]
    levels = [line.get_ydata()[0] for line in below.lines if line.get_linestyle() == "--"]
    assert levels == ([memory_bytes] if shown else [])
    assert ("capacity" in legend(figure)) is shown
    page = gantt_data({"": chain(memory_bytes=memory_bytes)})
    assert ("capacity" in [entry["label"] for entry in page["legend"]]) is shown
    assert page["rows"][1].get("capacity", {}).get("nbytes") == (memory_bytes if shown else None)
    highest = 175 if memory_bytes is None or not shown else memory_bytes
    assert below.get_ylim() == pytest.approx((0, 1.35 * highest)), "with room for it"


def test_memory_that_never_changes_has_no_strip() -> None:
    b = GraphBuilder("constant")
    b.parameter("w", 5)
    b.op("a", duration_ns=10, inputs=["w"])
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), memory=tensor_memory())
    assert trace.memory is not None
    assert strips_of([trace]) == [Strips([], [])]
    assert len(compare_gantt(trace).axes) == 1


def test_of_many_devices_those_with_the_highest_peaks_are_shown_and_the_rest_is_named() -> None:
    """Device k peaks at 100 (k + 1) bytes: of eleven, the first three are left out."""
    trace = on_devices(11)
    _, *below = compare_gantt(trace).axes
    assert [ax.get_ylabel() for ax in below] == [f"gpu{k}\n(KiB)" for k in range(3, 11)]
    note = "memory: the 8 of 11 devices with the highest peaks; without gpu0, gpu1, gpu2"
    assert [ax.get_title(loc="left") for ax in below] == [note] + [""] * 7
    assert [row["title"] for row in gantt_data({"": trace})["rows"]] == ["10 us", note] + [""] * 7
    assert Strips([], [f"gpu{k}" for k in range(9)]).note.endswith("gpu4, gpu5 and 3 more")
    assert strips_of([on_devices(8)])[0].note == ""


def test_runs_show_the_same_devices() -> None:
    """The first holds 300 bytes on gpu2, the second 270 on gpu0: gpu2 in both."""
    runs = [on_devices(3), on_devices(3, falling=True)]
    for run in strips_of(runs, most=1):
        assert ([strip.device for strip in run.shown], run.left_out) == (["gpu2"], ["gpu0", "gpu1"])
    (alone,) = strips_of(runs[1:], most=1)
    assert [strip.device for strip in alone.shown] == ["gpu0"]


def test_a_run_on_another_machine_shows_its_own_highest() -> None:
    """Of the large run gpu4 to gpu11 are shown, which the small one does not have."""
    large, small = strips_of([on_devices(12), on_devices(3)])
    assert [strip.device for strip in large.shown] == [f"gpu{k}" for k in range(4, 12)]
    assert ([strip.device for strip in small.shown], small.left_out) == (["gpu2"], ["gpu0", "gpu1"])
    assert len(compare_gantt({"large": on_devices(12), "small": on_devices(3)}).axes) == 2 + 9


def test_many_runs_show_fewer_devices() -> None:
    found = strips_of([on_devices(8)] * 11)
    assert {len(run.shown) for run in found} == {2}, "32 strips in all, 11 runs"
    assert {len(run.left_out) for run in found} == {6}


def test_kinds_that_take_no_time_are_in_the_legend_when_they_hold_much() -> None:
    b = GraphBuilder("kinds")
    for k in range(9):
        b.op(f"op{k}", kind=f"kind{k}", duration_ns=0 if k == 8 else 100, outputs=1000 if k == 8 else 10)
    b.op("reader", kind="reader", inputs=["op8"], duration_ns=100)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), memory=tensor_memory())
    assert legend(compare_gantt(trace)).count("memory: kind8") == 1
    assert [entry["label"] for entry in gantt_data({"": trace})["legend"]].count("memory: kind8") == 1


def test_bands_of_all_strips_are_in_one_order() -> None:
    held = np.array([1, 2])
    bands = {label: held * k for k, label in enumerate(("a", "b", RESIDENT, OTHER, "c"), 1)}
    strip = Strip("gpu0", "gpu", np.array([0, 10]), bands, None, 30, 10, None)
    (run,) = alike([Strips([strip], [])])
    assert {label: each.tolist() for label, each in run.shown[0].bands.items()} == {
        RESIDENT: [3, 6],
        "c": [5, 10],
        "b": [2, 4],
        "a": [1, 2],
        OTHER: [4, 8],
    }
    assert list(run.shown[0].bands) == [RESIDENT, "c", "b", "a", OTHER], "resident below, then the largest"


def _strip(times: IntArray, held: IntArray) -> Strip:
    top = int(held.argmax())
    bands = {"a": held // 2, "b": held - held // 2}
    return Strip("gpu0", "gpu", times, bands, held * 2, int(held.max()), int(times[top]), None)


_STEP = st.tuples(st.integers(0, 50), st.integers(0, 1000))


@given(st.lists(_STEP, min_size=1, max_size=15) | st.lists(_STEP, min_size=60, max_size=90))
def test_what_is_seen_keeps_peaks_and_ends(steps: list[tuple[int, int]]) -> None:
    """Five columns for up to 51 instants: rows are rows of the original, and every column has its highest."""
    ordered = sorted(steps, key=lambda step: step[0])
    times, held = np.array([t for t, _ in ordered]), np.array([h for _, h in ordered])
    seen = _strip(times, held).thin_out(50, 5)
    settled = dict(ordered)  # the last step of each instant
    assert len(set(seen.times_ns.tolist())) == len(seen.times_ns)
    assert dict(zip(seen.times_ns.tolist(), seen.in_use.tolist(), strict=True)).items() <= settled.items()
    assert seen.reserved is not None
    assert (seen.reserved == 2 * seen.in_use).all()
    assert seen.times_ns[-1] == times[-1]
    columns = {t // 10 for t in settled}
    for column in columns:
        most = max(h for t, h in settled.items() if t // 10 == column)
        assert most == max(seen.in_use[seen.times_ns // 10 == column])
    if len(settled) > 15:
        assert len(seen.times_ns) <= 3 * len(columns)
    else:
        assert len(seen.times_ns) == len(settled)


def test_the_page_has_a_strip_below_its_lanes() -> None:
    data = gantt_data({"one": chain(), "two": chain(None), "three": on_devices(2)})
    names = [[name for _, name in row["names"]] for row in data["rows"]]
    gpu0, gpu1 = ["200 B", "gpu0"], ["200 B", "gpu1"]
    assert names == [["gpu0/0"], gpu0, ["gpu0/0"], gpu0, ["gpu0/0", "gpu1/0"], gpu0, gpu1]
    assert [row.get("peak") for row in data["rows"]] == [
        *(None, "peak 175 B", None, "peak 175 B", None, "peak 100 B", "peak 200 B"),
    ]
    assert [row["peak_ns"] for row in data["rows"] if "peak" in row] == [10_000, 10_000, 0, 0]
    assert {row["top"] for row in data["rows"] if "peak" in row} == {200}, "one scale"


def test_areas_of_the_page_add_up_to_what_was_in_use() -> None:
    trace = chain()
    data = gantt_data({"": trace})
    row, labels = data["rows"][1], [kind["label"] for kind in data["kinds"]]
    assert [labels[band["entry"]] for band in row["bands"]] == [
        RESIDENT,
        "conv",
        "relu",
        "reserved, not in use",
    ]
    assert len(set(row["times"])) == len(row["times"])
    for k, at in enumerate(row["times"]):
        assert sum(band["nbytes"][k] for band in row["bands"][:-1]) == logged_at(trace, 0, at)
        assert sum(band["nbytes"][k] for band in row["bands"]) == logged_at(trace, 0, at, "reserved")
        assert row["reserved"]["nbytes"][k] == logged_at(trace, 0, at, "reserved")


def test_the_page_is_the_same_every_time(tmp_path: Path) -> None:
    runs = {"one": chain(memory_bytes=200), "two": on_devices(9)}
    for name in ("a.html", "b.html"):
        save_page(runs, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_plots_of_memory_that_are_compared_share_their_scales(tmp_path: Path) -> None:
    _, axes = new_figure(2)
    for run, ax in zip((chain(), chain(ns=30_000)), axes, strict=True):
        strip = strip_of(run, "gpu0")
        draw_strip(ax, strip, {label: colour_of(label) for label in strip.bands}, 400, 90_000)
    assert {ax.yaxis.label.get_rotation() for ax in axes} == {0.0}, "long names would overlap"
    assert {(ax.get_xlim(), ax.get_ylim()) for ax in axes} == {((0.0, 90.0), (0.0, 1.35 * 400))}
    path = write(tmp_path, SCENARIO)
    chart = tmp_path / "memory.svg"
    told = sim("run", path, "--policy", "managed", "--policy", "unlimited", "--memory", chart)
    assert told.exit_code == 0, told.output
    assert chart.read_text(encoding="utf-8").count("gpu0") == 2


def test_the_chart_alone_and_the_plot_of_memory_are_what_they_were() -> None:
    trace = chain()
    ax = gantt(trace)
    assert ax.figure.axes == [ax]
    alone = memory(trace, "gpu0")
    assert alone.figure.axes == [alone]
    assert texts(alone) == ["peak 175 B"]
    shown = alone.get_legend()
    assert shown is not None
    lines = ["reserved", "reserved, not in use"]
    assert [text.get_text() for text in shown.get_texts()] == [RESIDENT, "conv", "relu", *lines]


def test_one_scale_for_devices_of_a_kind() -> None:
    assert tops_of(strips_of([on_devices(3)])[0].shown) == {"gpu": 300}


SCENARIO = (
    THREE_BLOCKS
    + """\
compare:
  - {label: managed, name: in-order, set: {memory.allocator: pool}}
  - {label: unlimited, name: in-order}
"""
)


def test_the_command_line_draws_it(tmp_path: Path) -> None:
    """Of two policies one has an allocator: both have a strip. A picture of a run without one has none."""
    path = write(tmp_path, SCENARIO)
    for ending in ("svg", "html"):
        chart = tmp_path / f"chart.{ending}"
        assert sim("compare", path, "--gantt", chart).exit_code == 0
        text = chart.read_text(encoding="utf-8")
        assert text.count("peak 85.83 MiB") == 2, "90 MB"
    bare = tmp_path / "bare.svg"
    assert sim("run", path, "--gantt", bare).exit_code == 0
    assert "peak 85.83 MiB" not in bare.read_text(encoding="utf-8")
