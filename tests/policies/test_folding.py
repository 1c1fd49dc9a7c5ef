"""Folded ranks: a run of one rank of each sort tells what a run of all of them tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from scenarios.report.compare import Comparison
from scenarios.run.execute import Result, run_case, run_scenario
from scenarios.run.load import load_scenario
from scenarios.run.rewriting import NotFoldedWarning
from sim.base.errors import ScenarioError
from sim.explain.communication import communicator_waits
from sim.explain.derived import DerivedColumns


def scenario(ranks: int, rewrite: dict[str, Any], layers: int = 3, **more: Any) -> dict[str, Any]:
    """Return a training step of a stack of products on GPUs that meet over a bandwidth."""
    gpu = {"kind": "gpu", "bandwidth": "1GB/s", "power": {"busy": "300W", "idle": "60W"}}
    return {
        "machine": {
            "devices": {"gpu": {**gpu, "count": ranks, "streams": 5}},
            "collectives": {"algorithm": "ring", "bandwidth": "1GB/s", "latency": "3ns"},
        },
        "workload": {
            "inputs": {"x": "40B"},
            "parameters": {f"w{k}": f"{400 * (k + 1)}B" for k in range(layers)},
            "ops": {
                f"l{k}": {
                    "kind": "matmul",
                    "inputs": ["x" if k == 0 else f"l{k - 1}", f"w{k}"],
                    "output": "40B",
                    "duration": f"{(k + 1) * 100}ns",
                }
                for k in range(layers)
            },
        },
        "policy": {"runtime": "pytorch-distributed", "compile": ["training", {"ranks": ranks, **rewrite}]},
        **more,
    }


def ran(path: Path, content: dict[str, Any], fold: bool | str) -> Result:
    """Run a scenario, folded or not."""
    path.write_text(yaml.safe_dump({**content, "fold": fold}))
    return run_scenario(load_scenario(path), check=True)


def starts(result: Result) -> dict[str, list[tuple[int, ...]]]:
    """Return of each op when its tasks were ready, were issued, started and ended."""
    tasks, names = result.trace.tasks, result.trace.job.graph.op_names
    found: dict[str, list[tuple[int, ...]]] = {}
    columns = ("op", "ready_ns", "issue_ns", "start_ns", "end_ns", "wait")
    for op, *times in sorted(zip(*(tasks[name].tolist() for name in columns), strict=True)):
        found.setdefault(names[op], []).append(tuple(times))
    return found


def same(path: Path, content: dict[str, Any]) -> Result:
    """Assert that a folded run and one of all ranks say the same; return the folded one."""
    whole, folded = ran(path, content, False), ran(path, content, True)
    folding = folded.trace.job.machine.folding
    assert folding is not None
    one, all_ = dict(folded.summary), dict(whole.summary)
    assert sum(each["stands_for"] for each in one["folded"]["into"].values()) == one.pop("folded")["devices"]
    devices = one.pop("devices")
    ranks = {name: use for name, use in all_.pop("devices").items() if name not in all_["unused_devices"]}
    ranks = {name: use for name, use in ranks.items() if "unused" not in use["idle_reasons"]}
    assert ranks == {name: devices[folding.seen_as(name)] for name in ranks}
    one.pop("links"), all_.pop("links")
    for summary in (one, all_):  # of several paths as long, each takes another
        for interval in (summary, summary.get("train", {})):
            for key in ("makespan_interval", "low_ns", "high_ns"):
                interval.pop(key, None)
    assert {key: of["allocations"] for key, of in one.pop("memory", {}).items()} == {
        key: of["allocations"] for key, of in all_.pop("memory", {}).items() if key in folding.members
    }
    assert one == all_
    graph = folded.trace.job.graph
    paired = {of["communicator"] for op, of in graph.attributes.items() if "pair" in of}
    both = [  # a message stands for several
        {
            name: (size, 0 if name in paired else meetings, *(each.total_ns for each in waited))
            for name, size, meetings, *waited in map(tuple, communicator_waits(DerivedColumns(run.trace)))
        }
        for run in (folded, whole)
    ]
    if both[0].keys() == both[1].keys():  # otherwise several communicators are one
        assert both[0] == both[1]
    times = starts(folded)
    assert starts(whole) == {name: times[folding.seen_as(name)] for name in whole.trace.job.graph.op_names}
    return folded


REWRITES: list[dict[str, Any]] = [
    {"name": "ddp"},
    {"name": "ddp", "bucket_size": "1kB"},
    {"name": "ddp", "overlap": False},
    {"name": "fsdp2"},
    {"name": "fsdp2", "shard": 2},
    {"name": "fsdp2", "shard": 3, "separate_all_gather": True},
    {"name": "zero-1", "bucket_size": 150},
    {"name": "zero-2", "bucket_size": 150, "overlap": True},
    {"name": "zero-3", "param_persistence_threshold": 150},
    {
        "name": "megatron-ddp",
        "bucket_size": 150,
        "sharding": "zero-1",
        "overlap": ["grad_reduce", "param_gather"],
    },
]

SLOWER = st.dictionaries(st.integers(0, 5), st.sampled_from([1.25, 1.5]), max_size=3)
OTHER = st.dictionaries(
    st.integers(0, 5), st.sampled_from([{"gap": "7ns"}, {"issue_cost": "30ns"}, {"streams": 6}]), max_size=2
)


@st.composite
def drawn(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario of six ranks, some of which are unlike the others."""
    content = scenario(6, draw(st.sampled_from(REWRITES)), layers=draw(st.integers(1, 4)))
    machine, policy = content["machine"], content["policy"]
    machine["devices"]["gpu"] |= draw(
        st.sampled_from([{}, {"gap": "3ns", "issue_cost": "40ns", "launch_latency": "9ns"}])
    )
    machine["devices"] |= {f"gpu{k}": change for k, change in draw(OTHER).items()}
    if slower := draw(SLOWER):
        content["noise"] = {"devices": {f"gpu{k}": factor for k, factor in slower.items()}}
    if draw(st.booleans()):  # ranks that are not equally near
        rates = draw(st.lists(st.sampled_from(["1GB/s", "2GB/s"]), min_size=6, max_size=6))
        machine["links"] = [
            {"from": f"gpu{k}", "to": "switch", "bandwidth": rate, "latency": "5ns", "sharing": "shared"}
            for k, rate in enumerate(rates)
        ]
        machine["devices"]["switch"] = {"kind": "switch"}
    content["iterations"] = draw(st.integers(1, 3))
    orders = [None, "depth-first", "reverse-depth-first", "critical-path-first", "memory-aware", "priority"]
    if order := draw(st.sampled_from(orders)):
        policy["linearize"] = order
    if streams := draw(st.sampled_from([None, "per-branch", "per-kind", "round-robin"])):
        policy["streams"] = streams
    if draw(st.integers(0, 2)) == 0:
        content["policy"] = {
            **{key: value for key, value in policy.items() if key != "runtime"},
            "streams": streams or "recorded",
            **draw(
                st.sampled_from(
                    [
                        {"name": "ready-queue"},
                        {"name": "critical-path", "synchronisation": "issue"},
                        {"name": "out-of-order", "window": 3},
                        {"name": "in-order", "cuda_graph": True, "synchronisation": "issue"},
                    ]
                )
            ),
        }
        if content["policy"]["name"] in ("ready-queue", "critical-path"):
            content["policy"].pop("linearize", None)
    if draw(st.booleans()):
        content["memory"] = {
            "allocator": draw(st.sampled_from(["bfc", "caching"])),
            "devices": {"gpu4": "counted"},
        }
    return content


