"""The requests of a serving run: drawn at random, or from a trace.

::

    {rate: 8/s, prompt: 1024, output: 256, count: 500}      Poisson; burstiness: 0.5 comes in bursts
    {in_flight: 64, prompt: [512, 1024], output: 256, count: 500}      one arrives whenever another ends
    {trace: mooncake.jsonl}         the names of the columns tell the format

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

import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from devices.describe.field_types import Duration, Type, fault
from devices.describe.quantities import Count, File, Name, Size, Strict, Whole, one_of
from policies.serving.batcher import Request, Segment
from scenarios.file.document import Document
from scenarios.file.faults import input_error
from sim.base.arrays import LATEST_NS, MOST_BUILT, MOST_TASKS, IntArray, at_most
from sim.base.errors import InputError, error_path, in_file
from sim.base.files import loads_once, read_table, read_text
from sim.base.units import NS_PER_S, parse_rate

Row = dict[str, Any]


def _in_order(bounds: list[int]) -> list[int]:
    if bounds[0] > bounds[1]:
        raise fault(f"should be [least, most], not {bounds}")
    return bounds


_Tokens = Annotated[Count, Field(le=MOST_TASKS)]
Tokens = _Tokens | Annotated[list[_Tokens], Field(min_length=2, max_length=2), AfterValidator(_in_order)]
"""A number of tokens, or the least and the largest."""
_RATE: Final = {"type": "string", "pattern": r"^\s*[0-9.eE+-]+\s*/\s*(s|min|h)\s*$"}
Rate = Annotated[float, Type(lambda value: parse_rate(value, what=""), "8/s", _RATE)]


class TraceFields(Strict):
    """Requests from a trace.

    Attributes
    ----------
    trace
        a file of requests with their times
    count
        only the first ones
    """

    trace: File
    count: Count | None = None

    def requests(self, document: Document, seed: int) -> list[Request]:
        """Return the requests by arrival."""
        with error_path("trace"):
            return read_requests(document.file(self.trace), self.count)


class DrawnFields(Strict):
    """Requests of drawn sizes.

    Attributes
    ----------
    prompt
        tokens of a prompt, or [least, most]
    output
        tokens of an answer, or [least, most]
    prefix
        tokens with which all prompts begin; a shorter prompt has no others
    count
        how many
    """

    prompt: Tokens
    output: Tokens
    prefix: Whole = 0
    count: Count

    def requests(self, document: Document, seed: int) -> list[Request]:
        """Return the requests by arrival."""
        at_most(MOST_BUILT, self.count, "requests")
        drawn = np.random.default_rng(seed)
        sizes = [drawn.integers(np.min(n), np.max(n) + 1, self.count) for n in (self.prompt, self.output)]
        requests = []
        for i, row in enumerate(np.stack([self.times_ns(drawn), *sizes], axis=1).tolist()):
            prefix = min(self.prefix, row[1])
            requests.append(Request(f"r{i}", *row, segments=[("prefix", prefix), (f"r{i}", row[1] - prefix)]))
        return requests

    def times_ns(self, drawn: np.random.Generator) -> IntArray:
        """Return the arrival times."""
        return np.zeros(self.count, np.int64)


class InFlightFields(DrawnFields):
    """Requests of which a constant number is in flight.

    Attributes
    ----------
    in_flight
        so many are under way at any time
    """

    in_flight: Size


class RateFields(DrawnFields):
    """Requests that arrive at a rate.

    Attributes
    ----------
    rate
        that many come, at random, as in 8/s
    burstiness
        of times at a rate: 1 Poisson, below in bursts, .inf evenly
    """

    rate: Rate = Field(gt=0)
    burstiness: float = Field(1.0, gt=0)

    def times_ns(self, drawn: np.random.Generator) -> IntArray:
        """Return the arrival times, from the first request on."""
        gaps = np.full(self.count, 1 / self.rate)
        if math.isfinite(self.burstiness):
            gaps = drawn.gamma(self.burstiness, 1 / (self.rate * self.burstiness), self.count)
        seconds = np.cumsum(gaps) - gaps[0]
        if not NS_PER_S * float(seconds[-1]) < LATEST_NS:
            raise InputError(f"the last of {self.count:,} requests comes 146 years after the first, or later")
        times: IntArray = np.rint(NS_PER_S * seconds).astype(np.int64)
        return times


RequestsFields = one_of({"trace": TraceFields, "rate": RateFields, "in_flight": InFlightFields})


# ----------------------------------------------------------------------------------------------------------

_FORMATS: Final = (  # arrival time, its unit, prompt tokens, tokens of the answer
    ("arrival", "", "prompt", "output"),  # ours
    ("timestamp", "ms", "input_length", "output_length"),  # Mooncake, AIPerf, Dynamo
    ("TIMESTAMP", "date", "ContextTokens", "GeneratedTokens"),  # Azure
    ("Timestamp", "s", "Request tokens", "Response tokens"),  # BurstGPT
    ("arrival_time_ns", "ns", "input_toks", "output_toks"),  # LLMServingSim
    ("arrival_time", "s", "input_toks", "output_toks"),  # a recorded run of it
    ("start_times", "s", "input_lens", "output_lens"),  # vLLM's benchmark: lists
)
"""The columns of each format."""
_TIME_COLUMNS, _, _PROMPT_COLUMNS, _OUTPUT_COLUMNS = zip(*_FORMATS, strict=True)
_LIST_COLUMNS: Final = ("start_times", "input_lens", "output_lens")


def _duration(value: Any, unit: str) -> str:
    """Return a time as a duration with a unit, a date as one since 1970."""
    try:
        return f"{pd.Timestamp(value).as_unit('ns').value} ns" if unit == "date" else f"{value} {unit}"
    except ValueError:
        raise fault(f"{value!r} is no date and time") from None


class _Row(BaseModel):
    """A request in a trace of any format."""

    id: Name = Field("", validation_alias=AliasChoices("id", "request_id"))
    arrival: Duration | None = Field(None, validation_alias=AliasChoices(*_TIME_COLUMNS))
    prompt: Whole | list[tuple[str, Count]] = Field(validation_alias=AliasChoices(*_PROMPT_COLUMNS))
    output: Whole = Field(validation_alias=AliasChoices(*_OUTPUT_COLUMNS))
    priority: int = 0
    remote: bool = Field(False, strict=True)
    accepted: list[Whole] = []
    hash_ids: list[Any] = []
    input_tok_ids: list[Any] = []
    session_id: str | int | None = None
    delay: Annotated[Duration, BeforeValidator(lambda value: f"{value} ms")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_units(cls, row: Row) -> Row:
        for columns in (dict.fromkeys(_PROMPT_COLUMNS), dict.fromkeys(_OUTPUT_COLUMNS)):
            if not row.keys() & columns.keys():
                raise fault(f"has none of the columns {', '.join(columns)}, but {', '.join(map(str, row))}")
        times = {column: unit for column, unit, *_ in _FORMATS if unit and column in row}
        return {**row, **{column: _duration(row[column], unit) for column, unit in times.items()}}

    def request(self, name: str, turns: dict[str | int, Request]) -> Request:
        """Return the request, which may follow the previous turn of its session."""
        before = None if self.session_id is None else turns.get(self.session_id)
        after = before if self.arrival is None or self.delay is not None else None
        if self.arrival is None and after is None:
            raise InputError(f"has none of the columns {', '.join(_TIME_COLUMNS)}")
        segments = self.prompt if isinstance(self.prompt, list) else self.segments(self.prompt, name)
        fields = self.model_dump(include={"output", "priority", "remote", "accepted"})
        arrival_ns = (self.arrival or 0) if after is None else 0
        tokens = sum(count for _, count in segments)
        request = Request(self.id or name, arrival_ns, tokens, segments=segments, after=after, **fields)
        request.delay_ns = self.delay or 0
        if self.session_id is not None and self.output:
            turns[self.session_id] = request
        return request

    def segments(self, prompt: int, name: str) -> list[Segment]:
        """Return the parts of a prompt: blocks by their ids, and the rest, which is unique."""
        unit, ids, size = ("hash", self.hash_ids, 512) if self.hash_ids else ("token", self.input_tok_ids, 1)
        starts = range(0, prompt, size)
        blocks = [(f"{unit} {id}", min(size, prompt - start)) for id, start in zip(ids, starts, strict=False)]
        unique = prompt - sum(tokens for _, tokens in blocks)
        return [*blocks, (f"prompt of {self.id or name}", unique)] if unique else blocks


class _OurRow(_Row, extra="forbid"):
    """A request in our own format."""


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
    requests: dict[str, Request] = {}
    turns: dict[str | int, Request] = {}
    dropped = 0
    for number, (where, row) in enumerate(islice(_each_request(path), count)):
        with in_file(where):
            model = _OurRow if "arrival" in row else _Row
            try:
                request = model.model_validate(row).request(f"r{number}", turns)
            except ValidationError as error:
                raise input_error(error, model, row) from None
            if not request.output:
                dropped += 1
            elif not request.prompt:
                raise InputError("an answer to a prompt without tokens")
            elif requests.setdefault(request.id, request) is not request:
                raise InputError(f"there is a request {request.id!r} before")
    if not requests:
        raise InputError(f"{path}: has no request that was answered")
    if dropped:
        warnings.warn(f"{path}: leaves out requests without an answer: {dropped:,}", stacklevel=2)
    first_ns = min(request.arrival_ns for request in requests.values() if request.after is None)
    for request in requests.values():
        request.arrival_ns -= first_ns if request.after is None else 0
    return sorted(requests.values(), key=lambda request: request.arrival_ns)


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the place and content of each row of a JSONL or CSV file."""
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        yield from read_table(path)[1]
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                row = loads_once(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise InputError(f"{where}: should be an object, not {line[:40]!r}")
            yield where, row


def _each_request(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a trace; vLLM's result has lists, and is a row for each of its requests."""
    for where, row in read_rows(path):
        rows = [row]
        if row.keys() >= set(_LIST_COLUMNS):
            with in_file(where):
                rows = unzip(row, _LIST_COLUMNS)
        yield from ((where, request) for request in rows)


def unzip(row: Row, columns: Sequence[str]) -> list[Row]:
    """Return a row for each item of columns that are lists."""
    try:
        items = list(zip(*(row[column] for column in columns), strict=True))
    except (TypeError, ValueError):
        raise InputError(f"{', '.join(columns)} should be lists of one length") from None
    return [dict(zip(columns, values, strict=True)) for values in items]
