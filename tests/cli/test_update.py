"""``sim check --update`` and ``--format``: what is written into scenarios and tables, and what stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from scenario_texts import GOOD, HEAD_OF_LINE, changed, write

from scenarios import regression
from scenarios.expectations import Expectation, Outcome, Relative, read_relative, resolve
from scenarios.fields.results import RESULTS, holds
from scenarios.file.document import Document
from scenarios.file.yaml_read import Node, Place, read_yaml_text
from scenarios.regression import check_file, new_values, replace_scalars

WRONG = """\
# All of it is wrong.
compare: [{label: one, set: {machine.devices.cpu0.cores: 1}, expect: {makespan: 1us, tasks: 4}}]  # 65us
expect:
  makespan: {equals: "44 us",   tolerance: 1%}   # too little
  start.d: &late {at_least: 41us}
  ready.d: *late
  utilisation.cpu0:
    at_most: 50%        # a share
    at_least: 0.1
  bubble.cpu0: '0.5'
  tasks: 5
  order: [d, "a",
    b]  # an order
  one:
    makespan: {at_most: 1.2 x ready-queue, at_least: 1.0 x ready-queue}
"""
RIGHT = """\
# All of it is wrong.
compare: [{label: one, set: {machine.devices.cpu0.cores: 1}, expect: {makespan: 65us, tasks: 4}}]  # 65us
expect:
  makespan: {equals: "45us",   tolerance: 1%}   # too little
  start.d: &late {at_least: 40us}
  ready.d: *late
  utilisation.cpu0:
    at_most: 72.23%        # a share
    at_least: 0.1
  bubble.cpu0: '0'
  tasks: 4
  order: [a, "b",
    d]  # an order
  one:
    makespan: {at_most: 1.445 x ready-queue, at_least: 1.0 x ready-queue}
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_what_failed_is_written_anew_and_nothing_else(tmp_path: Path, end: str, bom: str) -> None:
    head, _, _ = GOOD.partition("expect:")
    path, link = tmp_path / "s.yaml", tmp_path / "link.yaml"
    path.write_bytes((bom + head + WRONG).replace("\n", end).encode())
    link.symlink_to(path)
    result = sim("check", "--update", link)
    assert result.exit_code == 0, result.output
    assert path.read_bytes().decode() == (bom + head + RIGHT).replace("\n", end)
    assert link.is_symlink()
    assert result.stdout.splitlines()[-1] == "2 runs, all as expected, 2 of them with new values"
    assert f"{link}:15:13: makespan is 45 us, expected 44 us" in result.stdout
    assert "         written: 45us in place of 44 us" in result.stdout
    before = path.stat().st_mtime_ns
    assert sim("check", "--update", path).stdout.splitlines()[-1] == "2 runs, all as expected"
    assert path.stat().st_mtime_ns == before


def test_a_file_is_read_and_written_once_for_all_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[object, str]] = []
    monkeypatch.setattr(regression, "rewrite_file", lambda path, new: written.append(new))
    head, _, _ = GOOD.partition("expect:")
    text = head + "expect: {makespan: 1us, tasks: 5, order: [b, a]}\n"
    [checked] = check_file(write(tmp_path, text), rewritten={})
    assert checked.exit_status == 0
    assert [[*new.values()] for new in written] == [["45us", "4", "a", "b"]]


def test_an_alias_is_not_two_values(tmp_path: Path) -> None:
    """It was told as written twice, and the first condition no longer held."""
    head, _, _ = GOOD.partition("expect:")
    [checked] = check_file(write(tmp_path, head + "expect: {makespan: &x 1us, end.a: *x}\n"), rewritten={})
    assert checked.exit_status == 1
    assert "not written: another condition needs another value" in str(checked)
    assert "{makespan: &x 45us, end.a: *x}" in (tmp_path / "s.yaml").read_text()


def test_what_stands_in_another_file_stays(tmp_path: Path) -> None:
    base = write(tmp_path, GOOD, "base.yaml")
    over = write(tmp_path, "extends: base.yaml\nmachine: {devices: {cpu0: {cores: 1}}}\nexpect: {tasks: 3}\n")
    result = sim("check", "--update", over)
    assert result.exit_code == 1
    assert f"not written: it stands in {base}:13:13, and holds for more than this scenario" in result.stdout
    assert base.read_text() == GOOD
    assert "expect: {tasks: 4}" in over.read_text()


