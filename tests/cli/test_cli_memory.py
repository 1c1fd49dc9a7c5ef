"""``sim memory``: allocation traces replayed from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim

from devices.memory import read_events

TRACE = """\
{"op": "alloc", "id": "a", "nbytes": 1000000}
{"op": "alloc", "id": "b", "nbytes": 3000000}
{"op": "free", "id": "a"}
{"op": "alloc", "id": "c", "nbytes": 1500000}
"""
"""a and b: 4.0 MB; then b and c, 4.5 MB: the peak, after event 4."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE, encoding="utf-8")
    return path


def test_one_row_an_allocator(trace: Path) -> None:
    result = sim("memory", trace)
    assert result.exit_code == 0
    rows = [line.split()[0] for line in result.stdout.splitlines()[1:6]]
    assert rows == ["bfc", "caching", "counted", "planned", "pool"]
    assert "peak after event 4: b 2.861 MiB, c 1.431 MiB" in result.stdout
    assert "2 allocations never freed" in result.stdout


def test_numbers_worked_by_hand(trace: Path) -> None:
    """Caching rounds to 512 B: a takes 1,000,448 of a small segment (2 MiB), b and c of a large one (20 MiB).

    b takes 3,000,320 and c 1,500,160; the pool puts c behind b, as it does not fit where a was.
    """
    result = sim("memory", trace, "--allocator", "caching", "--allocator", "pool", "--json")
    answer = json.loads(result.stdout)
    assert answer["schema"] == "sim.memory/1"
    caching, pool = answer["results"]
    assert (caching["peak_in_use_bytes"], caching["peak_reserved_bytes"]) == (4_500_480, 22 << 20)
    assert caching["fragmentation_bytes"] == (22 << 20) - 4_500_480
    assert (caching["device_mallocs"], caching["device_frees"]) == (2, 0)
    assert (pool["peak_in_use_bytes"], pool["peak_reserved_bytes"]) == (4_500_000, 5_500_000)
    assert pool["holders"] == [{"id": "b", "nbytes": 3_000_000}, {"id": "c", "nbytes": 1_500_000}]


def test_addresses_go_to_a_file(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "ops.csv"
    assert sim("memory", trace, "--allocator", "pool", "--ops", out).exit_code == 0
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "op,id,nbytes,stream,address,in_use,requested,reserved,largest_free"
    assert [line.split(",")[4] for line in lines[1:]] == ["0", "1000000", "0", "4000000"]


def test_running_out_is_an_answer(trace: Path) -> None:
    """Growing regions of 2 MiB: a is in the first, and what the device has left is too little for b."""
    result = sim("memory", trace, "--allocator", "bfc", "--set", "allow_growth=true", "--capacity", "4MB")
    assert (result.exit_code, result.stdout) == (1, "")
    first, *rest = result.stderr.splitlines()
    assert first == (
        "out of memory on the device (bfc allocator): 'b' asks for 2.861 MiB on stream 0, at event 2 of 4"
    )
    assert rest[0] == "  limit            3.815 MiB"
    assert rest[-1].startswith("  what would help  at least 256 B more memory")


def test_an_allocator_that_runs_out_leaves_the_others_compared(trace: Path) -> None:
    """4.5 MB live at once: enough for who fragments nothing, and PyTorch wants 2 MiB for a by itself."""
    both = sim("memory", trace, "--allocator", "caching", "--allocator", "counted", "--capacity", "5MB")
    assert both.exit_code == 1
    rows = [line.split()[0] for line in both.stdout.splitlines() if line]
    assert "counted" in rows
    assert "caching" not in rows
    assert both.stderr.startswith("out of memory on the device (caching allocator): ")


def test_what_a_replay_has_when_memory_ends_is_written(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "ops.csv"
    result = sim("memory", trace, "--allocator", "pool", "--capacity", "4MB", "--ops", out)
    assert result.exit_code == 1
    assert f"wrote {out}, up to event 3" in result.stderr
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1 + 3


def test_what_the_recorded_allocator_held_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"op": "segment_alloc", "nbytes": 31457280}\n'
        '{"op": "alloc", "id": "a", "nbytes": 31457280}\n'
        '{"op": "free", "id": "a"}\n'
        '{"op": "segment_free", "nbytes": 31457280}\n'
        '{"op": "segment_free", "nbytes": 2097152}\n',
        encoding="utf-8",
    )
    result = sim("memory", path, "--allocator", "caching", "--allocator", "pool")
    assert "the recorded allocator reserved 30 MiB at most" in result.stdout
    assert "caching: 1 time the recorded allocator gave memory back" in result.stdout
    assert "pool: " not in result.stdout
    (report,) = json.loads(sim("memory", path, "--allocator", "caching", "--json").stdout)["results"]
    assert (report["recorded_reserved_bytes"], report["not_followed"], report["retries"]) == (30 << 20, 1, 0)


