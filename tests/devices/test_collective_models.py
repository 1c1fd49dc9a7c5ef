"""The models ``nccl`` and ``table`` of a machine's collectives: times, SMs, and what they refuse."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.collectives.measured import MeasuredTable, read_measurements
from devices.collectives.nccl_model import Nccl, amounts, load_rates, make_collectives, taken_us
from devices.collectives.nccl_tuner import GENERATIONS, NcclTuner
from devices.machine import make_machine
from policies.issue.program_order import InOrder
from policies.streams import Recorded
from sim import Device, GraphBuilder, Machine, simulate
from sim.base.errors import InputError
from sim.base.plugins import Origin
from sim.machine.communicators import Call


def node(gpus: int = 8, **device: Any) -> Machine:
    gpu = {"kind": "gpu", "sms": 132, "count": gpus, **device}
    return make_machine({"devices": {"gpu": gpu}, "collectives": {"model": "nccl"}})


def all_reduce(nbytes: int, ranks: int) -> Call:
    return Call("all_reduce", nbytes, tuple(range(ranks)))


def test_the_gpu_is_recognised_by_its_sms() -> None:
    for sms, name in ((108, "a100"), (132, "h100"), (148, "b200")):
        found = Nccl().time_ns(all_reduce(1 << 20, 8), node(sms=sms))
        assert found == Nccl(gpu=name).time_ns(all_reduce(1 << 20, 8), node())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"they have 80 SMs; known: a100 \(108\), h100"):
        Nccl().time_ns(all_reduce(8, 2), node(sms=80))


def test_neighbours_are_a_node() -> None:
    sixteen = node(16)
    two = NcclTuner(GENERATIONS["h100"], (8, 8)).choose("all_reduce", 1 << 26)
    assert Nccl().choice(all_reduce(1 << 26, 16), sixteen) == two
    alone = Nccl().choice(Call("all_gather", 1 << 20, (3, 11)), sixteen)  # one GPU of each node
    assert alone == NcclTuner(GENERATIONS["h100"], (1, 1)).choose("all_gather", 1 << 20)
    four = Nccl(per_node=4).choice(all_reduce(1 << 20, 8), sixteen)
    assert four == NcclTuner(GENERATIONS["h100"], (4, 4)).choose("all_reduce", 1 << 20)


def test_ranks_of_a_recorded_job_name_no_nodes() -> None:
    """``rank3/gpu0`` says not where a rank was: neighbours are a node, as without names."""
    ranks = Machine(tuple(Device(f"rank{k}/gpu0") for k in range(16)))
    nodes = Machine(tuple(Device(f"node{k}/gpu{j}") for k in range(4) for j in range(4)))
    call, model = all_reduce(1 << 26, 16), Nccl("h100")
    for machine, per_node in ((ranks, (8, 8)), (nodes, (4, 4, 4, 4))):
        assert model.choice(call, machine) == NcclTuner(GENERATIONS["h100"], per_node).choose(*call[:2])
    many = Machine(tuple(Device(f"node0/gpu{k}") for k in range(16)))
    with pytest.raises(InputError, match="16 ranks on a node are more than the 8 that are modelled; say per"):
        model.choice(call, many)
    assert Nccl("h100", per_node=8).choice(call, many) == model.choice(call, ranks)


def test_fitted_times_hold_within_a_node() -> None:
    fitted = Nccl(gpu="h200", times="fitted")
    assert 300_000 < fitted.time_ns(all_reduce(1 << 26, 8), node()) < 340_000  # 320 us were measured
    assert fitted.time_ns(Call("barrier", 0, (0, 1)), node()) == fitted.time_ns(all_reduce(4, 2), node())
    assert fitted.time_ns(all_reduce(1 << 26, 1), node()) == 0
    with pytest.raises(InputError, match="holds within a node"):
        fitted.time_ns(all_reduce(1 << 20, 16), node(16))
    with pytest.raises(InputError, match="nobody measured a broadcast by ring"):
        fitted.time_ns(Call("broadcast", 8, (0, 1), 0), node())


def test_gpus_on_pcie_are_not_taken_for_those_on_nvswitches() -> None:
    machine = make_machine({"preset": "fire-flyer-2", "nodes": 2})
    ranks = tuple(machine.device_index(f"node1/gpu{k}") for k in range(8))
    call = Call("all_reduce", 1 << 20, ranks)
    with pytest.raises(InputError, match="node1/gpu0 reaches node1/gpu1 over node1/cpu0; say gpu: a100 if"):
        Nccl().time_ns(call, machine)
    assert Nccl(gpu="a100").time_ns(call, machine) > 0
    dgx = make_machine({"preset": "dgx-a100"})
    assert Nccl().time_ns(call._replace(ranks=ranks_of(dgx)), dgx) > 0


def ranks_of(machine: Machine) -> tuple[int, ...]:
    return tuple(k for k, device in enumerate(machine.devices) if device.kind == "gpu")


def test_rates_are_counted_by_hand() -> None:
    choice = NcclTuner(GENERATIONS["h100"], (8,)).choose("all_reduce", 4000)
    assert amounts("all_reduce", 8, 4000, choice) == {
        "launch": 1,
        "hop ll": 14,
        "channel ll": 7.0,  # 2 x 7/8 x 4 KB in one channel
        "own": 0.5,  # one primitive more than steps, of an eighth
        "link ll": 7.0,
    }
    exchange = NcclTuner(GENERATIONS["h100"], (8,)).choose("all_to_all", 32_000)
    assert amounts("all_to_all", 8, 32_000, exchange) == {
        "exchange start ll": 1,
        "exchange peer": 7,
        "exchange own": 4.0,
        "exchange channel ll": 3.5,  # 28 KB to others in 8 channels
        "exchange first": 28.0,
        "exchange": 56.0,
    }
    rates = dict.fromkeys(load_rates("h100"), 0.0) | {
        "launch": 5.0,
        "hop ll": 0.5,
        "channel ll": 0.1,
        "own": 1.0,
    }
    assert taken_us("all_reduce", 8, 4000, choice, rates) == pytest.approx(5 + 7 + 0.7 + 0.5)


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"])
def test_every_choice_within_a_node_has_rates(gpu: str, kind: str) -> None:
    for ranks in range(2, 9):
        tuner = NcclTuner(GENERATIONS[gpu], (ranks,))
        if kind == "send" and ranks > 2:
            continue
        for power in range(33):
            choice = tuner.choose(kind, 1 << power)
            assert taken_us(kind, ranks, 1 << power, choice, load_rates(gpu)) > 1


def test_what_the_model_refuses() -> None:
    for options, words in (
        ({"model": "ncl"}, "did you mean 'nccl'"),
        ({"model": "nccl", "gpu": "h10"}, "did you mean 'h100'"),
        ({"model": "nccl", "per_node": 16}, "more than the 8"),
        ({"model": "nccl", "pernode": 8}, "did you mean 'per_node'"),
        ({"model": "nccl", "times": "fited"}, "fitted"),
        ({"model": "table"}, "needs the option 'file'"),
    ):
        with pytest.raises(InputError, match=words):
            make_collectives(options)
    mixed = make_machine({"devices": {"gpu": {"kind": "gpu", "count": 1}, "cpu": {"kind": "cpu"}}})
    with pytest.raises(InputError, match="NCCL connects GPUs, and cpu is a cpu"):
        Nccl(gpu="h100").time_ns(all_reduce(8, 2), mixed)


def waves(blocks: int, model: dict[str, Any], **collective: int) -> int:
    """Return in how many waves a kernel runs beside an all-reduce of 256 MiB on eight H100."""
    b = GraphBuilder("overlap")
    for d in range(8):
        attributes = {"communicator": "dp", "nbytes": 1 << 28, "stream": 0, **collective}
        b.op(f"r{d}", kind="all_reduce", device=f"gpu{d}", duration_ns=10**6, attributes=attributes)
        kernel = {"grid": blocks, "blocks_per_sm": 1, "stream": 1}
        b.op(
            f"m{d}", kind="matmul", device=f"gpu{d}", duration_ns=-(-blocks // 132) * 1000, attributes=kernel
        )
    gpu = {"kind": "gpu", "sms": 132, "streams": 2, "sharing": "sm", "count": 8}
    machine = make_machine({"devices": {"gpu": gpu}, "collectives": model})
    trace = simulate(b.build(), machine, InOrder(), streams=Recorded())
    tasks = trace.tasks
    kernels = tasks["op"] % 2 == 1
    (took,) = set((tasks["end_ns"] - tasks["start_ns"])[kernels].tolist())
    return int(took) // 1000


@pytest.mark.parametrize(
    ("model", "collective", "free"),
    [
        ({"model": "formula"}, {}, 132),
        ({"model": "nccl"}, {}, 132 - 16),  # NVLS
        ({"model": "nccl", "nvls": False}, {}, 132 - 24),  # a ring
        ({"model": "nccl"}, {"sms": 66}, 66),  # what the op says itself goes first
    ],
)
def test_channels_are_sms(model: dict[str, Any], collective: dict[str, int], free: int) -> None:
    assert waves(free, model, **collective) == 1
    assert waves(free + 1, model, **collective) == 2


ROWS = "op,gpus,bytes,time_us\nall_reduce,8,1000,10\nall_reduce,8,100000,1000\nall_reduce,8,1000,30\n"


def table(tmp_path: Path, text: str = ROWS, **options: Any) -> MeasuredTable:
    path = tmp_path / "t.csv"
    path.write_text(text)
    return MeasuredTable(str(path), **options)


def test_between_sizes_a_line_in_log_log(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert found.time_us("all_reduce", 8, 1000) == 20  # the mean of two repetitions
    assert found.time_us("all_reduce", 8, 10_000) == pytest.approx((20 * 1000) ** 0.5)
    assert found.time_us("all_reduce", 8, 1) == 20
    assert found.time_ns(all_reduce(100_000, 8), node()) == 1_000_000
    assert found.time_ns(Call("barrier", 0, tuple(range(8))), node()) == 20_000
    assert found.time_ns(all_reduce(10**9, 1), node()) == 0
    with pytest.raises(InputError, match=r"has 100 kB, and this one 200 kB; beyond: bandwidth"):
        found.time_us("all_reduce", 8, 200_000)
    assert table(tmp_path, beyond="bandwidth").time_us("all_reduce", 8, 200_000) == 2000
    nothing = table(tmp_path, "op,gpus,bytes,time_us\nall_reduce,8,0,10\n", beyond="bandwidth")
    with pytest.raises(InputError, match=r"has 0 B, and this one 64 B$"):  # it has no bandwidth to keep
        nothing.time_us("all_reduce", 8, 64)


@given(
    st.lists(
        st.tuples(st.integers(1, 2**40), st.floats(0.5, 1e7)),
        min_size=2,
        max_size=9,
        unique_by=lambda p: p[0],
    )
)
def test_what_lies_between_is_between(points: list[tuple[int, float]]) -> None:
    points.sort()
    found = MeasuredTable.__new__(MeasuredTable)
    object.__setattr__(found, "_measured", {("all_reduce", 2): points})
    for (low, us), (high, more) in pairwise(points):
        middle = found.time_us("all_reduce", 2, (low + high) // 2)
        assert min(us, more) * (1 - 1e-9) <= middle <= max(us, more) * (1 + 1e-9)


def test_elements_and_ms_and_choices(tmp_path: Path) -> None:
    text = (
        "device,op_name,nccl_dtype,num_gpus,message_size,latency\n"
        "H200,alltoall,half,2,512,0.5\nH200,alltoall,int8,2,512,0.25\nB200,alltoall,half,2,512,0.1\n"
    )
    columns = {"elements": "message_size", "time_ms": "latency"}
    found = table(tmp_path, text, columns=columns, where={"device": "H200"}, dtype="half")
    assert list(found.sizes("all_to_all", 2)) == [(1024, 500.0)]
    found = table(tmp_path, text, columns=columns, where={"device": "H200"}, dtype="int8")
    assert list(found.sizes("all_to_all", 2)) == [(512, 250.0)]
    with pytest.raises(
        InputError, match=r"differ in device: B200, H200; choose one, with where: \{device: B200\}"
    ):
        table(tmp_path, text, columns=columns, dtype="half")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "t.csv: is empty"),
        ("a,b\n", {}, "which column is op"),
        ("\x01\x02,a\n", {}, "is no table; its first line should name the columns"),
        ("op,ranks,bytes,time_ms,latency_us\n", {}, "both 'latency_us' and 'time_ms' are times"),
        ("op,gpus,bytes\n", {}, "which column is time_us or time_ms"),
        ("op,gpus,elements,time_us\n", {}, "sizes count elements, and no column says their type"),
        ("op,gpus,bytes,time_us\n", {}, "has no rows"),
        (ROWS + "all_reduce,8\n", {}, "t.csv:5: 2 values, not 4"),
        ("op,ranks,bytes,time,time\n", {}, "t.csv:1: two columns are called 'time'; rename or remove one"),
        (
            ROWS + "all_reduce,8,many,3\n",
            {},
            "t.csv:5: '8', 'many', '3' is no measurement; ranks and bytes are whole",
        ),
        (
            ROWS + "all_reduce,8,1000,1e300\n",
            {},
            r"t.csv:5: 8 ranks, 1000 bytes, 1e\+300 us is no measurement",
        ),
        (ROWS + "all_reduce,8,1000,-3\n", {}, "t.csv:5: 8 ranks, 1000 bytes, -3.0 us is no measurement"),
        (ROWS + "all_reduce,8,1000,nan\n", {}, "t.csv:5"),
        (ROWS, {"columns": {"time_us": "tim_us"}}, "has no column 'tim_us'; did you mean 'time_us'"),
        (ROWS, {"columns": {"time": "time_us"}}, "column's role"),
        (ROWS, {"where": {"system": "x"}}, "has no column 'system'; known: bytes, gpus, op"),
        (ROWS, {"where": {"op": "all_reduc"}}, "no row has op 'all_reduc'; did you mean 'all_reduce'"),
        (ROWS, {"dtype": "half"}, "has no column of types"),
        ("op,gpus,count,type,time_us\nx,2,8,quarter,1\n", {}, "unknown dtype 'quarter'"),
    ],
)
def test_a_table_that_is_wrong(tmp_path: Path, text: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        table(tmp_path, text, **options)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00secret")
    with pytest.raises(InputError, match=r"t\.csv: is not UTF-8 text") as told:
        MeasuredTable(str(path))
    assert "secret" not in str(told.value)


def test_what_was_not_measured(tmp_path: Path) -> None:
    found = table(tmp_path)
    with pytest.raises(InputError, match="has no broadcast; it has all_reduce"):
        found.time_us("broadcast", 8, 1)
    with pytest.raises(InputError, match="has no all_reduce on 4 ranks; it has those on 8"):
        found.time_us("all_reduce", 4, 1)
    with pytest.raises(InputError, match="nowhere"):
        MeasuredTable("nowhere.csv")


def test_a_scenario_finds_its_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(ROWS)
    spec = {
        "devices": {"gpu": {"kind": "gpu", "count": 8}},
        "collectives": {"model": "table", "file": "t.csv"},
    }
    machine = make_machine(spec, origin=Origin(tmp_path))
    assert machine.collectives is not None
    assert machine.collectives.time_ns(all_reduce(1000, 8), machine) == 20_000
    with pytest.raises(InputError, match="outside the scenario's folder"):
        make_machine(spec | {"collectives": {"model": "table", "file": "../t.csv"}}, origin=Origin(tmp_path))


def test_recorded_tables_are_read(data_dir: Path) -> None:
    h200 = read_measurements(
        data_dir / "h200" / "nccl_2.29.2.csv.gz",
        {"elements": "message_size", "time_ms": "latency"},
        dtype="half",
    )
    assert dict(h200["all_reduce", 8])[1 << 20] == pytest.approx(26.14, abs=0.01)
    where = {"library": "nccl", "system": "a100_sxm"}
    a100 = read_measurements(data_dir / "cluster" / "nccl_a100_h100.csv.gz", where=where, dtype="half")
    assert {ranks for _, ranks in a100} == {2, 4, 8}
    assert len(a100["all_gather", 4]) == 21
