"""Two schedules compared: worked by hand, against the textbook's alignment, and mirrored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.network import make_network
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from scenarios.report.diff import Answer
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from sim import Device, GraphBuilder, Link, Machine, Policy, Trace, simulate
from sim.diff.differences import Differences, common_subsequence, differences, idle_change, path_change
from sim.diff.propagated_delays import Why, held_at, own_ns, waits_of, why_first_moved
from sim.diff.schedule import read_ops_table, schedule_of, schedule_of_table
from sim.explain.idle import idle_reasons
from sim.export.tables import task_table
from sim.job.noise import Noise
from tests.communicator_helpers import draw_collectives, draw_ranks
from tests.drawn_runs import DrawnPlacement, DrawnStreams, draw_graph, draw_machine, draw_policy
from tests.examples import examples, seeds

pytestmark = pytest.mark.usefixtures("both_engines")


def run(
    ops: Mapping[str, tuple[int, str, Sequence[str]]],
    machine: Machine,
    policy: Policy | None = None,
    nbytes: int = 0,
) -> Trace:
    """Run ops: name -> (ns, device, inputs)."""
    b = GraphBuilder("by hand")
    for name, (ns, device, inputs) in ops.items():
        b.op(name, duration_ns=ns, device=device, inputs=inputs, outputs=nbytes)
    return simulate(b.build(), machine, policy or ReadyQueue())


def gpus(n: int, **numbers: int) -> Machine:
    return Machine(tuple(Device(f"gpu{k}", "gpu", **numbers) for k in range(n)))


def compared(a: Trace, b: Trace, over_ns: int = 0) -> Differences:
    return differences(schedule_of(a, "run"), schedule_of(b, "run"), over_ns=over_ns)


def why(d: Differences) -> Why:
    found = why_first_moved(d)
    assert found is not None
    return found


def test_a_table_says_nothing_of_devices_on_which_nothing_ran(tmp_path: Path) -> None:
    trace = run({"a": (4, "gpu0", [])}, gpus(2))
    path = tmp_path / "ops.csv"
    path.write_text("op,device,stream,start_ns,end_ns\na,gpu0,gpu0/0,0,6\n")
    d = differences(schedule_of_table(path, read_ops_table(path)), schedule_of(trace, "run"))
    assert idle_change(d) == {"gpu0": {}}


def test_who_keeps_an_issuer_busy_is_named(tmp_path: Path) -> None:
    """c is ready at 0, and its host issues a, for 3 ns, and b first; a table does not say what."""
    trace = run({name: (2, "gpu0", []) for name in "abc"}, gpus(1, issue_ns=3))
    early = schedule_of(trace, "run")
    told = held_at(early, 2, 0)
    assert told is not None
    assert told.sentence == "'c' is ready, and gpu0/host issues 'a' and 1 more first (6 ns)"
    path = tmp_path / "ops.csv"
    task_table(trace).to_csv(path, index=False)
    held = held_at(schedule_of_table(path, read_ops_table(path)), 2, 1)
    assert held is not None
    assert held.sentence == "'c' is ready, and its issuer is busy"


def test_what_a_policy_holds_back_between_two_launches_has_a_reason_at_any_time() -> None:
    """The host of gpu1 launches d until 3 ns, b, which needs a, from 13 to 16 ns, and only then c."""
    ops = {"a": (10, "gpu0", []), "d": (2, "gpu1", []), "b": (2, "gpu1", ["a"]), "c": (2, "gpu1", [])}
    held = schedule_of(run(ops, gpus(2, issue_ns=3), InOrder()), "run")
    row = list(held.names).index("c")
    assert waits_of(held, row) == {"issue": 9, "policy": 10}
    told = [held_at(held, row, at_ns) for at_ns in (1, 5, 12, 14, 17)]
    found = [(each.reason, held.names[each.row]) for each in told if each is not None]
    assert found == [("issue", "d"), ("policy", "b"), ("policy", "b"), ("issue", "b"), ("issue", "c")]


def test_a_transfer_after_a_restart_waits_for_the_recovery_first() -> None:
    """The step that the failed worker cuts short begins anew at 210 ms; its weights are ready 1 ms later."""
    folder = Path(__file__).parents[2] / "scenarios" / "examples"
    case = load_scenario(folder / "worker_fails.yaml").cases()[0]
    held = schedule_of(run_case(case).trace, "run")
    moves = held.kind == list(held.kinds).index("transfer")
    row = int(np.flatnonzero(moves & (held.start_ns == 211_000_000))[0])
    assert waits_of(held, row) == {"recovery": 210_000_000, "dependency": 1_000_000}
    told = held_at(held, row, 0)
    assert told is not None
    assert (told.reason, told.sentence.partition("] ")[2]) == (
        "recovery",
        "from server to cpu0 carries what 'weights'[3] makes, which has not started yet",
    )


def test_a_table_names_the_op_ahead_on_the_lane(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    task_table(run({name: (5, "gpu0", []) for name in "abc"}, gpus(1))).to_csv(path, index=False)
    held = held_at(schedule_of_table(path, read_ops_table(path)), 2, 7)
    assert held is not None
    assert (held.sentence, held.row) == ("'c' is issued and queued behind 'b' on gpu0/0", 1)


def test_an_op_of_the_host_is_waited_for_under_one_name(tmp_path: Path) -> None:
    """As `sim explain` has it, of a trace and of its table."""

    def step(ns: int) -> Trace:
        machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")))
        return run({"load": (ns, "cpu0", []), "a": (2, "gpu0", ["load"])}, machine)

    path, one, other = tmp_path / "ops.csv", step(5), step(8)
    task_table(other).to_csv(path, index=False)
    assert idle_reasons(other)["gpu0"] == {"host": 8}
    for b in (schedule_of(other, "run"), schedule_of_table(path, read_ops_table(path))):
        found = why(differences(schedule_of(one, "run"), b))
        assert (found.reason, found.root, found.later) == ("host", "duration", "b")
        assert (found.waited_a, found.waited_b) == ({"host": 5}, {"host": 8})


# -- by hand ----------------------------------------------------------------------------------------

CHAIN = {"a": (4, "gpu0", []), "b": (10, "gpu1", ["a"]), "c": (3, "gpu1", ["b"])}


def test_an_op_that_lasts_longer_moves_what_needs_it() -> None:
    d = compared(run(CHAIN, gpus(2)), run({**CHAIN, "a": (7, "gpu0", [])}, gpus(2)))
    assert d.moved_ns.tolist() == [0, 3, 3]
    assert d.longer_ns.tolist() == [3, 0, 0]
    assert not d.only_a.size
    assert not d.only_b.size
    assert d.first == 1
    assert d.moves(5) == [{"by_ns": 3, "ops": 2, "first": 1}]
    assert [tuple(one.values())[:4] for one in d.kinds(5)] == [("op", 1, 17, 20)]
    found = why(d)
    assert found.chain == (
        "in B at 4 ns 'b' needs 'a', which runs on gpu0/0",
        "'a' lasts 4 ns in A, 7 ns in B",
    )
    assert (found.reason, found.root, found.later) == ("dependency", "duration", "b")
    assert (found.waited_a, found.waited_b) == ({"dependency": 4}, {"dependency": 7})
    assert idle_change(d) == {
        "gpu0": {"finished": (13, 13)},
        "gpu1": {"dependency": (4, 7)},
    }
    path = path_change(d)
    assert path is not None
    assert (path.only_a, path.only_b, path.both) == ([], [], 3)


def test_behind_another_op_of_its_stream() -> None:
    ops = {"a": (4, "gpu0", []), "b": (10, "gpu0", [])}
    policy = InOrder(synchronisation="issue")
    d = compared(
        run(ops, gpus(1), policy),
        run({**ops, "a": (9, "gpu0", [])}, gpus(1), InOrder(synchronisation="issue")),
    )
    assert why(d).chain == (
        "in B at 4 ns 'b' is issued and queued behind 'a' on gpu0/0",
        "'a' lasts 4 ns in A, 9 ns in B",
    )
    assert why(d).reason == "stream"


def test_what_is_carried_along_did_not_move_by_itself() -> None:
    late = Machine((Device("gpu0"), Device("gpu1", launch_latency_ns=2)))
    d = compared(run(CHAIN, gpus(2)), run({**CHAIN, "a": (7, "gpu0", [])}, late))
    assert d.moved_ns.tolist() == [0, 5, 7]  # a ends 3 later, and each launch takes 2
    own = own_ns(d)
    assert own is not None
    assert own.tolist() == [0, 2, 2]
    assert d.largest(own, 5) == [1, 2]
    assert d.largest(d.moved_ns, 1) == [2]


@pytest.mark.parametrize("back", [False, True])
def test_a_transfer_is_carried_along_by_the_one_before_it_on_its_link(back: bool) -> None:
    """a is sent from 10 to 40, b from then on, also back over a half-duplex link; in B a takes until 70."""
    ops = {"a": (10, "gpu0", []), "b": (11, f"gpu{int(back)}", []), "c": (1, "gpu1", ["a"])}
    ops["d"] = (1, f"gpu{int(not back)}", ["b"])

    def over(bytes_per_s: int) -> Trace:
        numbers: dict[str, Any] = {"bandwidth_bytes_per_s": bytes_per_s, "sharing": "serial", "medium": "m"}
        links = (Link("to", "gpu0", "gpu1", **numbers), Link("fro", "gpu1", "gpu0", **numbers))
        return run(ops, Machine(gpus(2).devices, links, network=make_network), nbytes=300)

    d = compared(over(10**10), over(5 * 10**9))
    own = own_ns(d)
    assert own is not None
    assert (sorted(d.moved_ns.tolist()), own.any()) == ([0, 0, 0, 30, 30, 60], False)


def test_head_of_line_blocking() -> None:
    ops = {n: (ns, "cpu0", i) for n, ns, i in (("a", 40, []), ("b", 10, ["a"]), ("c", 10, []), ("d", 30, []))}
    machine = Machine((Device("cpu0", "cpu", workers=2),))
    d = compared(run(ops, machine, InOrder()), run(ops, machine, OutOfOrder(window=4)))
    assert [d.a.names[row] for row in d.pairs.a[d.moved]] == ["c", "d"]
    assert d.a.names[int(d.pairs.a[d.first or 0])] == "c"
    found = why(d)
    assert found.chain == (
        "in A at 0 ns 'c' is ready and an issuer is free, but InOrder runs 'b' first",
        "in B 'c' comes before 'b', which starts at 40 ns there",
    )
    assert (found.reason, found.root, found.later) == ("policy", "order", "a")
    assert (found.waited_a, found.waited_b) == ({"policy": 40}, {})
    assert d.relaned.tolist() == [False, False, False, True]


def test_an_op_that_is_in_one_of_them_only() -> None:
    more = {"x": (6, "gpu1", []), **CHAIN}
    d = compared(run(CHAIN, gpus(2)), run(more, gpus(2)))
    assert [d.b.names[row] for row in d.only_b.tolist()] == ["x"]
    assert d.first == 1
    assert why(d).chain[-1] == "'x' runs in B only"
    assert why(d).root == "only"


@pytest.mark.parametrize(
    ("numbers", "reason", "told"),
    [
        ({"issue_ns": 5}, "issue", "issuing 'a' takes 0 ns in A, 5 ns in B"),
        ({"launch_latency_ns": 6}, "launch", "launching 'a' takes 0 ns in A, 6 ns in B"),
    ],
)
def test_what_issuing_and_launching_cost(numbers: dict[str, int], reason: str, told: str) -> None:
    d = compared(run(CHAIN, gpus(2)), run(CHAIN, gpus(2, **numbers)))
    assert why(d).chain[-1] == told
    assert (why(d).reason, why(d).root) == (reason, "cost")


def test_a_slower_link() -> None:
    def linked(bytes_per_s: int) -> Machine:
        link = Link("wire", "gpu0", "gpu1", 0, bytes_per_s)
        return Machine((Device("gpu0"), Device("gpu1")), (link,), (), make_network)

    a, b = (run(CHAIN, linked(rate * 10**9), nbytes=100) for rate in (100, 50))
    d = compared(a, b)
    assert d.a.kind_of(int(d.pairs.a[d.resized][0])) == "transfer"
    assert why(d).chain == (
        "in B at 5 ns 'b' needs the transfer of 'a' from gpu0 to gpu1",
        "the transfer of 'a' (gpu0→gpu1) lasts 1 ns in A, 2 ns in B",
    )
    assert why(d).reason == "transfer"


def test_another_device_is_another_lane() -> None:
    other = {**CHAIN, "b": (10, "gpu0", ["a"])}
    d = compared(run(CHAIN, gpus(2)), run(other, gpus(2)))
    assert d.relaned.tolist() == [False, True, False]
    assert not d.moved.any()
    assert not d.same


def test_differences_that_are_small_enough_are_none() -> None:
    a, b = run(CHAIN, gpus(2)), run({**CHAIN, "a": (7, "gpu0", [])}, gpus(2))
    assert not compared(a, b, over_ns=2).same
    d = compared(a, b, over_ns=3)
    assert d.same
    assert d.first is None
    assert why_first_moved(d) is None


def test_iterations_are_told_apart() -> None:
    b = GraphBuilder("again")
    b.op("a", duration_ns=5)
    machine = gpus(1)
    short = simulate(b.build(), machine, ReadyQueue(), iterations=2)
    noisy = simulate(b.build(), machine, ReadyQueue(), iterations=3)
    d = compared(short, noisy)
    assert len(d.pairs.a) == 2
    assert [d.b.name_of(row) for row in d.only_b.tolist()] == ["'a'[2]"]


def test_a_late_rank_is_named() -> None:
    def ranks(ns: int) -> Trace:
        b = GraphBuilder("two ranks")
        for k, own in enumerate((10, ns)):
            b.op(f"f{k}", duration_ns=own, device=f"gpu{k}")
            b.op(
                f"r{k}",
                kind="all_reduce",
                duration_ns=4,
                device=f"gpu{k}",
                inputs=[f"f{k}"],
                attributes={"communicator": "dp"},
            )
            b.op(f"g{k}", duration_ns=1, device=f"gpu{k}", inputs=[f"r{k}"])
        return simulate(b.build(), gpus(2), ReadyQueue())

    d = compared(ranks(10), ranks(16))
    names = [d.a.names[row] for row in d.pairs.a[d.moved].tolist()]
    assert names == ["r1", "g0", "g1"]
    assert why(d).chain[-1] == "'f1' lasts 10 ns in A, 16 ns in B"
    assert idle_change(d)["gpu0"]["late rank"] == (0, 6)
    assert not d.resized[d.pairs.a.tolist().index(d.a.names.index("r0"))]  # waiting is not working


# -- recordings -------------------------------------------------------------------------------------


def recorded(kernels: Sequence[str], operators: Sequence[str] = ()) -> Trace:
    """Run kernels one after another, named as importers name what was recorded."""
    b = GraphBuilder("recorded")
    names = [f"{kernel}.{k}" for k, kernel in enumerate(kernels)]
    for k, name in enumerate(names):
        own = {"kernel": kernels[k], "operator": operators[k]} if operators else {}
        b.op(name, duration_ns=len(name), device="gpu", after=names[k - 1 : k] if k else (), attributes=own)
    return simulate(b.build(), Machine((Device("gpu", streams=1),)), ReadyQueue())


def test_events_of_recordings_are_matched_by_what_they_do() -> None:
    d = compared(recorded(["gemm", "relu", "gemm"]), recorded(["fill", "gemm", "relu", "gemm"]))
    assert d.pairs.by == "order"
    assert [d.b.names[row] for row in d.only_b.tolist()] == ["fill.0"]
    assert d.moved_ns.tolist() == [6, 6, 6]
    assert not d.relaned.any()


def test_kernels_of_two_vendors_are_matched_by_their_operators() -> None:
    a = recorded(["fill", "sgemm", "relu", "sgemm"], ["fill_", "mm", "relu", "mm"])
    b = recorded(["Cijk", "max", "Cijk", "fill"], ["mm", "relu", "mm", "bmm"])
    d = compared(a, b)
    assert d.pairs.by == "order"
    assert (d.pairs.a.tolist(), d.pairs.b.tolist()) == ([1, 2, 3], [0, 1, 2])


@given(*[st.lists(st.sampled_from(["gemm", "relu", "fill"]), min_size=1, max_size=12)] * 2)
@examples(30)
def test_recordings_the_other_way_round(a: list[str], b: list[str]) -> None:
    one, other = recorded(a), recorded(b)
    assert mirrored(Answer(compared(one, other)).to_json()) == Answer(compared(other, one)).to_json()


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        ("", "abc", ""),
        ("abc", "abc", "abc"),
        ("abcab", "cabb", "cab"),
        ("xaby", "zabw", "ab"),
        ("ab", "ba", "?"),
    ],
)
def test_a_longest_common_subsequence(a: str, b: str, common: str) -> None:
    mine, other = common_subsequence(*(np.array([ord(c) for c in text], np.int64) for text in (a, b)))
    found = "".join(a[i] for i in mine.tolist())
    assert found == "".join(b[j] for j in other.tolist())
    assert len(found) == len(common)


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(1, 40),
)
@examples(60)
def test_as_long_as_the_textbooks_subsequence(a: list[int], b: list[int], window: int) -> None:
    mine, other = common_subsequence(np.array(a, np.int64), np.array(b, np.int64))
    table = np.zeros((len(a) + 1, len(b) + 1), np.int64)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
    assert len(mine) == table[-1, -1]
    back, forth = common_subsequence(np.array(b, np.int64), np.array(a, np.int64))
    assert (back.tolist(), forth.tolist()) == (other.tolist(), mine.tolist())
    for pair in ((mine, other), common_subsequence(np.array(a, np.int64), np.array(b, np.int64), window)):
        assert [a[i] for i in pair[0]] == [b[j] for j in pair[1]]
        assert all((np.diff(each) > 0).all() for each in pair)


def test_a_long_sequence_is_aligned_in_windows() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 20, 3000)
    b = np.delete(a, rng.choice(3000, 60, replace=False))
    mine, _ = common_subsequence(a, b, window=400)
    assert len(mine) == len(b)


# -- any run ----------------------------------------------------------------------------------------


def drawn(seed: int) -> tuple[Trace, Trace]:
    """Return two runs of much the same work: another policy, a slower device, another machine."""
    rng = np.random.default_rng(seed)
    if seed % 4 == 0:
        ranks = int(rng.integers(2, 4))
        graph, machine = draw_collectives(rng, ranks, 4), draw_ranks(rng, ranks)
        slower = Noise(devices={machine.devices[0].name: 1.5})
        return simulate(graph, machine, InOrder()), simulate(graph, machine, InOrder(), noise=slower)
    graph, machine, policy = draw_graph(rng, 20, distances=False), draw_machine(rng), draw_policy(rng)
    placement = {"placement": DrawnPlacement(seed), "streams": DrawnStreams(), "seed": seed}
    a = simulate(graph, machine, policy, **placement)
    if seed % 4 == 1:
        return a, simulate(graph, machine, ReadyQueue("lifo"), **placement)
    if seed % 4 == 2:
        return a, simulate(graph, draw_machine(rng), draw_policy(rng), **placement)
    noise = Noise(devices={device.name: 1.3 for device in machine.devices})
    return a, simulate(graph, machine, draw_policy(rng), noise=noise, **placement)


def mirrored(value: Any) -> Any:
    """Return an answer with A and B in each other's place."""
    other = {"a": "b", "b": "a", "A": "B", "B": "A"}
    if isinstance(value, Mapping):
        swapped = {}
        for key, item in value.items():
            stem, _, letter = key.rpartition("_")
            if key in other:
                key = other[key]
            elif stem == "only":
                key = f"only_{other[letter]}"
            elif key[:2] in ("a_", "b_"):
                key = other[key[0]] + key[1:]
            if key in ("by_ns", "makespan_difference_ns"):
                item = -item
            if key == "later_in":
                item = other[item]
            if key == "why":
                item = [_swapped(sentence) for sentence in item]
            swapped[key] = mirrored(item)
        return swapped
    return [mirrored(item) for item in value] if isinstance(value, list) else value