def test_options_of_the_real_allocators(trace: Path) -> None:
    """a takes a page of 2 MiB, b and c one of 20; in halves of powers of two they are 1, 3 and 1.5 MiB."""
    sets = ("--set", "expandable_segments=true", "--set", "roundup_power2_divisions={1MiB: 2, '>': 2}")
    result = sim("memory", trace, "--allocator", "caching", *sets, "--json")
    (report,) = json.loads(result.stdout)["results"]
    assert report["peak_reserved_bytes"] == 22 << 20
    assert report["peak_in_use_bytes"] == (3 << 20) + (3 << 19)
    sets = ("--set", "expandable_segments=true", "--set", "fragmentation_fraction=0.5")
    result = sim("memory", trace, "--allocator", "bfc", *sets, "--capacity", "1GiB", "--json")
    assert json.loads(result.stdout)["results"][0]["peak_reserved_bytes"] == 1 << 30


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--allocator", "bfcc"], "unknown allocator 'bfcc'; did you mean 'bfc'?"),
        (["--allocator", "bfc", "--set", "growth=true"], "the bfc allocator has no option 'growth'"),
        (["--allocator", "bfc", "--set", "malloc=1us"], "a replay has no clock"),
        (["--set", "x"], "--set x: should be KEY=VALUE"),
        (["--capacity", "80"], "--capacity: '80' has no unit"),
        (["--ops", "x.csv"], "--ops x.csv: holds the addresses of one allocator; name one --allocator"),
        (["--ops", "x.txt"], "--ops x.txt: should end in .csv"),
        (["--allocator", "scratchpad"], "the device"),
        (["--device", "0"], "JSON lines, which are of one device"),
    ],
)
def test_mistakes(trace: Path, arguments: list[str], says: str) -> None:
    result = sim("memory", trace, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_broken_trace_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"op": "free", "id": "a"}\n', encoding="utf-8")
    result = sim("memory", path)
    assert (result.exit_code, result.stderr) == (2, f"{path}:1: 'a' is freed, and was never allocated\n")


STREAMS = """\
name: two streams
machine: {devices: {gpu0: {kind: gpu, streams: 2, memory: 200MB}}}
workload:
  ops:
    a: {duration: 10us, output: 3MB, attributes: {stream: 0}}
    b: {duration: 90us, inputs: [a], output: 5MB}
    c: {duration: 10us, inputs: [a], output: 7MB}
    d: {duration: 10us, inputs: [c], output: 3MB}
    e: {duration: 10us, inputs: [d, b], output: 3MB}
policy: {runtime: cuda-streams}
iterations: 2
memory: {allocator: caching}
"""


def test_a_run_replays_as_it_ran(tmp_path: Path) -> None:
    """What the allocator of a run reserved, and its peak, come out of its trace again, streams and all."""
    scenario, out = tmp_path / "s.yaml", tmp_path / "t.jsonl.gz"
    scenario.write_text(STREAMS, encoding="utf-8")
    for kind in ("caching", "bfc", "pool", "planned", "counted"):
        told = sim("run", scenario, "--set", f"memory.allocator={kind}", "--memory-trace", out, "--json")
        ran = json.loads(told.stdout)["memory"]["gpu0"]
        events = read_events(out)
        assert ("record_stream" in {event.op for event in events}) == (kind == "caching")
        assert ("reached" in {event.op for event in events}) == (kind == "caching")
        replayed = sim("memory", out, "--allocator", kind, "--capacity", "200MB", "--json")
        (report,) = json.loads(replayed.stdout)["results"]
        for key in ("peak_in_use_bytes", "peak_requested_bytes", "peak_reserved_bytes"):
            assert report[key] == ran[key], (kind, key)


def test_writing_the_trace_changes_nothing_else(tmp_path: Path) -> None:
    scenario, out = tmp_path / "s.yaml", tmp_path / "t.jsonl"
    scenario.write_text(STREAMS, encoding="utf-8")
    plain, traced = (
        json.loads(sim("run", scenario, *more, "--json").stdout) for more in ((), ("--memory-trace", out))
    )
    plain.pop("engine"), traced.pop("engine")
    assert plain == traced


def test_a_file_for_each_device_with_memory(tmp_path: Path) -> None:
    scenario, out = tmp_path / "s.yaml", tmp_path / "t.jsonl"
    scenario.write_text(
        "machine: {devices: {gpu0: {kind: gpu}, gpu1: {kind: gpu}, gpu2: {kind: gpu}}}\n"
        "workload: {ops: {a: {duration: 1us, output: 3MB, device: gpu0}, "
        "b: {duration: 1us, inputs: [a], output: 1MB, device: gpu1}}}\n",
        encoding="utf-8",
    )
    result = sim("run", scenario, "--memory-trace", out)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in tmp_path.glob("t*")) == ["t.gpu0.jsonl", "t.gpu1.jsonl"]
    first, *_ = (tmp_path / "t.gpu1.jsonl").read_text(encoding="utf-8").splitlines()
    assert first == '{"op": "alloc", "id": "b", "nbytes": 1000000, "stream": 1}'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--memory-trace", "t.json"], "--memory-trace t.json: should end in .jsonl, .jsonl.gz"),
        (["--memory-trace", "t.jsonl", "--repeat", "2"], "holds the allocations of one run"),
        (
            ["--memory-trace", "t.jsonl", "--policy", "in-order", "--policy", "sequential"],
            "holds the allocations of one run; name one --policy",
        ),
    ],
)
def test_memory_traces_that_cannot_be(tmp_path: Path, arguments: list[str], says: str) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(STREAMS, encoding="utf-8")
    result = sim("run", scenario, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