def test_a_table_holds_the_schedule_of_one_scenario(tmp_path: Path) -> None:
    """Each of several scenarios that name one table overwrote it, and all were said to hold."""
    expect = "expect: {schedule: golden.csv}\n"
    write(tmp_path, HEAD_OF_LINE + expect, "a.yaml")
    write(tmp_path, HEAD_OF_LINE.replace("in-order", "ready-queue") + expect, "b.yaml")
    write(tmp_path, "extends: a.yaml\npolicy: ready-queue\n", "c.yaml")
    updated = sim("check", "--update", tmp_path).stdout
    assert "not written: golden.csv was just written for another run; give each its own table" in updated
    assert f"not written: it stands in {tmp_path / 'a.yaml'}:" in updated
    checked = sim("check", tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in checked if ".yaml: " in line] == ["passed", "FAILED", "FAILED"]
    twice = "compare: [{name: ready-queue, expect: &it {schedule: d.csv}}]\nexpect: {ready-queue: *it}\n"
    assert sim("check", "--update", write(tmp_path, HEAD_OF_LINE + twice)).exit_code == 0


def test_a_tolerance_in_per_cent_makes_no_percentage(tmp_path: Path) -> None:
    text = changed("makespan: 45us", "utilisation.cpu0: {equals: 0.5, tolerance: 1%}")
    path = write(tmp_path, text)
    assert sim("check", "--update", path).exit_code == 0
    assert "utilisation.cpu0: {equals: 0.7222222222222222, tolerance: 1%}" in path.read_text()


def test_what_no_value_mends_stays(tmp_path: Path) -> None:
    text = changed("makespan: 45us", "one: {makespan: 1 x ready-queue, tasks: 1.0 x ready-queue}")
    compare = "compare: [{label: one, set: {workload.ops.d.duration: 123.457ms}}]\n"
    result = sim("check", "--update", write(tmp_path, text + compare))
    assert result.exit_code == 1
    assert "not written: it is no multiple of what ready-queue has, with 4 digits" in result.stdout
    stuck = changed("{name: ready-queue}", "{name: in-order, linearize: {name: program, ops: [b, a, c, d]}}")
    assert sim("check", "--update", write(tmp_path, stuck)).exit_code == 1


