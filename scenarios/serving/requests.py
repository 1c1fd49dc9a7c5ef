"""The requests of a serving run: drawn at random, or from a trace.

::

    {rate: 8/s, prompt: 1024, output: 256, count: 500}      Poisson; burstiness: 0.5 comes in bursts
    {in_flight: 64, prompt: [512, 1024], output: 256, count: 500}      one arrives whenever another ends
    {trace: mooncake.jsonl}         the first line decides the format

    Mooncake, AIPerf, Dynamo   {timestamp: ms, input_length, output_length, hash_ids: [of 512 tokens each]}
                               a later line of a session_id arrives `delay` ms after the previous one ended
    Azure 2023, 2024           TIMESTAMP,ContextTokens,GeneratedTokens
    BurstGPT                   Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    LLMServingSim              {input_toks, output_toks, arrival_time_ns (or arrival_time: s), input_tok_ids}
    vLLM's benchmark           {start_times: s, input_lens, output_lens, ...}: ``--save-detailed``
    ours                       {id, arrival: 1.5ms, prompt: 300 or [[system, 100], [r0, 200]], output, ...}

Times count from the first request. Sources: kvcache-ai/Mooncake, Azure/AzurePublicDataset, HPMLL/BurstGPT,
ai-dynamo/dynamo and aiperf, casys-kaist/LLMServingSim.
"""

from __future__ import annotations

import csv
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from devices.describe.field_types import fault, reader
from devices.describe.quantities import Count, File, Size, Strict, Whole
from policies.serving.batcher import Request
from scenarios.file.document import Document
from sim.base.arrays import LATEST_NS, MOST_BUILT, MOST_TASKS, at_most
from sim.base.errors import InputError, in_file
from sim.base.files import read_bytes
from sim.base.units import NS_PER_MS, NS_PER_S, parse_duration, parse_rate, round_half_up

_MOST: Final = 1e15
"""Bound of all times in traces, in s or ms."""
_VLLM_LISTS: Final = {"start_time": "start_times", "prompt": "input_lens", "output": "output_lens"}
"""Key of a row -> the list in vLLM's result."""
_OURS: Final = {"arrival", "prompt", "output"}
"""Keys that identify our own format."""

Row = Mapping[str, Any]


def _range(value: Any) -> tuple[int, int]:
    """Return the least and the largest number of tokens."""
    given = value if isinstance(value, list) else [value, value]
    if len(given) != 2 or any(isinstance(each, bool) or not isinstance(each, int) for each in given):
        raise InputError(f"should be a number of tokens, or [least, most], not {value!r}")
    if not 1 <= given[0] <= given[1] <= MOST_TASKS:
        raise InputError(f"should be from 1 to {MOST_TASKS:,}, the least first, not {value!r}")
    return given[0], given[1]


Tokens = Annotated[
    Any,
    PlainValidator(reader(_range)),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer"}}]}
    ),
]
Rate = Annotated[
    Any,
    PlainValidator(reader(lambda value: parse_rate(value, what=""))),
    WithJsonSchema({"type": "string", "pattern": r"^\s*[0-9.eE+-]+\s*/\s*(s|min|h)\s*$"}),
]


class RequestsFields(Strict):
    """Requests: from a trace, at a rate, or with a constant number in flight."""

    trace: Annotated[File | None, Field(description="a file of requests with their times")] = None
    rate: Annotated[Rate | None, Field(description="that many come, at random, as in 8/s")] = None
    in_flight: Annotated[Size | None, Field(description="so many are under way at any time")] = None
    prompt: Annotated[Tokens | None, Field(description="tokens of a prompt, or [least, most]")] = None
    output: Annotated[Tokens | None, Field(description="tokens of an answer, or [least, most]")] = None
    prefix: Annotated[Whole, Field(description="tokens that all prompts have in common at their begin")] = 0
    burstiness: Annotated[
        float, Field(gt=0, description="of times at a rate: 1 Poisson, below in bursts, .inf evenly")
    ] = 1.0
    count: Annotated[Count | None, Field(description="how many; of a trace the first ones")] = None

    @model_validator(mode="after")
    def _one(self) -> RequestsFields:
        ways = [name for name in ("trace", "rate", "in_flight") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise fault(f"needs one of trace, rate and in_flight, and has {' and '.join(ways) or 'none'}")
        given = self.model_fields_set
        if self.trace is not None:
            for key in ("prompt", "output", "prefix"):
                if key in given:
                    raise fault("has no effect: the trace says it", (key,))
        elif self.prompt is None or self.output is None or self.count is None:
            raise fault(f"{ways[0]} goes with prompt, output and count")
        elif self.prefix > self.prompt[0]:
            raise fault(f"{self.prefix} tokens are more than the least prompt has", ("prefix",))
        if "burstiness" in given and self.rate is None:
            raise fault("has no effect without rate", ("burstiness",))
        return self

    def requests(self, document: Document, seed: int) -> tuple[list[Request], int | None]:
        """Return the requests by arrival, and the number in flight if that decides the arrival times.

        Raises
        ------
        InputError
            The trace cannot be read, or there are too many requests or too late ones.
        """
        if self.trace is not None:
            return read_requests(document.file(self.trace), self.count), None
        assert self.count is not None
        assert self.prompt is not None
        assert self.output is not None
        at_most(MOST_BUILT, self.count, "requests")
        drawn = np.random.default_rng(seed)
        prompts, outputs = (
            drawn.integers(least, most + 1, self.count).tolist() for least, most in (self.prompt, self.output)
        )
        times = [0] * self.count
        if self.rate is not None:
            gaps = np.full(self.count, 1 / self.rate)
            if math.isfinite(self.burstiness):
                gaps = drawn.gamma(self.burstiness, 1 / (self.rate * self.burstiness), self.count)
            ns = NS_PER_S * (np.cumsum(gaps) - gaps[0])
            if not ns[-1] < LATEST_NS:
                raise InputError(
                    f"the last of {self.count:,} requests comes 146 years after the first, or later"
                )
            times = np.rint(ns).astype(np.int64).tolist()
        found = []
        for i, (at, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True)):
            own = (f"r{i}", prompt - self.prefix)
            shared = (("prefix", self.prefix), *([own] if own[1] else [])) if self.prefix else ()
            found.append(Request(f"r{i}", at, prompt, output, segments=shared))
        return found, self.in_flight


