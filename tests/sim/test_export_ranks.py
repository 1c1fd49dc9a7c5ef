"""A trace as a folder with a file for each GPU: the files together are the one file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from chrome_helpers import chrome_events
from cli_runner import sim
from drawn_runs import draw_run
from examples import seeds
from trace_examples import two_streams

from policies.issue.ready_queue import ReadyQueue
from scenarios.recorded.many_ranks import as_scenario
from scenarios.report.outputs import check_outputs
from sim import Device, GraphBuilder, Host, Machine, Trace, simulate
from sim.base.errors import InputError
from sim.export.chrome import write_ranks

EXAMPLES = Path(__file__).parents[2] / "scenarios" / "examples"


def read(path: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(Path(path).read_bytes()))
    return content


def shown(event: dict[str, Any]) -> str:
    return json.dumps(event, sort_keys=True)


@pytest.mark.parametrize("seed", seeds(40))
def test_ranks_together_are_the_whole_trace(seed: int, tmp_path: Path) -> None:
    """Slices, launch flows and counters of all files are those of one file; each file names its lanes."""
    run = draw_run(seed)
    devices = run.job.machine.devices
    gpus = len({d for d in run.device.tolist() if not devices[d].workers})
    if not gpus:
        with pytest.raises(InputError, match="a file for each GPU that ran something, and none did"):
            write_ranks(run, tmp_path / "ranks")
        return
    files = write_ranks(run, tmp_path / "ranks")
    assert [Path(name).name for name in files] == [f"rank{k}.json.gz" for k in range(gpus)]
    whole = [e for e in chrome_events(run) if e["ph"] != "M" and e.get("cat") != "data"]
    parts = []
    for rank, name in enumerate(files):
        content = read(name)
        assert content["distributedInfo"] == {"rank": rank, "world_size": gpus}
        events = content["traceEvents"]
        named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
        assert {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xsf"} <= named
        assert {e["args"]["device"] for e in events if "device" in e.get("args", {})} <= {rank}
        parts += [e for e in events if e["ph"] != "M" and e.get("cat") != "data"]
    assert sorted(map(shown, parts)) == sorted(map(shown, whole))


def job(*devices: Device, hosts: tuple[Host, ...] = ()) -> Trace:
    b = GraphBuilder("job")
    for device in devices:
        b.op(f"on {device.name}", duration_ns=10, device=device.name)
    return simulate(b.build(), Machine(devices, hosts=hosts), ReadyQueue())


def cpu_ops(path: str) -> list[str]:
    return [e["name"] for e in read(path)["traceEvents"] if e.get("cat") == "cpu_op"]


def test_cpus_are_shared_out(tmp_path: Path) -> None:
    """One a GPU, one for two GPUs, two for a GPU."""
    gpus, cpus = (
        [Device(f"gpu{k}") for k in range(4)],
        [Device(f"cpu{k}", "cpu", workers=1) for k in range(4)],
    )
    for cpu, gpu, expected in (
        (4, 4, [["on cpu0"], ["on cpu1"], ["on cpu2"], ["on cpu3"]]),
        (2, 4, [["on cpu0"], [], ["on cpu1"], []]),
        (4, 2, [["on cpu0", "on cpu1"], ["on cpu2", "on cpu3"]]),
        (1, 3, [["on cpu0"], [], []]),
    ):
        files = write_ranks(job(*cpus[:cpu], *gpus[:gpu]), tmp_path / f"{cpu} {gpu}")
        assert [cpu_ops(name) for name in files] == expected


def test_a_host_of_several_gpus_is_named_where_it_launches(tmp_path: Path) -> None:
    run = job(Device("gpu0", issue_ns=1), Device("gpu1", issue_ns=1), hosts=(Host("main", ("gpu0", "gpu1")),))
    for name in write_ranks(run, tmp_path / "ranks"):
        events = read(name)["traceEvents"]
        (launch,) = (e for e in events if e.get("cat") == "cuda_runtime")
        (who,) = (e for e in events if e["name"] == "thread_name" and e["pid"] == launch["pid"])
        assert (who["tid"], who["args"]["name"]) == (launch["tid"], "main")


def test_ranks_of_another_run_are_not_mixed_in(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    first = write_ranks(two_streams(), folder)
    assert write_ranks(two_streams(), folder) == first, "an old trace is replaced"
    (folder / "rank1.json.gz").touch()
    with pytest.raises(InputError, match=r"ranks: rank1\.json\.gz is there, and is not of this run"):
        write_ranks(two_streams(), folder)
    with pytest.raises(InputError, match=r"rank0\.json\.gz: is a file, not a folder"):
        write_ranks(two_streams(), first[0])
    with pytest.raises(InputError, match="does not exist"):
        write_ranks(two_streams(), tmp_path / "nowhere" / "ranks")


def test_the_command_writes_a_folder_that_a_scenario_runs(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    done = sim("run", EXAMPLES / "data_parallel.yaml", "--json", "--trace", f"{ranks}/")
    assert done.exit_code == 0, done.stderr
    assert len([*ranks.iterdir()]) == 2
    scenario = as_scenario(ranks) | {"workload": {"kineto": "ranks"}}
    (tmp_path / "again.yaml").write_text(json.dumps(scenario))
    again = sim("run", tmp_path / "again.yaml", "--json")
    assert json.loads(again.stdout)["makespan_ns"] == json.loads(done.stdout)["makespan_ns"]


def test_the_command_refuses_what_is_no_folder_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, message in (
        ("file/", "is a file, not a folder"),
        ("nowhere/ranks/", r"the directory .*nowhere does not exist"),
    ):
        with pytest.raises(InputError, match=f"--trace .*{message}"):
            check_outputs({"trace": [str(tmp_path / path) + "/"]})


def test_other_endings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.proto: should end in \.json, \.json\.gz"):
        check_outputs({"trace": [str(tmp_path / "t.proto")]})
