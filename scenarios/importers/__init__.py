"""Read graphs that other programs wrote: one module per format, found by content.

::

    model.onnx ─────────► onnx ─────────────┐
    profile.txt ────────► pipedream ────────┤
    trace.json.gz ──────► kineto ───────────┼──► Graph ──write_graph──► graph.json.gz (sim.graph/1)
    graph.json.gz ──────► graph_json ───────┘

An importer is anything with the two functions of `Importer`; each module here is one. They register
under the entry-point group ``sim.importers``, where other packages may add theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from scenarios.importers.files import TRACES, read_head, refuse_no_graph
from scenarios.importers.graph_json import BatchSlope, is_straight, read_graph, slope_between, write_graph
from scenarios.ops.attributes import add_attributes
from sim.base import plugins
from sim.base.arrays import at_most
from sim.base.errors import InputError, error_path, list_names
from sim.base.files import StrPath
from sim.base.options import arguments, check_value, parameters, require_call
from sim.graph.graph import Graph

__all__ = ["Conversion", "Importer", "convert", "load_graph", "read_graph", "write_graph"]

_GROUP = "sim.importers"

_MAX_SAMPLES = 2**40
"""Largest batch size accepted: more than fits any memory."""


class Importer(Protocol):
    """A reader of one format; a module with these functions is one."""

    def recognises(self, name: str, head: bytes) -> bool:
        """Whether a file of this name that begins with `head` (decompressed) is of this format."""
        ...

    def load(self, path: Any, **options: Any) -> Graph:
        """Read the file; an importer that can set the batch size has an option ``batch``."""
        ...


class Conversion(NamedTuple):
    """Result of `convert`.

    Attributes
    ----------
    graph : Graph
    batch : int or None
        Batch size of the numbers, if known.
    fixed_because : str or None
        Why the written file can be read at this batch size only; None if it can be read at any.
    """

    graph: Graph
    batch: int | None
    fixed_because: str | None


def load_graph(
    path: StrPath | Sequence[StrPath], *, batch: int | None = None, format: str | None = None, **options: Any
) -> Graph:
    """Read a graph of any known format.

    Parameters
    ----------
    path : path or list of paths
        Several files, or a folder, if the importer accepts them (``format="kineto"`` or ``"chakra"``).
    batch : int, optional
        Batch size; default: that of the file.
    format : str, optional
        Name of an importer, if the content does not tell.
    **options
        Further options of the importer, such as ``dtype="bf16"`` for ONNX; and for all
        formats ``attributes``, a mapping of ops to attributes to add.

    Raises
    ------
    InputError
        There is no such file, its format is unknown, its content is not valid for it, or the importer lacks
        an option.

    Examples
    --------
    >>> load_graph("scenarios/examples/graphs/inception_v1.json.gz", batch=32).name
    'inception_v1'
    """
    if not isinstance(path, str | os.PathLike) and format is None:
        raise InputError(f"{_file_names(path)}: of several files the format must be given")
    return _load(_importer(cast("StrPath", path), format), path, batch, options)


def _file_names(path: StrPath | Sequence[StrPath]) -> str:
    """Return the name of one file or several for messages."""
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    return list_names([os.fspath(file) for file in path] or ["no file"])


def convert(
    source: StrPath,
    target: StrPath,
    *,
    batch: int | None = None,
    format: str | None = None,
    note: str | None = None,
    **options: Any,
) -> Conversion:
    """Read a graph of any known format and write it as a graph file, readable at any batch size if possible.

    Parameters
    ----------
    source, target : path
    batch, format, **options
        As for `load_graph`.
    note : str, optional
        Origin and licence of the graph, kept in the file.

    Raises
    ------
    InputError
        As `load_graph`, or `target` cannot be written.
    """
    importer = _importer(source, format)
    graph = _load(importer, source, batch, options)
    own_batch = getattr(importer, "own_batch", None)
    if batch is None and own_batch is not None:
        batch = own_batch(source)
    slope, reason = None, "the format does not tell the batch size"
    if batch is not None:
        slope, reason = _slope(importer, source, graph, batch, options)
    write_graph(graph, target, slope=slope, source=note)
    return Conversion(graph, batch, None if slope is not None else reason)


def _slope(
    importer: Importer, source: StrPath, graph: Graph, batch: int, options: dict[str, Any]
) -> tuple[BatchSlope | None, str]:
    """Import twice more: the second graph gives the slope, the third checks linearity."""
    try:
        slope = slope_between(graph, batch, _load(importer, source, batch + 1, options))
        far = 2 * batch + 3
        straight = is_straight(graph, slope, _load(importer, source, far, options), far)
    except InputError as error:
        return None, str(error)
    return (slope, "") if straight else (None, "its numbers are no straight lines in the batch size")


def _importer(path: StrPath, format: str | None) -> Importer:
    """Return the importer named `format`, or the one that recognises the file."""
    if format is not None:
        return check_importer(format)
    if os.path.isdir(path):
        formats = " and ".join(TRACES)
        raise InputError(f"{path}: is a directory, not a file; {formats} read one with the ranks of a job")
    name, head = os.path.basename(os.fspath(path)), read_head(path)
    if not head:
        raise InputError(f"{path}: is empty")
    for format_name in plugins.names(_GROUP):
        importer = check_importer(format_name)
        if importer.recognises(name, head):
            return importer
    refuse_no_graph(path, head)
    formats = "\n".join(f"  {entry.name}: {entry.summary}" for entry in plugins.describe(_GROUP))
    raise InputError(f"{path}: no known format; convert it with sim import --format NAME, one of\n{formats}")


def check_importer(name: str) -> Importer:
    """Return an importer after checking that it has both functions."""
    importer = plugins.lookup(_GROUP, name)
    require_call(f"the importer {name!r}", importer, "name", "head", method="recognises")
    require_call(f"the importer {name!r}", importer, "path", method="load")
    return cast("Importer", importer)


_DAMAGE_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
"""Exceptions caused by a file that is not what it seems to be."""


def _load(
    importer: Importer, path: StrPath | Sequence[StrPath], batch: int | None, options: dict[str, Any]
) -> Graph:
    _, *others = parameters(importer.load).items()
    accepted = dict(others)
    at_batch = {} if accepted.pop("batch", None) is None else {"batch": batch}
    if batch is not None and not at_batch:
        only = "its numbers are those of one batch size"
        raise InputError(f"{_file_names(path)}: {only}, so batch={batch} cannot be set")
    added = {} if "attributes" in accepted else {"attributes": options.get("attributes", {})}
    chosen = {name: value for name, value in options.items() if name not in added}
    keywords = arguments(f"the importer of {_file_names(path)}", accepted, chosen)
    at_most(_MAX_SAMPLES, batch or 1, "samples in a batch")
    try:
        graph = importer.load(path, **at_batch, **keywords)
    except _DAMAGE_ERRORS as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"{_file_names(path)}: cannot be read; the file may be damaged ({cause})") from error
    if not added:
        return graph
    with error_path("attributes"):
        return add_attributes(graph, check_value(Mapping[str, Mapping[str, Any]], added["attributes"]))
