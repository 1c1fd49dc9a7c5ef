"""Files of recorded allocations: JSON lines and snapshots of PyTorch, plain, packed and damaged."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_memory_replay import MIB, alloc, event, free

from devices.memory import (
    CachingAllocator,
    MemoryEvent,
    read_events,
    replay,
)
from devices.memory.trace_readers import EVERY_STREAM, load_plain_pickle
from sim.base.errors import InputError


def lines(*rows: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def test_json_lines_plain_and_compressed(tmp_path: Path) -> None:
    text = b"""
{"op": "alloc", "id": "x", "nbytes": 4096, "stream": 2}
{"op": "alloc", "id": 7, "nbytes": 0}

{"op": "free", "id": "x", "nbytes": 4096, "stream": 2}\r
{"op": "free", "id": 7}
"""
    expected = [alloc("x", 4096, 2), alloc(7, 0), MemoryEvent("free", "x", 4096, 2), free(7)]
    marked = "\N{ZERO WIDTH NO-BREAK SPACE}".encode() + text[1:]
    for name, data in (("t.jsonl", text), ("t.jsonl.gz", gzip.compress(text)), ("without-a-suffix", marked)):
        (tmp_path / name).write_bytes(data)
        assert read_events(tmp_path / name) == expected
    (tmp_path / "empty").write_bytes(b"")
    assert read_events(tmp_path / "empty") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"op": "alloc", "id": "x", "nbytes": 1', "not JSON"),
        ('{"op": "alloc", "id": 1, "id": 2, "nbytes": 1}', "not JSON: the key 'id' stands twice"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ("[1, 2]", "no object; expected one such as"),
        (
            '{"op": "aloc", "id": "x", "nbytes": 1}',
            "unknown op 'aloc'; did you mean 'alloc'\\? Known: alloc, ",
        ),
        ('{"id": "x", "nbytes": 1}', "unknown op ''"),
        ('{"op": ["alloc"], "id": "x", "nbytes": 1}', "unknown op "),
        ('{"op": "alloc", "nbytes": 1}', "no 'id'"),
        ('{"op": "alloc", "id": "x"}', "no 'nbytes'"),
        ('{"op": "free"}', "no 'id'"),
        ('{"op": "record_stream", "id": "ok"}', "no 'stream'"),
        ('{"op": "record_stream", "id": "y", "stream": 1}', "'y' is used on another stream, and was never"),
        ('{"op": "empty_cache", "id": "ok"}', "unknown key 'id'"),
        ('{"op": "synchronise", "stream": -1}', "-1 is no stream; leave it out to wait for all"),
        ('{"op": "oom"}', "no 'nbytes'"),
        ('{"op": "segment_free"}', "no 'nbytes'"),
        ('{"op": "alloc", "id": 1.5, "nbytes": 1}', "id: 1.5 is neither a text nor a whole number"),
        ('{"op": "alloc", "id": true, "nbytes": 1}', "id: True is neither"),
        ('{"op": "alloc", "id": null, "nbytes": 1}', "id: None is neither"),
        ('{"op": "alloc", "id": "x", "nbytes": -1}', "nbytes: -1 is negative"),
        ('{"op": "alloc", "id": "x", "nbytes": 1.5}', "nbytes: 1.5 is no whole number"),
        ('{"op": "alloc", "id": "x", "nbytes": "4KiB"}', "nbytes: '4KiB' is no whole number"),
        ('{"op": "alloc", "id": "x", "nbytes": true}', "nbytes: True is no whole number"),
        ('{"op": "alloc", "id": "x", "nbytes": NaN}', "nbytes: nan is no whole number"),
        ('{"op": "alloc", "id": "x", "nbytes": 99999999999999999999}', "does not fit 64 bits"),
        ('{"op": "alloc", "id": "x", "nbytes": 1, "stream": "s"}', "stream: 's' is no whole number"),
        ('{"op": "alloc", "id": "x", "nbytes": 1, "steam": 1}', "unknown key 'steam'; did you mean 'stream'"),
        (
            '{"op": "alloc", "id": "ok", "nbytes": 1}',
            r"'ok' is allocated, and lives already, since .*t.jsonl:1$",
        ),
        ('{"op": "free", "id": "y"}', "'y' is freed, and was never allocated"),
        (
            '{"op": "alloc", "id": "y", "nbytes": 1152921504606846970}',
            r"'y' makes [\d,]+,978 bytes alive",
        ),
        ('{"op": "free", "id": "gone"}', r"'gone' is freed, and was freed already, .*t.jsonl:3$"),
        (
            '{"op": "free", "id": "ok", "nbytes": 4}',
            r"freed with 4 bytes, and was allocated with 8, .*t.jsonl:1$",
        ),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    good = lines(
        {"op": "alloc", "id": "ok", "nbytes": 8},
        {"op": "alloc", "id": "gone", "nbytes": 8},
        {"op": "free", "id": "gone"},
    )
    file = tmp_path / "t.jsonl"
    file.write_bytes(good + b"\n\n" + line.encode())
    with pytest.raises(InputError, match=f"^.*t.jsonl:5: .*{message}"):
        read_events(file)


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl: no such file"):
        read_events(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="is a directory"):
        read_events(tmp_path)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 1000)[:-12])
    with pytest.raises(InputError, match=r"cut.gz: a truncated or damaged gzip file"):
        read_events(tmp_path / "cut.gz")
    (tmp_path / "image").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match="neither JSON lines nor a pickled memory snapshot"):
        read_events(tmp_path / "image")


def test_every_op_is_read(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"op": "alloc", "id": "x", "nbytes": 8},
        {"op": "record_stream", "id": "x", "stream": 2},
        {"op": "synchronise"},
        {"op": "synchronise", "stream": 2},
        {"op": "empty_cache"},
        {"op": "oom", "nbytes": 8, "stream": 1},
        {"op": "segment_map", "nbytes": 8},
    ]
    (tmp_path / "t").write_bytes(lines(*rows))
    assert read_events(tmp_path / "t") == [
        alloc("x", 8),
        event("record_stream", id="x", stream=2),
        event("synchronise", stream=EVERY_STREAM),
        event("synchronise", stream=2),
        event("empty_cache"),
        event("oom", nbytes=8, stream=1),
        event("segment_map", nbytes=8),
    ]


# Reading: PyTorch's memory snapshots


def snapshot() -> dict[str, Any]:
    """Return a snapshot as PyTorch makes them: two devices, events on the second.

    Before the recording, 0x1000 (freed during it) and 0x3000 (alive at the end) were allocated.
    """
    model = [
        {"filename": "??", "line": 0, "name": "torch::autograd"},
        {"filename": "/home/me/train/model.py", "line": 42, "name": "forward"},
    ]

    def entry(action: str, addr: int, size: int, stream: int = 0, frames: Any = ()) -> dict[str, Any]:
        return {
            "action": action,
            "addr": addr,
            "size": size,
            "stream": stream,
            "frames": list(frames),
            "time_us": 1,
        }

    trace = [
        entry("segment_alloc", 0x200000, 2 * MIB),
        entry("alloc", 0x200000, 700, 0, model),
        entry("free_requested", 0x1000, 500),
        entry("free_completed", 0x1000, 500),
        entry("alloc", 0x1000, 300, 5),
        entry("free_requested", 0x200000, 700),  # another stream still uses it ...
        entry("alloc", 0x200400, 900),
        entry("free_completed", 0x200000, 700),  # ... until here
        entry("alloc", 0x200000, 100),
        {"action": "oom", "size": 1 << 40, "device_free": 0, "stream": 0, "frames": []},
        entry("snapshot", 0, 0),
    ]
    blocks = [
        {"address": 0x1000, "size": 512, "requested_size": 300, "state": "active_allocated", "frames": []},
        {"address": 0x1200, "size": 0x1E00, "requested_size": 0, "state": "inactive", "frames": []},
        {"address": 0x3000, "size": 4096, "requested_size": 4000, "state": "active_allocated", "frames": []},
    ]
    segment = {"address": 0x1000, "device": 1, "stream": 5, "total_size": 2 * MIB, "blocks": blocks}
    return {
        "segments": [segment],
        "device_traces": [[], trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False, "ratio": 0.5},
        "pool": (0, 0),
        "nothing": None,
    }


def write(path: Path, loaded: Any, *, compressed: bool = False) -> Path:
    data = pickle.dumps(loaded)
    path.write_bytes(gzip.compress(data) if compressed else data)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_snapshot_with_a_trace(tmp_path: Path, compressed: bool) -> None:
    events = read_events(write(tmp_path / "s.pickle", snapshot(), compressed=compressed))
    assert events == [
        alloc("before 0x1000", 500),
        alloc("before 0x3000", 4000, 5),
        MemoryEvent("segment_alloc", nbytes=2 * MIB),
        alloc("1 forward (model.py:42)", 700),
        free("before 0x1000"),
        alloc("4", 300, 5),
        alloc("6", 900),
        free("1 forward (model.py:42)"),
        alloc("8", 100),
    ]
    result = replay(events, CachingAllocator())
    assert dict(result.never_freed()) == {"before 0x3000": 4000, "4": 300, "6": 900, "8": 100}


def test_snapshot_without_a_trace_is_what_lives(tmp_path: Path) -> None:
    bare = snapshot()
    bare["device_traces"] = []
    held = MemoryEvent("segment_alloc", nbytes=512 + 0x1E00 + 4096)
    expected = [held, alloc("before 0x1000", 300, 5), alloc("before 0x3000", 4000, 5)]
    assert read_events(write(tmp_path / "s.pickle", bare)) == expected


def test_snapshot_of_an_allocator_that_gave_segments_back(tmp_path: Path) -> None:
    """A segment of 30 MiB from before the recording, freed and given back, then one of 40: never both."""

    def entry(action: str, addr: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": []}

    trace = [
        entry("free_completed", 0x1000, 30 * MIB),
        entry("segment_free", 0x1000, 30 * MIB),
        entry("segment_alloc", 0x5000, 40 * MIB),
        entry("alloc", 0x5000, 40 * MIB),
    ]
    block = {"address": 0x5000, "size": 40 * MIB, "requested_size": 40 * MIB, "state": "active_allocated"}
    segment = {"address": 0x5000, "device": 0, "stream": 0, "total_size": 40 * MIB, "blocks": [block]}
    loaded = {"segments": [segment], "device_traces": [trace]}
    events = read_events(write(tmp_path / "s.pickle", loaded))
    done = replay(events, CachingAllocator())
    assert done.recorded is not None
    assert done.recorded.tolist() == [30 * MIB] * 3 + [0, 40 * MIB, 40 * MIB]
    assert (done.peak_reserved, done.not_followed) == (40 * MIB, 0)
    loaded["device_traces"] = [[entry("segment_resize", 0, 8)]]
    with pytest.raises(InputError, match=r"\[0\]\[0\]: action: 'segment_resize'; accepted: alloc, "):
        read_events(write(tmp_path / "s.pickle", loaded))


def test_device_is_to_be_named_when_several_have_events(tmp_path: Path) -> None:
    both = snapshot()
    both["device_traces"][0] = [{"action": "alloc", "addr": 0, "size": 8, "stream": 0}]
    file = write(tmp_path / "s.pickle", both)
    with pytest.raises(InputError, match="2 devices have events; say which one of 0, 1"):
        read_events(file)
    assert read_events(file, device=0) == [alloc("0", 8)]
    assert len(read_events(file, device=1)) == 9
    with pytest.raises(InputError, match="nothing was recorded on device 4; devices with events: 0, 1"):
        read_events(file, device=4)
    empty = write(tmp_path / "e.pickle", {"segments": [], "device_traces": [[], []]})
    with pytest.raises(InputError, match=r"the snapshot is empty; call .*_record_memory_history"):
        read_events(empty)


class Evil:
    """What a malicious pickle does: name a function, and have it called."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_pickles_that_name_anything_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        victim = tmp_path / f"made{protocol}"
        file = tmp_path / "evil.pickle"
        file.write_bytes(pickle.dumps({"segments": [Evil(str(victim))]}, protocol=protocol))
        with pytest.raises(
            InputError, match=r"evil.pickle: names \w+.mkdir; a memory snapshot holds plain containers"
        ):
            read_events(file)
        assert not victim.exists()