def test_tables_are_written_anew(tmp_path: Path) -> None:
    """One run makes a table of one; two that are held to it, a table of two."""
    one = write(tmp_path, HEAD_OF_LINE + "expect: {schedule: golden.csv}\n")
    missing = sim("check", one)
    assert missing.exit_code == 2
    assert (
        "golden.csv: no such file; write it with `sim check --update` (pytest: --sim-update)"
        in missing.stdout
    )
    for name in ("in-order", "ready-queue"):
        write(tmp_path, one.read_text().replace("in-order", name))
        assert sim("check", "--update", one).exit_code == 0
        assert sim("check", one).exit_code == 0
        assert (tmp_path / "golden.csv").read_text().startswith("op,")
    both = write(tmp_path, HEAD_OF_LINE + "expect: {schedule: golden.csv, makespan: 1us}\n", "both.yaml")
    told = sim("check", both).stdout
    assert "expected 1 us" in told
    assert "what moved is unknown" not in told
    expect = "expect: {schedule: golden.csv}"
    several = f"compare: [{{name: in-order, {expect}}}, {{name: out-of-order, window: 4, {expect}}}]\n"
    two = write(tmp_path, HEAD_OF_LINE + several)
    assert sim("check", two).exit_code == 1
    assert sim("check", "--update", two).exit_code == 0
    assert sim("check", two).exit_code == 0
    rows = (tmp_path / "golden.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["policy", *["out-of-order"] * 4, *["in-order"] * 4]
    more = f"[{{label: depth first, name: ready-queue, order: lifo, {expect}}}, "
    third = write(tmp_path, HEAD_OF_LINE + changed("[", more, several))
    assert sim("check", third).exit_code == 2
    assert "schedule is not in golden.csv yet" in sim("check", "--update", third).stdout
    assert sim("check", third).exit_code == 0


def test_formats(tmp_path: Path) -> None:
    path = write(tmp_path, changed("makespan: 45us", "makespan: 44us\n  order: [b, a]"))
    github = sim("check", "--format", "github", path)
    assert github.exit_code == 1
    where = f"file={path},line=13,col=13,title=sim check%3A ready-queue"
    unknown = "what moved is unknown, as no schedule is recorded"
    assert github.stdout.splitlines()[1:3] == [
        f"::error {where}::makespan is 45 us, expected 44 us%0A"
        f"  {unknown}: `sim run {path} --ops golden.csv` where this still holds, "
        f"then `sim diff golden.csv {path}`",
        f"::error {where.replace('13,col=13', '14,col=10')}::order is [a, b], expected [b, a]%0A"
        "  'a' starts at 0 ns, before 'b', which starts at 10 us%0A"
        "  at 0 ns 'b' needs 'a', which runs on cpu0/w0",
    ]
    as_json = sim("check", "--format", "json", path).stdout
    assert as_json == sim("check", "--json", path).stdout
    [checked] = json.loads(as_json)["checks"]
    assert checked["messages"][0] == f"{path}:13:13: makespan is 45 us, expected 44 us"
    wrong = write(tmp_path, changed("cores: 2", "core: 2, sped: 1"))
    lines = sim("check", "--format", "github", wrong).stdout.splitlines()
    assert lines[1].startswith(
        f"::error file={wrong},line=4,col=23,title=sim check::machine.devices.cpu0.core: "
    )
    assert lines[2].startswith(
        f"::error file={wrong},line=4,col=32,title=sim check::machine.devices.cpu0.sped: "
    )
    assert sim("check", "--format", "githob", wrong).exit_code == 2


SCALARS = st.sampled_from(
    ["45us", "0.8", "80%", "4", "a b", "true", "1.05 x gpipe", "x: y", "#", "é", "[", "1e3"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)


def _scalars(node: Node) -> list[Node]:
    below = node.value.values() if isinstance(node.value, dict) else node.value
    return (
        [each for one in below for each in _scalars(one)] if isinstance(node.value, dict | list) else [node]
    )


@given(st.dictionaries(st.sampled_from("xyz"), VALUES, min_size=1), SCALARS, st.data())
@examples(60)
def test_one_scalar_is_replaced_and_all_else_stays(value: object, new: str, data: st.DataObject) -> None:
    """Against an independent way: change the plain value, and see what the new text is read as."""
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=False)
    root = read_yaml_text(text, "")
    found = _scalars(root)
    if not found:
        return
    node = data.draw(st.sampled_from(found))
    again = read_yaml_text(replace_scalars(text, {(node.place.line, node.place.column): new}), "")
    node.value = new
    assert again.plain() == root.plain()


NOWHERE = Document(Node({}, Place("")), Path("s.yaml"))


@given(
    st.sampled_from(["makespan", "tasks", "peak_memory.g", "utilisation.g", "mfu", "gap"]),
    st.sampled_from(["equals", "at_most", "at_least"]),
    st.integers(0, 10**13),
    st.integers(1, 10**13),
    st.booleans(),
    st.booleans(),
)
@examples(60)
def test_a_new_value_holds_once_it_is_read(
    what: str, key: str, measured: int, meant: int, percent: bool, beside: bool
) -> None:
    unit = RESULTS[what.partition(".")[0]].unit
    share = isinstance(unit.read("50%") if what in ("utilisation.g", "mfu", "gap") else 0, float)
    actual = measured / 10**13 if share else measured
    other = meant / 10**13 if share else meant
    given_ = {key: Relative(read_relative("1 x o").times, "o") if beside else other}  # type: ignore[union-attr]
    condition = resolve(given_, {"o": other})
    outcome = Outcome(
        Expectation(what, given_, NOWHERE, ()), condition, actual, holds(actual, condition), "", {"o": other}
    )
    if outcome.passed or (beside and key == "equals"):
        return
    [(written, text)] = new_values(outcome, percent={key} if percent else ()).items()
    read = read_relative(text) or RESULTS[what.partition(".")[0]].read_text(text)
    again = resolve({written: read}, {"o": other})
    assert written == key
    assert holds(actual, again)
    assert abs(again[key] - actual) <= 0.001 * actual + (not share)  # type: ignore[operator]


def test_a_file_is_checked_and_updated_in_turn(tmp_path: Path) -> None:
    """An edit of one run moves what stands behind it on the line."""
    entries = ", ".join(
        f"{{label: w{k}, name: out-of-order, window: {k}, expect: {{makespan: 1us}}}}" for k in (1, 2, 4)
    )
    path = write(tmp_path, f"{HEAD_OF_LINE}compare: [{entries}]\n")
    assert [one.exit_status for one in check_file(path, rewritten={})] == [0, 0, 0]
    assert [one.exit_status for one in check_file(path)] == [0, 0, 0]
    assert [part[:4] for part in path.read_text().split("makespan: ")[1:]] == ["80us", "70us", "50us"]