# ----------------------------------------------------------------------------------------------------------


def read_requests(path: Path, count: int | None = None) -> list[Request]:
    """Return the requests of a trace by arrival; simultaneous ones keep the order of the file.

    Parameters
    ----------
    path : path
        May be gzipped.
    count : int, optional
        Number of requests to read from the start of the file; by default all.

    Raises
    ------
    InputError
        The format is unknown, or a value is missing or wrong; the message has file and line.
    """
    with in_file(path):
        rows = list(islice(read_rows(path), count))
        if not rows:
            raise InputError("has no requests")
        keys = set(rows[0][1])
        readers = [(each.needs, each.request) for each in _FORMATS] + [(_OURS, _ours)]
        read = next((read for needs, read in readers if needs <= keys), None)
        if read is None:
            known = "; ".join(", ".join(sorted(needs)) for needs, _ in readers)
            raise InputError(
                f"line {rows[0][0]}: no known trace has {', '.join(sorted(keys))}; known: {known}"
            )
        made: dict[str, Request] = {}
        turns: dict[Any, Request] = {}
        for number, (line, row) in enumerate(rows):
            try:
                request = read(row, f"r{number}", turns)
            except (KeyError, TypeError, ValueError, InputError) as error:
                what = f"has no {error}" if isinstance(error, KeyError) else str(error)
                raise InputError(f"line {line}: {what}") from None
            if request.output and not request.prompt:
                raise InputError(f"line {line}: an answer to a prompt without tokens")
            if request.output and made.setdefault(request.id, request) is not request:
                raise InputError(f"line {line}: there is a request {request.id!r} before")
        if not made:
            raise InputError("has no request that was answered")
        if dropped := len(rows) - len(made):
            what = f"request{'s'[: dropped != 1]} without an answer"
            warnings.warn(f"{path}: leaves out {dropped:,} {what}", stacklevel=2)
        first = min(each.arrival_ns for each in made.values() if each.after is None)
        for each in made.values():
            each.arrival_ns -= first if each.after is None else 0
        return sorted(made.values(), key=lambda each: each.arrival_ns)


def read_rows(path: Path, *, whole: bool = False) -> Iterator[tuple[int, Row]]:
    """Yield the line number and content of each row of a JSONL or CSV file.

    vLLM's result is one line: it yields a row for each of its requests, unless it is wanted `whole`.
    """
    text = read_bytes(path).decode("utf-8-sig", "replace")
    if not text.lstrip().startswith("{"):
        table = csv.DictReader(StringIO(text))
        yield from ((table.line_num, row) for row in table)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"line {number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise InputError(f"line {number}: should be an object, not {line[:40]!r}")
            if not whole and row.keys() >= set(_VLLM_LISTS.values()):
                lists = {name: row[name] for name in _VLLM_LISTS.values()}
                sizes = {k: len(v) if isinstance(v, list) else repr(v)[:40] for k, v in lists.items()}
                if len({*sizes.values()}) > 1 or not isinstance(sizes["start_times"], int):
                    told = ", ".join(f"{name} {size}" for name, size in sizes.items())
                    raise InputError(f"line {number}: should be lists of one length: {told}")
                each = zip(*lists.values(), strict=True)
                yield from ((number, dict(zip(_VLLM_LISTS, one, strict=True))) for one in each)
            else:
                yield number, row


