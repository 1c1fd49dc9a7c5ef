"""What Chakra traces leave out: order of streams and threads, waits between them; and ranks that meet."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from chakra_files import host, kernel, node, tensors, trace_of
from cli_runner import sim
from examples import seeds

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from scenarios.importers import load_graph
from scenarios.importers.chakra import load
from scenarios.importers.tensor_flow import Tensor, Touch, tensor_flow, written_arguments
from scenarios.recorded.setup import run_recorded
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import simulate
from sim.base.errors import InputError
from sim.graph.graph import Graph


def write(folder: Path, *nodes: bytes, name: str = "t.et") -> Path:
    path = folder / name
    path.write_bytes(trace_of(*nodes))
    return path


def times(graph: Graph) -> dict[str, tuple[int, int]]:
    """Start and end of each op, in us."""
    trace = run_recorded(graph)
    trace.check()
    rows = (trace.tasks[name].tolist() for name in ("op", "start_ns", "end_ns"))
    return {graph.op_names[op]: (start // 1000, end // 1000) for op, start, end in zip(*rows, strict=True)}


def test_streams_and_threads_keep_their_order(tmp_path: Path) -> None:
    """The second kernel of the thread was written first, and nothing in the file says that it waits."""
    path = write(
        tmp_path,
        kernel(5, "b", by=4, us=10),
        host(1, "aten::mm", us=2),
        kernel(2, "a", by=1, us=100),
        host(4, "aten::add", us=3),
        kernel(7, "c", stream=20, by=4, us=10),
    )
    graph = load(path)
    assert times(graph) == {
        "mm#1": (0, 2),
        "a#2": (2, 102),
        "add#4": (2, 5),
        "b#5": (102, 112),
        "c#7": (5, 15),
    }
    assert graph.attributes[2] == {"stream": 7, "kernel": "a", "operator": "aten::mm", "rf_id": 1}


def test_recorded_starts_order_where_all_nodes_have_them(tmp_path: Path) -> None:
    ops = [
        host(1, "x", start=50),
        host(2, "y", start=40),
        kernel(3, "k", by=1, start=70),
        kernel(4, "l", by=2, start=60),
    ]
    graph = load(write(tmp_path, *ops))
    assert [graph.after.lists()[k] for k in range(4)] == [[1], [], [0, 3], [1]]
    assert [graph.attributes[k]["recorded_start_ns"] for k in range(4)] == [10_000, 0, 30_000, 20_000]


def test_a_collective_waits_for_what_its_thread_launched(tmp_path: Path) -> None:
    """It starts after the gradient's kernel, not after that of another thread; the optimizer waits for it."""
    path = write(
        tmp_path,
        host(1, "aten::mm", us=1),
        kernel(2, "grad", by=1, us=50, outputs=tensors(5)),
        host(3, "aten::mm", tid=2, us=1),
        kernel(4, "other", stream=9, by=3, us=500, outputs=tensors(6)),
        host(5, "c10d::allreduce_", us=1),
        kernel(6, "ncclAllReduce", 20, by=5, us=100, type=7, comm_type=0, comm_size=64, inputs=tensors(7)),
        host(7, "aten::_foreach_add_", us=1),
        kernel(8, "adam", by=7, us=10, inputs=tensors(7)),
        kernel(9, "free", by=7, us=10),
    )  # fmt: skip
    found = times(load(path))
    assert found["ncclAllReduce#6"] == (51, 151)
    assert found["adam#8"] == (151, 161)  # reads the storage that the collective wrote, on another stream


def test_the_host_waits_for_what_it_reads_back(tmp_path: Path) -> None:
    """``.item()`` took 95 us, as the kernel took so long; with a fast GPU it takes what launches take."""
    ops = [
        host(1, "aten::mm", us=5),
        kernel(2, "k", by=1, us=90),
        host(3, "aten::_local_scalar_dense", us=95),
        kernel(4, "Memcpy DtoH (Device -> Pinned)", by=3, us=2),
        host(5, "aten::add", us=5),
    ]
    graph = load(write(tmp_path, *ops))
    assert times(graph)["add#5"] == (97, 102)
    assert graph.attributes[2]["recorded_wait_ns"] == 90_000
    ops[1] = kernel(2, "k", by=1, us=1)
    assert times(load(write(tmp_path, *ops)))["add#5"] == (12, 17)
    ops[2], ops[3] = host(3, "aten::copy_", us=95), kernel(4, "Memcpy DtoH (Device -> Pinned)", by=3, us=2)
    assert times(load(write(tmp_path, *ops)))["add#5"] == (100, 105)  # a copy to pinned memory blocks nobody


# -- who reads what -------------------------------------------------------------------------------


def tensor(storage: int, nbytes: int = 4, device: str = "cuda:0") -> Tensor:
    return Tensor((device, storage), nbytes)


