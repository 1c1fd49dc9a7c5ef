"""A training step under every allocator: a small one worked by hand, and the recorded ResNet-50."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from import_helpers import recorded

from scenarios.importers import load_graph
from sim import Graph, GraphBuilder
from studies.allocator_table import Row, allocator_rows, main, markdown
from studies.program import run
from studies.training.__main__ import main as judge

MIB = 1 << 20


def step() -> Graph:
    """a (3 MiB) → b (5 MiB) → c (3 MiB), with a parameter of 1 MiB: 1 + 3 + 5, then 1 + 5 + 3 MiB."""
    b = GraphBuilder("step")
    b.parameter("w", MIB)
    b.op("a", inputs=["w"], outputs=3 * MIB, duration_ns=1000)
    b.op("b", inputs=["a"], outputs=5 * MIB, duration_ns=1000)
    b.op("c", inputs=["b"], outputs=3 * MIB, duration_ns=1000)
    return b.build()


@pytest.mark.parametrize(
    ("program", "argument", "missing"),
    [(main, "no.json.gz", "no.json.gz"), (judge, "no", "no/cluster/megatron_bridge_recipes.csv")],
)
def test_a_file_that_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Callable[..., None],
    argument: str,
    missing: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["study", argument])
    with pytest.raises(SystemExit) as ended:
        run(program)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{missing}: no such file\n"


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {row.allocator: row for row in rows}


def test_a_step_by_hand() -> None:
    rows = by_name(allocator_rows(step(), device={"kind": "gpu"}))
    assert {row.use.peak_requested_bytes for row in rows.values()} == {9 * MIB}
    assert rows["pool"].use.peak_reserved_bytes == 9 * MIB  # c lies where a was
    # w in a small segment of 2 MiB; a and b, below 10 MiB, share a segment of 20 MiB, and c lies in it, too.
    assert rows["caching"].use.peak_reserved_bytes == 22 * MIB
    assert rows["caching"].makespan_ns == 50_000 + 3000  # w's segment was there before time 0
    # malloc a 50 us, a runs to 51; malloc b to 100, b runs to 101; free a, which waits for b, to 151; malloc
    # c to 201, c runs to 202. What is freed after that holds nobody up.
    assert rows["counted"].use.peak_reserved_bytes == 9 * MIB
    assert rows["counted"].makespan_ns == 202_000
    assert rows["planned (greedy by size)"].fits_into_bytes == 9 * MIB


@pytest.mark.slow
def test_a_training_step_of_resnet_50() -> None:
    """Every allocator is asked for the same bytes; what differs is what they make of it."""
    graph = load_graph(recorded("tensorflow/ResNet50_train_b32.json.gz"))
    rows = by_name(allocator_rows(graph))
    asked = {row.use.peak_requested_bytes for row in rows.values()}
    assert len(asked) == 1
    (asked_for,) = asked
    assert 2 << 30 < asked_for < 4 << 30  # activations of 32 images in float32, kept for the backward pass
    for row in rows.values():
        assert asked_for <= row.use.peak_in_use_bytes <= row.use.peak_reserved_bytes
        assert row.fits_into_bytes >= row.use.peak_in_use_bytes
    assert rows["counted"].use.peak_reserved_bytes == asked_for  # it rounds nothing and keeps nothing
    assert rows["planned (greedy by size)"].use.peak_reserved_bytes < 1.01 * asked_for
    assert rows["bfc"].use.peak_reserved_bytes == 4 << 30  # regions double
    assert rows["caching"].use.peak_reserved_bytes > 1.1 * asked_for
    assert (
        rows["caching"].fits_into_bytes < rows["caching"].use.peak_reserved_bytes
    )  # under pressure it gives back
    assert rows["counted"].makespan_ns > 10 * rows["caching"].makespan_ns
    assert rows["caching"].makespan_ns > rows["pool"].makespan_ns
    assert markdown(list(rows.values())).count("\n") == 2 + len(rows)


@pytest.mark.parametrize("lifetime", ["issue", "execution"])
def test_what_is_asked_for_does_not_depend_on_the_lifetime_of_a_single_stream(lifetime: str) -> None:
    """In order on one stream, a reader's issue comes after everything before it, as its end does."""
    rows = allocator_rows(step(), device={"kind": "gpu"}, lifetime=lifetime)
    assert {row.use.peak_requested_bytes for row in rows} == {9 * MIB}
