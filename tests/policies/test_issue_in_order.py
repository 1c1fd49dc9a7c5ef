"""In-order issue: exact times, head-of-line blocking, one after another, one program or several."""

from __future__ import annotations

import pytest
from policy_helpers import FIVE, cpu, gpu, graph_of, spans

from devices.network import make_network
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.linearize import UserOrder
from sim import Device, GraphBuilder, Host, Job, Link, Machine, simulate
from sim.base.errors import InputError, StuckError

pytestmark = pytest.mark.usefixtures("both_engines")

#   n0 ──► n1 ──► n2        n3 is ready at once, but comes after n1 and n2 in the program
BLOCKED = {"n0": [], "n1": ["n0"], "n2": ["n1"], "n3": []}
TIMES = {"n0": 30, "n1": 10, "n2": 10, "n3": 10}


def test_the_five_node_example_runs_in_program_order() -> None:
    trace = simulate(graph_of(FIVE), cpu(1), InOrder())
    assert list(spans(trace).items()) == [(name, (10 * k, 10 * k + 10)) for k, name in enumerate("abcde")]


def test_the_five_node_example_becomes_ready_a_b_then_c_d_e() -> None:
    trace = simulate(graph_of(FIVE), cpu(2), ReadyQueue())
    ready = dict(zip(trace.tasks["op"].tolist(), trace.tasks["ready_ns"].tolist(), strict=True))
    assert ready == {0: 0, 1: 0, 2: 10, 3: 20, 4: 30}
    assert spans(trace) == {"a": (0, 10), "b": (0, 10), "c": (10, 20), "d": (20, 30), "e": (30, 40)}


def test_what_is_not_ready_holds_up_what_is() -> None:
    trace = simulate(graph_of(BLOCKED, TIMES), cpu(2), InOrder())
    assert spans(trace) == {"n0": (0, 30), "n1": (30, 40), "n2": (40, 50), "n3": (40, 50)}
    assert trace.tasks["ready_ns"][trace.tasks["op"] == 3].tolist() == [0]
    assert simulate(graph_of(BLOCKED, TIMES), cpu(2), ReadyQueue()).makespan_ns == 50
    assert spans(simulate(graph_of(BLOCKED, TIMES), cpu(2), ReadyQueue()))["n3"] == (0, 10)


def test_asynchronous_issue_on_streams_is_not_held_up() -> None:
    # Issued at once in program order; n3 is on a stream of its own and waits for nobody.
    class LastApart:
        def assign(self, job: object) -> list[int]:
            return [0, 0, 0, 1]

    graph = graph_of(BLOCKED, TIMES)
    issued = simulate(graph, gpu(2), InOrder(synchronisation="issue"), streams=LastApart())
    assert spans(issued) == {"n0": (0, 30), "n1": (30, 40), "n2": (40, 50), "n3": (0, 10)}
    completed = simulate(graph, gpu(2), InOrder(), streams=LastApart())
    assert spans(completed)["n3"] == (40, 50)


def test_one_after_another_even_where_two_could_run() -> None:
    independent = graph_of({"a": [], "b": [], "c": []}, {"a": 30, "b": 10, "c": 10})
    assert simulate(independent, cpu(3), InOrder()).makespan_ns == 30
    strict = simulate(independent, cpu(3), InOrder(in_flight=1))
    assert spans(strict) == {"a": (0, 30), "b": (30, 40), "c": (40, 50)}
    two = simulate(independent, cpu(3), InOrder(in_flight=2))
    assert spans(two) == {"a": (0, 30), "b": (0, 10), "c": (10, 20)}


class PerOp:
    """Ops in turn on the streams of their devices."""

    def assign(self, job: Job) -> list[int]:
        return [op % job.machine.devices[d].lanes for op, d in enumerate(job.device_of)]