def test_kernels_need_the_last_writer() -> None:
    a, b, c = tensor(1, 8), tensor(2, 16), tensor(3)
    flows = tensor_flow(
        [
            Touch("mm", [a], [b]),
            Touch("mm", [a], [b]),
            Touch("relu", [b], [c]),
            Touch("relu_", [b], [b]),
            Touch(None, [b], [b]),
            Touch("add", [b, c, tensor(9)], []),
        ]
    )
    assert [flow.inputs for flow in flows] == [[], [(0, 0)], [(1, 0)], [(1, 0)], [], [(3, 0), (2, 0)]]
    assert [flow.outputs for flow in flows] == [[0], [16], [4], [16], [], []]
    assert [flow.after for flow in flows] == [[], [], [], [2], [], []]  # in place: after who read it before


def test_memory_of_the_host_and_new_memory_make_no_edges() -> None:
    flows = tensor_flow(
        [
            Touch("a", [], [tensor(1, device="cpu")]),
            Touch("b", [tensor(1, device="cpu")], [tensor(2)]),
            Touch("c", [tensor(2)], []),
            Touch("d", [], [tensor(2)]),
        ]
    )
    assert [flow.inputs for flow in flows] == [[], [], [(1, 0)], []]
    assert flows[3].after == []


@pytest.mark.parametrize("seed", seeds(60))
def test_drawn_programs_need_what_they_must(seed: int) -> None:
    """Against a replay: each read of a storage names the task that really wrote it last."""
    draw = random.Random(seed)
    touches = []
    for n in range(draw.randint(1, 12)):
        reads, writes = ([tensor(draw.randrange(4)) for _ in range(draw.randrange(3))] for _ in "rw")
        touches += [Touch(n, reads, writes)] * draw.randint(1, 3)
    flows = tensor_flow(touches)
    wrote: dict[object, int] = {}
    for i, touch in enumerate(touches):
        first = i == 0 or touches[i - 1].operator != touch.operator
        last = i + 1 == len(touches) or touches[i + 1].operator != touch.operator
        wanted = {wrote[one.storage] for one in touch.reads if one.storage in wrote} if first else {i - 1}
        assert {task for task, _ in flows[i].inputs} == wanted
        assert all(k < len(flows[task].outputs) for task, k in flows[i].inputs)
        assert all(task < i for task in flows[i].after)
        if last:
            wrote |= {one.storage: i for one in touch.writes}


def test_schemas_say_what_is_written() -> None:
    assert written_arguments(
        "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    ) == [0]
    assert written_arguments("x(Tensor a, int[2] b=[0, 0], *, Tensor(b!) out) -> ()") == [2]
    assert written_arguments("aten::mm(Tensor self, Tensor mat2) -> Tensor") == written_arguments("") == []


# -- ranks ----------------------------------------------------------------------------------------


def rank(number: int, *, work: int, collective: int, group: str | None = "0", **more: object) -> list[bytes]:
    attributes = {"comm_type": 2, "comm_size": 1000, **more} | ({} if group is None else {"pg_name": group})
    return [
        host(1, "aten::mm", us=1),
        kernel(2, "gemm", by=1, us=work),
        host(3, "c10d::allgather_", us=1),
        kernel(4, "ncclAllGather", 20, by=3, us=collective, type=7, **attributes),
    ]


def job(folder: Path, *ranks: list[bytes]) -> Path:
    folder.mkdir()
    for number, nodes in enumerate(ranks):
        write(folder, *nodes, name=f"trace.{number}.et")
    return folder


def test_ranks_meet_and_the_last_one_tells_the_transfer(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", rank(0, work=10, collective=60), rank(1, work=50, collective=20))
    graph = load(folder)
    assert graph.name == "job"
    found = times(graph)
    assert found["rank0/ncclAllGather#4"] == (11, 71)
    assert found["rank1/ncclAllGather#4"] == (51, 71)
    own = graph.attributes[graph.index("rank0/ncclAllGather#4")]
    assert (own["communicator"], own["recorded_ns"]) == ("0", 60_000)
    op = graph.index("rank1/ncclAllGather#4")
    assert (int(graph.bytes_read[op]), int(graph.bytes_written[op])) == (1000, 2000)  # all that is gathered
    assert [graph.pins[code] for code in graph.pin_code.tolist()] == 2 * ["cpu0", "gpu0"] + 2 * [
        "cpu1",
        "gpu1",
    ]


def test_a_folder_is_a_workload(tmp_path: Path) -> None:
    job(tmp_path / "job", rank(0, work=10, collective=60), rank(1, work=50, collective=20))
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: ranks\nmachine:\n  devices:\n    gpu: {kind: gpu, count: 2, streams: 2}\n"
        "    cpu: {kind: cpu, count: 2, cores: 1}\nworkload: {chakra: job}\n"
        "policy: {name: ready-queue, synchronisation: issue, streams: recorded}\n"
        "expect: {makespan: 71us}\n"
    )
    assert run_scenario(load_scenario(scenario)).trace.makespan_ns == 71_000
    done = sim("run", scenario)
    assert done.exit_code == 0, done.stderr


def test_what_has_no_duration_the_machine_says(tmp_path: Path) -> None:
    """As generators of traces write them: no PyTorch, flop instead of times, a send and its recv."""
    both = [
        node(1, "fwd", us=0, num_ops=2_000_000, tensor_size=1000, is_cpu_op=False),
        node(2, "sum", 7, us=0, data=[1], comm_type=0, comm_size=1_000_000, is_cpu_op=False),
    ]
    send = node(3, "to 1", 5, us=0, data=[2], comm_src=0, comm_dst=1, comm_tag=4, comm_size=500)
    recv = node(3, "from 0", 6, us=0, data=[2], comm_src=0, comm_dst=1, comm_tag=4, comm_size=500)
    job(tmp_path / "job", [*both, send], [*both, recv])
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: ranks\nmachine:\n  devices:\n"
        "    gpu: {kind: gpu, count: 2, peak: 1TFLOPS, bandwidth: 1TB/s, cost: roofline}\n"
        "  links: [{from: gpu0, to: gpu1, bandwidth: 1GB/s, latency: 0us, duplex: true}]\n"
        "  collectives: {model: formula, algorithm: ring}\n"
        "workload: {chakra: job}\npolicy: ready-queue\n"
    )
    trace = run_scenario(load_scenario(scenario)).trace
    assert trace.makespan_ns == 2_000 + 1_000_000 + 500
    alone = load(tmp_path / "job" / "trace.0.et")
    assert alone.duration_ns.tolist() == [-1, -1, -1]  # never 0 in silence


