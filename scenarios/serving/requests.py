"""The requests of a serving run: drawn, or those of a trace.

::

    {rate: 8/s, prompt: 1024, output: 256, count: 500}        Poisson; burstiness: 0.5 comes in bursts
    {closed: 64, prompt: [512, 1024], output: 256, count: 500}         the next comes when another has ended
    {trace: mooncake.jsonl}         what a file is, its first line says

    Mooncake, AIPerf, Dynamo   {timestamp: ms, input_length, output_length, hash_ids: [of 512 tokens each]}
                               a later line of a session_id comes `delay` ms after the one before has ended
    Azure 2023, 2024           TIMESTAMP,ContextTokens,GeneratedTokens
    BurstGPT                   Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    LLMServingSim              {input_toks, output_toks, arrival_time_ns (or arrival_time: s), input_tok_ids}
    ours                       {id, arrival: 1.5ms, prompt: 300 or [[system, 100], [r0, 200]], output, ...}

Times count from the first request. Sources: kvcache-ai/Mooncake, Azure/AzurePublicDataset, HPMLL/BurstGPT,
ai-dynamo/dynamo and aiperf, casys-kaist/LLMServingSim.
"""

from __future__ import annotations

import csv
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from devices.describe.field_types import fault, reader
from devices.describe.quantities import Count, File, Size, Strict, Whole
from policies.serving.batcher import Request
from scenarios.file.document import Document
from sim.base.errors import InputError, in_file
from sim.base.files import read_bytes
from sim.base.units import NS_PER_MS, NS_PER_S, parse_duration, parse_rate, round_half_up

_TOKENS: Final = 512
"""Tokens of a block of ``hash_ids``."""

Row = Mapping[str, Any]


def _range(value: Any) -> tuple[int, int]:
    """Return the least and the most of a number of tokens."""
    given = value if isinstance(value, list) else [value, value]
    if len(given) != 2 or any(isinstance(each, bool) or not isinstance(each, int) for each in given):
        raise InputError(f"should be a number of tokens, or [least, most], not {value!r}")
    if not 1 <= given[0] <= given[1]:
        raise InputError(f"should be at least 1, the least first, not {value!r}")
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
    """Requests: of a trace, at a rate, or so many at a time."""

    trace: Annotated[File | None, Field(description="a file of requests with their times")] = None
    rate: Annotated[Rate | None, Field(description="that many come, at random, as in 8/s")] = None
    closed: Annotated[Size | None, Field(description="so many are under way at any time")] = None
    prompt: Annotated[Tokens | None, Field(description="tokens of a prompt, or [least, most]")] = None
    output: Annotated[Tokens | None, Field(description="tokens of an answer, or [least, most]")] = None
    prefix: Annotated[Whole, Field(description="tokens that all prompts have in common at their begin")] = 0
    burstiness: Annotated[
        float, Field(gt=0, description="of times at a rate: 1 Poisson, below in bursts, .inf evenly")
    ] = 1.0
    count: Annotated[Count | None, Field(description="how many; of a trace the first ones")] = None

    @model_validator(mode="after")
    def _one(self) -> RequestsFields:
        ways = [name for name in ("trace", "rate", "closed") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise fault(f"needs one of trace, rate and closed, and has {' and '.join(ways) or 'none'}")
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
        """Return requests by arrival, and how many are under way at a time, if that says when they come.

        Raises
        ------
        InputError
            A trace that cannot be read.
        """
        if self.trace is not None:
            return read_requests(document.file(self.trace))[: self.count], None
        assert self.count is not None
        assert self.prompt is not None
        assert self.output is not None
        drawn = np.random.default_rng(seed)
        prompts, outputs = (
            drawn.integers(least, most + 1, self.count).tolist() for least, most in (self.prompt, self.output)
        )
        times = [0] * self.count
        if self.rate is not None:
            gaps = np.full(self.count, 1 / self.rate)
            if math.isfinite(self.burstiness):
                gaps = drawn.gamma(self.burstiness, 1 / (self.rate * self.burstiness), self.count)
            times = np.rint(NS_PER_S * (np.cumsum(gaps) - gaps[0])).astype(np.int64).tolist()
        found = []
        for i, (at, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True)):
            own = (f"r{i}", prompt - self.prefix)
            shared = (("prefix", self.prefix), *([own] if own[1] else [])) if self.prefix else ()
            found.append(Request(f"r{i}", at, prompt, output, segments=shared))
        return found, self.closed


# ----------------------------------------------------------------------------------------------------------


def read_requests(path: Path) -> list[Request]:
    """Return the requests of a trace, by arrival; those that come at the same time as they stand there.

    Raises
    ------
    InputError
        With file and line: not one of the formats, a value that is missing or wrong.
    """
    with in_file(path):
        rows = list(_rows(read_bytes(path).decode("utf-8", "replace")))
        if not rows:
            raise InputError("has no requests")
        keys = set(rows[0][1])
        read = next((read for needs, read in _FORMATS if needs <= keys), None)
        if read is None:
            known = "; ".join(", ".join(sorted(needs)) for needs, _ in _FORMATS)
            raise InputError(
                f"line {rows[0][0]}: no known trace has {', '.join(sorted(keys))}; known: {known}"
            )
        made: list[Request] = []
        turns: dict[Any, Request] = {}
        for number, (line, row) in enumerate(rows):
            try:
                request = read(row, f"r{number}", turns)
            except (KeyError, TypeError, ValueError, InputError) as error:
                what = f"has no {error}" if isinstance(error, KeyError) else str(error)
                raise InputError(f"line {line}: {what}") from None
            if request is not None:
                made.append(request)
        if dropped := len(rows) - len(made):
            warnings.warn(f"{path}: {dropped:,} requests that failed are left out", stacklevel=2)
        first = min((each.arrival_ns for each in made if each.after is None), default=0)
        for each in made:
            each.arrival_ns -= first if each.after is None else 0
        return sorted(made, key=lambda each: each.arrival_ns)