@examples(10)
@given(content=drawn())
def test_folded_ranks_say_what_all_of_them_say(
    content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    same(tmp_path_factory.mktemp("fold") / "a.yaml", content)


@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: "-".join(map(str, rewrite.values())))
def test_each_way_of_training_folds_into_one(rewrite: dict[str, Any], tmp_path: Path) -> None:
    folded = same(tmp_path / "a.yaml", scenario(6, rewrite, iterations=2))
    assert folded.summary["folded"] == {"devices": 6, "into": {"gpu0": {"stands_for": 6, "differs": None}}}


def test_two_groups_that_a_straggler_is_in(tmp_path: Path) -> None:
    """Groups of 2: gpu5 is slow, gpu4 shares with it, gpu1 and gpu3 sum with it; gpu0 and gpu2 with gpu4."""
    content = scenario(6, {"name": "fsdp2", "shard": 2}, noise={"devices": {"gpu5": 1.5}})
    assert same(tmp_path / "a.yaml", content).summary["folded"]["into"] == {
        "gpu0": {"stands_for": 2, "differs": None},
        "gpu1": {"stands_for": 2, "differs": "meets gpu5 on 'replicate 1'"},
        "gpu4": {"stands_for": 1, "differs": "meets gpu5 on 'shard 2'"},
        "gpu5": {"stands_for": 1, "differs": "noise.devices is 1.5, not 1.0"},
    }


