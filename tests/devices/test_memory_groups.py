"""Models that share a device's memory: limits within one pool, and virtual devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from hypothesis import given
from hypothesis import strategies as st

from devices.machine import make_device
from devices.memory import Block, VirtualDevices, make_allocator, read_allocator
from devices.memory.device_memory import Groups
from scenarios.run.execute import Result, run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import InfeasibleError, InputError, OutOfMemoryError, ScenarioError, StuckError

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "shared_gpu.yaml"


def run(*sets: str) -> Result:
    return run_scenario(load_scenario(SCENARIO, sets=sets), check=True)


def test_whose_a_tensor_is() -> None:
    group_of = Groups(["train", "train/b", "serve"])
    for name, group in (
        ("train", "train"),
        ("train/a/grad:1", "train"),
        ("train/b/grad", "train/b"),
        ("train:1", "train"),
        ("serve on gpu1", "serve"),
        ("server", "server"),
        ("x", "x"),
        (None, None),
        (7, 7),
    ):
        assert group_of(name) == group


# -- limits --------------------------------------------------------------------------------------


def test_a_pool_holds_models_to_their_limits() -> None:
    spec = read_allocator({"name": "pool", "limits": {"train": "600B", "serve": "500B"}})
    pool = make_allocator("pool", 1000, name="gpu0", **spec.options)
    assert pool.try_alloc(400, owner="train/a") is not None
    assert pool.try_alloc(300, owner="train/b") is None
    assert pool.try_alloc(450, owner="serve/x") is not None
    assert pool.try_alloc(150, owner="other") is not None  # who has no limit takes what there is
    assert pool.in_use == 1000
    with pytest.raises(
        OutOfMemoryError, match="a higher limit for 'train': it holds 400 B of the 600 B it may"
    ):
        pool.alloc(300, owner="train/b")
    for wrong in ({}, ["train"], {"train": 600}):
        with pytest.raises(InputError, match="limits"):
            read_allocator({"name": "pool", "limits": wrong})
    with pytest.raises(InputError, match="the bfc allocator has no option 'limits'"):
        read_allocator({"name": "bfc", "limits": {"train": "600B"}})


def test_limits_in_a_scenario() -> None:
    """Worked in the scenario; here said of all devices, and of one."""
    for where in ("memory.allocator={name: pool, %s}", "memory.devices={gpu0: {name: pool, %s}}"):
        starts = run(where % "limits: {train: 650MB}").trace.to_pandas().set_index("op").start_ns
        assert (starts["serve/0/encode"], starts["train/grad3"]) == (0, 30_000)


def test_what_a_limit_never_admits_is_refused_before_time_0() -> None:
    with pytest.raises(OutOfMemoryError) as error:
        run("memory.allocator={name: pool, limits: {serve: 100MB}}")
    assert "'serve/0/encode' asks for 190.7 MiB on stream 0, before time 0" in str(error.value)
    assert "a higher limit for 'serve': it holds 0 B of the 95.37 MiB it may" in str(error.value)


def test_who_waits_for_ever_is_told_whose_limit_it_is() -> None:
    """Inputs of serving stay: 60 of its 250 MB, so that a request of 200 MB never gets what it needs."""
    serve = "workload.sessions.serve.workload"
    with pytest.raises(StuckError, match=r"memory: 190\.7 MiB on gpu0/serve, of whose 238\.4 MiB 57"):
        run(
            f"{serve}.parameters={{w: 60MB}}",
            f"{serve}.ops.encode={{duration: 10us, inputs: [w], output: 200MB}}",
            "machine.devices.gpu0.virtual_devices={train: 700MB, serve: 250MB}",
        )


# -- virtual devices -----------------------------------------------------------------------------


def test_virtual_devices_of_a_scenario() -> None:
    parts = "machine.devices.gpu0.virtual_devices={train: 650MB, serve: 350MB}"
    for allocator in ("pool", "counted", "caching"):  # bfc would not split what is left for grad2
        result = run(parts, f"memory.allocator={allocator}")
        rows = result.trace.to_pandas().set_index("op")
        assert rows.end_ns["serve/0/answer"] == 15_000
        assert rows.start_ns["train/grad3"] == 30_000
        assert result.trace.memory is not None
        assert result.trace.memory["in_use"].max() <= 10**9
    with pytest.raises(ScenarioError, match="together they are more than the 1 GB of gpu0"):
        run("machine.devices.gpu0.virtual_devices={train: 650MB, serve: 351MB}")
    with pytest.raises(ScenarioError, match="a plan is for a whole device"):
        run(parts, "memory.allocator=planned")


def test_a_limit_of_a_model_that_is_not_there_is_refused() -> None:
    result = sim("run", SCENARIO, "--set", "memory.allocator={name: pool, limits: {trian: 650MB}}")
    assert result.exit_code == 2
    assert "memory.allocator.limits.trian: unknown model 'trian'; did you mean 'train'?" in result.stderr


def test_a_part_that_is_too_small_is_named() -> None:
    result = sim(
        "run", SCENARIO, "--set", "machine.devices.gpu0.virtual_devices={serve: 150MB, train: 850MB}"
    )
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "out of memory on gpu0/serve (counted allocator): 'serve/0/encode' asks for 190.7 MiB on stream 0, "
        "before time 0\n  limit            143.1 MiB\n"
    )


def test_what_belongs_to_no_part_goes_to_the_first() -> None:
    both = make_allocator("pool", 100, name="gpu0", virtual_devices={"a": 60, "b": 40})
    assert isinstance(both, VirtualDevices)
    assert both.alloc(50, owner="x").address == 0
    assert both.try_alloc(50, owner="a/y") is None
    assert both.alloc(40, owner="b/y").address == 512  # parts begin at multiples of 512
    assert both.fits_empty(60, owner="x")
    assert not both.fits_empty(60, owner="b")
    assert (both.in_use, both.held, both.largest_free()) == (90, 100, 10)
    with pytest.raises(
        OutOfMemoryError, match=r"out of memory on gpu0/b \(pool allocator\): 'b/z' asks for 1 B"
    ):
        both.alloc(1, owner="b/z")
    with pytest.raises(InfeasibleError, match="need 100 B"):
        make_allocator("pool", 99, name="gpu0", virtual_devices={"a": 60, "b": 40})


def test_events_of_streams_reach_the_part() -> None:
    both = make_allocator("caching", None, name="gpu0", virtual_devices={"a": 4 << 20, "b": 4 << 20})
    block = both.alloc(1 << 20, stream=0, owner="b/x")
    both.record_use(block, 1)
    assert both.free(block) == (1,)
    assert (both.in_use, both.waiting) == (0, 1 << 20)
    both.event_done(block)
    assert both.waiting == 0


requests = st.lists(st.tuples(st.sampled_from(["a/x", "b/x", "c"]), st.integers(0, 400)), max_size=40)


@given(requests, st.sampled_from(["pool", "counted", "bfc"]), st.randoms(use_true_random=False))
def test_parts_are_as_allocators_by_themselves(asked: list[tuple[str, int]], kind: str, draw: Any) -> None:
    """What a part grants is what an allocator of its size grants to its own requests; sums agree."""
    sizes = {"a": 2048, "b": 1024}
    options: dict[str, Any] = {"allow_growth": True} if kind == "bfc" else {}
    both = make_allocator(kind, 4096, virtual_devices=sizes, **options)
    alone = {name: make_allocator(kind, nbytes, **options) for name, nbytes in sizes.items()}
    live: list[tuple[str, Block, Block]] = []
    for owner, nbytes in asked:
        part = "b" if owner == "b/x" else "a"
        mine, theirs = both.try_alloc(nbytes, 0, owner), alone[part].try_alloc(nbytes, 0, owner)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            live.append((part, mine, theirs))
        if live and draw.random() < 0.4:
            part, mine, theirs = live.pop(draw.randrange(len(live)))
            both.free(mine)
            alone[part].free(theirs)
        for counter in ("in_use", "requested", "reserved", "device_mallocs", "synchronisations"):
            assert getattr(both, counter) == sum(getattr(one, counter) for one in alone.values())
    assert sorted(span.nbytes for span in both.spans() if span.state == "live") == sorted(
        span.nbytes for one in alone.values() for span in one.spans() if span.state == "live"
    )


def test_a_device_reads_sizes_by_name() -> None:
    device = make_device("gpu0", {"kind": "gpu", "virtual_devices": {"a": "1GB"}})
    assert device.details.virtual_devices == {"a": 10**9}
    with pytest.raises(InputError, match=r"gpu0\.virtual_devices: .* is no mapping of names to sizes"):
        make_device("gpu0", {"kind": "gpu", "virtual_devices": ["a"]})
