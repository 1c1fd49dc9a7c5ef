"""The shape of a graph file (``sim.graph/1``): what keys there are, and what each may hold.

pydantic checks a file against these types while it parses it, and derives the JSON Schema from them;
`scenarios.importers.graph_json` says what the keys mean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from sim.errors import InputError, nearest

__all__ = ["SCHEMA", "GraphFile", "OpRecord", "OpSlope", "TensorRecord", "json_schema", "parse"]

SCHEMA = "sim.graph/1"
"""What the key ``schema`` must say."""

Amount = Annotated[int, Field(ge=0, le=2**63 - 1)]
Slope = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, Field(min_length=1)]
Reference = Name | tuple[Name, Amount]
_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
class TensorSlope(TypedDict):
    """What one more sample adds to a tensor."""

    nbytes: Slope


@with_config(_STRICT)
class OpSlope(TypedDict):
    """What one more sample adds to an op; what is left out does not grow."""

    outputs: NotRequired[list[Slope]]
    flops: NotRequired[Slope]
    bytes_read: NotRequired[Slope]
    bytes_written: NotRequired[Slope]


@with_config(_STRICT)
class TensorRecord(TypedDict):
    """A tensor that no op produces."""

    name: Name
    role: Literal["input", "parameter"]
    nbytes: NotRequired[Amount]
    device: NotRequired[Name]
    per_sample: NotRequired[TensorSlope]


@with_config(_STRICT)
class OpRecord(TypedDict):
    """An op; the keys are the arguments of `GraphBuilder.op`."""

    name: Name
    kind: NotRequired[Name]
    inputs: NotRequired[list[Reference]]
    after: NotRequired[list[Reference]]
    outputs: NotRequired[list[Amount]]
    flops: NotRequired[Amount]
    bytes_read: NotRequired[Amount]
    bytes_written: NotRequired[Amount]
    duration_ns: NotRequired[Amount]
    duration_by_kind_ns: NotRequired[dict[Name, Amount]]
    device: NotRequired[Name]
    dtype: NotRequired[Name]
    stage: NotRequired[Amount]
    micro_batch: NotRequired[Amount]
    phase: NotRequired[Name]
    attributes: NotRequired[dict[str, Any]]
    per_sample: NotRequired[OpSlope]


@with_config(_STRICT)
class GraphFile(TypedDict):
    """A whole file."""

    schema: Literal["sim.graph/1"]
    name: str
    source: NotRequired[str]
    batch: NotRequired[Annotated[int, Field(ge=1)]]
    tensors: NotRequired[list[TensorRecord]]
    ops: Annotated[list[OpRecord], Field(min_length=1)]


_FILE = TypeAdapter(GraphFile)
_KEYS = {key for record in (GraphFile, OpRecord, TensorRecord, OpSlope) for key in record.__annotations__}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a graph file, as committed in ``scenarios/graph.schema.json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_FILE.json_schema(),
        "title": "A computation graph (sim.graph/1)",
    }


def parse(content: bytes, path: object) -> GraphFile:
    """Return the records in `content`, checked; `path` begins every message.

    Raises
    ------
    InputError
        Not JSON, another schema, a missing or unknown key, a wrong type, a number out of range.
    """
    try:
        return _FILE.validate_json(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        if faults[0]["type"] == "json_invalid":
            raise InputError(f"{path}: not JSON: {faults[0]['ctx']['error']}") from None
        data = json.loads(content)
        lines = list(dict.fromkeys(_line(fault, data) for fault in faults))
        more = f"\n(and {len(lines) - 5} more)" if len(lines) > 5 else ""
        raise InputError("\n".join(f"{path}: {line}" for line in lines[:5]) + more) from None


def _line(fault: Any, data: Any) -> str:
    """Say where in the file a fault is, and what it is."""
    loc: Sequence[str | int] = fault["loc"]
    if loc == ("schema",) and fault["type"] == "literal_error":
        return f"schema: this file is {fault['input']!r}, and {SCHEMA!r} can be read"
    where, known = "", True
    for part in loc:
        known = _has(data, part)
        if not known:
            break  # pydantic adds the member of a union that it tried, or a key that is missing
        data = data[part]
        where += f"[{part}]" if isinstance(part, int) else f".{part}"
        if isinstance(data, dict) and isinstance(part, int) and isinstance(data.get("name"), str):
            where += f" ({data['name']})"
    where = where.removeprefix(".") or "the file"
    if fault["type"] == "missing":
        return f"{where}: the key {loc[-1]!r} is missing"
    if fault["type"] == "extra_forbidden":
        close = nearest(str(loc[-1]), _KEYS)
        return f"{where}: no such key" + (f"; did you mean {close!r}?" if close else "")
    if not known:
        return f"{where}: should be a name or [name, distance], not {json.dumps(data)[:60]}"
    message = fault["msg"].replace("Input should be", "should be")
    return f"{where}: {message}, not {json.dumps(data)[:60]}"


def _has(data: Any, part: str | int) -> bool:
    if isinstance(part, int):
        return isinstance(data, list) and part < len(data)
    return isinstance(data, dict) and part in data
