"""The page: what its data say, what its scripts make of them, that it stands alone, what a browser draws."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
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
from sim.base.errors import InputError
from sim.base.units import parse_duration
from sim.explain.communication import link_loads
from sim.explain.path import executed_path
from sim.notebook import Section
from sim.plot import gantt, save_page, theme
from sim.plot.bar_polygons import forms
from sim.plot.bars import bars_of
from sim.plot.html import gantt_data
from sim.plot.theme import colour_of
from sim.plot.utilisation import use_of_devices


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


def column(row: dict[str, Any], name: str) -> list[int]:
    """Return a column of a run's bars, one number each."""
    packed = row["bars"][name]
    return packed if isinstance(packed, list) else [packed] * row["bars"]["n"]


def spans(row: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return (start, end, lane) of every bar of a run that takes some time."""
    start = np.cumsum(column(row, "start")).tolist()
    bars = zip(start, column(row, "lasted"), column(row, "lane"), strict=True)
    return sorted((at, at + ns, lane) for at, ns, lane in bars if ns)


def op_names(data: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """Return the name of each bar of a run."""
    return [data["names"][k] for k in column(row, "name")]


NODE = shutil.which("node")
SCRIPTS = Path(__file__).parents[2] / "sim" / "plot" / "page"
with_node = pytest.mark.skipif(NODE is None, reason="no node")


def in_node(data: Any, expression: str) -> Any:
    """Return what JavaScript makes of some data, with what ``columns.js`` offers."""
    columns = (SCRIPTS / "columns.js").read_text(encoding="utf-8")
    script = f"{columns}\nconst data = {json.dumps(data)};\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run([str(NODE)], input=script, capture_output=True, text=True, check=True, timeout=20)
    return json.loads(done.stdout)


STORIES = """data.map(page => page.rows.filter(row => row.bars).flatMap(row => {
    row.bars = unpack(row.bars);
    return Array.from({ length: row.bars.n }, (_, k) => story(page, row, k));
}))"""


def names(row: dict[str, Any]) -> list[str]:
    """Return the lanes of a run."""
    return [name for _, name in row["names"]]


def test_bars_in_the_colours_of_the_picture() -> None:
    data = gantt_data({"run": chain()})
    row = data["rows"][0]
    assert data["legend"] == [{"label": "conv", "kinds": [0]}, {"label": "relu", "kinds": [1]}]
    assert [kind["colour"] for kind in data["kinds"][:2]] == [colour_of("conv"), colour_of("relu")]
    assert column(row, "entry") == [0, 1, 0]
    assert spans(row) == [(2_000, 12_000, 0), (12_000, 22_000, 1), (22_000, 32_000, 0)]
    assert (data["word"], data["unit"], data["until"]) == ("us", 1_000, 32_000)
    assert (names(row), row["title"]) == (["gpu0/0", "gpu0/1"], "run: 32 us")
    assert op_names(data, row) == ["block/op0", "block/op1", "block/op2"]


def test_the_page_has_a_title_that_a_tab_can_show(tmp_path: Path) -> None:
    b = GraphBuilder("a <b> & c")
    b.op("x", duration_ns=10)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    save_page({"one": trace, "two": trace}, tmp_path / "page.html")
    assert "<title>a &lt;b&gt; &amp; c</title>" in (tmp_path / "page.html").read_text()[:200]


@with_node
def test_bars_tell_their_stories() -> None:
    pages = [
        gantt_data({"": chain()}),
        gantt_data({"": over_a_link()}),
        gantt_data({"": chain()}, issuers=True),
        gantt_data({"": many_narrow()}),
    ]
    times = [0, 1, 999, 1_000, 1_001, 1_100_000, 12_345_678_901, 10**9, 10**12 + 1, 5_400 * 10**9]
    shown, (told, moved, launched, several) = in_node(pages, f"[{times}.map(exact), {STORIES}]")
    assert [parse_duration(text) for text in shown] == times, "exact"
    assert told[2] == [
        "block/op2 (conv)",
        "gpu0/0",
        "ready 4 us · issued 6 us",
        "start 22 us · end 32 us · lasted 10 us",
        "waited 18 us for: event",
    ]
    assert moved[-1] == [
        "a (transfer)",
        "x→y",
        "1 kB · ready 100 ns",
        "start 100 ns · end 1.1 us · lasted 1 us",
    ]
    assert ["launch", "gpu0/host", "start 0 ns · end 2 us · lasted 2 us"] in launched
    assert several[0] == ["several (even)", "gpu0/0", "200 ns together, each too short to be seen"]


def test_transfers_and_launches_have_lanes() -> None:
    assert names(gantt_data({"": over_a_link()})["rows"][0]) == ["x/0", "y/0", "x→y"]
    launched = gantt_data({"": chain()}, issuers=True)
    assert names(launched["rows"][0]) == ["gpu0/host", "gpu0/0", "gpu0/1"]


def test_a_lane_on_which_nothing_is_seen_is_folded_away() -> None:
    b = GraphBuilder("fed")
    b.op("next", duration_ns=0, device="host")
    b.op("work", duration_ns=10, device="gpu0", inputs=["next"])
    trace = simulate(b.build(), Machine((Device("host"), Device("gpu0"))), ReadyQueue())
    data = gantt_data({"": trace})
    row = data["rows"][0]
    assert (names(row), row["lane_names"], op_names(data, row)) == (
        ["gpu0/0"],
        ["gpu0/0", "host/0"],
        ["next", "work"],
    )
    assert [label.get_text() for label in gantt(trace).get_yticklabels()] == ["gpu0/0"]


def test_runs_share_the_time_axis_and_the_legend() -> None:
    data = gantt_data({"one": chain(), "two": chain(ns=30_000)})
    assert [row["title"] for row in data["rows"]] == ["one: 32 us", "two: 92 us"]
    assert (data["until"], [row["makespan_ns"] for row in data["rows"]]) == (92_000, [32_000, 92_000])
    assert spans(data["rows"][1]) == [(2_000, 32_000, 0), (32_000, 62_000, 1), (62_000, 92_000, 0)]
    assert [entry["label"] for entry in data["legend"]] == ["conv", "relu"]
    assert len(data["names"]) == 3, "names of both runs stand once"


def test_arrows_lead_from_bar_to_bar() -> None:
    data = gantt_data({"": over_a_link()}, arrows=True)
    row = data["rows"][0]
    shown = op_names(data, row)
    assert [[shown[k] for k in pair] for pair in row["arrows"]] == [["a", "a"], ["a", "b"]]
    assert gantt_data({"": over_a_link()})["rows"][0]["arrows"] == []


@pytest.mark.parametrize("seed", range(8))
def test_every_bar_of_some_width_is_there_once(seed: int) -> None:
    trace = draw_run(seed)
    bars = bars_of(trace)
    columns = bars.start.tolist(), bars.end.tolist(), bars.lane.tolist()
    expected = sorted(each for each in zip(*columns, strict=True) if each[1] > each[0])
    shown = sorted({lane for *_, lane in expected})  # the others are folded away
    expected = [(start, end, shown.index(lane)) for start, end, lane in expected]
    assert spans(gantt_data({"": trace})["rows"][0]) == expected


def test_every_kind_is_in_the_legend() -> None:
    kinds = [f"kind{k}" for k in range(10)]
    data = gantt_data({"": chain(kinds)})
    assert sorted(entry["label"] for entry in data["legend"]) == kinds
    assert sorted(column(data["rows"][0], "entry")) == list(range(10))


def many_narrow() -> Trace:
    """Return a run of more bars than a page shows one by one."""
    b = GraphBuilder("wide")
    for k in range(16_000):
        b.op(f"op{k}", kind=("even", "odd")[k % 2], duration_ns=100)
    return simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())


@pytest.fixture(autouse=True)
def _few_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.plot.html._MAX_NARROW", 10_000)


def test_many_narrow_bars_become_fewer() -> None:
    row = gantt_data({"": many_narrow()})["rows"][0]
    assert row["bars"]["n"] <= 8_002
    assert sum(column(row, "lasted")) == 1_600_000, "no time is lost"


@with_node
def test_scripts_are_javascript() -> None:
    names = ", ".join(f'"{SCRIPTS / name}.js"' for name in ("columns", "chart", "below_chart"))
    check = (
        f"for (const name of [{names}]) new (require('vm').Script)(require('fs').readFileSync(name, 'utf8'))"
    )
    subprocess.run([str(NODE), "-e", check], check=True, timeout=20)


@with_node
def test_what_scripts_find() -> None:
    """A filter's words must all be there; loads have the mean that numpy says; lanes are in order of time."""
    trace = over_a_link()
    data = gantt_data({"run": trace})
    (load,) = link_loads(trace)
    edges = np.array([0, 50, 150, 1_199, 1_200])
    bars, found, means, lanes = in_node(
        [data, edges.tolist()],
        """(([page, edges]) => {
            const row = page.rows[0], link = integrate(page.rows.at(-1).links[0]);
            row.bars = unpack(row.bars);
            return [row.bars.n, ["A x/0", "transfer", "nothing", ""].map(f => [...matching(page, row, f)]),
                    edges.slice(1).map((to, k) => meanOf(link, edges[k], to)),
                    lanesOf(row.bars).map(lane => [lane.lane, ...lane.bars])];
        })(data)""",
    )
    assert bars == 3
    assert found == [[1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]]
    assert means == pytest.approx(load.means(edges).tolist())
    assert lanes == [[0, 0], [1, 1], [2, 2]]


@with_node
def test_names_have_the_forms_of_the_picture() -> None:
    names = [
        ("gpu0/ffn/up", "gpu0/0"),
        ("serve/2/head/0", "cpu0/w1"),
        ("gpu0/x", "gpu0→gpu1"),
        ("gpu0/", "gpu0/0"),
    ]
    shown = in_node(names, "data.map(([name, lane]) => forms(name, lane))")
    assert shown == [forms(name, lane.rpartition("/")[0]) for name, lane in names]


@with_node
def test_a_bar_has_its_name_in_smaller_letters_before_none() -> None:
    bars = {"name": [0, 1], "slot": [-1, 12], "lane": [0, 0]}
    page = [{"names": ["gpu0/ffn/up", "3F12"]}, {"bars": bars, "lane_names": ["gpu0/0"]}]
    texts = "textsOf(...data, 0), textsOf(...data, 1)"
    fitted = ", ".join(f"written(['3F12', '12'], t => t.length, {room}, 11)" for room in (44, 30, 14, 13))
    assert in_node(page, f"[{texts}, {fitted}, written(['a'], () => 1, 90, 6)]") == [
        ["ffn/up", "up"],
        ["3F12", "12"],
        ["3F12", 11],
        ["12", 11],
        ["12", 7],
        ["", 0],
        ["", 0],
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_page_has_the_executed_path_and_shares_that_add_up(seed: int) -> None:
    trace = draw_run(seed)
    data = gantt_data({"": trace})
    row, (told,) = data["rows"][0], data["stories"]
    path, steps = row["path"], executed_path(trace)
    assert list(zip(path["start"], path["end"], strict=True)) == [(s.start_ns, s.end_ns) for s in steps]
    start = np.cumsum(column(row, "start"))
    for step, bar in zip(steps, path["bar"], strict=True):
        if bar >= 0:
            assert (start[bar], column(row, "lasted")[bar]) == (step.start_ns, step.end_ns - step.start_ns)
        else:
            assert step.kind in ("issue", "wait")
    assert all(sum(share for _, share in parts) == pytest.approx(1, abs=1e-5) for _, parts in told["use"])
    assert sum(map(sum, (parts.values() for parts in use_of_devices(trace).values()))) == (
        trace.makespan_ns * len(trace.job.machine.devices)
    )


def test_the_whole_page_has_memory_links_ops_and_causes(tmp_path: Path) -> None:
    more = [Section(["a line"], [[{"rank": "0"}], []], ["a note"])]
    data = gantt_data({"one": over_a_link(), "two": over_a_link()}, sections={"two": more})
    assert [told["sections"] for told in data["stories"]] == [
        [],
        [{"text": "a line\na note", "tables": [[{"rank": "0"}]]}],
    ]
    assert [("bars" in row, "bands" in row, "links" in row) for row in data["rows"]] == [
        *[(True, False, False), (False, True, False), (False, True, False), (False, False, True)] * 2
    ]
    (link,) = data["rows"][3]["links"]
    assert (link["name"], link["times"], link["values"]) == ("xy", [0, 100, 1100, 1200], [0.0, 1.0, 0.0, 0.0])
    assert [told["title"] for told in data["stories"]] == ["one: 1,200 ns", "two: 1,200 ns"]
    assert "no schedule is shorter" in data["stories"][0]["text"]
    assert data["stories"][0]["gaps"][0]["blame"] == "'b' needs the transfer of 'a' from x to y"
    assert not data["path_shown"]
    for name in ("a.html", "b.html"):
        save_page(over_a_link(), tmp_path / name, critical_path=True)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert '"path_shown":true' in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_file_stands_alone_and_is_the_same_every_time(tmp_path: Path) -> None:
    nasty = "</script><b>&amp;"
    for name in ("a.html", "b.html"):
        save_page({nasty: chain()}, tmp_path / name)
    page = (tmp_path / "a.html").read_bytes()
    assert page == (tmp_path / "b.html").read_bytes()
    text = page.decode()
    assert not re.search(r"<(script|link|img)[^>]*\b(src|href)=", text), "nothing is fetched"
    assert nasty not in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]
    with pytest.raises(InputError, match="does not exist"):
        save_page(chain(), tmp_path / "no" / "c.html")


def test_the_command_line_chooses_by_the_ending(tmp_path: Path) -> None:
    chart = tmp_path / "out.HTML"
    result = sim("compare", write(tmp_path, GOOD + COMPARE), "--gantt", chart)
    assert (result.exit_code, result.stderr) == (0, f"wrote {chart}\n")
    assert "one core: " in chart.read_text(encoding="utf-8")


def test_a_page_from_the_command_line_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)))
    page, scenario = tmp_path / "out.html", write(tmp_path, GOOD + COMPARE)
    result = sim("compare", scenario, "--gantt", page, "--open", "--critical-path")
    assert (result.exit_code, opened) == (0, [page.as_uri()])
    assert result.stderr == (
        f"wrote {page}\nno browser found here; open {page} in one, it needs no network\n"
    )
    assert '"path_shown":true' in page.read_text(encoding="utf-8")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = sim("run", scenario, "--open")
    (temporary,) = tmp_path.glob("sim-*.html")
    assert opened[1:] == [temporary.as_uri()]
    assert result.stderr.startswith(f"wrote {temporary}\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--critical-path"], "--critical-path: is drawn into a Gantt chart; name its file with --gantt"),
        (["--links", "OUT.png"], "there is nothing to draw: no link with a bandwidth carries anything"),
        (["--roofline", "OUT.png"], "there is nothing to draw: no op that took some time has both flop and"),
    ],
)
def test_what_cannot_be_drawn(tmp_path: Path, options: list[str], told: str) -> None:
    options = [option.replace("OUT", str(tmp_path / "out")) for option in options]
    result = sim("run", write(tmp_path, GOOD), *options)
    assert result.exit_code == 2
    assert told in result.stderr
    assert not list(tmp_path.glob("out*"))


