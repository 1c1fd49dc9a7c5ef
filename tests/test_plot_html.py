"""The Gantt chart as HTML: what its data say, that Plotly takes them, and that the file stands alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import COMPARE, sim
from drawn_runs import draw_run
from scenario_texts import GOOD, write

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Job, Link, Machine, Trace, simulate
from sim.plot import save_html
from sim.plot.bars import bars_of
from sim.plot.gantt import colours_of
from sim.plot.html import _exact, html_figure
from sim.words.errors import InputError, MissingExtraError
from sim.words.units import parse_duration


class Alternate:
    """Puts ops on the streams of one device in turn."""

    def assign(self, job: Job) -> Sequence[int]:
        return [k % 2 for k in range(len(job.graph))]


def chain(kinds: Sequence[str] = ("conv", "relu", "conv"), ns: int = 10_000) -> Trace:
    """Return a chain on two streams, issued all at once."""
    b = GraphBuilder("chain")
    for k, kind in enumerate(kinds):
        b.op(f"block/op{k}", kind=kind, inputs=[f"block/op{k - 1}"] if k else [], duration_ns=ns)
    device = Device("gpu0", streams=2, issue_ns=2_000)
    return simulate(b.build(), Machine((device,)), ReadyQueue(synchronisation="issue"), streams=Alternate())


def over_a_link() -> Trace:
    """Return a run with one transfer."""
    b = GraphBuilder("moved")
    b.op("a", kind="a", duration_ns=100, device="x", outputs=1000)
    b.op("b", kind="b", duration_ns=100, device="y", inputs=["a"])
    link = Link("xy", "x", "y", 0, 10**9)
    return simulate(
        b.build(), Machine((Device("x"), Device("y")), (link,), network=make_network), ReadyQueue()
    )


def spans(figure: dict[str, Any], axis: str = "y") -> list[tuple[float, float, int]]:
    """Return (start, end, lane) of every bar of a run, in the unit of the axis."""
    found = []
    for trace in figure["data"]:
        if trace["yaxis"] == axis:
            for base, x, y in zip(trace["base"], trace["x"], trace["y"], strict=True):
                found.append((base, base + x, round(y)))
    return sorted(found)


def stories(figure: dict[str, Any]) -> list[list[str]]:
    """Return what is read at each bar, line by line."""
    return [unescape(text).split("<br>") for trace in figure["data"] for text in trace["hovertext"]]


def test_one_trace_of_bars_a_kind_in_the_colours_of_the_picture() -> None:
    trace = chain()
    figure = html_figure({"run": trace})
    assert [(each["name"], each["type"], len(each["x"])) for each in figure["data"]] == [
        ("conv", "bar", 2),
        ("relu", "bar", 1),
    ]
    colours = colours_of([trace])
    assert [each["marker"]["color"] for each in figure["data"]] == [colours["conv"], colours["relu"]]
    assert spans(figure) == [(2.0, 12.0, 0), (12.0, 22.0, 1), (22.0, 32.0, 0)]
    layout = figure["layout"]
    assert layout["xaxis"]["title"]["text"] == "time (µs)"
    assert layout["xaxis"]["range"] == [0, 32.0]
    assert layout["yaxis"]["ticktext"] == ["gpu0/0", "gpu0/1"]
    assert layout["annotations"][0]["text"] == "run: 32 µs"
    assert [each["text"] for each in figure["data"]] == [["op0", "op2"], ["op1"]]


def test_the_page_has_a_title_that_a_tab_can_show(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    b = GraphBuilder("a <b> & c")
    b.op("x", duration_ns=10)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    save_html({"one": trace, "two": trace}, tmp_path / "page.html")
    assert "<title>a &lt;b&gt; &amp; c</title>" in (tmp_path / "page.html").read_text()[:200]


def test_a_bar_tells_its_story() -> None:
    assert stories(html_figure({"": chain()}))[1] == [
        "<b>block/op2 (conv)</b>",
        "gpu0/0",
        "ready 4 µs · issued 6 µs",
        "start 22 µs · end 32 µs · lasted 10 µs",
        "waited 18 µs for: event",
    ]


def test_transfers_and_launches_have_lanes_and_stories() -> None:
    figure = html_figure({"": over_a_link()})
    assert figure["layout"]["yaxis"]["ticktext"] == ["x/0", "y/0", "x→y"]
    assert stories(figure)[-1] == [
        "<b>a (transfer)</b>",
        "x→y",
        "1 kB · ready 100 ns",
        "start 100 ns · end 1.1 µs · lasted 1 µs",
    ]
    assert html_figure({"": over_a_link()}, links=False)["layout"]["yaxis"]["ticktext"] == ["x/0", "y/0"]
    launched = html_figure({"": chain()}, issuers=True)
    assert launched["layout"]["yaxis"]["ticktext"] == ["gpu0/host", "gpu0/0", "gpu0/1"]
    assert ["<b>launch</b>", "gpu0/host", "start 0 ns · end 2 µs · lasted 2 µs"] in stories(launched)


def test_runs_share_the_time_axis_and_the_legend() -> None:
    figure = html_figure({"one": chain(), "two": chain(ns=30_000)})
    layout = figure["layout"]
    assert [key for key in layout if key.startswith("xaxis")] == ["xaxis"]
    assert (layout["xaxis"]["range"], layout["xaxis"]["anchor"]) == ([0, 92.0], "y2")
    assert [note["text"] for note in layout["annotations"]] == ["one: 32 µs", "two: 92 µs"]
    assert [(line["x0"], line["yref"]) for line in layout["shapes"]] == [
        (32.0, "y domain"),
        (92.0, "y2 domain"),
    ]
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1], "with room for a title between"
    assert spans(figure, "y2") == [(2.0, 32.0, 0), (32.0, 62.0, 1), (62.0, 92.0, 0)]
    entries = [(each["name"], each["legendgroup"], each["showlegend"]) for each in figure["data"]]
    assert entries == [
        ("conv", "0", True),
        ("relu", "1", True),
        ("conv", "0", False),
        ("relu", "1", False),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_every_bar_of_some_width_is_there_once(seed: int) -> None:
    trace = draw_run(seed)
    bars = bars_of(trace)
    expected = sorted(
        (start, end, lane)
        for start, end, lane in zip(bars.start.tolist(), bars.end.tolist(), bars.lane.tolist(), strict=True)
        if end > start
    )
    figure = html_figure({"": trace})
    unit = {"s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}[
        figure["layout"]["xaxis"]["title"]["text"].split("(")[1].rstrip(")")
    ]
    drawn = sorted((round(a * unit), round(b * unit), lane) for a, b, lane in spans(figure))
    assert drawn == expected


def test_kinds_without_a_colour_are_one_entry_at_the_end() -> None:
    figure = html_figure({"": chain([f"kind{k}" for k in range(10)])})
    names = [each["name"] for each in figure["data"]]
    assert len(names) == 8
    assert (names[-1], len(figure["data"][-1]["x"])) == ("other", 3)


def test_many_narrow_bars_become_fewer_and_say_so() -> None:
    b = GraphBuilder("wide")
    for k in range(30_000):
        b.op(f"op{k}", kind=("even", "odd")[k % 2], duration_ns=1_000)
    figure = html_figure({"": simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())})
    lengths = np.concatenate([each["x"] for each in figure["data"]])
    assert len(lengths) <= 8_002
    assert lengths.sum() == pytest.approx(30.0), "ms, no time is lost"
    assert stories(figure)[0] == [
        "<b>several (even)</b>",
        "gpu0/0",
        "4 µs together, each too short to be seen",
    ]
    assert all("text" not in each for each in figure["data"]), "too many to write names"


@pytest.mark.parametrize("ns", [0, 1, 999, 1_000, 1_001, 1_100_000, 12_345_678_901, 10**9, 10**12 + 1])
def test_times_are_exact(ns: int) -> None:
    assert parse_duration(_exact(ns)) == ns


def test_plotly_knows_every_property() -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figure = html_figure({"one": chain(), "two": over_a_link()}, issuers=True)
    assert len(graph_objects.Figure(figure).data) == len(figure["data"]), "and refuses those it does not know"


def test_the_file_stands_alone_and_is_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    nasty = "</script><b>&amp;"
    for name in ("a.html", "b.html"):
        save_html({nasty: chain()}, tmp_path / name)
    page = (tmp_path / "a.html").read_bytes()
    assert page == (tmp_path / "b.html").read_bytes()
    assert len(page) > 1_000_000, "Plotly's code is inside"
    text = page.decode()
    assert not re.search(r"<(script|link|img)[^>]*\b(src|href)=", text), "and nothing is fetched"
    assert 'id="gantt"' in text
    assert nasty not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]
    with pytest.raises(InputError, match="does not exist"):
        save_html(chain(), tmp_path / "no" / "c.html")


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_the_command_line_chooses_by_the_ending(tmp_path: Path, verb: str) -> None:
    pytest.importorskip("plotly")
    chart = tmp_path / "out.HTML"
    result = sim(verb, write(tmp_path, GOOD + COMPARE), "--gantt", chart)
    assert (result.exit_code, result.stderr) == (0, f"wrote {chart}\n")
    text = chart.read_text(encoding="utf-8")
    assert ("one core: " in text) == (verb == "compare")


def test_without_plotly_the_extra_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plotly", "plotly.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"\(\.html\) needs the extra 'html': pip install"):
        save_html(chain(), tmp_path / "chart.html")
    result = sim("run", tmp_path / "there_is_no_scenario.yaml", "--gantt", tmp_path / "chart.html")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "needs the extra 'html'" in result.stderr
    assert not list(tmp_path.iterdir())
    assert sim("run", write(tmp_path), "--gantt", tmp_path / "chart.svg").exit_code == 0, "pictures need none"