def _swapped(sentence: str) -> str:
    """Return a sentence with A and B in each other's place; of two times that in A comes first."""
    both = re.fullmatch(r"(.+ (?:lasts|starts at|takes)) (.+) in A, (.+) in B", sentence)
    if both:
        return f"{both[1]} {both[3]} in A, {both[2]} in B"
    return re.sub(r"\b([AB])\b", lambda found: "BA"["AB".index(found[1])], sentence)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_run_does_not_differ_from_itself(seed: int) -> None:
    a, _ = drawn(seed)
    answer = Answer(compared(a, a)).to_json()
    assert answer["same"]
    assert answer["matched"] == answer["a"]["ops"] + answer["a"]["transfers"]
    assert not answer["moved"]
    assert answer["first_moved"] is None
    assert answer["idle"] == {}
    assert answer["critical_path"]["only_a"] == []


@pytest.mark.parametrize("seed", seeds(60))
def test_the_other_way_round_everything_is_mirrored(seed: int) -> None:
    a, b = drawn(seed)
    forth, back = Answer(compared(a, b)), Answer(compared(b, a))
    assert mirrored(forth.to_json()) == back.to_json()


@pytest.mark.parametrize("seed", seeds(60))
def test_what_is_told_adds_up(seed: int) -> None:
    a, b = drawn(seed)
    d = compared(a, b)
    for schedule, only in ((d.a, d.only_a), (d.b, d.only_b)):
        assert int(schedule.compared.sum()) == len(d.pairs.a) + len(only)
    parts = Answer(d).to_json()["makespan"]["parts"]
    for side, schedule in enumerate((d.a, d.b)):
        assert sum(both[f"{'ab'[side]}_ns"] for both in parts.values()) == schedule.makespan_ns
        idle = idle_change(d)
        for k, device in enumerate(schedule.devices):
            lasted = sum(both[side] for both in idle[device].values())
            if schedule.derived is not None and not schedule.derived.trace.alone.any():
                assert lasted == schedule.makespan_ns - int(schedule.busy_ns[k])
    own = own_ns(d)
    assert own is not None
    assert (np.abs(own) <= np.abs(d.moved_ns)).all()
    assert (own * d.moved_ns >= 0).all()
    found = why_first_moved(d)
    if found is not None:
        start_a, start_b = d.a.start_ns[d.pairs.a[d.first]], d.b.start_ns[d.pairs.b[d.first]]
        assert sum(found.waited_a.values()) == start_a
        assert sum(found.waited_b.values()) == start_b
        assert found.chain
        moved = np.minimum(d.a.start_ns[d.pairs.a], d.b.start_ns[d.pairs.b])[d.moved]
        assert min(start_a, start_b) == moved.min()


def test_who_runs_at_the_same_time_elsewhere_costs_nothing_more() -> None:
    """With two workers y starts beside x; with one it waits for it, and x began no later."""
    ops = {"x": (10, "cpu0", []), "y": (10, "cpu0", [])}
    a, b = (run(ops, Machine((Device("cpu0", "cpu", workers=n),))) for n in (2, 1))
    told = why(compared(a, b))
    assert (told.reason, told.root) == ("issue", "wait")
    assert told.chain[-1] == "in A 'x' runs at the same time, but 'y' runs on cpu0/w1"