def test_a_ring_of_messages_does_not_hang(tmp_path: Path) -> None:
    """All send first: a message needs nobody who waits for it. Two rounds, and 3 us between."""

    def nodes(own: int) -> list[bytes]:
        ends = {"comm_dst": (own + 1) % 3}, {"comm_src": (own + 2) % 3}
        more = {"us": 0, "comm_size": 1000, "comm_tag": 0}
        return [
            node(0, "s", 5, comm_type=5, **more, **ends[0]),
            node(1, "r", 6, data=[0], comm_type=6, **more, **ends[1]),
            node(2, "sum", us=3, data=[1]),
            node(3, "s", 5, data=[2], comm_type=5, **more, **ends[0]),
            node(4, "r", 6, data=[3], comm_type=6, **more, **ends[1]),
        ]

    folder = job(tmp_path / "job", *(nodes(own) for own in range(3)))
    links = [{"from": f"gpu{k}", "to": f"gpu{(k + 1) % 3}", "bandwidth": "1GB/s"} for k in range(3)]
    machine = make_machine({"devices": {"gpu": {"kind": "gpu", "count": 3}}, "links": links})
    graph = load(folder)
    assert graph.kinds == ("send", "recv", "kernel")
    assert simulate(graph, machine, ReadyQueue()).makespan_ns == 2 * 1000 + 3000
    write(folder, *nodes(2)[:3], name="trace.2.et")
    with pytest.raises(InputError, match="rank 1 sends 2 messages with tag 0 to rank 2, which receives 1"):
        load(folder)


def test_clocks_of_ranks_are_aligned(tmp_path: Path) -> None:
    def timed(shift: int, work: int) -> list[bytes]:
        return [
            host(1, "c10d::allreduce_", start=shift),
            kernel(
                2, "ncclAllReduce", by=1, start=shift + work, us=100 - work, type=7, comm_type=0, comm_size=8
            ),
        ]

    graph = load(job(tmp_path / "job", timed(1000, 10), timed(7000, 40)))
    starts = {name: graph.attributes[graph.index(name)]["recorded_start_ns"] for name in graph.op_names}
    assert sorted(starts.values()) == [0, 0, 10_000, 40_000]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (rank(1, work=1, collective=1, comm_type=0), "number 0 is all_reduce on rank 1 and all_gather on"),
        (rank(1, work=1, collective=1)[:3], "has no collective of NCCL that it shares with another rank"),
        (rank(1, work=1, collective=1, group=None, involved_dim=[True, False]), "involves only some dim"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_belong_together_are_told(tmp_path: Path, nodes: list[bytes], says: str) -> None:
    folder = job(tmp_path / "job", rank(0, work=1, collective=1), nodes)
    with pytest.raises(InputError, match=says):
        load(folder)


def test_names_have_to_say_the_rank(tmp_path: Path) -> None:
    nodes = rank(0, work=1, collective=1)
    a, b = (write(tmp_path, *nodes, name=name) for name in ("a.et", "b.2.et"))
    for files, says in (
        ([a], "does not say which rank it is"),
        ([b], "missing: 0"),
        ([b, b], "is rank 2, as"),
        ([], "no trace is given"),
    ):
        with pytest.raises(InputError, match=says):
            load_graph(files, format="chakra")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no trace in this folder \(\.et or \.et\.gz\)"):
        load(tmp_path / "empty")
