"""PipeDream: the warm-up rule, round-robin replicas, weight versions and staleness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pipeline.evaluate import StageTimes, evaluate
from policies.pipeline.pipeline_schedule import Schedule
from policies.pipeline.registry import generate
from policies.pipeline.straight_schedules import staleness
from policies.pipeline.validate import validate
from sim.base.errors import InputError


def test_a_straight_pipeline_keeps_as_many_versions_as_stages_follow() -> None:
    schedule = generate("pipedream", ranks=4, micro_batches=12)
    assert schedule.meta["warm_up"] == (3, 2, 1, 0)
    assert schedule.meta["weight_versions"] == (4, 3, 2, 1)
    assert schedule.meta["staleness"] == (3, 2, 1, 0)
    assert schedule.meta["asynchronous"]


def test_forward_sees_the_newest_weights_and_backward_those_of_its_forward() -> None:
    #  rank 0   F0 F1 F2    B0 F3 B1 F4 B2 ...      an update after each B
    #  version  0  0  0        1     2              so F3 sees one update, and three come before its own
    first, _, last = staleness(generate("pipedream", ranks=3, micro_batches=6))
    assert first == [0, 1, 2, 2, 2, 2]
    assert last == [0] * 6


def test_the_published_split_of_vgg16() -> None:
    schedule = generate("pipedream", ranks=4, micro_batches=9, replicas=[3, 1])
    assert schedule.stages == 2
    assert schedule.meta["warm_up"] == (1, 1, 1, 0)
    assert [schedule.rank_of(0, k) for k in range(5)] == [0, 1, 2, 0, 1]
    assert [schedule.rank_of(1, k) for k in range(5)] == [3] * 5
    assert " ".join(map(str, schedule.programs[1])) == "0F1 0F4 0B1 0F7 0B4 0B7"
    validate(schedule)


def test_no_flush_makes_it_one_bubble_for_the_whole_run() -> None:
    times = StageTimes(forward=1, backward=2)
    run = evaluate(generate("pipedream", ranks=4, micro_batches=100), times)
    assert run.makespan == (100 + 3) * 3


@given(replicas=st.lists(st.integers(1, 4), min_size=1, max_size=5), micro_batches=st.integers(1, 30))
def test_any_replicas_make_a_schedule(replicas: list[int], micro_batches: int) -> None:
    ranks = sum(replicas)
    schedule = generate("pipedream", ranks=ranks, micro_batches=micro_batches, replicas=replicas)
    validate(schedule)
    for rank, late in enumerate(staleness(schedule)):
        (stage,) = schedule.stages_of(rank)
        warm_up = schedule.meta["warm_up"][rank]
        assert warm_up == (ranks - 1 - sum(replicas[:stage])) // replicas[stage]
        assert schedule.meta["weight_versions"][rank] == warm_up + 1
        versions = most_versions(schedule, rank)
        assert versions == warm_up + 1 if len(late) > 2 * warm_up else versions <= warm_up + 1
        assert all(stale <= warm_up for stale in late)


def most_versions(schedule: Schedule, rank: int) -> int:
    """Return how many versions of its weights a rank needs at once, the newest among them."""
    version, most, in_use = 0, 1, dict[int, int]()
    for action in schedule.actions(rank):
        if action.phase == "F":
            in_use[action.micro_batch] = version
        else:
            del in_use[action.micro_batch]
            version += 1
        most = max(most, len({version, *in_use.values()}))
    return most


def test_replicas_add_up_to_the_ranks() -> None:
    with pytest.raises(InputError, match=r"3\+2 = 5, ranks 4"):
        generate("pipedream", ranks=4, micro_batches=4, replicas=[3, 2])
    with pytest.raises(InputError, match="none = 0, ranks 4"):
        generate("pipedream", ranks=4, micro_batches=4, replicas=[])