@pytest.mark.parametrize("value", [1j, Path("x"), MemoryEvent("free", 1)])
def test_anything_but_plain_containers_is_refused(tmp_path: Path, value: Any) -> None:
    loaded = snapshot()
    loaded["extra"] = [{"deep": (value,)}]
    with pytest.raises(InputError, match="plain containers"):
        read_events(write(tmp_path / "s.pickle", loaded))


@given(cut=st.integers(1, 400), flip=st.integers(0, 255), at=st.integers(1, 400))
def test_broken_pickles_are_input_errors(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int, at: int
) -> None:
    data = bytearray(pickle.dumps(snapshot())[:-cut])
    data[at % len(data)] ^= flip
    file = tmp_path_factory.getbasetemp() / "broken.pickle"
    file.write_bytes(b"\x80" + bytes(data)[1:])
    with pytest.raises(InputError, match=r"broken\.pickle"):
        read_events(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("segments"), "no 'segments'; is this a PyTorch memory snapshot?"),
        (lambda s: s.update(segments={}), "segments: dict, expected list"),
        (lambda s: s.update(segments={1, 2}), "segments: set, expected list"),
        (lambda s: s.update(device_traces=[[], b"bytes"]), r"device_traces\[1\]: bytes, expected a list"),
        (lambda s: s["device_traces"][1][1].update(action=b"alloc"), "action: bytes, expected str"),
        (lambda s: s.update(device_traces=5), "device_traces: int, expected a list for each device"),
        (lambda s: s.update(device_traces=[[], {"a": 1}]), r"device_traces\[1\]: dict, expected a list"),
        (
            lambda s: s["device_traces"][1].insert(0, 3),
            r"device_traces\[1\]\[0\]: int, expected a dict with 'action'",
        ),
        (lambda s: s["device_traces"][1][1].pop("addr"), r"device_traces\[1\]\[1\]: no 'addr'"),
        (lambda s: s["device_traces"][1][1].update(size="8"), r"\[1\]\[1\]: size: str, expected int"),
        (
            lambda s: s["device_traces"][1].append(s["device_traces"][1][8]),
            r"allocates address 0x200000, where '8' lives",
        ),
        (lambda s: s["segments"][0]["blocks"][0].pop("state"), "segment at 0x1000: no 'state'"),
        (lambda s: s["segments"][0].update(device="1"), "device: str, expected int"),
    ],
)
def test_snapshots_that_make_no_sense(tmp_path: Path, change: Any, message: str) -> None:
    loaded = snapshot()
    change(loaded)
    with pytest.raises(InputError, match=message):
        read_events(write(tmp_path / "s.pickle", loaded))


