"""Pictures: what is drawn, not how it looks; files with the same bytes; nothing global."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from drawn_runs import draw_run
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Job, Link, Machine, Trace, simulate
from sim.base.errors import InputError, UnknownNameError
from sim.plot import compare_gantt, gantt, memory, new_figure, save, utilisation
from sim.plot.bar_polygons import points_of
from sim.plot.bars import arrows_of, bars_of
from sim.plot.figure import time_unit
from sim.plot.html import gantt_data
from sim.plot.legend import colours_of
from sim.plot.theme import colour_of


class Alternate:
    """Puts ops on the two streams in turn."""

    def assign(self, job: Job) -> Sequence[int]:
        return [k % 2 for k in range(len(job.graph))]


def two_streams(kinds: Sequence[str] = ("conv", "relu", "conv"), ns: int = 10_000) -> Trace:
    """Return a chain on two streams."""
    b = GraphBuilder("chain")
    for k, kind in enumerate(kinds):
        b.op(f"block/op{k}", kind=kind, inputs=[f"block/op{k - 1}"] if k else [], duration_ns=ns, outputs=100)
    device = Device("gpu0", streams=2, issue_ns=2_000)
    return simulate(b.build(), Machine((device,)), ReadyQueue(synchronisation="issue"), streams=Alternate())


def over_links(sharing: str = "serial") -> Trace:
    """Return a run with two transfers at the same time."""
    b = GraphBuilder("links")
    for name in "ab":
        b.op(name, outputs=1000, duration_ns=100, device="gpu0")
        b.op(f"{name}2", inputs=[name], duration_ns=100, device="gpu1")
    link = Link("wire", "gpu0", "gpu1", 0, 10**9, sharing)
    machine = Machine((Device("gpu0", streams=2), Device("gpu1")), (link,), network=make_network)
    return simulate(b.build(), machine, ReadyQueue(), streams=Lanes())


class Lanes:
    """Puts a and b on two streams, what reads them on one."""

    def assign(self, job: Job) -> Sequence[int]:
        return [0, 0, 1, 0]


def polygons(ax: Axes) -> list[np.ndarray]:
    """Return the corners of every bar."""
    return [path.vertices for c in ax.collections if isinstance(c, PolyCollection) for path in c.get_paths()]


def lanes(ax: Axes) -> list[str]:
    """Return the names of the lanes, from top to bottom."""
    bottom, top = ax.get_ylim()
    assert bottom > top
    return [label.get_text() for label in ax.get_yticklabels()]


def legend(ax: Axes) -> list[str]:
    """Return the entries of the legend."""
    shown = ax.get_legend()
    return [] if shown is None else [text.get_text() for text in shown.get_texts()]


def test_one_bar_a_task_on_the_lane_of_its_stream() -> None:
    ax = gantt(two_streams())
    assert lanes(ax) == ["gpu0/0", "gpu0/1"]
    assert ax.get_xlabel() == "time (us)"
    spans = sorted((v[:, 0].min(), v[:, 0].max(), round(v[:, 1].mean())) for v in polygons(ax))
    assert spans == [(2.0, 12.0, 0), (12.0, 22.0, 1), (22.0, 32.0, 0)]
    assert legend(ax) == ["conv", "relu"]
    assert [text.get_text() for text in ax.texts] == ["block/op0", "block/op1", "block/op2"]


def test_launches_on_request() -> None:
    ax = gantt(two_streams(), issuers=True)
    assert lanes(ax) == ["gpu0/host", "gpu0/0", "gpu0/1"]
    assert legend(ax) == ["conv", "relu", "launch"]
    assert len(polygons(ax)) == 6
    assert lanes(gantt(draw_run(3), issuers=True)) == lanes(gantt(draw_run(3))), (
        "workers have no lane besides"
    )


def test_transfers_have_lanes_unless_they_are_not_wanted() -> None:
    ax = gantt(over_links())
    assert lanes(ax) == ["gpu0/0", "gpu0/1", "gpu1/0", "gpu0→gpu1"]
    assert legend(ax) == ["a", "a2", "b", "b2", "transfer"]  # no kind tells them apart
    assert lanes(gantt(over_links(), links=False)) == ["gpu0/0", "gpu0/1", "gpu1/0"]


def test_transfers_that_overlap_share_their_lane() -> None:
    serial, shared = bars_of(over_links()), bars_of(over_links("shared"))
    assert serial.n_levels.tolist() == [1] * 6
    wires = shared.lane == 3
    assert (shared.level[wires].tolist(), shared.n_levels[wires].tolist()) == ([0, 1], [2, 2])
    boxes = [v for v in polygons(gantt(over_links("shared"))) if v[:, 1].min() > 2.5]
    (one, two) = sorted(boxes, key=lambda v: v[:, 1].min())
    assert one[:, 1].max() <= two[:, 1].min()


def test_arrows_lead_from_producers_to_consumers_on_other_lanes() -> None:
    trace = two_streams()
    (lines,) = (c for c in gantt(trace, arrows=True).collections if isinstance(c, LineCollection))
    ends = [segment[:, 0].tolist() for segment in lines.get_segments()]
    assert ends == [[12.0, 12.0], [22.0, 22.0]]
    assert not any(isinstance(c, LineCollection) for c in gantt(trace).collections)


def test_arrows_go_through_transfers_or_past_them() -> None:
    trace = over_links()
    names = ["a", "b", "a2", "b2", "to", "to"]
    for links, expected in (
        (True, {("a", "to"), ("b", "to"), ("to", "a2"), ("to", "b2")}),
        (False, {("a", "a2"), ("b", "b2")}),
    ):
        bars = bars_of(trace, links=links)
        source, target = arrows_of(trace, bars)
        label = [
            names[row] if row >= 4 else trace.job.graph.op_names[trace.tasks["op"][row]] for row in bars.row
        ]
        assert {(label[s], label[t]) for s, t in zip(source, target, strict=True)} == expected


def test_every_kind_has_a_colour_and_is_in_the_legend() -> None:
    kinds = [f"kind{k}" for k in range(10)]
    b = GraphBuilder("kinds")
    for k, kind in enumerate(kinds):
        b.op(kind, kind=kind, duration_ns=100 - k)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    assert len({colours_of([trace])[kind] for kind in kinds}) == 10
    assert legend(gantt(trace)) == kinds


@pytest.mark.parametrize("n", [200, 30_000])
def test_narrow_bars_become_fewer_and_keep_their_time(n: int) -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder("many")
    for i in range(n):
        b.op(f"o{i}", kind=("conv", "relu", "add")[i % 3], duration_ns=int(rng.integers(1, 40_000)))
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=4),)), ReadyQueue())
    bars = bars_of(trace)
    packed = bars.pack(trace.makespan_ns)
    lanes_by_kind = [
        np.bincount(x.lane * 3 + x.kind, weights=x.end - x.start, minlength=12).tolist()
        for x in (bars, packed)
    ]
    assert lanes_by_kind[0] == lanes_by_kind[1]
    assert len(packed) == n if n == 200 else len(packed) < n
    order = np.lexsort((packed.start, packed.lane))
    same = packed.lane[order[1:]] == packed.lane[order[:-1]]
    apart = packed.start[order[1:]] - packed.end[order[:-1]]
    assert (apart[same] >= -2 * (trace.makespan_ns // 4_000)).all(), "nothing moves farther than two columns"


def test_a_busy_lane_of_narrow_bars_has_their_full_colour(tmp_path: Path) -> None:
    b = GraphBuilder("busy")
    for k in range(3_000):
        b.op(f"o{k}", kind="conv", duration_ns=7)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    save(gantt(trace), tmp_path / "busy.png")
    pixels = imread(tmp_path / "busy.png")[..., :3]
    assert np.isclose(pixels, to_rgb(colour_of("conv")), atol=0.01).all(axis=2).mean() > 0.2


def test_a_thread_issues_one_kernel_at_a_time() -> None:
    """Also where streams start kernels in another order than they were issued in."""
    b = GraphBuilder("two streams")
    for k, ns in enumerate((50_000, 10, 10, 10)):
        b.op(f"o{k}", duration_ns=ns)
    device = Device("gpu0", streams=2, issue_ns=2_000)
    trace = simulate(b.build(), Machine((device,)), ReadyQueue(synchronisation="issue"), streams=Lanes())
    bars = bars_of(trace, issuers=True)
    assert bars.level[bars.lane == 0].tolist() == [0] * 4


def test_comparing_shares_axis_and_colours() -> None:
    figure = compare_gantt({"one": two_streams(), "two": two_streams(ns=30_000)})
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim() == (0.0, 92.0)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["one: 32 us", "two: 92 us"]
    assert (legend(first), legend(second)) == ([], [])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["conv", "relu"]
    assert (first.get_xlabel(), second.get_xlabel()) == ("", "time (us)")


def test_drawing_into_given_axes() -> None:
    figure = compare_gantt({"one": two_streams()})
    (ax,) = figure.axes
    assert gantt(two_streams(), ax, title="again", until_ns=100_000) is ax
    assert ax.get_xlim() == (0.0, 100.0)
    assert utilisation(two_streams(), ax) is ax
    assert memory(two_streams(), "gpu0", ax) is ax


def test_utilisation_adds_up_to_the_makespan() -> None:
    ax = utilisation(over_links())
    widths = np.array([[bar.get_width() for bar in group] for group in ax.containers])
    assert np.allclose(widths.sum(axis=0), 100.0)
    assert legend(ax)[0] == "compute"
    assert "communicate" in legend(ax)


def test_memory_shows_peak_and_what_the_allocator_reserved() -> None:
    trace = two_streams()
    ax = memory(trace, "gpu0")
    assert "peak 200 B" in [text.get_text() for text in ax.texts]
    assert legend(ax) == ["conv", "relu"]
    managed = simulate(
        trace.job.graph, trace.job.machine, ReadyQueue(), memory=tensor_memory({"gpu0": MemorySpec("bfc")})
    )
    assert legend(memory(managed, "gpu0")) == ["conv", "relu", "reserved", "reserved, not in use"]
    with pytest.raises(UnknownNameError, match="unknown device 'gpu1'; did you mean 'gpu0'"):
        memory(trace, "gpu1")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_files_have_the_same_bytes(tmp_path: Path, ending: str) -> None:
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        save(gantt(over_links(), arrows=True).get_figure(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes()[:4] in (b"\x89PNG", b"<?xm", b"%PDF")
    assert b"/Type3" not in paths[0].read_bytes()  # a font that publishers refuse
    assert len(list(tmp_path.iterdir())) == 2


def test_another_ending(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a picture's name ends in \.png, \.svg or \.pdf"):
        save(gantt(over_links()).get_figure(), tmp_path / "gantt.bmp")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_ran_can_be_drawn(seed: int, tmp_path: Path) -> None:
    trace = draw_run(seed)
    ax = gantt(trace, issuers=True, arrows=True, critical_path=True)
    ran = int((trace.tasks["end_ns"] > trace.tasks["start_ns"]).sum()) + len(trace.transfers["tensor"])
    assert len(polygons(ax)) >= ran
    save(ax.get_figure(), tmp_path / "drawn.png")


@pytest.mark.parametrize(
    ("ns", "unit"),
    [
        (1, "ns"),
        (1999, "ns"),
        (2000, "us"),
        (5 * 10**6, "ms"),
        (10**10, "s"),
        (10**12, "min"),
        (10**13, "h"),
        (10**15, "d"),
    ],
)
def test_units_of_the_time_axis(ns: int, unit: str) -> None:
    assert time_unit(ns)[1] == unit


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, sim, sim.plot, sim.metrics, sim.explain, sim.export.chrome, sim.export.tables\n"
        "print([name for name in ('pandas', 'matplotlib', 'matplotlib.pyplot') if name in sys.modules])\n"
        "from sim import *\n"
        "from policies.issue.ready_queue import ReadyQueue\n"
        "b = GraphBuilder(); b.op('a', duration_ns=5)\n"
        "sim.plot.gantt(simulate(b.build(), Machine((Device('gpu0'),)), ReadyQueue()))\n"
        "print([name for name in ('pandas', 'matplotlib.pyplot') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "[]"]


def _pipeline(*kinds: str, ns: int = 10) -> Trace:
    b = GraphBuilder("phases")
    for i, kind in enumerate(kinds):
        b.op(f"{i}{kind}", kind=kind, duration_ns=ns + i)
    return simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())


def test_phases_have_the_same_colours_in_all_figures() -> None:
    few, many = colours_of([_pipeline("F", "B")]), colours_of([_pipeline("W", "I", "conv", "B", "R", "F")])
    assert {kind: many[kind] for kind in "FB"} == {kind: few[kind] for kind in "FB"}
    assert len({many[kind] for kind in ("F", "B", "I", "W", "R", "conv")}) == 6


def test_a_kind_has_the_colour_of_its_name_whatever_else_is_there() -> None:
    kinds = [f"kind{k}" for k in range(40)]
    together = colours_of([_pipeline(*kinds)])
    for kind in kinds:
        assert together[kind] == colours_of([_pipeline(kind, "F", "matmul")])[kind] == colour_of(kind)


def test_what_takes_no_time_is_not_in_the_legend() -> None:
    b = GraphBuilder("merge")
    for kind, ns in (
        ("post", 0),
        ("conv", 10),
        ("add", 20),
        ("launch", 5),
    ):  # launches of a recording are ops
        b.op(kind, kind=kind, duration_ns=ns)
    ax = gantt(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    assert legend(ax) == ["add", "conv", "launch"]


def test_lanes_of_transfers_that_nobody_could_see_are_left_out() -> None:
    def lanes(ns: int) -> list[str]:
        b = GraphBuilder("moved")
        b.op("a", kind="a", duration_ns=ns, device="x", outputs=100)
        b.op("b", kind="b", duration_ns=ns, device="y", inputs=["a"])
        link = Link("xy", "x", "y", 0, 10**9)
        machine = Machine((Device("x"), Device("y")), (link,), network=make_network)
        ax = gantt(simulate(b.build(), machine, ReadyQueue()))
        return [label.get_text() for label in ax.get_yticklabels()]

    assert lanes(1_000) == ["x/0", "y/0", "x→y"]
    assert lanes(1_000_000) == ["x/0", "y/0"]


def test_narrow_slots_of_a_pipeline_have_the_number_of_their_micro_batch() -> None:
    def texts(micro_batches: int) -> set[str]:
        b = GraphBuilder("slots")
        for k in range(micro_batches):
            b.op(f"0F{k}", kind="F", duration_ns=10, micro_batch=k, stage=0, phase="F")
            b.op(f"0B{k}", kind="B", duration_ns=20, micro_batch=k, stage=0, phase="B")
        ax = gantt(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
        return {text.get_text() for text in ax.texts}

    assert texts(3) == {f"0{phase}{k}" for phase in "FB" for k in range(3)}
    assert texts(18) == {str(k) for k in range(18)}


def test_a_long_legend_takes_no_height_from_the_first_of_several_charts() -> None:
    builder = GraphBuilder("kinds")
    for k in range(8):
        builder.op(f"op{k}", kind=f"kind{k}", duration_ns=10)
    trace = simulate(builder.build(), Machine((Device("gpu0"),)), ReadyQueue())
    figure = compare_gantt({"first": trace, "second": trace, "third": trace})
    figure.canvas.draw()
    tops = [ax.get_position().y1 for ax in figure.axes]
    assert tops[0] - tops[1] == pytest.approx(tops[1] - tops[2])
    assert [len(each.get_texts()) for each in figure.legends] == [8]
    assert all(ax.get_legend() is None for ax in figure.axes)


def test_a_notebook_shows_a_figure_as_a_picture() -> None:
    shown = gantt(two_streams()).figure
    assert shown._repr_png_().startswith(b"\x89PNG\r\n")
    assert (
        compare_gantt({"a": two_streams()})._repr_png_() == compare_gantt({"a": two_streams()})._repr_png_()
    )


def test_a_name_is_no_formula() -> None:
    figure = Figure()  # a user's own
    gantt(two_streams((r"$\x$", r"$\frac$", "conv")), figure.subplots(), title=r"$\y$")
    figure.draw_without_rendering()


def test_kinds_of_one_colour_are_one_entry_of_the_legend() -> None:
    trace = _pipeline("all_gather", "matmul", "reduce_scatter", "gemm", ns=1000)
    assert legend(gantt(trace)) == ["gemm, matmul", "reduce_scatter, all_gather"]
    data = gantt_data({"": trace})
    assert [entry["label"] for entry in data["legend"]] == legend(gantt(trace)), "the page says the same"
    kinds = [[data["kinds"][k]["label"] for k in entry["kinds"]] for entry in data["legend"]]
    assert kinds == [["gemm", "matmul"], ["reduce_scatter", "all_gather"]]


def test_a_legend_has_ten_entries_at_most_and_counts_the_rest() -> None:
    trace = _pipeline(*(f"kind{k}" for k in range(29)), "transfer_of_mine")
    shown = legend(gantt(trace))
    assert len(shown) == 10
    data = gantt_data({"": trace})
    rest = [data["kinds"][k]["label"] for k in data["legend"][-1]["kinds"]]
    lasted = {kind: 10 + int(kind.removeprefix("kind")) for kind in rest if kind.startswith("kind")}
    ns = sum(lasted.values()) + 39 * ("transfer_of_mine" in rest)
    assert shown[-1] == f"{len(rest)} other kinds ({100 * ns / trace.makespan_ns:.0f} %)"
    assert len(rest) > 15
    assert [entry["label"] for entry in data["legend"]] == shown
    named = sorted(k for entry in data["legend"] for k in entry["kinds"])
    assert [data["kinds"][k]["colour"] for k in named] == [
        colour_of(data["kinds"][k]["label"]) for k in named
    ], "the rest keep their colours"
    assert len(named) == 30, "each kind has its place in one entry"


def test_names_are_without_their_device_and_as_long_as_there_is_room() -> None:
    b = GraphBuilder("names")
    for k, ns in enumerate((300, 60, 40)):
        b.op(f"gpu0/block{k}/conv", duration_ns=ns, device="gpu0")
    b.op("gpu0/3/0", duration_ns=10, device="gpu0")
    ax = gantt(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    assert sorted(text.get_text() for text in ax.texts) == ["block0/conv", "block1/conv", "block2/conv"]


def test_letters_are_no_higher_than_their_bar() -> None:
    b = GraphBuilder("levels")
    for k in range(6):
        b.op(f"a{k}", duration_ns=5000, outputs=1000, device="x")
        b.op(f"b{k}", duration_ns=5000, inputs=[f"a{k}"], device="y")
    link = Link("xy", "x", "y", 0, 10**9, "shared")
    machine = Machine((Device("x", streams=6), Device("y")), (link,), network=make_network)
    trace = simulate(b.build(), machine, ReadyQueue(), streams=Spread())
    (ax,) = compare_gantt(trace).axes
    assert sum(text.get_text() == "a0" for text in ax.texts) == 1, "op a0, but not the transfer of its tensor"
    assert len(polygons(ax)) == 18


class Spread:
    """Puts each op on a stream of its own."""

    def assign(self, job: Job) -> Sequence[int]:
        return [0 if name.startswith("b") else int(name[1]) for name in job.graph.op_names]


@pytest.mark.parametrize(("lanes", "named"), [(30, 30), (1_000, 500)])
def test_lanes_are_named_as_far_as_there_is_room(lanes: int, named: int) -> None:
    b = GraphBuilder("wide")
    for k in range(lanes):
        b.op(f"o{k}", duration_ns=10, device=f"gpu{k}")
    trace = simulate(b.build(), Machine(tuple(Device(f"gpu{k}") for k in range(lanes))), ReadyQueue())
    (ax,) = compare_gantt(trace).axes
    assert len(ax.get_yticklabels()) == named
    assert ax.get_ylim() == (lanes - 0.5, -0.5)


def test_long_names_leave_the_chart_its_room() -> None:
    b = GraphBuilder("long")
    b.op("a", kind="k" * 120, duration_ns=10, device="d" * 120)
    b.op("b", kind="j" * 120, duration_ns=10, device="d" * 120)
    figure = compare_gantt(simulate(b.build(), Machine((Device("d" * 120),)), ReadyQueue()))
    expected = points_of(figure.axes[0])[0]  # what names in bars may take
    figure.canvas.draw()
    assert figure.axes[0].get_position().width > 0.5
    assert expected <= points_of(figure.axes[0])[0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        f"{letter * 20}…{letter * 9}" for letter in "jk"
    ]


def test_ticks_are_round_and_whole_nanoseconds() -> None:
    figure = compare_gantt(_pipeline("a", ns=3))
    figure.canvas.draw()
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "1", "2", "3"]
    assert figure.axes[0].get_title(loc="left") == "3 ns"
    days = _pipeline("a", "b", ns=20 * 86_400 * 10**9)
    assert compare_gantt(days).axes[0].get_title(loc="left") == "40 d"
    short = compare_gantt({"short": _pipeline("a"), "long": days}).axes[0]
    assert short.get_title(loc="left") == "short: 10 ns"


def test_charts_on_one_axis_show_all_of_both_or_are_refused() -> None:
    long, short, other = two_streams(), two_streams(["conv"]), two_streams(ns=10**8)
    for first, second in ((long, short), (short, long)):
        _, axes = new_figure(2)
        for trace, ax in zip((first, second), axes, strict=True):
            gantt(trace, ax)
        assert {ax.get_xlim() for ax in axes} == {(0, long.makespan_ns / 1000)}
    for trace, draw in ((long, lambda ax: utilisation(long, ax)), (other, lambda ax: gantt(long, ax))):
        _, (above, below) = new_figure(2)
        gantt(trace, above)
        with pytest.raises(
            InputError, match=r"share their x axis with others, which show 'time \((us|ms)\)'"
        ):
            draw(below)


@pytest.mark.parametrize(("width", "most"), [(12.0, 10), (3.4, 4)])
def test_a_narrow_chart_has_fewer_numbers(width: float, most: int) -> None:
    _, [ax] = new_figure(width=width)
    gantt(two_streams(), ax)
    low, high = ax.get_xlim()
    assert len([tick for tick in ax.get_xticks() if low <= tick <= high]) <= most + 1
    assert len(ax.get_xticks()) > most // 2
