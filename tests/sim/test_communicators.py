"""Communicators: lines, meetings, errors, and what explanations say of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_runner import sim
from communicator_helpers import draw_collectives, draw_ranks, recomputed
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.machine import make_machine
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.streams import Recorded
from sim import Device, GraphBuilder, Machine, Policy, Trace, simulate
from sim.base.errors import GraphError, InputError, InvariantError, StuckError
from sim.explain.idle import idle_reasons
from sim.explain.narration import explain_text
from sim.explain.path import executed_path
from sim.explain.time_use import time_use
from sim.job.noise import Noise
from sim.kernel.run import NotOnKernelError
from sim.plot.bars import bars_of
from sim.record.record import WAITS


class Launch(InOrder):
    """In order, and an op is issued when its producers are."""

    synchronisation = "issue"


def two(streams: int = 1, **more: int) -> Machine:
    return Machine((Device("gpu0", streams=streams, **more), Device("gpu1", streams=streams, **more)))


def op(
    b: GraphBuilder, name: str, ns: int, communicator: str = "", kind: str = "all_reduce", **more: object
) -> None:
    """Add an op; its device is the beginning of its name, its stream the attribute."""
    attributes = {"stream": more.pop("stream", 0)}
    if communicator:
        attributes["communicator"] = communicator
    for key in ("peer", "root", "nbytes", "sms", "grid", "key", "group"):
        if key in more:
            attributes[key] = more.pop(key)
    b.op(
        name,
        kind=kind if communicator else str(more.pop("of", "matmul")),
        duration_ns=ns,
        device=name.partition("/")[0],
        attributes=attributes,
        **more,
    )


def spans(trace: Trace) -> dict[str, tuple[int, int]]:
    tasks, names = trace.tasks, trace.job.graph.op_names
    rows = zip(tasks["op"].tolist(), tasks["start_ns"].tolist(), tasks["end_ns"].tolist(), strict=True)
    return {names[k]: (start, end) for k, start, end in rows}


def run(b: GraphBuilder, machine: Machine, policy: Policy | None = None, **more: object) -> Trace:
    trace = checked(b.build(), machine, policy or Launch(), streams=Recorded(), engine="simpy", **more)
    assert sum(step.end_ns - step.start_ns for step in executed_path(trace)) == trace.makespan_ns
    for use in time_use(trace).values():
        assert sum(use.values()) == trace.makespan_ns
    return trace


def waits(trace: Trace) -> dict[str, str]:
    names = trace.job.graph.op_names
    return {
        names[k]: WAITS[w]
        for k, w in zip(trace.tasks["op"].tolist(), trace.tasks["wait"].tolist(), strict=True)
    }


def test_ranks_meet_and_end_together() -> None:
    """The longest member's duration counts from the latest start; the early rank holds its stream."""
    b = GraphBuilder("late rank")
    op(b, "gpu0/f", 10)
    op(b, "gpu1/f", 30)
    op(b, "gpu0/a", 20, "dp")
    op(b, "gpu1/a", 25, "dp")
    op(b, "gpu0/c", 5)
    trace = run(b, two())
    assert spans(trace) == {
        "gpu0/f": (0, 10),
        "gpu1/f": (0, 30),
        "gpu0/a": (10, 55),
        "gpu1/a": (30, 55),
        "gpu0/c": (55, 60),
    }
    assert idle_reasons(trace) == {"gpu0": {"late rank": 20}, "gpu1": {"finished": 5}}
    assert time_use(trace)["gpu0"] == {"compute": 15, "communicate": 25, "wait": 20, "idle": 0}
    text = explain_text(trace)
    assert "'gpu0/a' waits on communicator 'dp' for gpu1, whose 'gpu1/a' is the last to start" in text
    path = [(step.kind, step.row, step.start_ns, step.end_ns) for step in executed_path(trace)]
    names = trace.job.graph.op_names
    assert [(names[trace.tasks["op"][row]], start, end) for _, row, start, end in path] == [
        ("gpu1/f", 0, 30),
        ("gpu0/a", 30, 55),
        ("gpu0/c", 55, 60),
    ]


