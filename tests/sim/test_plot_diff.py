"""Two schedules on one time axis: what has which colour, and that both can be compared by eye."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, Policy, Trace, simulate
from sim.diff.differences import Differences, differences
from sim.diff.schedule import schedule_of
from sim.plot.diff import diff_gantt
from sim.plot.figure import save

OPS = {
    "same": (10, "gpu0"),
    "longer": (10, "gpu1"),
    "far": (30, "gpu0"),
    "near": (5, "gpu1"),
    "end": (100, "gpu1"),
}
"""gpu0 same 0-10, far 10-40; gpu1 longer 0-10, near 10-15, end 15-115."""


def run(ops: dict[str, tuple[int, str]], policy: Policy | None = None) -> Trace:
    b = GraphBuilder("by hand")
    for name, (ns, device) in ops.items():
        b.op(name, duration_ns=ns, device=device)
    return simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), policy or ReadyQueue())


def compared(a: Trace, b: Trace) -> Differences:
    return differences(schedule_of(a, "before"), schedule_of(b, "after"))


@pytest.fixture
def changed() -> Differences:
    """far moves by 20, as an op of gpu0 is gone and another new; near and end by 1, behind longer."""
    far, near, end = OPS["far"], OPS["near"], OPS["end"]
    before = {"same": OPS["same"], "gone": (5, "gpu0"), "longer": OPS["longer"]}
    after = {"longer": (11, "gpu1"), "same": OPS["same"], "new": (25, "gpu0")}
    tail = {"far": far, "near": near, "end": end}
    return compared(run({**before, **tail}, InOrder()), run({**after, **tail}, InOrder()))


def legend(d: Differences) -> list[str]:
    (shown,) = diff_gantt(d).legends
    return [text.get_text() for text in shown.get_texts()]


def test_every_change_has_its_colour(changed: Differences) -> None:
    assert sorted(changed.moved_ns.tolist()) == [0, 0, 1, 1, 20]
    assert legend(changed) == [
        "the same in both",
        "starts later in B",
        "a little later (by less than a tenth of the most)",
        "starts at the same time, lasts longer or shorter",
        "in one of them only",
        "the first that moved",
    ]


def test_one_axis_and_the_same_lanes(changed: Differences) -> None:
    above, below = diff_gantt(changed).axes
    assert above.get_xlim() == below.get_xlim() == (0, 116)
    assert above.get_ylim() == below.get_ylim()
    names = [[label.get_text() for label in ax.get_yticklabels()] for ax in (above, below)]
    assert names == [["gpu0/0", "gpu1/0"]] * 2
    assert [ax.get_title(loc="left") for ax in (above, below)] == ["A  before: 115 ns", "B  after: 116 ns"]
    assert "end" in [text.get_text() for text in below.texts]


def test_nothing_moved() -> None:
    assert legend(compared(run(OPS), run(OPS))) == ["the same in both"]


def test_ops_that_take_no_time(tmp_path: Path) -> None:
    d = compared(run({"a": (0, "gpu0")}), run({"a": (0, "gpu0")}))
    save(diff_gantt(d), tmp_path / "empty.png")


def test_the_same_picture_gives_the_same_bytes(changed: Differences, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save(diff_gantt(changed), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_many_bars_are_few_polygons() -> None:
    ops = {f"o{k}": (10, f"gpu{k % 2}") for k in range(12_000)}
    later = {"first": (7, "gpu0"), **ops}
    figure = diff_gantt(compared(run(ops, InOrder()), run(later, InOrder())))
    bars = sum(len(collection.get_paths()) for ax in figure.axes for collection in ax.collections)
    assert bars < 24_000
    assert np.isfinite(figure.axes[0].get_xlim()).all()


def test_runs_that_have_no_op_in_common() -> None:
    assert legend(compared(run({"a": (10, "gpu0")}), run({"b": (10, "gpu0")}))) == ["in one of them only"]
