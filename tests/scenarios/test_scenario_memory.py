"""Memory in scenarios: who manages it, when it is simulated, and how running out of it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim
from runs import run_text
from scenario_texts import THREE_BLOCKS, write

from scenarios.run.execute import Result, run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import OutOfMemoryError, ScenarioError, StuckError


def run(folder: Path, *sets: str) -> Result:
    """Run the scenario with settings; the invariants of its trace hold."""
    return run_text(THREE_BLOCKS, folder, *sets)


def test_what_fits_is_not_simulated(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.trace.memory is None
    gpu = result.summary["devices"]["gpu0"]
    assert (gpu["peak_memory_bytes"], gpu["peak_reserved_bytes"]) == (90_000_000, None)


def test_what_does_not_fit_ends_with_the_story(tmp_path: Path) -> None:
    """89 MB: block2 finds 19 of its 20 MB at 20 us."""
    with pytest.raises(OutOfMemoryError) as error:
        run(tmp_path, "machine.devices.gpu0.memory=89MB")
    assert str(error.value).splitlines() == [
        "out of memory on gpu0 (counted allocator): 'block2' asks for 19.07 MiB on stream 0, at 20 us",
        "  limit            84.88 MiB",
        "  not reserved     18.12 MiB",
        "  in use           66.76 MiB in 2 blocks",
        "  reserved         66.76 MiB, of which free 0 B",
        "  largest free     0 B in one block",
        "  largest holders  'embedding' 47.68 MiB; 'block1' 19.07 MiB",
        "  what would help  at least 976.6 KiB more memory, or as much less in use: a smaller batch, "
        "recomputation",
    ]


@pytest.mark.parametrize(
    ("size", "where"), [("40MB", "stream 1, at 10 us"), ("60MB", "stream 0, before time 0")]
)
def test_streams_are_those_of_the_device_itself(tmp_path: Path, size: str, where: str) -> None:
    """gpu1's second stream is the fourth of the machine."""
    text = f"""
machine: {{devices: {{gpu: {{kind: gpu, count: 2, streams: 2, memory: 50MB}}}}}}
workload:
  ops:
    a: {{duration: 10us, device: gpu1, output: 20MB}}
    b: {{duration: 10us, device: gpu1, inputs: [a], output: {size}}}
policy: {{name: in-order, streams: round-robin}}
memory: {{allocator: counted}}
"""
    result = sim("run", write(tmp_path, text))
    assert "out of memory on gpu1 (counted allocator): 'b' asks for" in result.stderr, result.output
    assert f" on {where}\n" in result.stderr


def test_a_preset_has_an_end(tmp_path: Path) -> None:
    """An H200 has 143,156 MiB; parameters of 160 GB do not fit, whatever runs."""
    text = THREE_BLOCKS.replace("{kind: gpu, memory: 100MB}", "{preset: h200-sxm}").replace(
        "workload:\n", "workload:\n  parameters: {w: 160GB}\n"
    )
    text = text.replace("embedding: {kind: gather,", "embedding: {kind: gather, inputs: [w],")
    result = sim("run", write(tmp_path, text))
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "out of memory on gpu0 (counted allocator): 'w' asks for 149 GiB on stream 0, before time 0\n"
        "  limit            139.8 GiB\n"
    )
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("settings", "peak", "reserved"),
    [
        # Segments of 24 and twice 10 times 2 MiB; what is left of each is below 1 MiB and not split off.
        (
            ["memory.devices={gpu0: caching}", "machine.devices.gpu0.memory=1GB"],
            92_274_688,
            92_274_688,
        ),
        (["memory.allocator=pool"], 90_000_000, 90_000_000),
        (["memory.allocator={name: counted, asynchronous: true}"], 90_000_000, 90_000_000),
        (["memory.allocator=planned"], 90_000_000, 90_000_000),
        # All memory is one region, of 256 B a piece: 50 MB are 195,312.5 of them.
        (["memory.allocator=bfc", "machine.devices.gpu0.memory=1GB"], 90_000_128, 1_000_000_000 // 256 * 256),
    ],
)
def test_allocators_by_name(tmp_path: Path, settings: list[str], peak: int, reserved: int) -> None:
    result = run(tmp_path, *settings)
    use = result.summary["memory"]["gpu0"]
    assert use["peak_in_use_bytes"] == result.summary["devices"]["gpu0"]["peak_memory_bytes"] == peak
    assert use["peak_reserved_bytes"] == result.summary["devices"]["gpu0"]["peak_reserved_bytes"] == reserved
    assert use["fragmentation_bytes"] == reserved - peak
    assert use["peak_ns"] == 20_000
    assert [holder["tensor"] for holder in use["holders"]] == ["embedding", "block1", "block2"]


