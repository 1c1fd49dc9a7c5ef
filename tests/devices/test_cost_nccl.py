"""The model of collectives, one effect at a time, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.collective_fit import COLLECTIVES, NcclParameters, collective_ns
from devices.cost.fitted import load_fit
from sim.base.errors import InputError, UnknownNameError

# Protocol LL: 100 ns a step at 1 B/ns. The others, the switch and the copy: never, or free.
BARE = NcclParameters(
    launch_ns=0,
    ll_hop_ns=100,
    ll_bytes_per_s=1e9,
    ll128_hop_ns=1e15,
    ll128_bytes_per_s=1e9,
    simple_hop_ns=1e15,
    simple_bytes_per_s=1e9,
    nvls_ns=1e15,
    nvls_bytes_per_s=1e9,
    copy_bytes_per_s=1e30,
    pairwise_ns=0,
)


def took(collective: str, ranks: int, nbytes: int, **changed: float) -> int:
    return int(collective_ns(collective, ranks, nbytes, dataclasses.replace(BARE, **changed)))


@pytest.mark.parametrize(
    ("collective", "ns"),
    [
        ("all_gather", 3 * 100 + 3000),  # 3 steps, three quarters of 4000 B over a rank's link
        ("reduce_scatter", 3 * 100 + 3000),
        ("all_reduce", 6 * 100 + 6000),  # the one after the other
        ("alltoall", 100 + 3000),  # all at once
    ],
)
def test_a_ring_of_four(collective: str, ns: int) -> None:
    assert took(collective, 4, 4000) == ns


def test_the_fastest_protocol_is_taken() -> None:
    # LL: 100 + x/2; Simple: 1000 + x/20 (two ranks: half of x on a link). They cross at x = 2000.
    both = {"simple_hop_ns": 1000, "simple_bytes_per_s": 1e10}
    assert took("all_gather", 2, 1000, **both) == 600
    assert took("all_gather", 2, 2000, **both) == 1100
    assert took("all_gather", 2, 20_000, **both) == 2000


def test_the_switch_reduces_without_steps() -> None:
    # (1 + 1/8) * 8000 B at 1 B/ns, against 1400 ns of steps and 14,000 B in the ring.
    assert took("all_reduce", 8, 8000, nvls_ns=500) == 9500
    assert took("all_gather", 8, 8000, nvls_ns=500) == 700 + 7000


def test_launch_copy_and_exchange_are_added() -> None:
    more = {"launch_ns": 5000, "copy_bytes_per_s": 2e9, "pairwise_ns": 30}
    assert took("all_gather", 4, 4000, **more) == 3300 + 5000 + 2000
    assert took("alltoall", 4, 4000, **more) == 3100 + 5000 + 2000 + 30


def test_a_single_rank_sends_nothing() -> None:
    for collective in COLLECTIVES:
        assert took(collective, 1, 4000, copy_bytes_per_s=2e9) == 2000


@given(st.sampled_from(COLLECTIVES), st.integers(1, 8), st.integers(0, 2**30), st.integers(1, 2**30))
def test_more_bytes_take_no_less(collective: str, ranks: int, nbytes: int, more: int) -> None:
    node = load_fit()
    assert node.collective_ns(collective, ranks, nbytes) <= node.collective_ns(
        collective, ranks, nbytes + more
    )


def test_arrays_broadcast() -> None:
    node = load_fit().collective
    together = collective_ns("all_reduce", [[2], [8]], [1024, 2**20, 2**29], node)
    assert together.shape == (2, 3)
    assert together[1, 2] == collective_ns("all_reduce", 8, 2**29, node)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'all_reduce'"):
        took("allreduce", 2, 1)
    with pytest.raises(InputError, match="ranks"):
        took("all_reduce", 0, 1)
    with pytest.raises(InputError, match="nbytes"):
        took("all_reduce", 2, -1)