def test_a_group_behind_a_slow_link(tmp_path: Path) -> None:
    content = scenario(4, {"name": "fsdp2", "shard": 2})
    content["machine"]["links"] = [
        {"from": f"gpu{k}", "to": "switch", "bandwidth": "1GB/s" if k == 3 else "9GB/s"} for k in range(4)
    ]
    content["machine"]["devices"]["switch"] = {"kind": "switch"}
    del content["machine"]["collectives"]["bandwidth"]
    into = same(tmp_path / "a.yaml", content).summary["folded"]["into"]
    assert {name: of["differs"] for name, of in into.items()} == {
        "gpu0": None,
        "gpu1": "collectives on 'replicate 1' take other times than on 'replicate 0'",
        "gpu2": "collectives on 'shard 1' take other times than on 'shard 0'",
        "gpu3": "collectives on 'shard 1' take other times than on 'shard 0'",
    }


def test_devices_that_are_described_apart(tmp_path: Path) -> None:
    content = scenario(4, {"name": "ddp"}, memory={"devices": {"gpu3": "bfc"}})
    content["machine"]["devices"] |= {"gpu2": {"gap": "5ns"}}
    content["workload"]["ops"]["l1"]["attributes"] = {"due": "150ns", "weight": 2}
    content["machine"]["hosts"] = {"h": {"devices": ["gpu1"], "threads": 2}}
    power = {"busy": "200W", "idle": "80W"}
    content["machine"]["devices"] |= {kind: {"kind": kind, "power": power} for kind in ("cpu", "switch")}
    into = same(tmp_path / "a.yaml", content).summary["folded"]["into"]
    assert {name: of["differs"] for name, of in into.items()} == {
        "gpu0": None,
        "gpu1": "threads of its host is 2, not 1",
        "gpu2": "gap is 5, not the default",
        "gpu3": "memory.devices is Choice(name='bfc'), not None",
    }


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.UnreliableCostWarning")
def test_nccls_channels_hold_sms_of_folded_ranks_too(tmp_path: Path) -> None:
    content = scenario(8, {"name": "ddp"})
    content["machine"] = {
        "devices": {"gpu": {"preset": "h100-sxm", "count": 8, "streams": 2}},
        "collectives": {"model": "nccl"},
    }
    same(tmp_path / "a.yaml", content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise": {"jitter": 0.1}}, "noise.jitter draws the durations of each rank"),
        (
            {"noise": {"stragglers": {"probability": 0.1, "factor": 2}}},
            "noise.stragglers draws the stragglers of each rank",
        ),
        ({"knowledge": "estimate"}, "knowledge: estimate is of the ops of all ranks together"),
        ({"machine.collectives": {"model": "flows"}}, "the messages of its collectives share links"),
        (
            {"machine.hosts": {"h": {"devices": ["gpu1", "gpu2"]}}},
            "host 'h' is not there for gpu1 alone",
        ),
        (
            {
                "machine.resources": {"crane": 1},
                "workload.ops.l0.attributes": {"resources": {"crane": 1}},
            },
            "the resources of the machine are shared by all of them",
        ),
        ({"policy.compile.2": "prune"}, "prune rewrites what all ranks run, after ddp"),
        ({"policy.placement": "heft"}, "the placement Heft may decide for one rank by what others have"),
        ({"policy.linearize": "heft"}, "the linearize Heft may decide for one rank by what others have"),
        ({"policy.compile": ["training"]}, "there are no ranks to fold"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_keeps_ranks_from_being_folded_is_named(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    content = scenario(4, {"name": "ddp"})
    for path, value in change.items():
        *into, last = path.split(".")
        where: Any = content
        for key in into:
            where = where[key]
        if isinstance(where, list):
            where.append(value)
        else:
            where[last] = value
    with pytest.raises(ScenarioError, match=words):
        ran(tmp_path / "a.yaml", content, True)


def test_auto_folds_what_is_large_and_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "a.yaml", scenario(4, {"name": "ddp"})
    assert "folded" not in ran(path, content, "auto").summary
    monkeypatch.setattr("scenarios.run.rewriting._MOST_UNFOLDED", 3)
    assert ran(path, content, "auto").summary["folded"]["devices"] == 4
    with pytest.warns(NotFoldedWarning, match="cannot be folded: noise.jitter.*; all 4 are simulated"):
        assert "folded" not in ran(path, {**content, "noise": {"jitter": 0.1}}, "auto").summary


def test_a_folded_device_and_its_ops_may_be_expected(tmp_path: Path) -> None:
    content = scenario(4, {"name": "ddp"})
    start = ran(tmp_path / "a.yaml", content, False).trace.tasks["start_ns"].max()
    name = "gpu3/w2/update"
    expect = {"tasks": 52, f"start.{name}": f"{start}ns", "idle.gpu2": "0ns", "order": ["gpu3/l0", "gpu3/l1"]}
    assert ran(tmp_path / "a.yaml", {**content, "expect": expect}, True).passed
    with pytest.raises(ScenarioError, match="unknown device 'gpu9'"):
        ran(tmp_path / "a.yaml", {**content, "expect": {"idle.gpu9": "0ns"}}, True)


def test_a_folded_run_has_as_many_devices_as_others(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    entries = [{"label": "all", "set": {"fold": False}}, {"label": "folded", "set": {"fold": True}}]
    path.write_text(yaml.safe_dump({**scenario(4, {"name": "ddp"}), "compare": entries}))
    compared = Comparison([run_case(case) for case in load_scenario(path).cases()])
    assert compared.devices_used == [4, 4]
    assert compared.unequal == ""


def test_pictures_and_traces_say_that_ranks_are_folded(tmp_path: Path) -> None:
    from sim.export.chrome import write_chrome
    from sim.plot.gantt import compare_gantt
    from sim.plot.html import save_page

    content = scenario(4, {"name": "ddp"}, noise={"devices": {"gpu2": 1.5}})
    whole, trace = (ran(tmp_path / "a.yaml", content, fold).trace for fold in (False, True))
    titles = [compare_gantt({"": one}).axes[0].get_title(loc="left") for one in (whole, trace)]
    assert titles[1] == f"{titles[0]}; 4 devices folded into 2"
    save_page(trace, tmp_path / "a.html")
    assert "4 devices folded into 2" in (tmp_path / "a.html").read_text()
    write_chrome(trace, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert '"gpu0, as 2 more"' in text
    assert '"gpu2"' in text