def test_what_cannot_be_drawn_costs_nobody_the_other_files(tmp_path: Path) -> None:
    names = {"ops": tmp_path / "ops.csv"} | {
        option: tmp_path / f"{option}.png" for option in ("links", "roofline", "gantt")
    }
    options = [word for option, path in names.items() for word in (f"--{option}", path)]
    result = sim("run", write(tmp_path, GOOD), *options)
    assert result.exit_code == 2
    assert [name for name, path in names.items() if path.exists()] == ["ops", "gantt"]
    assert f"wrote {names['ops']}\n" in result.stderr
    for why in (
        "no link with a bandwidth carries anything",
        "no op that took some time has both flop and bytes",
    ):
        assert f"there is nothing to draw: {why}\n" in result.stderr


# ---- what a browser draws, where there is one --------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")


def browse(page: Path, *options: str) -> str:
    """Open a page without a window and return what chromium prints."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,700"]
    command += [f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def run_in(path: Path, script: str) -> Any:
    """Return what a script returns that runs in a page once it is drawn."""
    script = f"<script>document.body.dataset.told = JSON.stringify((() => {{ {script} }})())</script></body>"
    page = path.read_text(encoding="utf-8").replace("</body>", script)
    path.write_text(page, encoding="utf-8")
    found = re.search(r'data-told="([^"]*)"', browse(path, "--dump-dom"))
    assert found is not None
    return json.loads(unescape(found[1]))


def busy_lanes(n: int, busy: int, idle: int) -> Trace:
    """Return a run of `n` ops of `busy` ns, each followed by `idle` ns of another device's op."""
    b = GraphBuilder("thin")
    for k in range(n):
        before = [f"gap{k - 1}"] if k else []
        b.op(f"op{k}", kind="matmul", duration_ns=busy, device="x", inputs=before)
        b.op(f"gap{k}", kind="conv", duration_ns=idle, device="y", inputs=[f"op{k}"])
    return simulate(b.build(), Machine((Device("x"), Device("y"))), ReadyQueue())


