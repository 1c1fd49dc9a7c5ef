"""The shape of a graph file (``sim.graph/1``): what keys there are, and what each may hold.

pydantic checks a file against these types while it parses it, and derives the JSON Schema from them;
`scenarios.importers.neutral.graph_json` says what the keys mean.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from scenarios.importers import checked_json

__all__ = [
    "SCHEMA",
    "FunctionRecord",
    "GraphFile",
    "OpRecord",
    "OpSlope",
    "TensorRecord",
    "checked",
    "json_schema",
    "parse",
]

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
    attributes: NotRequired[dict[str, Slope]]


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
class FunctionRecord(TypedDict):
    """Ops that an op of kind call, if or while stands for."""

    name: Name
    inputs: NotRequired[list[Name]]
    ops: Annotated[list[OpRecord], Field(min_length=1)]
    results: Annotated[list[Name], Field(min_length=1)]


@with_config(_STRICT)
class GraphFile(TypedDict):
    """A whole file."""

    schema: Literal["sim.graph/1"]
    name: str
    source: NotRequired[str]
    batch: NotRequired[Annotated[int, Field(ge=1)]]
    devices: NotRequired[dict[Name, dict[Name, str]]]
    tensors: NotRequired[list[TensorRecord]]
    ops: Annotated[list[OpRecord], Field(min_length=1)]
    functions: NotRequired[list[FunctionRecord]]


_FILE = TypeAdapter(GraphFile)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a graph file, as committed in ``scenarios/graph.schema.json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_FILE.json_schema(),
        "title": "A computation graph (sim.graph/1)",
    }


def checked(content: bytes) -> GraphFile:
    """Return the records in `content`; pydantic's ValidationError where they are wrong."""
    return _FILE.validate_json(content)


def parse(content: bytes, path: object) -> GraphFile:
    """Return the records in `content`, checked; `path` begins every message.

    Raises
    ------
    InputError
        Not JSON, another schema, a missing or unknown key, a wrong type, a number out of range.
    """
    return checked_json.parse(_FILE, content, path)
