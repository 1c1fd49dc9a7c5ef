"""Collectives by latency and bandwidth: textbook formulas on uniform machines, and what links change."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import log2

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.collectives.formulas import Formula, ring_order
from devices.collectives.nccl_model import make_collectives
from devices.collectives.schedules import ALGORITHMS, steps_of
from devices.machine import make_machine
from sim import Device, GraphBuilder, Job, Machine
from sim.base.errors import InfeasibleError, InputError
from sim.base.units import round_half_up
from sim.job.build_job import make_job
from sim.machine.communicators import Call

ALPHA, RATE = 700, 10**9  # ns; bytes/s: a byte takes a ns


def star(n: int, sharing: str = "shared") -> Machine:
    """Return n devices around a switch: half the latency on each link."""
    link = {"latency": f"{ALPHA // 2}ns", "bandwidth": "1GB/s", "sharing": sharing}
    return make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": n}, "switch": {"kind": "switch"}},
            "links": [{"from": "gpu*", "to": "switch", **link}],
        }
    )


def time_ns(
    kind: str, nbytes: int, n: int, algorithm: str, machine: Machine | None = None, **more: int
) -> int:
    return Formula(algorithm=algorithm, **more).time_ns(  # type: ignore[arg-type]
        Call(kind, nbytes, tuple(range(n)), 0 if kind in ("broadcast", "reduce") else -1), machine or star(n)
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 8 * 10**6 + 3])
def test_ring(n: int, nbytes: int) -> None:
    part = Fraction((n - 1) * nbytes, n)
    assert time_ns("all_reduce", nbytes, n, "ring") == round_half_up(2 * (part + (n - 1) * ALPHA))
    for kind in ("all_gather", "reduce_scatter"):
        assert time_ns(kind, nbytes, n, "ring") == round_half_up(part + (n - 1) * ALPHA)
    for kind in ("broadcast", "reduce"):  # n pieces, one behind the other, over n - 1 hops
        assert time_ns(kind, nbytes, n, "ring") == round_half_up(2 * (part + (n - 1) * ALPHA))
    assert time_ns("barrier", 0, n, "ring") == 2 * (n - 1) * ALPHA


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 16])
def test_tree(n: int) -> None:
    rounds = (n - 1).bit_length()
    for kind, times in (("all_reduce", 2), ("broadcast", 1), ("reduce", 1)):
        assert time_ns(kind, 10**6, n, "tree") == times * rounds * (10**6 + ALPHA)


@pytest.mark.parametrize("n", [2, 4, 8, 32])
def test_halving_doubling(n: int) -> None:
    part, rounds = Fraction((n - 1) * 10**6, n), int(log2(n))
    for kind in ("reduce_scatter", "all_gather"):
        assert time_ns(kind, 10**6, n, "halving-doubling") == round_half_up(part + rounds * ALPHA)
    for kind in ("all_reduce", "broadcast", "reduce"):
        assert time_ns(kind, 10**6, n, "halving-doubling") == round_half_up(2 * (part + rounds * ALPHA))


@pytest.mark.parametrize(("n", "power"), [(3, 2), (6, 4), (11, 8)])
def test_halving_doubling_folds_what_is_no_power_of_two(n: int, power: int) -> None:
    """Two more messages with everything (Thakur et al., section 4.5)."""
    inner = Fraction((power - 1) * 10**6, power) + log2(power) * ALPHA
    assert time_ns("all_reduce", 10**6, n, "halving-doubling") == round_half_up(
        2 * inner + 2 * (10**6 + ALPHA)
    )


@pytest.mark.parametrize("n", [2, 4, 8])
def test_direct_on_ports_and_on_a_mesh(n: int) -> None:
    """Around a switch a rank's messages share its port; in a full mesh each has a link."""
    mesh = make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": n}},
            "links": [{"from": "gpu*", "to": "gpu*", "latency": f"{ALPHA}ns", "bandwidth": "1GB/s"}],
        }
    )
    size = n * 10**6
    for kind, times in (("all_to_all", 1), ("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        assert time_ns(kind, size, n, "direct") == times * ((n - 1) * 10**6 + ALPHA)
        assert time_ns(kind, size, n, "direct", mesh) == times * (10**6 + ALPHA)
    serial = star(n, "serial")  # one after the other: each waits for its latency, too
    assert time_ns("all_gather", size, n, "direct", serial) == (n - 1) * (10**6 + ALPHA)


def test_hierarchical_is_rings_in_and_across_groups() -> None:
    """Fast links inside nodes of 4, a slow one for each rank to the others."""
    n, size = 8, 8 * 10**6
    machine = make_machine(
        {
            "devices": {
                "gpu": {"kind": "gpu", "count": 8},
                "net": {"kind": "switch"},
                "sw": {"kind": "switch", "count": 2},
            },
            "links": [
                {"from": "gpu[0-3]", "to": "sw0", "bandwidth": "10GB/s"},
                {"from": "gpu[4-7]", "to": "sw1", "bandwidth": "10GB/s"},
                {"from": "gpu*", "to": "net", "bandwidth": "1GB/s", "latency": "1us"},
            ],
        }
    )
    inside = Fraction(3 * size, 4) / 10
    across = Fraction(size, 8) + 2000
    found = time_ns("all_reduce", size, n, "hierarchical", machine, group=4)
    assert found == 2 * inside + 2 * across
    assert time_ns("all_gather", size, n, "hierarchical", machine, group=4) == inside + across
    assert found < time_ns("all_reduce", size, n, "ring", machine)


def test_the_slowest_link_of_a_ring_counts() -> None:
    spec = [{"from": f"gpu{k}", "to": f"gpu{(k + 1) % 4}", "bandwidth": "4GB/s"} for k in range(4)]
    spec[2]["bandwidth"] = "1GB/s"
    machine = make_machine({"devices": {"gpu": {"kind": "gpu", "count": 4}}, "links": spec})
    assert time_ns("all_gather", 4 * 10**6, 4, "ring", machine) == 3 * 10**6


def test_a_shared_bus_carries_every_message_of_a_step() -> None:
    bus = {"latency": "0ns", "bandwidth": "1GB/s", "sharing": "shared"}
    machine = make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": 4}, "a": {"kind": "switch"}, "b": {"kind": "switch"}},
            "links": [
                {"from": "gpu*", "to": "a", "duplex": False},
                {"from": "b", "to": "gpu*", "duplex": False},
                {"from": "a", "to": "b", "duplex": False, **bus},
            ],
        }
    )
    assert time_ns("all_gather", 4 * 10**6, 4, "ring", machine) == 3 * 4 * 10**6