def test_one_after_another_on_streams() -> None:
    # Nothing becomes eligible when a ends, and still b has to go then.
    independent = graph_of({"a": [], "b": [], "c": []})
    trace = simulate(independent, gpu(3), InOrder(in_flight=1), streams=PerOp())
    assert spans(trace) == {"a": (0, 10), "b": (10, 20), "c": (20, 30)}


@pytest.mark.parametrize("per", ["group", "machine"])
def test_a_transfer_is_not_in_flight(per: str) -> None:
    """Its end, at 10, while b runs, lets nobody go before b has ended."""
    b = GraphBuilder("a is sent to gpu1")
    b.op("a", outputs=5, duration_ns=5, device="gpu0")
    for name in "bc":
        b.op(name, duration_ns=30, device="gpu1")
    b.op("d", inputs=["a"], duration_ns=5, device="gpu1")
    link = Link("link", "gpu0", "gpu1", bandwidth_bytes_per_s=10**9)
    machine = Machine((Device("gpu0"), Device("gpu1", streams=3)), (link,), network=make_network)
    trace = simulate(b.build(), machine, InOrder(in_flight=1, per=per), streams=PerOp())
    first = 0 if per == "group" else 5  # one program: b comes after a
    assert trace.transfers["end_ns"].tolist() == [10]
    assert spans(trace) == {
        "a": (0, 5),
        "b": (first, first + 30),
        "c": (first + 30, first + 60),
        "d": (first + 60, first + 65),
    }


def two_devices(**options: object) -> int:
    """Return the makespan of a program that goes from device to device."""
    b = GraphBuilder("two devices")
    for k in range(4):
        b.op(f"op{k}", duration_ns=10, device=f"gpu{k % 2}")
    return simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), InOrder(**options)).makespan_ns


def test_a_program_for_each_device_or_one_for_the_machine() -> None:
    assert two_devices() == 20
    assert two_devices(in_flight=1) == 20
    assert two_devices(per="machine") == 20
    assert two_devices(per="machine", in_flight=1) == 40


def test_one_program_keeps_its_order_across_devices() -> None:
    b = GraphBuilder("the second waits")
    b.op("slow", duration_ns=30, device="gpu0")
    b.op("waits", inputs=["slow"], duration_ns=10, device="gpu0")
    b.op("other", duration_ns=10, device="gpu1")
    machine = Machine((Device("gpu0"), Device("gpu1")))
    assert spans(simulate(b.build(), machine, InOrder()))["other"] == (0, 10)
    assert spans(simulate(b.build(), machine, InOrder(per="machine")))["other"] == (30, 40)
    # A host that serves both is one group: its program spans them without being asked.
    host = Machine(machine.devices, hosts=(Host("host", ("gpu0", "gpu1")),))
    assert spans(simulate(b.build(), host, InOrder()))["other"] == (30, 40)


def test_iterations_follow_one_another_in_the_program() -> None:
    b = GraphBuilder("y carries a state")
    b.op("y", inputs=[("y", 1)], duration_ns=30)
    b.op("x", duration_ns=10)
    trace = simulate(b.build(), cpu(2), InOrder(), iterations=2)
    t = trace.tasks
    times = {(i, op): s for i, op, s in zip(t["iteration"], t["op"], t["start_ns"], strict=True)}
    assert times == {(0, 0): 0, (0, 1): 0, (1, 0): 30, (1, 1): 30}  # x of iteration 1 is behind y


def test_a_program_in_which_a_consumer_comes_first_is_stuck_and_says_so() -> None:
    with pytest.raises(StuckError, match=r"e waits for d"):
        simulate(graph_of(FIVE), cpu(2), InOrder(), linearize=UserOrder(["e", "a", "b", "c", "d"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_flight": 0}, "in_flight must be a whole number of at least 1; found 0"),
        ({"in_flight": True}, "whole number"),
        ({"per": "device"}, "per must be one of group, machine; found 'device'"),
        ({"synchronisation": "issued"}, "did you mean 'issue'"),
        ({"in_flight": 1, "synchronisation": "issue"}, "queue_depth"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        InOrder(**options)  # type: ignore[arg-type]
