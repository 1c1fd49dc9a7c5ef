"""What Jupyter shows of graphs, machines, runs and comparisons (``_repr_html_``)."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from scenarios.report.compare import Comparison
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.variants.variant import VariantRun
from sim import Device, GraphBuilder, Machine, simulate
from sim.base.errors import StuckError
from sim.notebook import card

SCENARIO = """
name: <b>two</b> & two
description: |
  a ──► b <i>
machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
workload:
  ops:
    load: {duration: 10us}
    left: {duration: 20us, inputs: [load]}
    right: {duration: 30us, inputs: [load]}
policy: ready-queue
compare:
  - in-order
  - {name: ready-queue, expect: {makespan: 40us}}
  - {name: sequential, expect: {makespan: 1us}}
"""


class Cells(HTMLParser):
    """Tables of some HTML as lists of rows; that all tags are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "br":
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


def seen(thing: Any) -> Cells:
    """Return what is shown of something, which names no colour: notebooks are dark or light."""
    html = thing._repr_html_()
    assert not re.search(r"colou?r|background(?!:none)|<script", html)
    return Cells(html)


def a_scenario(tmp_path: Path) -> Any:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return load_scenario(path)


def test_a_graph_shows_its_kinds_the_most_frequent_first() -> None:
    builder = GraphBuilder("two & <two>")
    builder.op("a", kind="conv", flops=2_000_000, outputs=4_000)
    for name in "bc":
        builder.op(name, kind="relu", inputs=["a"], duration_ns=1500, outputs=1_000)
    found = seen(builder.build())
    assert "Graph two & <two>" in found.text
    assert "3 ops, 3 tensors, 2 edges" in found.text
    assert found.tables == [
        [
            ["kind", "ops", "flops", "outputs", "duration"],
            ["relu", "2", "", "2 kB", "3 us"],
            ["conv", "1", "2 MFLOP", "4 kB", ""],
        ]
    ]


def test_a_machine_shows_devices_and_links_that_are_alike_in_one_row() -> None:
    machine = make_machine({"preset": "dgx-h100", "nodes": 2})
    devices, links = seen(machine).tables
    assert [row[:3] for row in devices[1:3]] == [
        ["node0/cpu0 ... node1/cpu1 (4)", "cpu", "56 workers"],
        ["node0/gpu0 ... node1/gpu7 (16)", "gpu", "1 stream"],
    ]
    assert sum(int(re.search(r"\((\d+)\)", row[0])[1]) for row in links[1:]) == len(machine.links)  # type: ignore[index]
    assert repr(machine) == "<Machine: 4 cpu, 16 gpu, 12 switch, 132 links>"
    assert seen(Machine((Device("x"),))).tables == [[["", "kind", "lanes"], ["x", "gpu", "1 stream"]]]


def test_a_run_shows_what_sim_run_prints(tmp_path: Path) -> None:
    scenario = a_scenario(tmp_path)
    assert "a ──► b <i>" in seen(scenario).text
    in_order, ready, sequential = map(run_case, scenario.cases())
    found = seen(ready)
    assert found.text.startswith("<b>two</b> & two: ready-queue")
    assert "makespan 40 us, at the lower bound of 40 us" in found.text
    assert "all as expected" in found.text
    assert found.tables[0][1][:2] == ["cpu0", "40 us"]
    assert "not as expected" in seen(sequential).text
    assert seen(in_order.trace).tables == seen(in_order).tables
    assert "in-order" in repr(in_order)


def test_a_comparison_shows_why(tmp_path: Path) -> None:
    results = [run_case(case) for case in a_scenario(tmp_path).cases()]
    comparison = Comparison(results, [VariantRun("hopeless", None, StuckError("nobody can go on:\nat all"))])
    found = seen(comparison)
    (table,) = found.tables
    assert [row[0] for row in table[1:]] == ["in-order", "ready-queue", "sequential", "hopeless"]
    assert table[-1][1] == "stuck"
    for why in [
        "at the lower bound (critical path): 40 us computing",
        "the same",
        "20 us slower, mainly because sequential holds ready ops back (+10 us); +10 us computing; "
        "at 10 us 'right' is ready and an issuer is free, but sequential holds it back",
        "nobody can go on",
        "Lower bound of all runs: 40 us.",
    ]:
        assert why in found.text
    assert repr(comparison) == "<Comparison of 4 runs: fastest 'in-order'>"


def test_a_pipeline_has_its_own_table_too() -> None:
    cases = load_scenario("scenarios/examples/schedules.yaml").cases()[:2]
    first, second = seen(Comparison([run_case(case) for case in cases])).tables
    assert [row[0] for row in first[1:]] == [row[0] for row in second[1:]] == ["gpipe", "1f1b"]


@pytest.mark.parametrize("rows", [20, 21])
def test_of_many_rows_the_first_are_shown(rows: int) -> None:
    (table,) = Cells(card("many", [], [{"n": str(n)} for n in range(rows)])).tables
    assert table[20:] == [["19"], *([["... 1 more"]] if rows > 20 else [])]


def test_many_kinds_are_shown_in_part() -> None:
    builder = GraphBuilder("chain")
    for k in range(90):
        builder.op(f"op{k}", kind=f"kind{k % 30}", duration_ns=1)
    graph = builder.build()
    (table,) = seen(graph).tables
    assert table[-1] == ["... 10 more"]
    assert len(seen(simulate(graph, Machine((Device("cpu0"),)), ReadyQueue())).tables[0]) == 2