@pytest.mark.parametrize(("second", "expected"), [("dp", (20, 30)), ("other", (0, 10))])
def test_a_communicator_is_a_queue_and_another_is_another(second: str, expected: tuple[int, int]) -> None:
    b = GraphBuilder("two streams")
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/a", 20, "dp")
        op(b, f"{gpu}/b", 10, second, kind="all_gather", stream=1)
    trace = run(b, two(2))
    assert spans(trace)["gpu0/a"] == (0, 20)
    assert spans(trace)["gpu0/b"] == spans(trace)["gpu1/b"] == expected
    assert waits(trace)["gpu0/b"] == ("communicator" if second == "dp" else "")


def test_a_queue_blocks_what_is_free_otherwise() -> None:
    """The first waits for its input on an event; the second, issued later, has to stay behind it."""
    b = GraphBuilder("line")
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/f", 50)
        op(b, f"{gpu}/a", 20, "dp", stream=1, inputs=[f"{gpu}/f"])
        op(b, f"{gpu}/b", 10, "dp", kind="all_gather", stream=2)
    trace = run(b, two(3))
    assert spans(trace)["gpu0/b"] == (70, 80)
    assert idle_reasons(trace)["gpu0"] == {}
    assert "communicator" not in explain_text(trace)  # nobody was idle for it


def test_who_is_before_in_line_is_named() -> None:
    b = GraphBuilder("line")
    op(b, "gpu0/a", 20, "dp")
    op(b, "gpu1/f", 30)
    op(b, "gpu1/a", 20, "dp")
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/b", 10, "dp", kind="all_gather", stream=1)
        op(b, f"{gpu}/g", 10, stream=2, inputs=[f"{gpu}/b"])
    trace = run(b, two(3))
    assert spans(trace)["gpu0/b"] == (50, 60)
    assert idle_reasons(trace)["gpu0"] == {"late rank": 30}


def test_the_order_in_line_is_that_of_issue() -> None:
    """The second stream's op is issued first, so it runs first, although its inputs come later."""
    b = GraphBuilder("issue order")
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/b", 10, "dp", kind="all_gather", stream=1)
        op(b, f"{gpu}/a", 20, "dp")
    trace = run(b, two(2, issue_ns=3))
    assert spans(trace)["gpu0/b"] == (3, 13)
    assert spans(trace)["gpu0/a"] == (13, 33)


def test_send_and_recv_meet_in_pairs() -> None:
    b = GraphBuilder("pairs")
    op(b, "gpu0/s0", 10, "pp", kind="send", peer="gpu1")
    op(b, "gpu0/s1", 10, "pp", kind="send", peer="gpu2")
    op(b, "gpu1/f", 25)
    op(b, "gpu1/r0", 12, "pp", kind="recv", peer="gpu0")
    op(b, "gpu2/r1", 10, "pp", kind="recv", peer="gpu0")
    trace = run(b, Machine(tuple(Device(f"gpu{k}") for k in range(3))))
    assert spans(trace)["gpu0/s0"] == (0, 37)
    assert spans(trace)["gpu1/r0"] == (25, 37)
    assert spans(trace)["gpu0/s1"] == (37, 47)
    assert spans(trace)["gpu2/r1"] == (0, 47)


def test_the_line_goes_on_over_iterations() -> None:
    b = GraphBuilder("iterations")
    for gpu, ns in (("gpu0", 5), ("gpu1", 15)):
        op(b, f"{gpu}/f", ns)
        op(b, f"{gpu}/a", 10, "dp", stream=1, inputs=[f"{gpu}/f"])
    trace = run(b, two(2), iterations=3)
    at = trace.tasks["op"] == 1
    assert trace.tasks["start_ns"][at].tolist() == [5, 25, 40]
    assert trace.tasks["end_ns"][at].tolist() == [25, 40, 55]


