"""Memory in scenarios: what is too much ends the run, allocators and their costs are chosen by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import write

from scenarios.load import load_scenario
from scenarios.run import run_scenario
from sim.errors import OutOfMemoryError, ScenarioError

CHAIN = """\
machine: {devices: {gpu0: {kind: gpu, memory: 150B}}}
workload:
  ops:
    a: {duration: 10us, output: 100B}
    b: {duration: 10us, output: 40B, inputs: [a]}
    c: {duration: 10us, output: 100B, inputs: [b]}
policy: {name: in-order}
"""
"""At most 140 bytes are in use: a and b while b runs, b and c while c runs."""


def test_what_fits_runs(tmp_path: Path) -> None:
    result = run_scenario(load_scenario(write(tmp_path, CHAIN)), check=True)
    assert result.summary["devices"]["gpu0"]["peak_memory_bytes"] == 140
    assert result.summary["devices"]["gpu0"]["peak_reserved_bytes"] is None


def test_what_does_not_fit_ends_with_who_asked_and_exit_status_1(tmp_path: Path) -> None:
    path = write(tmp_path, CHAIN)
    result = sim("run", path, "--set", "machine.devices.gpu0.memory=139B")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("out of memory on gpu0 (pool allocator): 'b' asks for 40 B on stream 0\n")
    assert "largest holders  'a' 100 B" in result.stderr


def test_an_op_larger_than_any_memory(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path, CHAIN), "--set", "workload.ops.a.output=1kB")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "out of memory on gpu0 (pool allocator): 'a' asks for 1000 B on stream 0\n"
    )


def test_an_allocator_rounds_and_reserves(tmp_path: Path) -> None:
    sets = ["policy.allocator={name: bfc, allow_growth: true}", "machine.devices.gpu0.memory=16MiB"]
    summary = run_scenario(load_scenario(write(tmp_path, CHAIN), sets=sets), check=True).summary
    assert summary["devices"]["gpu0"]["peak_memory_bytes"] == 256 + 256
    assert summary["devices"]["gpu0"]["peak_reserved_bytes"] == 2 * 2**20


def test_an_allocator_may_cost_time(tmp_path: Path) -> None:
    """Three mallocs of 3 us each stand before the ops; frees cost 1 us each and synchronise."""
    sets = [
        "policy.allocator={name: counted, lifetime: issue, malloc: 3us, free: 0, free_synchronises: false}"
    ]
    trace = run_scenario(load_scenario(write(tmp_path, CHAIN), sets=sets), check=True).trace
    assert trace.makespan_ns == 39_000


def test_an_issuer_may_wait_for_memory(tmp_path: Path) -> None:
    """b and c could run side by side, and there is memory for one of them: c waits until b has ended."""
    text = CHAIN.replace("output: 100B, inputs: [b]", "output: 100B").replace("gpu,", "gpu, streams: 3,")
    text = text.replace("policy: {name: in-order}", "policy: {name: ready-queue, streams: per-branch}")
    with pytest.raises(OutOfMemoryError):
        run_scenario(load_scenario(write(tmp_path, text)))
    waiting = load_scenario(write(tmp_path, text), sets=["policy.allocator={name: pool, when_full: wait}"])
    assert run_scenario(waiting, check=True).trace.makespan_ns == 30_000


def test_a_device_may_have_its_own_allocator(tmp_path: Path) -> None:
    text = CHAIN.replace("memory: 150B", "memory: 16MiB, allocator: {name: bfc, allow_growth: true}")
    for sets in ([], ["policy.allocator=counted"]):
        summary = run_scenario(load_scenario(write(tmp_path, text), sets=sets), check=True).summary
        assert summary["devices"]["gpu0"]["peak_reserved_bytes"] == 2 * 2**20


@pytest.mark.parametrize(
    ("allocator", "says"),
    [
        ("bcf", "unknown allocator 'bcf'; did you mean 'bfc'?"),
        ("{name: bfc, limt: 3B}", "limt: unknown option of the bfc allocator 'limt'; did you mean 'limit'?"),
        ("{name: bfc, limit: 3}", "limit: 3 has no unit; accepted: B, kB, MB"),
        ("{name: pool, malloc: 3B}", "malloc: '3B' is an amount of data, not a duration; accepted: ns, us"),
        ("{name: pool, lifetime: long}", "allocator: lifetime must be one of execution, issue; found 'long'"),
    ],
)
def test_allocators_that_do_not_exist(tmp_path: Path, allocator: str, says: str) -> None:
    text = CHAIN.replace("policy: {name: in-order}", f"policy: {{name: in-order, allocator: {allocator}}}")
    with pytest.raises(ScenarioError) as caught:
        run_scenario(load_scenario(write(tmp_path, text)))
    assert str(caught.value).startswith(f"{tmp_path}/s.yaml:7:")
    assert says in str(caught.value)