def test_a_device_may_have_another_allocator(tmp_path: Path) -> None:
    both = [
        "memory={allocator: pool, devices: {gpu0: caching}}",
        "machine.devices.cpu0={kind: cpu}",
        "machine.devices.gpu0.memory=1GB",
    ]
    assert run(tmp_path, *both).summary["memory"]["gpu0"]["peak_in_use_bytes"] == 92_274_688


def test_waiting_for_memory_and_waiting_for_ever(tmp_path: Path) -> None:
    """Two independent ops of 60 MB on two streams go one after the other; one alone that waits is stuck."""
    text = """\
machine: {devices: {gpu0: {kind: gpu, memory: 100MB, streams: 2}}}
workload:
  ops: {a: {duration: 10us, output: 60MB}, b: {duration: 10us, output: 60MB}}
policy: {name: in-order, synchronisation: issue, streams: round-robin}
memory: {lifetime: execution, when_full: wait}
"""
    result = run_text(text, tmp_path)
    assert result.trace.makespan_ns == 20_000
    stuck = "memory={when_full: wait}", "machine.devices.gpu0.memory=80MB"
    with pytest.raises(StuckError, match="1 task remains") as error:
        run(tmp_path, *stuck)
    assert str(error.value).splitlines()[1:] == [
        "  block2 waits for memory: 19.07 MiB on gpu0, of whose 76.29 MiB 66.76 MiB are in use by "
        "'embedding' 47.68 MiB; 'block1' 19.07 MiB"
    ]


def test_who_waits_for_one_block_is_told_how_large_the_largest_is(tmp_path: Path) -> None:
    """Of 5 KiB four are free, two on each side of b."""
    text = """\
machine: {devices: {gpu0: {kind: gpu, memory: 5KiB}}}
workload:
  ops:
    a: {duration: 1us, output: 2KiB}
    b: {duration: 1us, output: 1KiB, inputs: [a]}
    c: {duration: 1us, output: 2KiB, inputs: [a, b]}
    d: {duration: 1us, output: 3KiB, inputs: [b], after: [c]}
policy: in-order
memory: {allocator: pool, lifetime: execution, when_full: wait}
"""
    with pytest.raises(StuckError) as error:
        run_text(text, tmp_path)
    assert str(error.value).endswith(
        "d waits for memory: 3 KiB on gpu0, of whose 5 KiB 1 KiB are in use by 'b' 1 KiB; "
        "the largest free block is 2 KiB"
    )