def test_a_pickle_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a dict with 'segments'"):
        read_events(write(tmp_path / "s.pickle", [1, 2]))
    twice = snapshot()
    twice["device_traces"][1] = [{"action": "free_completed", "addr": 16, "size": 8, "stream": 0}] * 2
    with pytest.raises(InputError, match=r"\[1\]: frees address 0x10, where nothing lives"):
        read_events(write(tmp_path / "s.pickle", twice))


@pytest.mark.parametrize(
    "data",
    [b"]r\0\0\0\x08.", b"\x80\x02]r\xff\xff\xff\x07.", b"]p134217728\n.", b"\x8c\x02abr\0\0\0\x08."],
)
def test_a_pickle_of_nine_bytes_takes_no_gigabytes(data: bytes) -> None:
    with pytest.raises(InputError, match=r"x: puts something at place 134,217,72[78] of its memo"):
        load_plain_pickle(data, "x")


@pytest.mark.parametrize("protocol", range(6))
def test_a_plain_pickle_of_each_protocol_is_read(protocol: int) -> None:
    plain = [(), (1, 2.5, None, True), {"a" * 300: -(1 << 500), 1 << 40: -70_000}, [[k] for k in range(300)]]
    assert load_plain_pickle(pickle.dumps(plain, protocol), "x") == plain
