"""Read bytes for importers: decompressed if needed, with one line for every failure."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from sim.base.errors import InputError, hint
from sim.base.files import StrPath, loads_once, read_bytes
from sim.base.options import misfit_text

TRACES: Final[Mapping[str, tuple[str, ...]]] = {
    "kineto": (".json", ".json.gz", ".sqlite", ".sqlite.gz", ".xplane.pb", ".xplane.pb.gz"),
    "chakra": (".et", ".et.gz", ".chakra", ".chakra.gz"),
}
"""Formats whose folders hold the traces of all ranks of a job, and the endings of their names."""


def read_json(path: StrPath) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    InputError
        As `read_bytes`, or it is not JSON.
    """
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from None


def as_utf8(content: bytes) -> bytes:
    """Return text as UTF-8 without a byte order mark; other content is returned as it is."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode(json.detect_encoding(content), "replace").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def read_head(path: StrPath, size: int = 1 << 16) -> bytes:
    """Return the first `size` bytes of the result of `read_bytes`, as `as_utf8`."""
    return as_utf8(read_bytes(path, head=size))


_UNREAD_ENDINGS: Final = (".pb", ".pbtxt", ".tflite", ".keras", ".h5", ".pt2", ".pt", ".pth", ".gguf", ".dot")
_SCENARIO: Final = re.compile(rb'^(workload|extends)\s*:|"(workload|extends)"\s*:', re.MULTILINE)
_EXECUTION_GRAPH: Final = re.compile(rb'"schema"\s*:\s*"[0-9.]+(-chakra[0-9.]*)?"')


def refuse_no_graph(path: StrPath, head: bytes) -> None:
    """Raise if a file is not a graph by itself, and say what reads it.

    Raises
    ------
    InputError
        It begins like a ``config.json`` of Hugging Face, an execution graph of PyTorch, or a scenario, or its
        name is that of a model in a format that nothing reads.
    """
    name = os.path.basename(os.fspath(path)).removesuffix(".gz")
    if name.endswith(_UNREAD_ENDINGS) and not name.endswith(TRACES["kineto"]):
        raise InputError(
            f"{path}: this format is not read; export the model as ONNX, from JAX also as text of StableHLO, "
            "or name PyTorch's code in a scenario: `workload: {torch: MODULE:FUNCTION}`"
        )
    if is_scenario(head):
        raise InputError(
            f"{path}: is a scenario; `sim run {path} --show-graph BEFORE.json AFTER.json` writes its graph"
        )
    if head.lstrip().startswith(b"{") and b'"model_type"' in head:
        raise InputError(
            f"{path}: has a model's sizes, and no graph; name it in a scenario (docs/training.md, "
            f"docs/serving.md): `workload: {{train: {{model: ./{os.path.basename(path)}, ...}}}}`"
        )
    if _EXECUTION_GRAPH.search(head) and b'"nodes"' in head:
        raise InputError(
            f"{path}: is an execution graph of PyTorch, which has no times; give it beside the trace: "
            f"`workload: {{kineto: TRACE, execution_graph: {os.path.basename(path)}}}`"
        )


def is_scenario(head: bytes) -> bool:
    """Whether a file begins like a scenario, as YAML or JSON."""
    return _SCENARIO.search(head) is not None


def stem(path: StrPath, *endings: str) -> str:
    """Return the name of a file without folder and endings, including ``.gz``: the name of its graph.

    Examples
    --------
    >>> stem("traces/rank0.json.gz", ".json")
    'rank0'
    """
    name = os.fspath(path).replace("\\", "/").rpartition("/")[2].removesuffix(".gz")
    for ending in endings:
        name = name.removesuffix(ending)
    return name


def files_in(folder: StrPath, *formats: str) -> list[str]:
    """Return the names of the traces in a folder.

    Parameters
    ----------
    folder : path
    *formats : str
        Keys of `TRACES`; default: all.

    Raises
    ------
    InputError
        There is none, or the folder cannot be read.
    """
    endings = [ending for format in formats or TRACES for ending in TRACES[format]]
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(tuple(endings)))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error})") from None
    if any(".xplane.pb" in name for name in names):  # XLA's profiler writes the same as JSON beside it
        names = [name for name in names if not name.endswith(".trace.json.gz")]
    if not names:
        raise InputError(f"{folder}: no trace in this folder ({' or '.join(endings[:2])})")
    return names


def trace_files(path: StrPath | Sequence[StrPath], format: str) -> tuple[list[StrPath], str, bool]:
    """Return the files that a path, a list of them, or a folder stands for, and the name of their graph.

    The third result tells whether it is one file; otherwise the name is that of the folder of a job's ranks.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else [*path]
    if not paths:
        raise InputError("no trace is given")
    files: list[StrPath] = []
    for entry in paths:
        names = files_in(entry, format) if os.path.isdir(entry) else None
        files += [entry] if names is None else [os.path.join(entry, name) for name in names]
    if files[0] is path:
        return files, stem(files[0], *TRACES[format]), True
    folder = paths[0] if paths[0] is path else os.path.dirname(os.fspath(paths[0]))
    return files, os.path.basename(os.path.abspath(folder)) or "ranks", False