def test_without_links_ports_may_have_a_bandwidth() -> None:
    machine = Machine(tuple(Device(f"gpu{k}") for k in range(4)))
    model = Formula("ring", latency_ns=1000, bandwidth=10**9)
    assert model.time_ns(Call("all_reduce", 4_000_000, (0, 1, 2, 3)), machine) == 6_006_000
    with pytest.raises(InputError, match="the machine has no links that could say how long"):
        Formula("ring").time_ns(Call("all_reduce", 4_000_000, (0, 1, 2, 3)), machine)


def test_auto_takes_the_fastest_by_size() -> None:
    for nbytes in (0, 1000, 10**5, 10**7, 10**9):
        each = [
            time_ns("all_reduce", nbytes, 8, name) for name in ("ring", "tree", "halving-doubling", "direct")
        ]
        assert time_ns("all_reduce", nbytes, 8, "auto") == min(each)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "direct"])
def test_what_an_algorithm_has_no_form_for_runs_by_ring_or_directly(algorithm: str) -> None:
    assert time_ns("all_to_all", 4 * 10**6, 4, algorithm) == 3 * 10**6 + ALPHA
    expected = "ring" if algorithm == "tree" else algorithm
    assert time_ns("all_gather", 10**6, 4, algorithm) == time_ns("all_gather", 10**6, 4, expected)
    assert time_ns("send", 10**6, 2, algorithm) == 10**6 + ALPHA