def test_lifetimes_follow_the_policy_unless_given(tmp_path: Path) -> None:
    """Issued at once, all is taken and given back at time 0; block2's inputs live until it is issued."""
    base = ("policy={name: in-order, synchronisation: issue}",)
    issued = run(tmp_path, *base, "memory={}").summary["memory"]["gpu0"]
    assert (issued["peak_in_use_bytes"], issued["peak_ns"]) == (90_000_000, 0)
    executed = run(tmp_path, *base, "memory={lifetime: execution}").summary["memory"]["gpu0"]
    assert (executed["peak_in_use_bytes"], executed["peak_ns"]) == (90_000_000, 20_000)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("memory.allocator=bcf", "memory.allocator: unknown allocator 'bcf'; did you mean 'bfc'"),
        ("memory.devices={gpu0: {name: bfc, malloc: 3}}", "memory.devices.gpu0.malloc: 3 has no unit"),
        (
            "memory.allocator={name: bfc, limits: {}}",
            "memory.allocator.limits: the bfc allocator has no option",
        ),
        (
            "memory.allocator={name: pool, limits: {block1: 3}}",
            "memory.allocator.limits.block1: 3 has no unit",
        ),
        (
            "memory.allocator={name: planned, planner: greedyy}",
            "memory.allocator.planner: should be .* not 'greedyy'; did you mean 'greedy'",
        ),
        ("memory.devices={gpu1: bfc}", "memory.devices.gpu1: unknown device 'gpu1'; did you mean 'gpu0'"),
        ("memory={when_full: stop}", "should be 'error' or 'wait', not 'stop'"),
        ("memory={lifetme: issue}", "did you mean 'lifetime'"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, setting: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        run(tmp_path, setting)


def test_a_loop_ends_where_memory_ends(tmp_path: Path) -> None:
    """Each add (2 kB) reads the one before: 4 kB from the second iteration on, of the 3 that there are."""
    path = tmp_path / "loop.yaml"
    path.write_text(
        """\
machine: {devices: {cpu0: {kind: cpu, cores: 1, memory: 3kB}}}
workload:
  ops:
    zero: {duration: 0us}
    loop: {kind: while, inputs: [zero], attributes: {body: step, trips: 3}}
  functions:
    step: {inputs: [i], ops: {add: {inputs: [i], duration: 10us, output: 2kB}}, outputs: [add]}
policy: ready-queue
"""
    )
    result = sim("run", path)
    assert result.exit_code == 1
    assert "'loop/body/add' asks for 1.953 KiB on stream 0, at 10 us" in result.stderr
    assert sim("run", path, "--set", "machine.devices.cpu0.memory=4kB").exit_code == 0


def test_the_command_line_shows_it(tmp_path: Path) -> None:
    path, picture = write(tmp_path, THREE_BLOCKS), tmp_path / "memory.png"
    result = sim("run", path, "--set", "memory.allocator=pool", "--memory", picture)
    assert result.exit_code == 0
    assert "embedding 47.68 MiB, block1 19.07 MiB" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    nothing = write(
        tmp_path, THREE_BLOCKS.replace("MB}", "B}").replace("output: 50B", "output: 0B").replace("20B", "0B")
    )
    result = sim("run", nothing, "--memory", picture)
    assert (result.exit_code, "nothing is ever held" in result.stderr) == (2, True)


def test_json_has_it(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path, THREE_BLOCKS), "--set", "memory.allocator=pool", "--json")
    assert json.loads(result.stdout)["memory"]["gpu0"]["allocations"] == 3


def test_a_plan_that_is_too_large_is_out_of_memory_like_any_other(tmp_path: Path) -> None:
    """Parameters take 300 MB of 800; a, b and c, 200 MB each, live at once while c runs: 600 MB."""
    path = tmp_path / "planned.yaml"
    path.write_text(
        """\
machine: {devices: {gpu0: {kind: gpu, memory: 800MB}}}
workload:
  parameters: {w: {size: 300MB, device: gpu0}}
  ops:
    a: {duration: 1us, inputs: [w], output: 200MB}
    b: {duration: 1us, inputs: [a], output: 200MB}
    c: {duration: 1us, inputs: [a, b], output: 200MB}
policy: in-order
memory: {allocator: planned}
"""
    )
    result = sim("run", path)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "out of memory on gpu0 (planned allocator): the plan (greedy) takes 572.2 MiB of 476.8 MiB left, "
        "before time 0",
        "  limit            762.9 MiB",
        "  other users      286.1 MiB that are not planned, such as parameters",
        "  least plan       572.2 MiB: no plan for this order is known to take less",
        "  largest holders  'a' 190.7 MiB; 'b' 190.7 MiB; 'c' 190.7 MiB, at step 2 of the plan, its fullest",
        "  what would help  at least 95.37 MiB more memory, or as much less in use: a smaller batch, "
        "recomputation",
    ]
    assert sim("run", path, "--set", "machine.devices.gpu0.memory=900MB").exit_code == 0