MARKS: Final = re.compile(r"""'[^']*'|"(?:[^"\\]++|\\.)*+(?:"|$)|[()\[\]{},]""", re.DOTALL)
"""Brackets and commas, and quoted texts, in which they have no meaning."""

DEPTH: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
"""By how much a bracket changes the number of open ones."""


def parts(text: str) -> list[str]:
    """Split at commas outside brackets and quotes, up to a closing bracket without an opening one.

    Examples
    --------
    >>> parts('kind=kLoop, calls=%f, dims={1,0}, name="a,b") -> ()')
    ['kind=kLoop', 'calls=%f', 'dims={1,0}', 'name="a,b"']
    """
    pieces, depth, begin = [], 0, 0
    for mark in MARKS.finditer(text):
        depth += DEPTH.get(mark[0], 0)
        if depth < 0:
            text = text[: mark.start()]
            break
        if mark[0] == "," and not depth:
            pieces.append(text[begin : mark.start()].strip())
            begin = mark.end()
    return [part for part in (*pieces, text[begin:].strip()) if part]


# ----------------------------------------------------------------------------------------------------------
# JSON that is checked against types while it is parsed; errors give the position in the file.

T = TypeVar("T")

_MAX_FAULTS = 5


def parse(types: TypeAdapter[T], content: bytes, path: object) -> T:
    """Return the parsed `content`, checked against `types`.

    Parameters
    ----------
    types : pydantic.TypeAdapter
    content : bytes
        JSON text.
    path : object
        Begins every line of a message.

    Raises
    ------
    InputError
        It is not JSON, a key is missing or unknown (with the nearest known one), a type is wrong, a number
        is out of range: a line for each of the first few faults. Or a key is repeated.
    """
    try:
        result = types.validate_json(content)
        loads_once(content)
        return result
    except ValidationError as error:
        faults = error.errors(include_url=False)
        if faults[0]["type"] == "json_invalid":
            raise InputError(f"{path}: not JSON: {faults[0]['ctx']['error']}") from None
        data = json.loads(content)
        if isinstance(data, dict) and not data.keys() & _keys(types.json_schema()):
            faults = [fault for fault in faults if fault["type"] == "missing"]  # others are not shown
        lines = list(dict.fromkeys(_describe_fault(fault, data, types) for fault in faults))
        more = f"\n(and {len(lines) - _MAX_FAULTS} more)" if len(lines) > _MAX_FAULTS else ""
        raise InputError("\n".join(f"{path}: {line}" for line in lines[:_MAX_FAULTS]) + more) from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _describe_fault(fault: Any, data: Any, types: TypeAdapter[Any]) -> str:
    """Return the position of a fault in the file, and what it is."""
    where, reached = "", True
    for part in fault["loc"]:
        try:
            data = data[part]
        except (LookupError, TypeError):  # the member of a union that pydantic tried, or a missing key
            reached = False
            break
        where += f"[{part}]" if isinstance(part, int) else f".{part}"
        if isinstance(data, dict) and isinstance(part, int) and isinstance(data.get("name"), str):
            where += f" ({data['name']})"
    where = where.removeprefix(".") or "the file"
    if fault["type"] == "missing":
        return f"{where}: the key {fault['loc'][-1]!r} is missing"
    if fault["type"] == "extra_forbidden":
        return f"{where}: no such key{hint(str(fault['loc'][-1]), _keys(types.json_schema()))}"
    if not reached:
        return f"{where}: should be a name or [name, distance], not {json.dumps(data)[:60]}"
    if not isinstance(data, dict) and not fault["loc"]:
        return "the file: should be a mapping"
    return f"{where}: {misfit_text(fault)}"