def test_noise_is_that_of_the_slowest_member() -> None:
    b = GraphBuilder("noise")
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/a", 1000, "dp")
    trace = run(b, two(), noise=Noise(devices={"gpu1": 1.5}))
    assert spans(trace) == {"gpu0/a": (0, 1500), "gpu1/a": (0, 1500)}


def test_workers_block_until_the_end() -> None:
    b = GraphBuilder("gloo")
    b.op("cpu0/a", kind="all_reduce", duration_ns=10, device="cpu0", attributes={"communicator": "g"})
    b.op("cpu0/f", duration_ns=5, device="cpu0")
    b.op("cpu1/f", duration_ns=20, device="cpu1")
    b.op("cpu1/a", kind="all_reduce", duration_ns=10, device="cpu1", attributes={"communicator": "g"})
    machine = make_machine({"devices": {"cpu": {"kind": "cpu", "cores": 1, "count": 2}}})
    trace = run(b, machine, InOrder())
    assert spans(trace) == {
        "cpu0/a": (0, 30),
        "cpu0/f": (30, 35),
        "cpu1/f": (0, 20),
        "cpu1/a": (20, 30),
    }


@pytest.mark.parametrize("workers", [2, 4])
def test_time_sliced_cores_do_not_slow_a_collective_down(workers: int) -> None:
    """It takes no share of the cores; what computes beside it does not either feel it."""
    b = GraphBuilder("time slices")
    for cpu in ("cpu0", "cpu1"):
        b.op(f"{cpu}/a", kind="all_reduce", duration_ns=100, device=cpu, attributes={"communicator": "g"})
        b.op(f"{cpu}/f", duration_ns=50, device=cpu)
    cpu = {"kind": "cpu", "cores": 2, "workers": workers, "cores_per_op": 2, "count": 2}
    trace = run(b, make_machine({"devices": {"cpu": cpu}}), InOrder())
    assert spans(trace)["cpu0/a"] == (0, 100)
    assert spans(trace)["cpu0/f"] == (0, 50)


@pytest.mark.parametrize("sharing", ["sm", "sm+dram"])
@pytest.mark.parametrize(("blocks", "ends"), [({"sms": 8}, 80), ({"grid": 8}, 80), ({}, 54)])
def test_a_collective_holds_its_sms_until_it_ends(sharing: str, blocks: dict[str, int], ends: int) -> None:
    """Of 8 SMs it holds 2 while it waits for the late rank.

    A kernel of 8 blocks takes two waves beside it. One whose blocks are not known takes 8/6 of its time:
    nobody knows that it would have a tail.
    """
    b = GraphBuilder("channels")
    op(b, "gpu0/a", 100, "dp", stream=1, sms=2)
    op(b, "gpu0/f", 40, stream=0, **blocks)
    op(b, "gpu1/f", 40)
    op(b, "gpu1/a", 100, "dp", stream=0, sms=2)
    spec = {"kind": "gpu", "streams": 2, "sms": 8, "sharing": sharing, "bandwidth": "1TB/s", "count": 2}
    trace = run(b, make_machine({"devices": {"gpu": spec}}))
    assert spans(trace) == {"gpu0/a": (0, 140), "gpu0/f": (0, ends), "gpu1/f": (0, 40), "gpu1/a": (40, 140)}


def test_a_collective_starts_when_it_has_all_its_sms() -> None:
    b = GraphBuilder("channels")
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/f", 40, stream=0, sms=7)
        op(b, f"{gpu}/a", 100, "dp", stream=1, sms=2)
        op(b, f"{gpu}/g", 10, stream=0)
    spec = {"kind": "gpu", "streams": 2, "sms": 8, "sharing": "sm", "count": 2}
    trace = run(b, make_machine({"devices": {"gpu": spec}}))
    assert spans(trace)["gpu0/a"] == (40, 140)
    assert spans(trace)["gpu0/g"] == (40, 54)  # 8/6 of 10
    assert waits(trace)["gpu0/a"] == "resources"


