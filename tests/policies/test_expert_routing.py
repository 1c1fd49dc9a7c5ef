"""Which tokens go to which expert: every form by hand, and rules that all of them keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from policies.parallel.expert_routing import ExpertRouting, route_tokens
from sim.base.errors import InputError


def route(given_: object, **more: Any) -> ExpertRouting:
    return route_tokens(given_, **{"ranks": 2, "experts": 4, "tokens": 4, **more})


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ("balanced", [[1, 1, 1, 1], [1, 1, 1, 1]]),
        ("one-hot", [[4, 0, 0, 0], [4, 0, 0, 0]]),
        ({"one-hot": 2}, [[0, 0, 4, 0], [0, 0, 4, 0]]),
        # 8 x (1, 1/2, 1/3, 1/4) / (25/12) = 3.84, 1.92, 1.28, .96: the remainders .96, .92, .84 get one each
        ({"zipf": 1}, [[2, 1, 1, 0], [2, 1, 0, 1]]),
        ({"zipf": 0}, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        ({"tokens": [5, 1, 1, 1]}, [[3, 0, 1, 0], [2, 1, 0, 1]]),
        ({"tokens": [[4, 0, 0, 0], [0, 2, 2, 0]]}, [[4, 0, 0, 0], [0, 2, 2, 0]]),
    ],
)
def test_forms(form: object, sent: list[list[int]]) -> None:
    assert route(form).sent.tolist() == sent


def test_no_expert_gets_a_token_twice() -> None:
    """With top_k 2 of 8 tokens in all, expert 0's share of 16 (at exponent 4: 14.8) is cut to 8."""
    found = route({"zipf": 4}, top_k=2)
    assert found.sent.sum(axis=0).tolist() == [8, 6, 1, 1]
    assert route("one-hot", top_k=3).sent.tolist() == [[4, 4, 4, 0]] * 2


def test_matrix_between_ranks_and_imbalance() -> None:
    found = route({"tokens": [[4, 0, 0, 0], [0, 1, 2, 1]]})
    assert found.between.tolist() == [[4, 0], [1, 3]]
    assert found.arrived.tolist() == [5, 3]
    assert found.imbalance == 5 / 4


def test_capacity_drops_and_pads() -> None:
    """Of four tokens and four experts each expert's equal part is 1; 1.5 times that rounds up to 2."""
    dropped = route("one-hot", capacity_factor=1.5)
    assert (dropped.sent.tolist(), dropped.dropped) == ([[2, 0, 0, 0], [2, 0, 0, 0]], (2, 2))
    padded = route("one-hot", capacity_factor=1.5, pad=True)
    assert (padded.sent.tolist(), padded.dropped) == ([[2, 2, 2, 2], [2, 2, 2, 2]], (2, 2))


@examples(40)
@given(
    ranks=st.integers(1, 5),
    held=st.integers(1, 4),
    tokens=st.integers(0, 40),
    top_k=st.integers(1, 4),
    form=st.sampled_from(["balanced", "one-hot", {"zipf": 1.3}, {"zipf": 9, "seed": 1}, {"random": 5}]),
)
def test_every_form_keeps_the_tokens(ranks: int, held: int, tokens: int, top_k: int, form: object) -> None:
    if top_k > ranks * held:
        return
    sizes = {"ranks": ranks, "experts": ranks * held, "tokens": tokens, "top_k": top_k}
    found = route_tokens(form, **sizes)  # type: ignore[arg-type]
    assert (found.sent.sum(axis=1) == tokens * top_k).all()
    assert int(found.sent.min()) >= 0
    assert int(found.sent.max()) <= tokens
    assert found.arrived.sum() == ranks * tokens * top_k
    assert np.array_equal(route_tokens(form, **sizes).sent, found.sent)  # type: ignore[arg-type]


def test_drawn_tokens_follow_their_distribution() -> None:
    """Zipf at exponent 1 over four experts: 12/25 of the first choices, give or take five deviations."""
    n = 200_000
    found = route_tokens({"zipf": 1, "seed": 3}, ranks=1, experts=4, tokens=n).sent[0]
    for x, got in enumerate(found.tolist()):
        p = 12 / 25 / (x + 1)
        assert abs(got - n * p) < 5 * (n * p * (1 - p)) ** 0.5
    other = route_tokens({"zipf": 1, "seed": 4}, ranks=1, experts=4, tokens=n).sent[0]
    assert not np.array_equal(found, other)


