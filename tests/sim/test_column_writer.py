"""What a run collects while it goes on is what it would have collected at its end."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, simulate
from sim.engine.engine import Engine
from sim.job.build_job import make_job
from sim.machine.task import Task
from sim.record.record import TRANSFER_COLUMNS, ColumnWriter


def task(id: int, end_ns: int = -1) -> Task:
    one = Task(id, id, 0, 0)
    one.end_ns = end_ns
    return one


def ids(rows: ColumnWriter) -> list[int]:
    found: list[int] = rows.columns()["id"].tolist()
    return found


def test_rows_are_in_the_order_of_starts_whatever_the_order_of_ends() -> None:
    """By start, then round of that instant, then lane (transfers have none), then id."""
    rows = ColumnWriter(TRANSFER_COLUMNS, 2)
    for id, start_ns, round in [(4, 7, 0), (3, 5, 1), (0, 5, 0), (2, 0, 0), (1, 5, 0)]:
        one = task(id, 9)
        one.start_ns, one.round = start_ns, round
        rows.add(one)
    assert ids(rows) == [2, 0, 1, 3, 4]
    assert "round" not in rows.columns()


def test_there_is_room_for_more_than_was_expected() -> None:
    rows = ColumnWriter(TRANSFER_COLUMNS, 0)
    for first in range(0, 100, 7):
        for id in range(first, first + 7):
            rows.add(task(id, id))
    assert ids(rows) == list(range(105))
    assert len(rows) == 105


def test_nothing_to_write() -> None:
    rows = ColumnWriter(TRANSFER_COLUMNS, 3)
    assert ids(rows) == []


@pytest.mark.parametrize("at_once", [1, 3, 10**6])
def test_how_often_it_writes_changes_nothing(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """One op runs beside all the others, so its row, the first, is written last."""
    builder = GraphBuilder("one long, many short")
    builder.op("long", duration_ns=1000)
    for i in range(50):
        builder.op(f"op{i}", duration_ns=1 + i % 7, inputs=[f"op{i - 2}"] if i > 1 else [])
    machine = Machine((Device("cpu0", "cpu", workers=3),))
    expected = simulate(builder.build(), machine, ReadyQueue())
    monkeypatch.setattr("sim.record.record.AT_ONCE", at_once)
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
    monkeypatch.setattr("sim.readiness.counters.Task", Watched)
    monkeypatch.setattr("sim.record.record.AT_ONCE", 10)
    builder = GraphBuilder("chain")
    for i in range(1000):
        builder.op(f"op{i}", duration_ns=1, inputs=[f"op{i - 1}"] if i else [])
    job = make_job(builder.build(), Machine((Device("cpu0", "cpu", workers=1),)))
    gc.collect()
    assert len(Engine(job, Counting()).run()) == 1000
    assert 0 < alive < 30