def test_without_sms_a_collective_disturbs_nobody() -> None:
    b = GraphBuilder("no channels")
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/f", 40, stream=0)
        op(b, f"{gpu}/a", 100, "dp", stream=1)
    spec = {"kind": "gpu", "streams": 2, "sms": 8, "sharing": "sm", "count": 2}
    trace = run(b, make_machine({"devices": {"gpu": spec}}))
    assert spans(trace) == {
        "gpu0/f": (0, 40),
        "gpu1/f": (0, 40),
        "gpu0/a": (0, 100),
        "gpu1/a": (0, 100),
    }


# -- what cannot go on --------------------------------------------------------------------------


def test_two_communicators_in_opposite_orders_hang() -> None:
    """As with NCCL: one stream a rank, rank 0 issues A then B, rank 1 B then A."""
    b = GraphBuilder("deadlock")
    for gpu, order in (("gpu0", "AB"), ("gpu1", "BA")):
        for name in order:
            op(b, f"{gpu}/{name}", 10, name)
    with pytest.raises(StuckError) as error:
        run(b, two())
    assert "gpu0/A waits for gpu1 on communicator 'A'" in str(error.value)
    assert "gpu1/B waits for gpu0 on communicator 'B'" in str(error.value)


def test_opposite_orders_on_streams_of_their_own_run() -> None:
    b = GraphBuilder("no deadlock")
    for gpu, order in (("gpu0", "AB"), ("gpu1", "BA")):
        for name in order:
            op(b, f"{gpu}/{name}", 10, name, stream=0 if name == "A" else 1)
    assert run(b, two(2)).makespan_ns == 10


def test_a_rank_that_waits_in_line_is_told() -> None:
    b = GraphBuilder("line")
    op(b, "gpu0/a", 10, "dp", after=["gpu0/b"])
    op(b, "gpu1/a", 10, "dp")
    op(b, "gpu0/b", 10, "dp", kind="all_gather", stream=1)
    op(b, "gpu1/b", 10, "dp", kind="all_gather", stream=1, after=["gpu1/a"])
    with pytest.raises(StuckError, match=r"ranks of communicator 'dp' issue collectives in different orders"):
        run(b, two(2), ReadyQueue())


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"kind": "all_gather"}, "gpu0 has all_reduce 'gpu0/a' and gpu1 has all_gather 'gpu1/a'"),
        (
            {"nbytes": 4_000_000},
            {"nbytes": "8MB"},
            "'gpu0/a' of 4 MB and gpu1 has all_reduce 'gpu1/a' of 8 MB",
        ),
        ({}, {"kind": "matmul"}, "is no collective, and belongs to communicator 'dp'"),
        ({"peer": "gpu1"}, {}, "has no peer; only recv and send have one"),
        ({"kind": "send"}, {"kind": "recv"}, "does not say to whom; give its attribute peer: DEVICE"),
        (
            {"kind": "send", "peer": "gpu2"},
            {},
            "names 'gpu2' as its peer, which is no rank of communicator 'dp'",
        ),
        ({"kind": "send", "peer": "gpu0"}, {}, "has itself as its peer"),
        ({"kind": "send", "peer": "gpu1"}, {}, "gpu1 has nothing that it could meet"),
        ({"kind": "broadcast", "root": "gpu1"}, {"kind": "broadcast"}, "which do not fit"),
        ({"key": "k"}, {}, "has a key and a communicator"),
        ({"kind": "send", "peer": "gpu1", "none": True}, {}, "has a peer and belongs to no communicator"),
        ({"nbytes": 4}, {"nbytes": 4, "again": True}, "gpu0 has 1 and gpu1 has 2"),
        ({"nbytes": -5}, {}, "nbytes: -5 is no whole number of at least 0"),
        ({"nbytes": 1.5}, {}, "nbytes: 1.5 is no whole number of at least 0"),
        ({"nbytes": 10**20}, {}, "nbytes: 100000000000000000000 is more than 2**63 - 1"),
    ],
)
def test_wrong_ranks_are_refused_before_time_0(
    first: dict[str, object], second: dict[str, object], message: str
) -> None:
    b = GraphBuilder("wrong")
    again = second.pop("again", False)
    if first.pop("none", False):
        b.op("gpu0/a", kind=str(first.pop("kind")), device="gpu0", attributes=first)
    else:
        op(b, "gpu0/a", 10, "dp", **first)
    op(b, "gpu1/a", 10, "dp", **second)
    if again:
        op(b, "gpu1/b", 10, "dp", **second)
    with pytest.raises(InputError, match=re.escape(message)):
        run(b, two())


