"""Every family generates valid schedules, with the memory the table says; what is wrong is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.pipeline.evaluate import StageActivations, peak_activations, transformer_activations
from policies.pipeline.pipeline_schedule import Action, with_recompute
from policies.pipeline.registry import generate, options, schedules
from policies.pipeline.validate import validate
from sim.base.errors import InputError, UnknownNameError

NAMES = [name for name, _ in schedules() if name != "custom"]


def text(name: str, **sizes: Any) -> list[str]:
    return [" ".join(map(str, program)) for program in generate(name, **sizes).programs]


@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 9),
    micro_batches=st.integers(1, 24),
    chunks=st.integers(1, 4),
    checkpoint=st.sampled_from(["never", "except_last", "always"]),
)
def test_what_is_generated_is_valid(
    name: str, ranks: int, micro_batches: int, chunks: int, checkpoint: Any
) -> None:
    try:
        schedule = generate(
            name, ranks=ranks, micro_batches=micro_batches, chunks=chunks, checkpoint=checkpoint
        )
    except InputError:
        assume(False)
        return
    validate(schedule)
    assert len(schedule.programs) == schedule.ranks == ranks
    assert schedule.stages == ranks * schedule.chunks
    assert {schedule.rank_of(s, k) for s in range(schedule.stages) for k in range(micro_batches)} <= set(
        range(ranks)
    )


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean '1f1b'"):
        generate("1f1", ranks=2, micro_batches=2)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(InputError, match="no option 'ordr'; did you mean 'order'"):
        generate("gpipe", ranks=2, micro_batches=2, ordr="fifo")
    with pytest.raises(InputError, match="did you mean 'fifo'"):
        generate("gpipe", ranks=2, micro_batches=2, order="fif")
    with pytest.raises(UnknownNameError, match="did you mean 'always'"):
        generate("gpipe", ranks=2, micro_batches=2, checkpoint="allways")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "4", None])
def test_sizes_are_whole_and_positive(bad: Any) -> None:
    with pytest.raises(InputError, match="ranks must be a whole number"):
        generate("gpipe", ranks=bad, micro_batches=2)


def test_chunks_where_there_are_none() -> None:
    with pytest.raises(InputError, match=r"1f1b has one stage a rank, not 2 chunks; .*interleaved-1f1b"):
        generate("1f1b", ranks=2, micro_batches=4, chunks=2)


@pytest.mark.parametrize("name", ["dualpipe", "chimera"])
def test_crossing_pipelines_need_even_ranks(name: str) -> None:
    with pytest.raises(InputError, match="even number of ranks"):
        generate(name, ranks=3, micro_batches=8)


def test_every_name_has_a_line_and_options() -> None:
    for name, line in schedules():
        assert line
        assert isinstance(options(name), dict)
    assert "checkpoint" in options("zb-v")


def test_v_shaped_families_have_two_chunks_unasked() -> None:
    for name in ("zb-v", "v-half", "v-min", "dualpipe-v"):
        schedule = generate(name, ranks=2, micro_batches=4)
        assert (schedule.chunks, schedule.stage_to_rank) == (2, (0, 1, 1, 0))


def test_two_replicas_share_the_micro_batches() -> None:
    schedule = generate("dualpipe", ranks=4, micro_batches=8)
    assert schedule.placements == ((0, 1, 2, 3), (3, 2, 1, 0))
    assert schedule.replica_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert (schedule.rank_of(0, 0), schedule.rank_of(0, 7)) == (0, 3)
    assert schedule.stages_of(0) == (0, 3)
    assert generate("chimera", ranks=4, micro_batches=8).replica_of == (0, 0, 1, 1) * 2


def test_dualpipe_mirrors_its_halves() -> None:
    programs = generate("dualpipe", ranks=4, micro_batches=8).programs

    def mirrored(action: Action) -> Action:
        return action._replace(micro_batch=(action.micro_batch + 4) % 8)

    for rank in (0, 1):
        assert [[mirrored(a) for a in slot.parts] for slot in programs[rank]] == [
            [*slot.parts] for slot in programs[3 - rank]
        ]


def test_gpipe_recomputes_as_torchgpipe_does() -> None:
    sizes = {"ranks": 1, "micro_batches": 3}
    assert text("gpipe", **sizes, checkpoint="always") == ["0F0 0F1 0F2 0R2 0B2 0R1 0B1 0R0 0B0"]
    assert text("gpipe", **sizes, checkpoint="except_last") == ["0F0 0F1 0F2 0B2 0R1 0B1 0R0 0B0"]
    assert text("gpipe", **sizes, checkpoint="never") == ["0F0 0F1 0F2 0B2 0B1 0B0"]


def test_a_split_or_overlapped_backward_is_recomputed_too() -> None:
    assert text("zb-h1", ranks=1, micro_batches=1, checkpoint="always") == ["0F0 0R0 0I0 0W0"]
    plain = generate("dualpipe-v", ranks=1, micro_batches=2)
    assert "0R0 (1F1;0B0)OVERLAP_F_B" in " ".join(map(str, with_recompute(plain, "always").programs[0]))


def test_recompute_holds_one_micro_batch_and_the_stage_inputs() -> None:
    held = StageActivations(full=10, stage_input=1)
    sizes = {"ranks": 3, "micro_batches": 8}
    assert peak_activations(generate("gpipe", **sizes), held) == (80, 80, 80)
    # Seven stage inputs, and the last micro-batch (not checkpointed) or a recomputed one in full.
    assert peak_activations(generate("gpipe", **sizes, checkpoint="except_last"), held) == (17, 17, 17)
    assert peak_activations(generate("gpipe", **sizes, checkpoint="always"), held) == (17, 17, 17)


@given(ranks=st.integers(1, 10), rounds=st.integers(2, 4), chunks=st.integers(1, 4))
def test_activations_alive_are_those_of_the_table(ranks: int, rounds: int, chunks: int) -> None:
    p, m, v = ranks, ranks * rounds, chunks

    def alive(name: str, **sizes: Any) -> tuple[int, ...]:
        return peak_activations(generate(name, ranks=p, micro_batches=m, **sizes))

    assert alive("gpipe") == (m,) * p
    assert alive("1f1b") == tuple(p - r for r in range(p))
    assert alive("pipedream") == tuple(p - r for r in range(p))
    assert alive("looped-bfs", chunks=v) == (m * v,) * p
    assert alive("interleaved-1f1b", chunks=v) == tuple(
        min((v - 1) * p + 2 * (p - 1 - r) + 1, m * v) for r in range(p)
    )
    assert alive("zb-h1") == (p,) * p
    assert alive("zb-h2") == (min(2 * p - 1, m),) * p
    assert max(alive("zb-v")) == 2 * p
    assert alive("dualpipe-v") == (2 * p + 1,) * p
    if p % 2 == 0:
        assert alive("dualpipe") == (p + 1,) * p
        assert alive("chimera") == tuple(p // 2 + 1 + min(r, p - 1 - r) for r in range(p))


@pytest.mark.parametrize("ranks", [*range(1, 10), 12, 16])
def test_v_half_and_v_min_hold_a_half_and_a_third(ranks: int) -> None:
    # In chunks, of which 1F1B holds 2p: half or a third of it, and one stage more.
    sizes = {"ranks": ranks, "micro_batches": 3 * ranks}
    assert max(peak_activations(generate("v-half", **sizes))) <= ranks + 2
    assert max(peak_activations(generate("v-min", **sizes))) <= -(-2 * ranks // 3) + 2


def test_what_weight_gradients_keep() -> None:
    held = transformer_activations(hidden=2304, heads=24, sequence=1024)
    assert (held.full, held.kept) == (34 * 2304 + 5 * 24 * 1024, 32 * 2304)
    schedule = generate("zb-h2", ranks=4, micro_batches=8)
    # Rank 0 runs W at once and holds 2p-1 in full; rank 3 has run I of all but one of its 2p-1.
    assert peak_activations(schedule, held)[0] == 7 * held.full
    assert peak_activations(schedule, held)[3] == held.full + 6 * held.kept


def test_activation_sizes_are_one_a_stage() -> None:
    with pytest.raises(InputError, match="3 activation sizes for 2 stages"):
        peak_activations(generate("gpipe", ranks=2, micro_batches=2), [StageActivations()] * 3)


def test_a_large_schedule_has_all_slots() -> None:
    schedule = generate("interleaved-1f1b", ranks=64, micro_batches=512, chunks=4)
    assert sum(map(len, schedule.programs)) == 2 * 64 * 512 * 4


@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zb", "looped-bfs"])
def test_a_schedule_with_chunks_has_two_unless_told(name: str) -> None:
    """With one it would be the plain schedule under another name."""
    assert generate(name, ranks=4, micro_batches=8).chunks == 2
    assert generate(name, ranks=4, micro_batches=8, chunks=1).chunks == 1
