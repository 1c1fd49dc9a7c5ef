"""Actions and tables in torch's form, both directions; the user's own order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pipeline.custom import parse_csv, read_csv, to_csv
from policies.pipeline.pipeline_schedule import PHASES, Action, Overlap, parse_action, parse_slot
from policies.pipeline.registry import generate
from sim.base.errors import InputError, StuckError

ACTIONS = st.builds(Action, st.integers(0, 999), st.sampled_from(list(PHASES)), st.integers(0, 9999))


@given(ACTIONS)
def test_an_action_is_read_as_it_is_written(action: Action) -> None:
    assert parse_action(str(action)) == action
    assert parse_slot(f"  {action} ") == action


@given(st.lists(ACTIONS, min_size=2, max_size=4))
def test_an_overlap_is_read_as_it_is_written(parts: list[Action]) -> None:
    slot = Overlap(tuple(parts))
    assert parse_slot(str(slot)) == slot


@pytest.mark.parametrize("bad", ["", "F0", "0F", "0X1", "0F1x", "-1F0", "0f1", "0F1B2", "(0F1)OVERLAP_F_B"])
def test_what_is_no_slot_is_refused(bad: str) -> None:
    with pytest.raises(InputError):
        parse_slot(bad)


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches", "chunks"),
    [
        ("1f1b", 4, 8, 1),
        ("zb-h2", 3, 8, 1),
        ("interleaved-zb", 2, 4, 3),
        ("zb-v", 4, 9, 2),
        ("dualpipe-v", 3, 7, 2),
    ],
)
def test_a_table_comes_back(name: str, ranks: int, micro_batches: int, chunks: int, tmp_path: Path) -> None:
    schedule = generate(name, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    path = tmp_path / "orders.csv"
    path.write_text(to_csv(schedule))
    assert read_csv(path) == schedule.programs
    again = generate("custom", file=str(path), ranks=ranks, micro_batches=micro_batches)
    assert again.programs == schedule.programs
    assert again.placements == schedule.placements
    assert (again.stages, again.chunks, again.micro_batches) == (ranks * chunks, chunks, micro_batches)


def test_replicas_come_back_where_they_are_said() -> None:
    schedule = generate("chimera", ranks=4, micro_batches=6)
    again = generate("custom", order=to_csv(schedule), replicas=True)
    assert again.programs == schedule.programs
    assert [again.rank_of(s, k) for s in range(4) for k in range(6)] == [
        schedule.rank_of(s, k) for s in range(4) for k in range(6)
    ]
    with pytest.raises(
        InputError, match=r"stage 1 is on rank 1 \(1F0\) and on rank 2 \(1F2\); .*replicas: true"
    ):
        generate("custom", order=to_csv(schedule))


def test_idle_cells_and_the_ends_of_lines_mean_nothing() -> None:
    rows = parse_csv("0F0,0F1,,,0B0,0B1,,\r\n,1F0,1B0,1F1,1B1\r\n\r\n")
    assert [" ".join(map(str, row)) for row in rows] == ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]


def test_torchs_communication_is_left_out() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    schedule = generate("custom", order=text)
    assert to_csv(schedule) == "0F0,0B0\n1F0,1B0\n"


def test_a_wrong_cell_is_told_by_row_and_column() -> None:
    with pytest.raises(InputError, match=r"the order, row 2 \(rank 1\), cell 3: '1Q0' is no action"):
        parse_csv("0F0,0B0\n1F0,,1Q0")


def test_a_table_is_needed() -> None:
    for given_ in ({}, {"file": "a.csv", "order": "0F0,0B0"}):
        with pytest.raises(InputError, match="either file or order"):
            generate("custom", **given_)
    with pytest.raises(InputError, match="is empty"):
        generate("custom", order=" \n")
    with pytest.raises(InputError, match="no actions"):
        generate("custom", order=",,,\n,,")
    with pytest.raises(InputError, match=r"row 1 of the custom order \(rank 0\) has no action"):
        generate("custom", order="\n0F0,0B0\n1F0,1B0\n")
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file"):
        generate("custom", file="nowhere.csv")


def test_other_sizes_than_asked_for_are_refused() -> None:
    with pytest.raises(InputError, match="has 1 rank, not 2"):
        generate("custom", order="0F0,0B0", ranks=2)
    with pytest.raises(InputError, match="has 1 micro-batch, not 3"):
        generate("custom", order="0F0,0B0", micro_batches=3)


def test_a_custom_order_is_checked() -> None:
    with pytest.raises(InputError, match="1B0 is missing"):
        generate("custom", order="0F0,0B0\n1F0")
    with pytest.raises(InputError, match="1 stage, 100,000,000,000 micro-batches, 2 actions"):
        generate("custom", order="0F99999999999,0B99999999999")
    with pytest.raises(StuckError, match="deadlocks"):
        generate("custom", order="0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1")


def test_a_table_of_a_spreadsheet_begins_with_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    file.write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n1F0,1B0\r\n")
    assert read_csv(file) == parse_csv("0F0,0B0\n1F0,1B0\n")
    file.write_bytes(b"\xff\xfe0\x00")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_csv(file)
