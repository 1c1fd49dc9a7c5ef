"""What a run collects while it goes on is what it would have collected at its end."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, simulate
from sim.engine import Engine, loop
from sim.job import make_job
from sim.rows import Rows, transfer_rows
from sim.task import Task


def task(id: int, end_ns: int = -1) -> Task:
    one = Task(id, id, 0, 0)
    one.end_ns = end_ns
    return one


def ids(rows: Rows) -> list[int]:
    found: list[int] = rows.columns()["id"].tolist()
    return found


def test_rows_are_in_the_order_of_starts_though_ends_are_not() -> None:
    rows = transfer_rows(4)
    late = [task(1), task(4)]
    rows.tasks.extend([task(0, 5), late[0], task(2, 6), task(3, 7), late[1]])
    rows.collect()
    assert ids(rows) == [0, 2, 3]
    assert rows.tasks == late
    rows.tasks.append(task(5, 9))
    late[1].end_ns = 8
    rows.collect()
    assert ids(rows) == [0, 2, 3, 4, 5]
    late[0].end_ns = 10
    rows.collect()
    assert ids(rows) == [0, 1, 2, 3, 4, 5]
    assert rows.columns()["end_ns"].tolist() == [5, 10, 6, 7, 8, 9]
    assert rows.tasks == []


def test_there_is_room_for_more_than_was_expected() -> None:
    rows = transfer_rows(0)
    for first in range(0, 100, 7):
        rows.tasks.extend(task(id, id) for id in range(first, first + 7))
        rows.collect()
    assert ids(rows) == list(range(105))
    assert len(rows) == 105


def test_nothing_to_collect() -> None:
    rows = transfer_rows(3)
    rows.collect()
    assert ids(rows) == []


@pytest.mark.parametrize("at_once", [1, 3, 10**6])
def test_how_often_it_collects_changes_nothing(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """One op runs beside all the others, so its row waits for its place from the first collection on."""
    builder = GraphBuilder("one long, many short")
    builder.op("long", duration_ns=1000)
    for i in range(50):
        builder.op(f"op{i}", duration_ns=1 + i % 7, inputs=[f"op{i - 2}"] if i > 1 else [])
    machine = Machine((Device("cpu0", "cpu", workers=3),))
    expected = simulate(builder.build(), machine, ReadyQueue())
    monkeypatch.setattr(loop, "AT_ONCE", at_once)
    trace = simulate(builder.build(), machine, ReadyQueue())
    assert trace.tasks["op"][:3].tolist() == [0, 1, 2]
    for name, column in expected.tasks.items():
        assert np.array_equal(trace.tasks[name], column), name
    trace.check()


def test_a_run_lets_its_tasks_go(monkeypatch: pytest.MonkeyPatch) -> None:
    alive = 0

    class Watched(Task):
        __slots__ = ("__weakref__",)

    class Counting(ReadyQueue):
        def ended(self, task, now_ready, issuer):  # type: ignore[no-untyped-def]
            nonlocal alive
            super().ended(task, now_ready, issuer)
            alive = max(alive, len(seen))
            for one in now_ready:
                seen.add(one)

    seen: weakref.WeakSet[Task] = weakref.WeakSet()
    monkeypatch.setattr("sim.readiness.Task", Watched)
    monkeypatch.setattr(loop, "AT_ONCE", 10)
    builder = GraphBuilder("chain")
    for i in range(1000):
        builder.op(f"op{i}", duration_ns=1, inputs=[f"op{i - 1}"] if i else [])
    job = make_job(builder.build(), Machine((Device("cpu0", "cpu", workers=1),)))
    gc.collect()
    assert len(Engine(job, Counting()).run()) == 1000
    assert 0 < alive < 30
