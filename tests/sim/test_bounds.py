"""Lower bounds: exact on the textbook's cases, never above a makespan, equal to the definition."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_runs import draw_run
from examples import seeds

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.errors import InputError
from sim.explain.bounds import Bounds, around_ns, between_ns, bounds
from sim.job.build_job import make_job
from sim.job.job import Job
from sim.job.noise import Noise
from sim.job.transfers import Travel


def graph(durations: dict[str, int], edges: dict[str, list[str]]) -> Graph:
    """Return a graph of ops with durations; outputs are 1000 bytes each."""
    b = GraphBuilder("g")
    for name, ns in durations.items():
        b.op(name, duration_ns=ns, inputs=edges.get(name, []), outputs=1000)
    return b.build()


DIAMOND = graph({"a": 10, "b": 20, "c": 30, "d": 5}, {"b": ["a"], "c": ["a"], "d": ["b", "c"]})


def test_a_fork_join_is_its_longest_branch() -> None:
    job = make_job(DIAMOND, Machine((Device("gpu0", streams=2),)))
    assert bounds(job).critical_path_ns == 10 + 30 + 5
    assert bounds(job).lower_bound_ns == 10 + 20 + 30 + 5, "by default everything is on one stream"


def test_work_over_lanes() -> None:
    b = bounds(make_job(DIAMOND, Machine((Device("cpu0", "cpu", workers=2),))))
    assert b.by_source["device cpu0"] == 43, (
        "a, then 50 of b and c on both, c alone for 5, and d: 10 + 27.5 + 5"
    )
    assert (b.lower_bound_ns, b.binding) == (45, "critical path")
    assert list(b.by_source) == ["critical path", "device cpu0", "critical path with launches"]


def test_a_worker_pays_for_issuing() -> None:
    job = make_job(DIAMOND, Machine((Device("cpu0", "cpu", workers=1, issue_ns=100),)))
    assert bounds(job).lower_bound_ns == 465


def test_cores_bound_what_workers_do() -> None:
    job = make_job(DIAMOND, Machine((Device("cpu0", "cpu", workers=4, cores=4, cores_per_op=4),)))
    assert bounds(job).by_source["device cpu0"] == 65


def test_host_and_stream_overheads() -> None:
    device = Device("gpu0", issue_ns=50, issue_ns_by_kind={"op": 40}, launch_latency_ns=7, gap_ns=2)
    job = make_job(DIAMOND, Machine((device,)), iterations=2)
    b = bounds(job)
    assert b.by_source["issuer gpu0/host"] == 8 * 40 + 7 + 5, "the last launched may be the shortest"
    assert b.by_source["stream gpu0/0"] == 2 * 40 + 7 + 2 * 55 + 5 * 2, "b, c and d, all launched after a"
    assert b.by_source["critical path with launches"] == 3 * 40 + 7 + 5, "d is the third that the host issues"
    waiting = bounds(job, synchronisation="completion")
    assert waiting.by_source["critical path with launches"] == 3 * (40 + 7) + 45, (
        "each op of a chain is issued when the one before has ended"
    )
    assert b.binding == "issuer gpu0/host"
    assert simulate(DIAMOND, job.machine, ReadyQueue(), iterations=2).makespan_ns >= b.lower_bound_ns


def chain_over_links(sharing: str) -> Trace:
    """Return a run of a → b → c over two links in each direction, b on the middle device."""
    b = GraphBuilder("links")
    b.op("a", outputs=1001, duration_ns=10, device="x")
    b.op("b", inputs=["a"], outputs=500, duration_ns=20, device="z")
    b.op("c", inputs=["b", "a"], duration_ns=5, device="x")
    links = [
        Link(f"{p}{q}", p, q, latency, 3 * 10**9, sharing)
        for p, q, latency in (("x", "y", 4), ("y", "z", 6), ("z", "y", 1), ("y", "x", 1))
    ]
    machine = Machine((Device("x"), Device("y"), Device("z")), tuple(links), network=make_network)
    return simulate(b.build(), machine, ReadyQueue(), iterations=3)


@pytest.mark.parametrize("sharing", ["serial", "shared"])
def test_transfers_are_on_the_critical_path(sharing: str) -> None:
    trace = chain_over_links(sharing)
    first, back = 10 + 334, 2 + 167  # 1001 bytes at 3 bytes/ns arrive in the 334th ns
    assert Travel.between(trace.job.machine, 0, 2).ns(1001) == first
    assert bounds(trace).critical_path_ns == 10 + first + 20 + back + 5
    b = bounds(trace.job)
    links = [name for name in b.by_source if name.startswith("link ")]
    assert links == ["link xy", "link yz", "link zy", "link yx"]
    after = 20 + back + 5
    assert b.by_source["link xy"] == (10 + 3 * first + after if sharing == "serial" else 4 + 1001)
    assert b.lower_bound_ns <= trace.makespan_ns


def test_distances_chain_the_iterations() -> None:
    b = GraphBuilder("loop")
    b.op("load", duration_ns=10)
    b.op("train", inputs=["load", ("train", 1)], duration_ns=25)
    job = make_job(b.build(), Machine((Device("a", "cpu", workers=8),)), iterations=4)
    assert bounds(job).critical_path_ns == 10 + 4 * 25
    trace = simulate(job.graph, job.machine, ReadyQueue(), iterations=4)
    assert trace.makespan_ns == bounds(trace).lower_bound_ns == 110


def test_independent_iterations_do_not_add_up() -> None:
    job = make_job(DIAMOND, Machine((Device("a", "cpu", workers=8),)), iterations=5)
    assert bounds(job).critical_path_ns == 45


def longest_by_definition(job: Job) -> int:
    """Return the longest chain by recursion over (op, iteration)."""
    graph_, known = job.graph, {}
    reads = {op: graph_.inputs.row(op).tolist() for op in range(len(graph_))}
    pointer = graph_.inputs.indptr

    def home(tensor: int) -> int:
        if graph_.tensor_producer[tensor] >= 0:
            return int(job.device_of[graph_.tensor_producer[tensor]])
        pin = int(graph_.tensor_pin[tensor])
        return job.machine.device_index(graph_.pins[pin]) if pin >= 0 else -1

    def end(op: int, iteration: int) -> int:
        if iteration < 0:
            return 0
        if (op, iteration) not in known:
            here, begin = int(job.device_of[op]), 0
            for k, tensor in enumerate(reads[op]):
                before = iteration - int(graph_.input_distance[pointer[op] + k])
                producer = int(graph_.tensor_producer[tensor])
                there = end(producer, before) if producer >= 0 else 0
                if before >= 0 and home(tensor) not in (-1, here):
                    there += Travel.between(job.machine, home(tensor), here).ns(
                        int(graph_.tensor_nbytes[tensor])
                    )
                begin = max(begin, there)
            for k, p in enumerate(graph_.after.row(op).tolist()):
                begin = max(
                    begin, end(p, iteration - int(graph_.after_distance[graph_.after.indptr[op] + k]))
                )
            known[op, iteration] = begin + int(job.duration_ns[op])
        return known[op, iteration]

    return max(end(op, i) for op in range(len(graph_)) for i in range(job.iterations))


@pytest.mark.parametrize("seed", seeds(80))
def test_the_critical_path_is_the_longest_chain(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = draw_run(seed, 14)
    assert bounds(trace.job).critical_path_ns == longest_by_definition(trace.job)
    compiled = bounds(trace), bounds(trace.job)
    assert compiled[0].lower_bound_ns <= trace.makespan_ns
    monkeypatch.setenv("SIM_PURE", "1")
    assert (bounds(trace), bounds(trace.job)) == compiled


def test_a_chain_too_long_for_64_bits_is_refused() -> None:
    long = graph(dict.fromkeys("abc", 2**62), {"b": ["a"], "c": ["b"]})
    with pytest.raises(InputError, match=r"146 years\) that can be counted; the longest op, 'a'"):
        make_job(long, Machine((Device("gpu0"),)))


def test_enough_lanes_and_no_overhead_reach_the_critical_path() -> None:
    rng = np.random.default_rng(5)
    b = GraphBuilder("wide")
    for i in range(60):
        b.op(
            f"o{i}", inputs=[f"o{j}" for j in set(rng.integers(0, i, 2).tolist())] if i else [], duration_ns=i
        )
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=60),)), ReadyQueue())
    assert trace.makespan_ns == bounds(trace).critical_path_ns


@pytest.mark.parametrize("seed", seeds(30))
def test_work_between_heads_and_tails_is_the_greatest_of_all_subsets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, capacity = int(rng.integers(1, 8)), int(rng.integers(1, 4))
    head, body, tail = (rng.integers(0, 12, n).tolist() for _ in range(3))
    sets = [[k for k in range(n) if chosen >> k & 1] for chosen in range(1, 2**n)]
    greatest = max(
        (min(head[k] for k in some) + min(tail[k] for k in some)) * capacity + sum(body[k] for k in some)
        for some in sets
    )
    assert between_ns(head, body, tail, capacity) == -(-greatest // capacity)
    some = around_ns(np.array(head), np.array(body), np.array(tail), capacity)
    assert min(head) + min(tail) - -sum(body) // capacity <= some <= -(-greatest // capacity)


def test_what_is_around_the_work_of_a_machine_counts() -> None:
    """Two chains over a device in the middle: it cannot begin at once, and is not the last to work."""
    b = GraphBuilder("in the middle")
    for k in range(2):
        b.op(f"first{k}", duration_ns=7, device="a")
        b.op(f"middle{k}", duration_ns=10, device="b", inputs=[f"first{k}"])
        b.op(f"last{k}", duration_ns=5, device="c", inputs=[f"middle{k}"])
    machine = Machine(
        tuple(Device(name, "cpu", workers=workers) for name, workers in zip("abc", (2, 1, 2), strict=True))
    )
    trace = simulate(b.build(), machine, ReadyQueue())
    assert (bounds(trace).lower_bound_ns, bounds(trace).binding) == (7 + 20 + 5, "device b")
    assert trace.makespan_ns == 32


def test_of_a_large_job_what_is_around_its_work_counts_too() -> None:
    b = GraphBuilder("long")
    for i in range(10_100):
        b.op(str(i), duration_ns=2, inputs=[str(i - 1)] if i else [])
    limits = bounds(make_job(b.build(), Machine((Device("gpu0", launch_latency_ns=7, issue_ns=3),))))
    assert limits.by_source["issuer gpu0/host"] == limits.by_source["critical path with launches"] == 30_309


def test_binding_names_the_greatest() -> None:
    b = Bounds({"critical path": 5, "device gpu0": 7, "stream gpu0/0": 7, "link nvlink": 9})
    assert (b.lower_bound_ns, b.binding) == (9, "link nvlink")


def test_under_noise_the_work_of_a_core_is_that_of_all_its_tasks() -> None:
    machine = Machine((Device("cpu0", "cpu", workers=1),))
    trace = simulate(graph({"a": 10_000}, {}), machine, ReadyQueue(), iterations=10, noise=Noise(sigma=0.3))
    assert bounds(trace).lower_bound_ns == trace.makespan_ns == int(trace.job.noisy_ns.sum())