def test_all_to_all_may_be_uneven() -> None:
    b = GraphBuilder("tokens")
    op(b, "gpu0/a", 10, "ep", kind="all_to_all", nbytes=100)
    op(b, "gpu1/a", 70, "ep", kind="all_to_all", nbytes=700)
    assert spans(run(b, two())) == {"gpu0/a": (0, 70), "gpu1/a": (0, 70)}


def test_a_barrier_carries_nothing_of_what_it_waits_for() -> None:
    b = GraphBuilder("barrier")
    for gpu, size in (("gpu0", 1), ("gpu1", 10**9)):
        op(b, f"{gpu}/a", 10, outputs=size)
        op(b, f"{gpu}/b", 10, "all", kind="barrier", inputs=[f"{gpu}/a"])
    found = run(b, two()).job.collectives
    assert found is not None
    assert found.nbytes.tolist() == [0, 0]


def test_control_flow_is_refused() -> None:
    from scenarios.ops.control_flow import cond

    b = GraphBuilder("branches")
    b.op("x", device="gpu0", duration_ns=0)
    b.op("p", attributes={"outcome": True}, device="gpu0", duration_ns=0)
    op(b, "gpu0/a", 1, "dp")
    cond(
        b,
        "if",
        "p",
        ["x"],
        lambda b, v: [b.op("yes", inputs=[v["x"]], device="gpu0", duration_ns=0)],
        lambda b, v: [b.op("no", inputs=[v["x"]], device="gpu0", duration_ns=0)],
        device="gpu0",
    )
    with pytest.raises(InputError, match="the graph has control flow"):
        run(b, two())


# -- what real systems were caught at --------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


def test_a_receive_before_an_independent_forward_is_named() -> None:
    """PyTorch issue 172668: with one queue for everything the second forward waits for the other rank."""
    text = sim("explain", EXAMPLES / "recv_blocks_forward.yaml").stdout
    assert (
        "late rank    at 11 us: '2RECV_F0' waits on communicator 'pp' for rank1, whose '1SEND_F0' is the "
        "last to start; '0F1' stands behind it on rank0/0"
    ) in text


def test_one_communicator_for_two_streams_is_named() -> None:
    """Torchtitan issue 2368: the gather stands behind the scatter, although it has a stream of its own."""
    text = sim("explain", EXAMPLES / "one_communicator.yaml").stdout
    assert "in line 44 us, most 'AG1@0', 14 us behind 'RS3@0'" in text
    text = sim("explain", EXAMPLES / "one_communicator.yaml", "--policy", "two communicators").stdout
    assert "AG1@0" not in text.partition("Communicators")[2]
    assert "gathers" in text


def test_a_host_that_is_late_is_named() -> None:
    """PyTorch issue 163153: all_gathers do not overlap, as the host issues them late."""
    assert "\nstep 1.576 ms on 2 GPUs\n" in sim("run", EXAMPLES / "fsdp2.yaml").stdout
    text = sim("explain", EXAMPLES / "fsdp2.yaml").stdout
    assert text.splitlines()[1].startswith("gpu0: 580 us waiting for the host, ")
    ahead = sim("explain", EXAMPLES / "fsdp2.yaml", "--policy", "host ahead").stdout
    assert "host is busy" not in ahead.partition("Executed")[0]
    # Of each of 4 gathers 35 us fit beside 3 kernels of 20 us that are 5 us apart; of 3 reduce_scatters
    # 20 us fit beside one kernel, and 1 us is hidden as it is.
    assert "gpu0 and 1 more      432 us  host late 197 us, bandwidth 235 us\n" in text
    assert "gpu0 and 1 more       79 us  bandwidth 79 us\n" in ahead