@pytest.mark.slow
@in_a_browser
def test_bars_have_their_true_widths(tmp_path: Path) -> None:
    """A lane that is 7 % busy with bars far below a pixel is 7 % full, and the other one 93 %."""
    from matplotlib.image import imread

    save_page(busy_lanes(5_000, 7, 93), tmp_path / "thin.html")
    browse(tmp_path / "thin.html", f"--screenshot={tmp_path / 'thin.png'}")
    picture = imread(tmp_path / "thin.png")[90:, :, :3]  # without the legend
    share = {}
    for kind in ("matmul", "conv"):
        rgb = np.array([int(colour_of(kind)[k : k + 2], 16) / 255 for k in (1, 3, 5)])
        here = np.abs(picture - rgb).max(axis=2) < 0.02
        rows, columns = np.flatnonzero(here.any(axis=1)), here.any(axis=0)
        lane = picture[rows[0] - 1 : rows[-1] + 2, columns]  # with the soft edges
        covered = np.clip((1 - lane) @ (1 - rgb) / ((1 - rgb) @ (1 - rgb)), 0, 1)
        share[kind] = covered.sum() / covered.shape[1] / (0.8 * 26)  # of the height of a bar
    assert share["matmul"] == pytest.approx(0.07, abs=0.02)
    assert share["conv"] == pytest.approx(0.93, abs=0.02)