def test_a_plan_that_wastes_memory_says_that_another_planner_may_fit(tmp_path: Path) -> None:
    """TVM gives a's 300 MB to c, which needs 150; live at once are 450 MB at most."""
    path = tmp_path / "planned.yaml"
    path.write_text(
        """\
machine: {devices: {gpu0: {kind: gpu, memory: 500MB}}}
workload:
  ops:
    a: {duration: 1us, output: 300MB}
    b: {duration: 1us, inputs: [a], output: 150MB}
    c: {duration: 1us, inputs: [b], output: 150MB}
    d: {duration: 1us, inputs: [b, c], output: 150MB}
policy: in-order
memory: {allocator: {name: planned, planner: relay}}
"""
    )
    result = sim("run", path)
    assert result.exit_code == 1
    assert "  what would help  another planner, or the order of another linearizer" in result.stderr
    assert sim("run", path, "--set", "memory.allocator.planner=greedy").exit_code == 0


@pytest.mark.parametrize("allocator", ["bfc", "caching", "pool", "planned"])
@pytest.mark.parametrize(("duration", "ends"), [("1us", "1us"), ("0us", "0ns")])
def test_what_is_resident_may_be_rounded_up(tmp_path: Path, allocator: str, duration: str, ends: str) -> None:
    # 1 MB are 3,906.25 times 256 B: BFC and the caching allocator hold more than was asked for, to the end.
    path = write(
        tmp_path,
        f"""
        machine: {{devices: {{gpu0: {{kind: gpu, memory: 1GB}}}}}}
        memory: {{allocator: {allocator}}}
        workload:
          parameters: {{w: 1MB}}
          ops: {{a: {{duration: {duration}, inputs: [w], output: 1MB}}}}
        policy: in-order
        expect: {{makespan: {ends}}}
        """,
    )
    done = sim("check", path)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("lifetime", "starts_us"), [("issue", 6), ("execution", 7)])
def test_the_memory_of_a_copy_is_paid_for_by_who_comes_next(
    tmp_path: Path, lifetime: str, starts_us: int
) -> None:
    # load ends at 3 us. The copy takes 1 us and its memory a malloc of 3 us. With issue the host pays when it
    # issues use, from 3 to 6 us; with execution the stream, before it starts use: from 4 to 7 us.
    path = write(
        tmp_path,
        """
        machine:
          devices:
            cpu0: {kind: cpu}
            gpu0: {kind: gpu}
          links: [{from: cpu0, to: gpu0, bandwidth: 1GB/s}]
        memory: {devices: {gpu0: {name: counted, malloc: 3us}}}
        workload:
          ops:
            load: {device: cpu0, duration: 3us, output: 1kB}
            use: {device: gpu0, inputs: [load], duration: 1us}
        policy: {name: in-order, synchronisation: issue}
        """,
    )
    trace = run_scenario(load_scenario(path, sets=[f"memory.lifetime={lifetime}"])).trace
    assert trace.tasks["start_ns"].tolist() == [0, starts_us * 1000]


def test_a_copy_does_not_wait_for_the_one_that_waits_for_it(tmp_path: Path) -> None:
    # big is issued at 0 and freed at once, as nobody reads it: the next call waits until gpu0 is idle. load
    # ends at 3 us and its copy arrives in no time; use is issued when big has ended, and runs from 5 to 6 us.
    path = write(
        tmp_path,
        """
        machine:
          devices:
            gpu0: {kind: gpu}
            cpu0: {kind: cpu}
          links: [{from: gpu0, to: cpu0}]
        memory: {devices: {gpu0: counted}}
        workload:
          ops:
            load: {device: cpu0, duration: 3us, output: 1MB}
            use: {device: gpu0, inputs: [load], duration: 1us}
            big: {device: gpu0, duration: 5us, output: 2MB}
        policy: {name: out-of-order, synchronisation: issue}
        """,
    )
    assert run_scenario(load_scenario(path)).trace.makespan_ns == 6000