def _whole(row: Row, key: str, least: int = 0) -> int:
    value = row[key]
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InputError(f"{key} should be a whole number of at least {least}, not {value!r}")
    return number


def _number(row: Row, key: str, default: float | None = None) -> float:
    value = row[key] if default is None else row.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) < _MOST:
        raise InputError(f"{key} should be a number, not {value!r}")
    return number


def _segments(what: str, ids: Sequence[Any], size: int, prompt: int, name: str) -> list[tuple[str, int]]:
    """Return the segments of a prompt: blocks of `size` tokens, and the rest, which is unique."""
    segments = [
        (f"{what} {id}", min(size, prompt - at)) for id, at in zip(ids, range(0, prompt, size), strict=False)
    ]
    rest = prompt - size * len(segments)
    return [*segments, (name, rest)] if segments and rest > 0 else segments


class _Format(NamedTuple):
    """A format of traces by others.

    Attributes
    ----------
    at : str
        Key of the arrival time.
    unit_ns : int
        Unit of that time; 0: it is a date.
    prompt, output, id : str
        Keys of the token counts and of the name.
    made_of : (str, str, int)
        Name of the blocks of a prompt, key of their ids, and tokens per block.
    """

    at: str
    unit_ns: int
    prompt: str
    output: str
    made_of: tuple[str, str, int] = ("", "", 1)
    id: str = ""

    @property
    def needs(self) -> set[str]:
        """Keys that identify the format."""
        return {self.at, self.prompt, self.output}

    def at_ns(self, row: Row) -> int:
        """Return the arrival time of a row."""
        if self.unit_ns == 1:
            return _whole(row, self.at)
        if self.unit_ns:
            return round_half_up(_number(row, self.at) * self.unit_ns)
        head, _, digits = row[self.at].strip().removesuffix("+00:00").partition(".")
        seconds = datetime.fromisoformat(f"{head}+00:00").timestamp()
        return round(seconds) * NS_PER_S + int(digits.rstrip("Z")[:9].ljust(9, "0"))

    def request(self, row: Row, name: str, turns: dict[Any, Request]) -> Request:
        """Return the request of a row, which may follow the previous turn of its session."""
        prompt, output, (what, key, size) = _whole(row, self.prompt), _whole(row, self.output), self.made_of
        before = turns.get(row.get("session_id"))
        follows = before is not None and ("delay" in row or self.at not in row)
        made = Request(str(row.get(self.id, name)), 0 if follows else self.at_ns(row), prompt, output)
        made.segments = _segments(what, row.get(key) or (), size, prompt, name)
        if follows:
            made.after, made.delay_ns = before, round_half_up(_number(row, "delay", 0) * NS_PER_MS)
        if row.get("session_id") is not None and output:
            turns[row["session_id"]] = made
        return made


_IDS: Final = ("token", "input_tok_ids", 1)
_FORMATS: Final = (
    _Format("timestamp", NS_PER_MS, "input_length", "output_length", ("hash", "hash_ids", 512)),
    _Format("TIMESTAMP", 0, "ContextTokens", "GeneratedTokens"),
    _Format("Timestamp", NS_PER_S, "Request tokens", "Response tokens"),
    _Format("arrival_time_ns", 1, "input_toks", "output_toks", _IDS, "request_id"),
    _Format("arrival_time", NS_PER_S, "input_toks", "output_toks", _IDS, "request_id"),
    _Format("start_time", NS_PER_S, "prompt", "output"),
)
"""Formats other than our own."""


def _ours(row: Row, name: str, turns: dict[Any, Request]) -> Request:
    known = {*_OURS, "id", "priority", "remote", "accepted"}
    if unknown := sorted(set(row) - known):
        raise InputError(f"{unknown[0]!r} is no key of a request; known: {', '.join(sorted(known))}")
    given, remote, accepted = row["prompt"], row.get("remote", False), row.get("accepted", [])
    if not isinstance(remote, bool):
        raise InputError(f"remote should be true or false, not {remote!r}")
    if not isinstance(accepted, list):
        raise InputError(f"accepted should be a list of numbers, not {accepted!r}")
    segments: list[tuple[str, int]] = []
    for each in given if isinstance(given, list) else ():
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)):
            raise InputError(f"prompt should be tokens, or a list of [name, tokens], not {given!r}")
        segments.append((each[0], _whole({"prompt": each[1]}, "prompt", 1)))
    return Request(
        str(row.get("id", name)),
        parse_duration(row["arrival"], what="arrival"),
        sum(tokens for _, tokens in segments) if segments else _whole(row, "prompt"),
        _whole(row, "output"),
        priority=_whole(row, "priority", -(2**31)) if "priority" in row else 0,
        segments=segments,
        accepted=[_whole({"accepted": each}, "accepted") for each in accepted],
        remote=remote,
    )
