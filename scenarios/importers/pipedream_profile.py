"""PipeDream layer profiles (.txt): layers with measured forward and backward times, as DAGs.

A profile is text, with one line per layer, then one line per edge::

    node7 -- LSTM(2048, 1024) -- forward_compute_time=3.190, backward_compute_time=5.348,
             activation_size=[6291456.0; 131072.0; 131072.0], parameter_size=50364416.000
        node6 -- node7

Times are milliseconds, sizes bytes of one mini-batch; a layer with several outputs lists their sizes,
and a ``__getitem__(k)`` after it picks output k. `read_profile` returns the layers, to be cut
into stages; `load` returns the graph of one training step::

    F(a) ──► F(b) ──► F(c)         backward reads the layer's own activation and the gradients of
      ╎        ╎        ╎          its outputs; it writes one gradient for each layer before it
    B(a) ◄── B(b) ◄── B(c)

The format is that of PipeDream's profiler (https://github.com/msr-fiddle/pipedream, ``graph/graph.py``;
Narayanan et al., SOSP 2019). An input layer's time is data loading; it has no backward.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from scenarios.importers.files import stem
from sim.base.errors import GraphError, InputError, hint, in_file
from sim.base.files import StrPath, read_text
from sim.base.units import round_half_up
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph, output_name

_NODE = re.compile(r"(?P<name>\S+) -- (?P<what>.*) -- (?P<facts>\w+=.*)")
_EDGE = re.compile(r"\s+(?P<before>\S+) -- (?P<after>\S+)\s*")
_NEEDED = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_KINDS = {
    "conv2d": "conv", "conv": "conv", "linear": "gemm", "maxpool2d": "max_pool",
    "avgpool2d": "average_pool", "batchnorm2d": "batch_norm", "view": "reshape", "size": "shape",
}  # fmt: skip
"""Classes of layers with another name in our vocabulary."""
_GETITEM = re.compile(r"__getitem__\((\d+)\)")


@dataclass(frozen=True)
class LayerProfile:
    """One layer, measured.

    Attributes
    ----------
    name : str
        ``"node7"``.
    description : str
        ``"LSTM(2048, 1024)"``.
    forward_ns, backward_ns : int
        Times of one mini-batch.
    activation_bytes : tuple of int
        Size of each output.
    parameter_bytes : int
    predecessors : tuple of str
        Names of the layers that it reads, in the order of the file.
    stage : int or None
        Stage to which the file assigns it, if any.
    """

    name: str
    description: str
    forward_ns: int
    backward_ns: int
    activation_bytes: tuple[int, ...]
    parameter_bytes: int
    predecessors: tuple[str, ...] = ()
    stage: int | None = None

    @property
    def kind(self) -> str:
        """Op kind in our terms: ``"conv"`` for ``Conv2d(3, 64)``, otherwise its class in lower case."""
        word = re.split(r"\W", self.description, maxsplit=1)[0].lower().strip("_").rstrip("0123456789")
        return _KINDS.get(word, word or "layer")

    @property
    def is_input(self) -> bool:
        """Whether it only loads data."""
        return not self.predecessors and self.description.lower().startswith("input")

    @property
    def weights(self) -> list[str]:
        """The name of its parameter, if it has one."""
        return [f"{self.name}.weight"] if self.parameter_bytes else []


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` contains the line of a layer."""
    return re.search(rb"^\S+ -- .* -- forward_compute_time=", head, re.MULTILINE) is not None


def read_profile(path: StrPath) -> list[LayerProfile]:
    """Return the layers of a profile, each after those it reads (ties in the order of node numbers).

    Raises
    ------
    InputError
        There is no such file, or a line is neither layer nor edge; the message has its number.
    GraphError
        There is a cycle, an edge to an unknown layer, or two layers with one name.

    Examples
    --------
    >>> layers = read_profile("vgg16.txt")  # doctest: +SKIP
    >>> sum(layer.forward_ns for layer in layers)  # doctest: +SKIP
    """
    lines = read_text(path).splitlines()
    nodes: dict[str, re.Match[str]] = {}
    before: dict[str, list[str]] = {}
    edges: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines, 1):
        if match := _NODE.fullmatch(line):
            if match["name"] in nodes:
                raise GraphError(f"{path}:{number}: the layer {match['name']!r} is there twice")
            nodes[match["name"]], before[match["name"]] = match, []
        elif match := _EDGE.fullmatch(line):
            edges.append((number, match["before"], match["after"]))
        elif line.strip():
            excerpt = f": {line[:60]!r}" if nodes or edges else ""  # show nothing of an unrelated file
            raise InputError(f"{path}:{number}: neither a layer nor an edge{excerpt}")
    for number, first, second in edges:
        for name in (first, second):
            if name not in nodes:
                raise GraphError(f"{path}:{number}: unknown layer {name!r}{hint(name, nodes)}")
        before[second].append(first)
    if not nodes:
        raise InputError(f"{path}: no layer in it")
    order = GraphBuilder(str(path))
    for name in sorted(nodes, key=lambda name: (int(re.sub(r"\D", "", name) or 0), name)):
        order.op(name, after=before[name])
    graph = order.build()
    names = [graph.op_names[op] for op in graph.topological_order.tolist()]
    return [_layer(nodes[name], before[name], path) for name in names]