def test_a_plan_is_for_program_order_and_a_second_worker_waits_for_its_place(tmp_path: Path) -> None:
    # The second worker loads what the plan puts where the first one still reads, until 40 us.
    path = write(
        tmp_path,
        """
        machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
        memory: {allocator: planned}
        workload:
          ops:
            load: {duration: 10us, output: 1MB}
            use: {duration: 30us, inputs: [load]}
            load2: {duration: 20us, output: 1MB}
            use2: {duration: 30us, inputs: [load2]}
        policy: in-order
        """,
    )
    assert run_scenario(load_scenario(path)).trace.makespan_ns == 90_000
    for other in ("ready-queue", "out-of-order", "critical-path"):
        message = rf"s\.yaml:3:\d+: memory\.allocator: .* and {other} takes ops in another; choose in-order"
        with pytest.raises(ScenarioError, match=message):
            run_scenario(load_scenario(path, sets=[f"policy={other}"]))


def test_a_plan_with_places_for_copies_gives_them_when_ops_start(tmp_path: Path) -> None:
    """b's place is a's, and a is on its way until 20 us; the host of gpu0 would ask for it at 0 ns."""
    path = write(
        tmp_path,
        """
        machine:
          devices: {gpu0: {kind: gpu}, gpu1: {kind: gpu}}
          links: [{from: gpu0, to: gpu1, bandwidth: 100GB/s}]
        memory: {allocator: planned}
        workload:
          ops:
            a: {duration: 10us, output: 1MB, device: gpu0}
            x: {duration: 10us, output: 1MB, device: gpu1, inputs: [a]}
            b: {duration: 10us, output: 1MB, device: gpu0, inputs: [x]}
            c: {duration: 10us, output: 1MB, device: gpu0, inputs: [b]}
        policy: {name: in-order, synchronisation: issue}
        """,
    )
    trace = run_scenario(load_scenario(path)).trace
    assert trace.makespan_ns == 60_000
    assert trace.memory is not None
    path.write_text(path.read_text().replace("planned}", "planned, lifetime: issue}"))
    with pytest.raises(ScenarioError, match=r":5:\d+: memory.lifetime: .* with lifetime: execution"):
        run_scenario(load_scenario(path))


def test_a_policy_whose_order_is_not_known_before_the_run_may_wait_for_places_for_ever(
    tmp_path: Path,
) -> None:
    # Both workers took ops of the second iteration; c, which would free the places, has no worker.
    path = write(
        tmp_path,
        """
        machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
        memory: {allocator: planned}
        workload:
          ops:
            a: {duration: 10us, output: 1MB}
            b: {duration: 10us, output: 1MB}
            c: {duration: 5us, inputs: [a, b]}
        policy: {name: ready-queue, ties: name}
        iterations: 2
        """,
    )
    with pytest.raises(StuckError, match="a\\[1\\] waits for memory: its place in the plan of cpu0"):
        run_scenario(load_scenario(path))
    path.write_text(path.read_text().replace("ready-queue, ties: name", "in-order"))
    assert run_scenario(load_scenario(path)).trace.makespan_ns == 30_000


def test_who_waits_for_memory_holds_up_nobody_on_another_device(tmp_path: Path) -> None:
    """b waits for a to leave, a's copy for y, given back when z is issued at 10 us: x runs 20..30."""
    path = write(
        tmp_path,
        """
        machine:
          devices: {gpu0: {kind: gpu, memory: 8MB}, gpu1: {kind: gpu, memory: 8MB}}
          links: [{from: gpu0, to: gpu1}]
        memory: {lifetime: issue, when_full: wait}
        workload:
          ops:
            a: {duration: 10us, output: 8MB, device: gpu0}
            b: {duration: 10us, output: 8MB, device: gpu0}
            y: {duration: 10us, output: 8MB, device: gpu1}
            z: {duration: 10us, device: gpu1, inputs: [y]}
            x: {duration: 10us, device: gpu1, inputs: [a]}
        policy: ready-queue
        """,
    )
    assert run_scenario(load_scenario(path)).trace.makespan_ns == 30_000