@pytest.mark.slow
@in_a_browser
def test_five_thousand_tasks_load_in_under_three_seconds(tmp_path: Path) -> None:
    save_page(busy_lanes(2_500, 700, 9_300), tmp_path / "many.html")
    page = browse(tmp_path / "many.html", "--dump-dom")
    found = re.search(r'data-drawn-ms="(\d+)"', page)
    assert found is not None
    assert int(found[1]) < 3_000


@pytest.mark.slow
@in_a_browser
def test_dragging_at_the_left_edge_keeps_the_range(tmp_path: Path) -> None:
    path = tmp_path / "drag.html"
    save_page(chain(), path)
    told = run_in(
        path,
        """
    look(0, 8000);
    const canvas = document.querySelector("canvas");
    const at = (kind, x) =>
        canvas.dispatchEvent(new PointerEvent(kind, {bubbles: true, clientX: x, pointerId: 1}));
    canvas.setPointerCapture = () => {};
    at("pointerdown", 300); at("pointermove", 700); const left = view.join();
    at("pointermove", 200); at("pointerup", 200); const right = view.map(Math.round).join();
    look(30000, 8000); const end = view.join();
    return [left, right, end];""",
    )
    left, right, end = (list(map(int, pair.split(","))) for pair in told)
    assert left == [0, 8_000]
    assert right[1] - right[0] == 8_000
    assert right[0] > 0
    assert end == [24_000, 32_000]


