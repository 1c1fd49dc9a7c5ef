"""Wrong profiler traces: one line that says what is wrong, exit status 2, and no code is run."""

from __future__ import annotations

import gzip
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim
from cuda_programs import ran
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from scenarios.importers import files as streamed_json
from scenarios.importers.kineto.kineto import load
from scenarios.recorded.setup import run_recorded
from sim.base import files as reading
from sim.base.errors import InputError

RUN = ran(
    [
        *[("launch", 7), ("record", 0, 7), ("wait", 20, 0), ("work", 9), ("launch", 20), ("item", 7)],
        *[("work", 5), ("sync event", 0), ("launch", 7), ("sync stream", 20), ("launch", 20)],
        ("sync device",),
    ],
    [30, 40, 2, 5, 9],
)
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": RUN.events}).encode()
FIRST = "void cutlass::Kernel<a_long_name" + ", float" * 50


class Code:
    """Its pickle makes a file when somebody loads it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def changed(**changes: Any) -> bytes:
    """Return the trace with another first event."""
    events = [{**event} for event in RUN.events]
    args = {**events[0]["args"], **changes.pop("args", {})}
    events[0] = {**events[0], "name": FIRST, "args": args, **changes}
    return json.dumps({"traceEvents": events}).encode()


def without(key: str) -> bytes:
    """Return the trace without a field of the first event."""
    first = {name: value for name, value in RUN.events[0].items() if name != key}
    return json.dumps({"traceEvents": [first, *RUN.events[1:]]}).encode()


WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON: Expecting value: line 1 column 1"),
    "truncated": (TRACE[:-30], "not JSON: "),
    "truncated gzip": (gzip.compress(TRACE)[:-20], "a truncated or damaged gzip file"),
    "not UTF-8": (TRACE[:300] + b"\xff" + TRACE[300:], r"not JSON: .*utf-8.* position 300"),
    "something else": (b'{"nodes": [1, 2]}', "not a trace .it has no list traceEvents"),
    "a number": (b"12", "not a trace .it has no list traceEvents"),
    "no event": (b'{"traceEvents": [{}, [1]]}', r"traceEvents\[1\]: a list is no event"),
    "deep": (b'{"traceEvents": ' + b"[" * 100_000, "not JSON: maximum recursion depth exceeded"),
    "deep elsewhere": (b'{"a": ' + b"[" * 100_000, "not JSON: maximum recursion depth exceeded"),
    "rank of nothing": (b'{"distributedInfo": {"rank": 8, "world_size": 8}, "traceEvents": []}', "8 of 8"),
    "no ph": (without("ph"), "a kernel with ph None; the profiler writes 'X'"),
    "no ts": (without("ts"), "no 'ts'"),
    "text as time": (changed(ts="12"), "ts: '12' is no time in microseconds"),
    "negative time": (changed(dur=-1), "dur: -1 is no time in microseconds"),
    "not a number": (changed(ts=float("nan")), "ts: nan is no time in microseconds"),
    "endless": (changed(dur=float("inf")), "dur: inf is no time in microseconds"),
    "huge times": (changed(ts=1e300, dur=1e300), "ends after 4611686018427387 us"),
    "huge time": (changed(ts=1e300), r"traceEvents\[0\] \(void cutlass.*\): ends after 4611686018427387 us"),
    "huge number": (changed(args={"stream": 10**30}), "stream: 10*.* is no whole number of 64 bits"),
    "half a stream": (changed(args={"stream": 7.5}), "stream: 7.5 is no whole number"),
    "negative stream": (changed(args={"stream": -7}), "stream: -7 is no whole number of at least 0"),
    "negative size": (changed(args={"bytes": -1}), "bytes: -1 elements of 1 bytes are no size"),
    "no arguments": (changed().replace(b'"args": {', b'"args": [], "x": {', 1), r"args is no object"),
    "one correlation": (
        changed().replace(b'"correlation": 5', b'"correlation": 1'),
        "cudaLaunchKernel and cudaMemcpyAsync both have correlation 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_told_in_a_line(what: str, tmp_path: Path) -> None:
    content, message = WRONG[what]
    path, out = tmp_path / "trace.json", tmp_path / "out.json"
    path.write_bytes(content)
    done = sim("import", path, "--format", "kineto", "--out", out)
    assert (done.exit_code, done.stdout, out.exists()) == (2, "", False)
    assert len(done.stderr.splitlines()) == 1
    assert len(done.stderr) < 300 + len(str(path))
    with pytest.raises(InputError, match=message):
        load(path)


def test_a_wrong_event_is_found_among_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_json, "_PIECE_BYTES", 2**12)
    events = [*RUN.events, *[{"ph": "M", "name": "filler"}] * 500]
    events[400:400] = [{**RUN.events[0], "ts": "12"}, {**RUN.events[0], "dur": -1}]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    with pytest.raises(InputError, match=r"traceEvents\[400\] .*: ts: '12' is no time"):
        load(tmp_path / "trace.json")


def test_no_code_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for name, options in (("trace.pkl", ()), ("trace.json", ("--format", "kineto"))):
        (tmp_path / name).write_bytes(pickle.dumps(Code(made)))
        assert sim("import", tmp_path / name, *options, "--out", tmp_path / "out.json").exit_code == 2
    assert not made.exists()


def test_a_small_file_that_unpacks_to_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_SMALL", 2**20)
    monkeypatch.setattr(reading, "_CHUNK", 2**18)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 2**21))
    with pytest.raises(InputError, match="unpacks to more than 100 times its size"):
        load(path)


def test_an_interrupted_import_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(content: bytes) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(streamed_json.json, "loads", interrupted)
    (tmp_path / "trace.json").write_bytes(TRACE)
    done = sim("import", tmp_path / "trace.json", "--out", tmp_path / "out.json.gz")
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda events: b"\xef\xbb\xbf" + json.dumps({"traceEvents": events}).encode(),
        lambda events: json.dumps(events).encode(),
        lambda events: json.dumps({"traceEvents": events[::-1]}, indent=1).encode("utf-16"),
        lambda events: gzip.compress(json.dumps({"traceEvents": [*events, {}]}).encode()),
        lambda events: json.dumps(
            {"deviceProperties": [{"id": 0, "name": ""}], "traceEvents": events}
        ).encode(),
    ],
    ids=["byte order mark", "a list", "other order", "an empty event", "a GPU without a name"],
)
def test_what_is_right_though_unusual(change: Callable[[Any], bytes], tmp_path: Path) -> None:
    plain, other = tmp_path / "plain" / "trace.json", tmp_path / "trace.json"
    plain.parent.mkdir()
    plain.write_bytes(TRACE)
    other.write_bytes(change(RUN.events))
    assert repr(load(other).attributes) == repr(load(plain).attributes)
    assert load(other).op_names == load(plain).op_names
    assert load(other).device_facts == load(plain).device_facts


@pytest.mark.parametrize(("ahead_us", "told"), [(5, False), (500, True)])
def test_tasks_that_begin_before_their_launch_are_told(ahead_us: int, told: bool, tmp_path: Path) -> None:
    """The clocks of host and GPU may be 10 us apart."""
    events = [{**e, "ts": e["ts"] + 1000 - ahead_us * (e.get("cat") == "kernel")} for e in RUN.events]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(tmp_path / "trace.json")
    says = "GPU tasks begin before the call that launches them, by up to "
    assert any(says in str(each.message) for each in caught) == told


VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 0.5, 2**31, 2**64, 1e300, float("nan"), float("inf")),
    *("", "x", "12", "1e5", "\ud800", [], [1], {}, {"a": 1}),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a trace with a few things wrong in it."""
    events: list[Any] = json.loads(json.dumps(RUN.events))
    for _ in range(draw(st.integers(1, 4))):
        k = draw(st.integers(0, len(events) - 1))
        other = draw(st.sampled_from(events))
        if not isinstance(events[k], dict) or not isinstance(other, dict):
            continue
        of = draw(st.sampled_from([events[k], events[k].get("args")]))
        what = draw(st.sampled_from(["set", "drop", "again", "replace", "swap", "copy"]))
        if what in ("set", "drop") and isinstance(of, dict) and of:
            key = draw(st.sampled_from(sorted(of)))
            if what == "drop":
                del of[key]
            else:
                of[key] = draw(st.sampled_from(VALUES))
        elif what == "again":
            events.insert(draw(st.integers(0, len(events))), json.loads(json.dumps(events[k])))
        elif what == "replace":
            events[k] = draw(st.sampled_from(VALUES))
        elif what == "swap":
            key = draw(st.sampled_from(["ts", "dur", "pid", "tid", "name", "cat", "args"]))
            events[k][key], other[key] = other.get(key), events[k].get(key)
        elif isinstance(other.get("args"), dict) and isinstance(events[k].get("args"), dict):
            key = draw(st.sampled_from(["correlation", "stream", "device"]))
            events[k]["args"][key] = other["args"].get(key)
    text = json.dumps({"traceEvents": events})
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at] + draw(st.sampled_from(["", "{", '"', "]", ",", "\\", "\0", "1e999"])) + text[at + 1 :]
        )
    return text.encode()


@examples(200)
@given(damaged())
def test_a_damaged_trace_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = load(path)
        except InputError as error:
            told = str(error)
            assert told.startswith(str(path))
            assert "\n" not in told
            assert len(told) < 600
        else:
            run_recorded(graph).check()