@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"]),
    st.integers(2, 17),
    st.data(),
)
@examples(150)
def test_every_rank_gets_what_it_has_to(algorithm: str, kind: str, n: int, data: st.DataObject) -> None:
    """Follow the data: what each rank knows after the steps is what the collective promises.

    A message may carry any of what its sender knows, as much as its share allows: so the sum of shares that a
    rank gets is enough, and information has come from everybody.
    """
    root = data.draw(st.integers(0, n - 1))
    group = data.draw(st.integers(2, 5))
    steps = steps_of(algorithm, kind, n, root, group)
    if steps is None:
        return
    heard = [{r} for r in range(n)]
    got = [Fraction(0)] * n
    sent = [Fraction(0)] * n
    for step in steps:
        assert len(np.unique(step.source)) == len(step.source) or algorithm == "direct"
        assert len(np.unique(step.destination)) == len(step.destination) or algorithm == "direct"
        for _ in range(step.times):
            before = [set(one) for one in heard]
            for a, b in zip(step.source.tolist(), step.destination.tolist(), strict=True):
                assert a != b
                heard[b] |= before[a]
                got[b] += step.share
                sent[a] += step.share
    rest = Fraction(n - 1, n)
    if kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert all(one == set(range(n)) for one in heard)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert got == sent == [rest] * n
    if kind == "all_reduce" and algorithm in ("ring", "hierarchical", "direct"):
        assert got == sent == [2 * rest] * n
    if kind == "broadcast":
        assert all(root in one for one in heard)
        assert all(part >= 1 for r, part in enumerate(got) if r != root)
    if kind == "reduce":
        assert heard[root] == set(range(n))
        assert all(part >= 1 for r, part in enumerate(sent) if r != root)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"model": "formla"}, "did you mean 'formula'"),
        ({"algorithm": "rign"}, "did you mean 'ring'"),
        ({"algoritm": "ring"}, "did you mean 'algorithm'"),
        ({"algorithm": "hierarchical"}, "needs the option group"),
        ({"algorithm": "ring", "group": 4}, "group: it has no effect with algorithm: ring"),
        ({"algorithm": "double-tree"}, "should be .*'hierarchical', not 'double-tree'"),
        ({"algorithm": "tree", "pieces": 4}, "pieces is gone: with the algorithm double-tree"),
        ({"latency": 5}, "latency: 5 has no unit"),
        ({"bandwidth": "5us"}, "bandwidth"),
        ({"model": 3}, "3 is no name of a model"),
    ],
)
def test_wrong_models_are_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_collectives(spec)


def test_unknown_calls_and_unconnected_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="how ranks carry out a collective"):
        time_ns("collective", 1, 4, "auto")
    machine = make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": 3}},
            "links": [{"from": "gpu0", "to": "gpu1"}],
        }
    )
    with pytest.raises(InfeasibleError, match="no route of links leads from gpu1 to gpu2"):
        time_ns("all_reduce", 1, 3, "ring", machine)


# -- in a job ------------------------------------------------------------------------------------


def job_of(*, duration_ns: int | None = None, **decisions: object) -> Job:
    b = GraphBuilder("four ranks")
    for r in range(4):
        attributes = {"communicator": "dp", "nbytes": 4_000_000}
        b.op(f"a{r}", kind="all_reduce", device=f"gpu{r}", duration_ns=duration_ns, attributes=attributes)
        b.op(f"f{r}", device=f"gpu{r}", duration_ns=7)
    return make_job(b.build(), star(4), **decisions)  # type: ignore[arg-type]


def test_the_machine_times_what_gives_no_duration() -> None:
    """Links are enough: the default model takes the fastest algorithm on them."""
    job = job_of()
    fastest = time_ns("all_reduce", 4_000_000, 4, "auto")
    assert job.duration_ns.tolist() == job.known_ns.tolist() == [fastest, 7] * 4
    assert job_of(duration_ns=5).duration_ns.tolist() == [5, 7] * 4
    assert job_of(knowledge="none").known_ns.tolist() == [1] * 8
    assert job_of(knowledge="mean").known_ns.tolist() == [fastest, 7] * 4


def test_a_model_that_says_nonsense_is_told() -> None:
    class Wrong:
        def time_ns(self, call: Call, machine: Machine) -> int:
            return -1

    b = GraphBuilder("wrong")
    b.op("a", kind="all_reduce", device="gpu0", attributes={"communicator": "dp"})
    with pytest.raises(InputError, match=r"Wrong\.time_ns returned -1 for op 'a', should be"):
        make_job(b.build(), Machine((Device("gpu0"),), collectives=Wrong()))


def in_nodes(nodes: int, each: int) -> Machine:
    """Return devices ``node0/gpu0``, ... without links."""
    return Machine(tuple(Device(f"node{n}/gpu{k}") for n in range(nodes) for k in range(each)))