@pytest.mark.slow
@in_a_browser
def test_an_entry_of_the_legend_hides_all_its_kinds_and_a_theme_begins(tmp_path: Path) -> None:
    path = tmp_path / "legend.html"
    with theme("print"):
        save_page(chain(("all_gather", "relu", "reduce_scatter")), path)
    told = run_in(
        path,
        """
        const [both] = document.querySelectorAll("#legend button"), found = [both.textContent, printing];
        for (let k = 0; k < 2; k++) { both.click(); found.push([...hidden].join(), both.ariaPressed); }
        document.getElementById("theme").onclick();
        return [...found, printing, document.documentElement.dataset.theme];""",
    )
    assert told == ["all_gather, reduce_scatter", True, "0,1", "false", "", "true", False, "dark"]


@pytest.mark.slow
@in_a_browser
def test_the_table_filters_sorts_and_shows_places(tmp_path: Path) -> None:
    b = GraphBuilder("fork")
    for name, kind, ns, device, inputs in (
        ("a", "long", 100_000, "x", []),
        ("b", "short", 10_000, "y", []),
        ("c", "last", 50_000, "y", ["a", "b"]),
    ):
        b.op(name, kind=kind, duration_ns=ns, device=device, inputs=inputs)
    trace = simulate(b.build(), Machine((Device("x"), Device("y"))), ReadyQueue())
    save_page({"one": trace, "two": trace}, tmp_path / "page.html")
    told = run_in(
        tmp_path / "page.html",
        """
        const cells = () => [...document.querySelectorAll("#ops tbody tr")].map(tr => tr.children[1]);
        const ops = () => cells().map(td => td.textContent).join("");
        const search = document.querySelector("#ops input"), heads = document.querySelectorAll("#ops th");
        const found = [ops()];
        heads[5].onclick(); found.push(ops());                                  // the longest first
        search.value = "two last"; search.oninput(); found.push(ops());
        search.value = ""; search.oninput();
        pathBox.click(); found.push(ops(), [...rows[0].marked].join(""));       // without b
        document.querySelectorAll("#ops tbody tr")[1].onclick();
        found.push(chosen.row.run + " " + page.names[chosen.row.bars.name[chosen.bar]]);
        document.querySelector("tr[data-from]").onclick(); found.push(view.map(Math.round).join());
        lookAt(70000, 71000); found.push(view.map(Math.round).join());
        document.getElementById("theme").onclick();
        found.push(document.documentElement.dataset.theme, document.querySelectorAll("details[open]").length);
        return found;""",
    )
    assert told == ["abcabc", "aaccbb", "c", "aacc", "101", "two a", "0,150000", "68000,73000", "dark", 1]