# -- in general --------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from(["completion", "issue"]))
@examples(60)
def test_runs_are_what_the_rules_say(seed: int, synchronisation: str) -> None:
    """Every start and end follows from the issue times alone, by another computation."""
    rng = np.random.default_rng(seed)
    ranks, iterations = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    graph = draw_collectives(rng, ranks, int(rng.integers(1, 12)), distances=iterations > 1)
    machine = draw_ranks(rng, ranks)
    if synchronisation == "issue":
        machine = Machine(tuple(_without_hops(device) for device in machine.devices))
    policy = Launch() if synchronisation == "issue" else InOrder()
    trace = checked(graph, machine, policy, streams=Recorded(), iterations=iterations, engine="simpy")
    start, end = recomputed(trace)
    assert trace.tasks["start_ns"].tolist() == start
    assert trace.tasks["end_ns"].tolist() == end
    assert sum(step.end_ns - step.start_ns for step in executed_path(trace)) == trace.makespan_ns
    for name, use in time_use(trace).items():
        assert sum(use.values()) == trace.makespan_ns, name


def _without_hops(device: Device) -> Device:
    from dataclasses import replace

    return replace(device, event_ns=0)


def test_broken_meetings_are_found() -> None:
    def fresh() -> Trace:
        b = GraphBuilder("broken")
        for gpu in ("gpu0", "gpu1"):
            op(b, f"{gpu}/a", 20, "dp")
            op(b, f"{gpu}/b", 20, "dp", stream=1)
        return run(b, two(2))

    trace = fresh()
    trace.tasks["end_ns"][2:] += 5
    with pytest.raises(InvariantError, match=r"its ranks met at 20 ns, and it takes 20 ns"):
        trace.check()
    trace = fresh()
    trace.tasks["start_ns"][2:] -= 5
    with pytest.raises(InvariantError, match="before it on its communicator"):
        trace.check()


def test_a_chart_shows_the_wait_for_ranks_apart() -> None:
    b = GraphBuilder("late rank")
    op(b, "gpu1/f", 30)
    for gpu in ("gpu0", "gpu1"):
        op(b, f"{gpu}/a", 20, "dp")
    bars = bars_of(run(b, two()))
    seen = [
        (bars.kinds[k], start, end) for k, start, end in zip(bars.kind, bars.start, bars.end, strict=True)
    ]
    assert sorted(seen) == [("all_reduce", 30, 50)] * 2 + [("matmul", 0, 30), ("waits for ranks", 0, 30)]
    assert set(bars.level.tolist()) == {0}  # in one row


# -- group calls ----------------------------------------------------------------------------------


def ring(n: int, group: object = None, streams: int = 2, iterations: int = 1, last: int = 20) -> Trace:
    """Let every rank send to the next and then receive from the one before: 20 ns, of the last `last`."""
    b = GraphBuilder("ring")
    for r in range(n):
        for stream, (kind, peer) in enumerate((("send", r + 1), ("recv", r - 1))):
            more = {} if group is None else {"group": group}
            ns = last if kind == "send" and r == n - 1 else 20
            op(b, f"gpu{r}/{kind}", ns, "ring", kind=kind, peer=f"gpu{peer % n}", stream=stream, **more)
    machine = Machine(tuple(Device(f"gpu{k}", streams=streams) for k in range(n)))
    return run(b, machine, iterations=iterations)