def _layer(match: re.Match[str], predecessors: list[str], path: StrPath) -> LayerProfile:
    facts = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,]*)", match["facts"]))
    where = f"{path}: {match['name']}"
    missing = [key for key in _NEEDED if key not in facts]
    if missing:
        raise InputError(f"{where}: {missing[0]} is missing")
    forward, backward = (round_half_up(1_000_000 * _number(facts[key], where)) for key in _NEEDED[:2])
    texts = facts["activation_size"].strip("[]").split(";")
    sizes = tuple(round_half_up(_number(text, where)) for text in texts)
    weights = round_half_up(_number(facts["parameter_size"], where))
    stage = int(_number(facts["stage_id"], where)) if "stage_id" in facts else None
    return LayerProfile(
        match["name"], match["what"], forward, backward, sizes, weights, (*predecessors,), stage
    )


def _number(text: str, where: str) -> Fraction:
    try:
        if len(text) > 40 or not math.isfinite(float(text)):
            raise ValueError  # more digits, or a power of ten, would only cost time
        number = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{where}: {text.strip()!r} is no number") from None
    if number < 0:
        raise InputError(f"{where}: {text.strip()} is negative")
    return number


def load(path: StrPath) -> Graph:
    """Return the graph of one training step of a profile (see `training_graph`).

    Raises
    ------
    InputError
        The file is wrong.
    """
    layers = read_profile(path)
    with in_file(path):
        return training_graph(layers, stem(path, ".txt"))


def training_graph(layers: Sequence[LayerProfile], name: str) -> Graph:
    """Return forward and backward ops of `layers`, with their measured durations.

    Parameters
    ----------
    layers : sequence of LayerProfile
        As `read_profile` gives them.
    name : str

    Returns
    -------
    Graph
        Op ``F.node7`` (phase F) and ``B.node7`` (phase B) for every layer, but no backward for inputs.
        Weights are parameters; the durations are explicit.
    """
    builder = GraphBuilder(name)
    by_name = {layer.name: layer for layer in layers}
    picked = {layer.name: _picked_output(layer, by_name) for layer in layers}
    about: dict[str, dict[str, Any]] = {
        layer.name: {"stage": layer.stage, "attributes": {"layer": layer.description}} for layer in layers
    }
    for layer in layers:
        for weight in layer.weights:
            builder.parameter(weight, layer.parameter_bytes)
        reads = [output_name(f"F.{before}", picked[layer.name]) for before in layer.predecessors]
        op = {"kind": layer.kind, "duration_ns": layer.forward_ns, "phase": "F", **about[layer.name]}
        outputs = layer.activation_bytes
        builder.op(f"F.{layer.name}", inputs=[*reads, *layer.weights], outputs=outputs, **op)
    gradients: dict[str, list[str]] = {name: [] for name in by_name}
    for layer in reversed(layers):
        if layer.is_input:
            continue
        sources = [before for before in layer.predecessors if not by_name[before].is_input]
        for k, before in enumerate(sources):
            gradients[before].append(output_name(f"B.{layer.name}", k))
        reads = [f"F.{layer.name}", *gradients[layer.name], *layer.weights]
        sizes = [by_name[before].activation_bytes[picked[layer.name]] for before in sources]
        op = {"kind": f"{layer.kind}_grad", "duration_ns": layer.backward_ns, "phase": "B"}
        builder.op(f"B.{layer.name}", inputs=reads, outputs=sizes, **op, **about[layer.name])
    return builder.build()


def _picked_output(layer: LayerProfile, by_name: dict[str, LayerProfile]) -> int:
    """Return which output of the layer before it a ``__getitem__(k)`` reads."""
    match = _GETITEM.fullmatch(layer.description)
    if match is None or len(layer.predecessors) != 1:
        return 0
    k = int(match[1])
    return k if k < len(by_name[layer.predecessors[0]].activation_bytes) else 0