def _rows(text: str) -> Iterator[tuple[int, Row]]:
    """Yield line and content of each row of a JSONL or CSV text."""
    lines = text.splitlines()
    if not text.lstrip().startswith("{"):
        yield from enumerate(csv.DictReader(lines), 2)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"line {number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise InputError(f"line {number}: should be an object, not {line[:40]!r}")
            yield number, row


def _whole(row: Row, key: str, least: int = 1) -> int:
    value = row[key]
    number = int(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InputError(f"{key} should be a whole number of at least {least}, not {value!r}")
    return number


def _number(row: Row, key: str) -> float:
    value = float(row[key])
    if not math.isfinite(value):
        raise InputError(f"{key} should be a number, not {row[key]!r}")
    return value


def _mooncake(row: Row, name: str, turns: dict[Any, Request]) -> Request:
    prompt, ids = _whole(row, "input_length"), row.get("hash_ids") or []
    segments: list[tuple[str, int]] = []
    for number, id in enumerate(ids):
        tokens = min(_TOKENS, prompt - number * _TOKENS)
        if tokens > 0:
            segments.append((f"hash {id}", tokens))
    if segments and (rest := prompt - sum(tokens for _, tokens in segments)) > 0:
        segments.append((name, rest))
    before = turns.get(row.get("session_id"))
    at = 0 if before is not None and "timestamp" not in row else _number(row, "timestamp")
    request = Request(
        name, round_half_up(at * NS_PER_MS), prompt, _whole(row, "output_length"), segments=segments
    )
    if before is not None:
        request.after, request.delay_ns = before, round_half_up(_number(row, "delay") * NS_PER_MS)
    if row.get("session_id") is not None:
        turns[row["session_id"]] = request
    return request


def _azure(row: Row, name: str, turns: dict[Any, Request]) -> Request:
    head, _, digits = row["TIMESTAMP"].strip().removesuffix("+00:00").partition(".")
    seconds = datetime.fromisoformat(f"{head}+00:00").timestamp()
    at = round(seconds) * NS_PER_S + int(digits.rstrip("Z")[:9].ljust(9, "0"))
    return Request(name, at, _whole(row, "ContextTokens"), _whole(row, "GeneratedTokens"))


def _burst_gpt(row: Row, name: str, turns: dict[Any, Request]) -> Request | None:
    if not _whole(row, "Response tokens", 0):
        return None
    at = round_half_up(_number(row, "Timestamp") * NS_PER_S)
    return Request(name, at, _whole(row, "Request tokens"), _whole(row, "Response tokens"))


def _serving_sim(row: Row, name: str, turns: dict[Any, Request]) -> Request:
    at = row.get("arrival_time_ns")
    ns = (
        round_half_up(_number(row, "arrival_time") * NS_PER_S)
        if at is None
        else _whole(row, "arrival_time_ns", 0)
    )
    segments = [(f"token {id}", 1) for id in row.get("input_tok_ids") or ()]
    request = str(row.get("request_id", name))
    return Request(request, ns, _whole(row, "input_toks"), _whole(row, "output_toks"), segments=segments)


def _ours(row: Row, name: str, turns: dict[Any, Request]) -> Request:
    known = {"id", "arrival", "prompt", "output", "priority", "remote", "accepted"}
    if unknown := sorted(set(row) - known):
        raise InputError(f"{unknown[0]!r} is no key of a request; known: {', '.join(sorted(known))}")
    given = row["prompt"]
    segments: list[tuple[str, int]] = []
    for each in given if isinstance(given, list) else ():
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)):
            raise InputError(f"prompt should be tokens, or a list of [name, tokens], not {given!r}")
        segments.append((each[0], _whole({"prompt": each[1]}, "prompt")))
    return Request(
        str(row.get("id", name)),
        parse_duration(row["arrival"], what="arrival"),
        sum(tokens for _, tokens in segments) if segments else _whole(row, "prompt"),
        _whole(row, "output"),
        priority=_whole(row, "priority", -(2**31)) if "priority" in row else 0,
        segments=segments,
        accepted=[_whole({"accepted": each}, "accepted", 0) for each in row.get("accepted", ())],
        remote=bool(row.get("remote", False)),
    )


_Reader = Callable[[Row, str, dict[Any, Request]], Request | None]
_FORMATS: Final[Sequence[tuple[set[str], _Reader]]] = (
    ({"input_length", "output_length"}, _mooncake),
    ({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, _azure),
    ({"Timestamp", "Request tokens", "Response tokens"}, _burst_gpt),
    ({"input_toks", "output_toks"}, _serving_sim),
    ({"arrival", "prompt", "output"}, _ours),
)
"""Keys that tell a format, and what reads a row of it; None: it failed, and is left out."""