def _keys(schema: Any) -> set[str]:
    """Return every key that a JSON Schema knows."""
    records = [schema, *schema.get("$defs", {}).values()]
    return {key for record in records for key in record.get("properties", {})}


# ----------------------------------------------------------------------------------------------------------
# JSON files of one long list: some items are parsed at a time, so that they are never all objects at once.
#
#     {"schemaVersion": 1, "traceEvents": [ {...}, {...}, ..., {...}, {...} ], "traceName": "..."}
#     ─────────────────────────────────────                    ────────────────────────────────── the rest
#                                           └──► yielded
#
# A piece ends where one object seems to follow another. If it cannot be parsed (the place was inside an item
# or a text, or there is an error), a longer one is tried. The rest is parsed as a file without the pieces.

Decode = Callable[[bytes], list[Any]]
"""Parses the text of a list; raises ValueError or RecursionError if something is wrong with it."""

_PIECE_BYTES: Final = 2**18
"""Number of bytes parsed together: the result should fit into a processor's cache."""
_BETWEEN: Final = re.compile(rb"\}[ \t\n\r]*,[ \t\n\r]*(?=\{)")


def items(path: StrPath, expected: str, key: str, others: dict[str, Any]) -> Iterator[Any]:
    """Yield the items of the list `key` of a JSON object one by one, like `lists`."""
    return chain.from_iterable(lists(path, expected, key, others))


def lists(
    path: StrPath, expected: str, key: str, others: dict[str, Any], decode: Decode = json.loads
) -> Iterator[list[Any]]:
    """Yield the items of the list `key` of a JSON object, many at a time; the file may be just the list.

    Parameters
    ----------
    path : path
        May be gzipped.
    expected : str
        Expected content of the file, for messages.
    key : str
    others : dict
        Receives the other members of the object; complete after the last item.
    decode : callable
        Parses several items at once; it may leave out members that nobody needs.

    Raises
    ------
    InputError
        As `read_json`; or the file is neither object nor list, or has no such list, or two.
    """
    content = as_utf8(read_bytes(path))
    name = b'"%b"' % key.encode()
    several = content.count(name) > 1
    opening = None if several else re.search(rb"\A\s*\[|%b\s*:\s*\[" % name, content)
    begin = start = opening.end() if opening else len(content)
    size = _PIECE_BYTES
    while boundary := _BETWEEN.search(content, start + size):
        try:
            batch = decode(b"[%b]" % content[start : boundary.start() + 1])
        except (ValueError, RecursionError):
            size *= 2
        else:
            yield batch
            start, size = boundary.end(), _PIECE_BYTES
    try:
        rest = (loads_once if several else json.loads)(content[:begin] + content[start:])
    except (ValueError, RecursionError) as error:
        read_json(path)  # raises if it is not JSON, with the place in the whole file
        raise InputError(f"{path}: not {expected} ({error})") from None
    if isinstance(rest, dict):
        others |= rest
        rest = others.pop(key, None)
    if not isinstance(rest, list):
        raise InputError(f"{path}: not {expected} (it has no list {key})")
    yield rest