@pytest.mark.parametrize("load", ["", "inputs: [{from: load, distance: 1}], "])
def test_an_iteration_takes_its_places_of_a_plan_when_those_of_the_one_before_are_free(
    tmp_path: Path, load: str
) -> None:
    """The next load waits until its place is free, at 40 us; what is read later has two places."""
    path = write(
        tmp_path,
        f"""
        machine: {{devices: {{cpu0: {{kind: cpu, cores: 2}}}}}}
        memory: {{allocator: planned}}
        workload:
          ops:
            load: {{{load}duration: 10us, output: 1MB}}
            use: {{duration: 30us, inputs: [load]}}
        policy: in-order
        iterations: 2
        """,
    )
    trace = run_scenario(load_scenario(path)).trace
    assert trace.memory is not None
    assert (trace.makespan_ns, trace.memory["reserved"].max()) == (
        (50_000, 2_000_000) if load else (80_000, 1_000_000)
    )


@pytest.mark.parametrize(
    ("runtime", "reserved"),
    [
        ("pytorch-eager", (48 + 20 + 20) << 20),  # a segment each, in whole 2 MiB
        ("tensorflow", 200_000_000),  # all there is
        ("tvm-graph-executor", None),
        ("tvm-vm", None),
        ("onnxruntime", None),
    ],
)
def test_a_runtime_brings_its_allocator_when_asked(
    tmp_path: Path, runtime: str, reserved: int | None
) -> None:
    sets = ("machine.devices.gpu0.memory=200MB", f"policy={{runtime: {runtime}}}")
    own = run(tmp_path, *sets, "memory.allocator=runtime")
    assert run(tmp_path, *sets).trace.memory is None
    told = own.summary["memory"]["gpu0"]
    if reserved is None:  # a plan: the same as with the plan by name
        planner = {"tvm-graph-executor": "relay", "tvm-vm": "relax", "onnxruntime": "greedy"}[runtime]
        named = run(tmp_path, *sets, f"memory.allocator={{name: planned, planner: {planner}}}")
        assert told == named.summary["memory"]["gpu0"]
    else:
        assert told["peak_reserved_bytes"] == reserved


def test_the_allocator_of_a_runtime_takes_options_and_knows_kinds_of_devices(tmp_path: Path) -> None:
    limited = "memory.allocator={name: runtime, limit: 60MB}"
    with pytest.raises(OutOfMemoryError, match=r"out of memory on gpu0 \(caching allocator\)"):
        run(tmp_path, "policy={runtime: pytorch-eager}", limited)
    on_a_cpu = run(
        tmp_path,
        "machine={devices: {cpu0: {kind: cpu}}}",
        "policy={runtime: tensorflow}",
        "memory.allocator=runtime",
    )
    assert on_a_cpu.summary["memory"]["cpu0"]["peak_reserved_bytes"] == 90_000_000  # counted
    with pytest.raises(ScenarioError, match=r"memory.allocator: 'runtime' is the allocator .* pytorch-eager"):
        run(tmp_path, "policy={runtime: cuda-streams}", "memory.allocator=runtime")
    with pytest.raises(ScenarioError, match=r"memory.devices.gpu0: 'runtime' is the allocator"):
        run(tmp_path, "memory.devices.gpu0=runtime")


def test_a_limit_that_nothing_reaches_is_refused(tmp_path: Path) -> None:
    """The pool's limits do not hold on a device with another allocator."""
    machine = "machine={devices: {gpu0: {kind: gpu, memory: 100MB}, gpu1: {kind: gpu, memory: 100MB}}}"
    pinned = [f"workload.ops.{op}.device=gpu0" for op in ("embedding", "block1", "block2")]
    limits = "allocator: {name: pool, limits: {embedding: 60MB}}"
    with pytest.raises(
        ScenarioError, match=r"memory.allocator.limits.embedding: has no effect: .* no device"
    ):
        run(tmp_path, machine, *pinned, f"memory={{{limits}, devices: {{gpu0: bfc}}}}")
    run(tmp_path, machine, *pinned, f"memory={{{limits}, devices: {{gpu1: bfc}}}}")