def test_a_ring_leaves_a_node_where_it_enters_the_next() -> None:
    machine = in_nodes(3, 3)
    ring = Formula(algorithm="ring", bandwidth=10**9)
    (step,) = ring.best(Call("all_reduce", 9_000, tuple(range(9))), machine).steps
    hops = sorted(zip(step.source.tolist(), step.destination.tolist(), strict=True))
    # 0 1 2 | 5 4 3 | 6 7 8: the second node in reverse; an odd number of nodes crosses over once, from 8 to 0
    assert hops == [(0, 1), (1, 2), (2, 5), (3, 6), (4, 3), (5, 4), (6, 7), (7, 8), (8, 0)]
    (step,) = ring.best(Call("all_reduce", 9_000, (0, 3, 6)), machine).steps  # one rank a node: their order
    assert step.destination.tolist() == [1, 2, 0]
    chain = ring.best(Call("broadcast", 9_000, tuple(range(9)), 0), machine).steps
    assert chain[0].source.tolist() == [0]


@pytest.mark.parametrize(
    ("described", "order"),
    [
        ({"preset": "dgx-1v"}, [0, 1, 2, 3, 7, 6, 5, 4]),  # both faces of its cube, and across
        ({"preset": "dgx-h100"}, range(8)),
        ({"preset": "atlas-800"}, range(8)),
        ({"preset": "atlas-800t-a2"}, range(8)),
        ({"devices": {"gpu": {"kind": "gpu", "count": 9}}, "topology": {"kind": "fat-tree"}}, range(9)),
        ({"devices": {"gpu": {"kind": "gpu", "count": 6}}, "topology": {"kind": "mesh"}}, range(6)),
        ({"devices": {"gpu": {"kind": "gpu", "count": 6}}, "topology": {"kind": "ring"}}, range(6)),
        ({"preset": "dgx-1v", "nodes": 2}, [*range(8), *range(15, 7, -1)]),
    ],
)  # fmt: skip
def test_a_ring_elsewhere_keeps_its_order(described: dict[str, object], order: Sequence[int]) -> None:
    machine = make_machine(described)
    ranks = tuple(map(machine.device_index, machine.accelerators))
    assert ring_order(Call("all_reduce", 8_000, ranks), machine).tolist() == list(order)


def test_a_part_of_a_torus_is_a_grid() -> None:
    """Two columns of three on 4 x 4; ranks in a shuffled order, or with one missing, keep their order."""
    torus = {"kind": "torus", "shape": [4, 4], "link": {"bandwidth": "1GB/s"}}
    machine = make_machine({"devices": {"gpu": {"kind": "gpu", "count": 16}}, "topology": torus})
    assert ring_order(Call("all_reduce", 6, (0, 1, 4, 5, 8, 9)), machine).tolist() == [0, 2, 4, 5, 3, 1]
    assert ring_order(Call("all_reduce", 6, (0, 5, 4, 1)), machine).tolist() == [0, 1, 2, 3]
    assert ring_order(Call("all_reduce", 6, (0, 1, 4, 5, 8)), machine).tolist() == [0, 1, 2, 3, 4]


def test_auto_sums_within_nodes_first() -> None:
    """Four nodes of two on a tenth of the bandwidth: three quarters of half the bytes cross, twice."""
    cluster = make_machine(
        {
            "nodes": 4,
            "devices": {"gpu": {"kind": "gpu", "count": 2}, "sw": {"kind": "switch"}},
            "links": [
                {"from": "gpu*", "to": "sw", "bandwidth": "10GB/s"},
            ],
            "topology": {"kind": "switch", "name": "leaf", "link": {"bandwidth": "1GB/s", "latency": "1us"}},
        }
    )
    gpus = tuple(map(cluster.device_index, cluster.accelerators))
    size = 8 * 10**6
    call, auto = Call("all_reduce", size, gpus), Formula()
    assert auto.best(call, cluster).algorithm == "hierarchical"
    assert auto.time_ns(call, cluster) == 2 * (size // 2) // 10 + 2 * 3 * (size // 8 + 2000)
    uneven = call._replace(ranks=gpus[:-1])  # one rank of the last node: no groups
    assert auto.best(uneven, cluster).algorithm != "hierarchical"
    one_each = call._replace(ranks=gpus[::2])
    assert auto.best(one_each, cluster).algorithm != "hierarchical"


def test_more_nodes_behind_rails_hardly_take_longer() -> None:
    """2 (n - 1) / n of the bytes cross each rail, whatever n is; hops add their latencies."""
    took = []
    for nodes in (4, 8, 16):
        machine = make_machine({"preset": "dgx-h100", "nodes": nodes})
        ranks = tuple(d for d, device in enumerate(machine.devices) if device.kind == "gpu")
        took.append(Formula(algorithm="ring").time_ns(Call("all_reduce", 400_000_000, ranks), machine))
    assert took[0] < took[1] < took[2] < 1.15 * took[0]