def test_two_choices_without_replacement() -> None:
    """Of three experts with weights 6, 3, 2 the last is left out with p = 6/11 3/5 + 3/11 6/8 = 117/220."""
    n = 100_000
    found = route_tokens({"zipf": 1, "seed": 3}, ranks=1, experts=3, tokens=n, top_k=2).sent[0]
    p = 117 / 220
    assert abs(n - int(found[2]) - n * p) < 5 * (n * p * (1 - p)) ** 0.5


# -- traces -----------------------------------------------------------------------------------------


def trace(tmp_path: Path, text: str, **more: Any) -> ExpertRouting:
    path = tmp_path / "routed.csv"
    path.write_text(text, encoding="utf-8")
    return route({"trace": str(path)}, **{"tokens": None, **more})


def test_a_trace_in_equal_parts_and_by_rank(tmp_path: Path) -> None:
    assert trace(tmp_path, "expert\n0\n0\n3\n1\n").sent.tolist() == [[2, 0, 0, 0], [0, 1, 0, 1]]
    both = trace(tmp_path, "expert0,rank,expert1\n0,1,2\n1,0,3\n", top_k=2)
    assert both.sent.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its first line must name the columns"),
        ("token\n1\n", "its first line must name the columns"),
        ("expert\n1\n", "cannot be shared by 2 ranks; give it a column rank"),
        ("expert\n", "must have 1 expert"),
        ("expert\n1\n4\n", "routed.csv:3: the token has expert 4; there are 0 to 3"),
        ("expert\n1\n-1\n", "routed.csv:3: the token has expert -1"),
        ("expert\none\n2\n", "routed.csv:2: invalid literal"),
        ("expert\n1,2\n2\n", "routed.csv:2: 2 values, not 1"),
        ("expert\n1\n99999999999999999999999\n", r"routed.csv:3: the token has expert 9+; there are 0 to 3"),
        ("expert,rank\n1,0\n1,2\n", "routed.csv:3: the token has rank 2; there are 0 to 1"),
        ("expert,rank\n1,0\n1,0\n1,1\n", "rank 1 sends 1, and each has 2 tokens"),
        ("expert0,expert1\n1,0\n1,1\n", "must have 1 expert"),
    ],
)
def test_damaged_traces(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        trace(tmp_path, text)
    assert caught.value.path == ("routing",)


def test_a_token_goes_nowhere_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"routed.csv:3: the token goes to one expert twice"):
        trace(tmp_path, "expert0,expert1\n1,0\n1,1\n", top_k=2)


# -- what is wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "more", "message"),
    [
        ("balansed", {}, "found 'balansed'; did you mean 'balanced'"),
        (3, {}, "routing: found 3"),
        ({"zipf": 1, "one-hot": 0}, {}, "it takes one of"),
        ({"zipff": 1}, {}, "found 'zipff'; did you mean 'zipf'"),
        ({"zipf": -1}, {}, "an exponent from 0 to 100; found -1"),
        ({"zipf": True}, {}, "an exponent from 0 to 100"),
        ({"zipf": 1, "sed": 3}, {}, "zipf takes no 'sed'; did you mean 'seed'"),
        ({"random": "x"}, {}, "random must be a whole number"),
        ({"one-hot": 4}, {}, "one-hot must be a whole number from 0 to 3"),
        ({"tokens": [1, 2]}, {}, "must be 4 numbers, or 2 lists of them; found 2"),
        ({"tokens": [5, 1, 1, 2]}, {}, "9 choices, which 2 ranks"),
        ({"tokens": [5, 1, 1, 3]}, {}, "rank 0 sends 5, and each has 4 tokens"),
        ({"tokens": [9, 1, 1, 1]}, {"top_k": 2, "tokens": None}, "sends 5 to expert 0, and has 3 tokens"),
        ({"tokens": []}, {}, "tokens must be a list"),
        ({"tokens": [1, 1, 1, 1.5]}, {}, "tokens must be a list"),
        ({"trace": 3}, {}, "trace must be a file"),
        ("balanced", {"experts": 5}, "2 ranks cannot share 5 experts"),
        ("balanced", {"top_k": 5}, "cannot go to 5 experts of 4"),
        ("balanced", {"tokens": None}, "how many tokens has a rank"),
        ("balanced", {"tokens": 10**13}, "more than anybody routes"),
        ({"random": 1}, {"tokens": 10**9}, "choices are drawn"),
        ("balanced", {"capacity_factor": 0}, "must be a number above 0"),
        ("balanced", {"pad": True}, "has no effect without capacity_factor"),
    ],
)
def test_wrong_routing(form: object, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        route(form, **more)