def test_a_ring_of_sends_hangs_and_as_a_group_call_does_not() -> None:
    with pytest.raises(StuckError, match="gpu1 on communicator 'ring'"):
        ring(3)
    trace = ring(3, group="exchange", last=50)
    assert spans(trace) == {
        **{f"gpu{r}/send": (0, 50 if r == 2 else 20) for r in range(3)},
        **{f"gpu{r}/recv": (0, 50 if r == 0 else 20) for r in range(3)},
    }


def test_the_next_call_waits_for_all_of_a_group() -> None:
    """Of gpu0 the recv lasts until 50; then its second exchange starts, for which its peers wait."""
    trace = ring(3, group=0, iterations=2, last=50)
    second = trace.tasks["iteration"] == 1
    names = [trace.job.graph.op_names[k] for k in trace.tasks["op"][second].tolist()]
    ends = dict(zip(names, trace.tasks["end_ns"][second].tolist(), strict=True))
    assert ends == {
        "gpu0/send": 70,
        "gpu1/recv": 70,
        "gpu1/send": 70,
        "gpu2/recv": 70,
        "gpu2/send": 100,
        "gpu0/recv": 100,
    }


def test_two_sends_of_a_group_to_one_peer_keep_their_order() -> None:
    b = GraphBuilder("twice")
    for gpu, kind, peer in (("gpu0", "send", "gpu1"), ("gpu1", "recv", "gpu0")):
        op(b, f"{gpu}/a", 10, "pp", kind=kind, peer=peer, group=1, stream=0)
        op(b, f"{gpu}/b", 5, "pp", kind=kind, peer=peer, group=1, stream=1)
    found = spans(run(b, two(2)))
    assert found == {f"gpu{r}/{name}": at for r in (0, 1) for name, at in (("a", (0, 10)), ("b", (10, 15)))}


def test_groups_that_cannot_be_are_refused() -> None:
    b = GraphBuilder("one stream")
    for gpu, other in (("gpu0", "gpu1"), ("gpu1", "gpu0")):
        for kind in ("send", "recv"):
            op(b, f"{gpu}/{kind}", 10, "pp", kind=kind, peer=other, group=1)
    with pytest.raises(GraphError, match="'gpu0/send' and 'gpu0/recv' are one group call, and on one stream"):
        run(b, two(2))
    b = GraphBuilder("sum")
    op(b, "gpu0/a", 10, "dp", group=1), op(b, "gpu1/a", 10, "dp", group=1)
    with pytest.raises(GraphError, match="is in a group; only recv and send can be"):
        run(b, two())
    with pytest.raises(GraphError, match=r"has the group 1\.5; give it a name or a number"):
        ring(2, group=1.5)
    with pytest.raises(NotOnKernelError, match="sends and recvs are grouped"):
        simulate(ring(2, group=1).job.graph, two(2), Launch(), streams=Recorded(), engine="kernel")


@given(st.integers(2, 5), st.lists(st.integers(1, 30), min_size=5, max_size=5), st.integers(1, 3))
@examples(20)
def test_a_ring_of_groups_is_a_recurrence(n: int, ns: list[int], rounds: int) -> None:
    """Another formulation: a round begins on a rank when both messages of the round before are over."""
    b = GraphBuilder("rounds")
    for k in range(rounds):
        for r in range(n):
            op(b, f"gpu{r}/s{k}", ns[r], "c", kind="send", peer=f"gpu{(r + 1) % n}", group=k, stream=0)
            op(b, f"gpu{r}/r{k}", 0, "c", kind="recv", peer=f"gpu{(r - 1) % n}", group=k, stream=1)
    trace = run(b, Machine(tuple(Device(f"gpu{k}", streams=2) for k in range(n))))
    ready = [0] * n
    for k in range(rounds):
        sent = [max(ready[r], ready[(r + 1) % n]) + ns[r] for r in range(n)]
        assert [spans(trace)[f"gpu{r}/s{k}"][1] for r in range(n)] == sent
        ready = [max(sent[r], sent[r - 1]) for r in range(n)]
