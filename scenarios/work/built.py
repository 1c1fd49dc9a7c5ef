"""Graphs made from a few sizes: ``workload: {build: {model: gpt, layers: 12, ...}}``.

Each builder is a class here, whose fields are its keys, and a function of `scenarios.build` that makes the
graph. ``model`` tells which::

    gpt, transformer   a decoder, forward or a training step     scenarios.build.gpt
    branchy            forks and joins                           scenarios.build.random_dag
    random-dag         layers wired at random, by a seed         scenarios.build.random_dag
    data-loading       load, preprocess, copy, train             scenarios.build.data_loading
    data-parallel      replicas that sum their gradients         scenarios.build.data_parallel
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from devices.describe.field_types import quantity_schema
from devices.describe.quantities import (
    Bandwidth,
    Bytes,
    Count,
    Duration,
    Name,
    Size,
    Strict,
    Whole,
    fault,
)
from scenarios.build.data_loading import DataLoading, data_loading_graph
from scenarios.build.data_parallel import DataParallel, Layer, data_parallel_graph
from scenarios.build.random_dag import branchy, random_dag
from scenarios.file.document import Document, Loc
from scenarios.work.workload import Workload
from sim.graph.graph import Graph
from sim.machine.machine import Machine
from sim.words.dimensions import BYTES, DURATION
from sim.words.errors import InputError, hint

__all__ = ["BUILDERS", "Build", "Builder"]

_HERE: Loc = ("workload", "build")

MOST_OPS: Final = 10_000_000
"""Most ops of a graph that is made here."""


class Builder(Strict):
    """What a builder accepts; override `graph`, and `default_machine` where one machine suggests itself."""

    def graph(self) -> Graph:
        """Return the graph."""
        raise TypeError(f"{type(self).__name__} must define graph()")

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return what it runs on in a scenario without a machine; None: there must be one."""
        return None


class Gpt(Builder):
    """A decoder (GPT): the forward of a batch, or a training step with Adam."""

    model: Literal["gpt", "transformer"]
    layers: Size
    hidden: Count
    heads: Count
    sequence: Annotated[Count, Field(description="tokens per sample")]
    vocabulary: Count = 50304
    batch: Annotated[Count, Field(description="samples")] = 1
    dtype: Annotated[Name, Field(description="data type of weights, activations and gradients")] = "bf16"
    training: Annotated[bool, Field(description="include backward and optimizer")] = False

    def graph(self) -> Graph:
        """Return the graph."""
        from scenarios.build.gpt import gpt_graph  # brings the importers' table of costs along
        from scenarios.build.transformer import Transformer

        sizes = Transformer(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            sequence=self.sequence,
            vocabulary=self.vocabulary,
            micro_batch=self.batch,
            dtype=self.dtype,
        )
        return gpt_graph(sizes, training=self.training, name=self.model)


class Branchy(Builder):
    """Blocks of parallel chains between a fork and a join."""

    model: Literal["branchy"]
    blocks: Size = 1
    branches: Annotated[Size, Field(description="parallel chains in a block")] = 4
    depth: Annotated[Size, Field(description="ops in a chain")] = 1
    duration: Annotated[Duration, Field(default="10us", description="duration of every op")]
    output: Annotated[Bytes, Field(description="output size of every op")] = 0

    def graph(self) -> Graph:
        """Return the graph."""
        if (ops := self.blocks * self.branches * self.depth) > MOST_OPS:
            raise InputError(f"workload.build: {ops:,} ops are more than the {MOST_OPS:,} that there may be")
        return branchy(
            blocks=self.blocks,
            branches=self.branches,
            depth=self.depth,
            duration_ns=self.duration,
            output_nbytes=self.output,
        )


def _range(value: Any) -> Any:
    return value if isinstance(value, list) else [value, value]


def _range_schema(of: Mapping[str, Any]) -> WithJsonSchema:
    pair = {"type": "array", "items": dict(of), "minItems": 2, "maxItems": 2}
    return WithJsonSchema({"anyOf": [dict(of), pair], "description": "a value, or [least, greatest]"})


def _two(default: list[Any]) -> Any:
    return Field(default=default, min_length=2, max_length=2)


class RandomDag(Builder):
    """Layers of ops wired at random, the same for the same seed."""

    model: Literal["random-dag"]
    layers: Size = 10
    width: Annotated[
        list[Size], _two([1, 4]), BeforeValidator(_range), _range_schema({"type": "integer", "minimum": 1})
    ]
    edge_probability: Annotated[
        float, Field(ge=0, le=1, strict=False, description="probability of each edge from an earlier layer")
    ] = 0.2
    duration: Annotated[
        list[Duration],
        _two(["1us", "100us"]),
        BeforeValidator(_range),
        _range_schema(quantity_schema(DURATION)),
    ]
    output: Annotated[
        list[Bytes], _two([0, 0]), BeforeValidator(_range), _range_schema(quantity_schema(BYTES))
    ]
    seed: Annotated[Whole, Field(description="seed of the graph; the scenario's seed is for the run")] = 0

    def graph(self) -> Graph:
        """Return the graph."""
        return random_dag(
            layers=self.layers,
            width=(self.width[0], self.width[1]),
            edge_probability=self.edge_probability,
            duration_ns=(self.duration[0], self.duration[1]),
            output_nbytes=(self.output[0], self.output[1]),
            seed=self.seed,
        )


class DataLoadingFields(Builder):
    """An input pipeline: load and preprocess on a CPU, copy and train on GPUs, a batch an iteration."""

    model: Literal["data-loading"]
    load: Duration
    preprocess: Duration = 0
    copy_: Annotated[
        Duration,
        Field(
            alias="copy",
            description="time to copy a batch to the GPU; default: what the machine's links take",
        ),
    ] = 0
    train: Duration
    batch: Annotated[Bytes, Field(description="size of a batch")] = 0
    prefetch: Annotated[
        Whole, Field(description="batches begun before the training step takes them; 0: synchronous")
    ] = 0
    workers: Annotated[Size, Field(description="batches that load and preprocess each work on at once")] = 1
    pinned: Annotated[bool, Field(description="copy on a stream of its own")] = True
    replicas: Annotated[Size, Field(description="number of GPUs that share each batch")] = 1
    all_reduce: Annotated[
        Duration, Field(description="time of the all-reduce among the replicas after a step")
    ] = 0

    def graph(self) -> Graph:
        """Return the graph."""
        return data_loading_graph(
            DataLoading(
                load_ns=self.load,
                preprocess_ns=self.preprocess,
                train_ns=self.train,
                copy_ns=self.copy_,
                batch_nbytes=self.batch,
                prefetch=self.prefetch,
                workers=self.workers,
                pinned=self.pinned,
                replicas=self.replicas,
                all_reduce_ns=self.all_reduce,
            )
        )

    def default_machine(self) -> Mapping[str, Any]:
        """Return a core for every worker of each stage, and a GPU for each replica."""
        gpus = {f"gpu{r}": {"kind": "gpu", "streams": 2} for r in range(self.replicas)}
        return {"devices": {"cpu0": {"kind": "cpu", "cores": 2 * self.workers}, **gpus}}


class LayerFields(Strict):
    """A layer on one replica."""

    forward: Duration
    backward: Duration
    gradients: Annotated[Bytes, Field(description="size of its weights' gradients")] = 0


class DataParallelFields(Builder):
    """Training steps on replicas that sum their gradients in buckets."""

    model: Literal["data-parallel"]
    replicas: Size
    layers: Annotated[list[LayerFields], Field(min_length=1, description="from the first to the last")]
    repeat: Annotated[Size, Field(description="how many times the list of layers is repeated")] = 1
    bandwidth: Annotated[
        Bandwidth | None, Field(description="bandwidth of a link of the ring; default: unlimited")
    ] = None
    latency: Annotated[Duration, Field(description="latency of a step of the ring")] = 0
    bucket: Annotated[
        Bytes, Field(default="25MB", description="size at which a bucket is closed; 0: one per layer")
    ]
    overlap: Annotated[bool, Field(description="sum a bucket as soon as it is full")] = True
    optimizer: Duration = 0

    def graph(self) -> Graph:
        """Return the graph."""
        layers = [Layer(layer.forward, layer.backward, layer.gradients) for layer in self.layers]
        return data_parallel_graph(
            DataParallel(
                layers=tuple(layers * self.repeat),
                replicas=self.replicas,
                bandwidth_bytes_per_s=self.bandwidth,
                latency_ns=self.latency,
                bucket_nbytes=self.bucket,
                overlap=self.overlap,
                optimizer_ns=self.optimizer,
            )
        )

    def default_machine(self) -> Mapping[str, Any]:
        """Return a GPU for each replica, with a stream for communication."""
        return {"devices": {f"gpu{r}": {"kind": "gpu", "streams": 2} for r in range(self.replicas)}}


BUILDERS: Final[Mapping[str, type[Builder]]] = {
    "gpt": Gpt,
    "transformer": Gpt,
    "branchy": Branchy,
    "random-dag": RandomDag,
    "data-loading": DataLoadingFields,
    "data-parallel": DataParallelFields,
}
"""Value of ``model``, and the builder."""


def _known(value: Any) -> Any:
    """Refuse a mapping that names no builder."""
    known = ", ".join(BUILDERS)
    if not isinstance(value, dict) or "model" not in value:
        raise fault(f"should be a mapping with the key model, one of {known}")
    name = value["model"]
    if not isinstance(name, str) or name not in BUILDERS:
        raise fault(f"there is no model {name!r}{hint(str(name), BUILDERS)}")
    return value


def _tag(value: Any) -> str:
    return f"<{BUILDERS[value['model']].__name__}>"


if TYPE_CHECKING:
    AnyBuilder = Builder
else:
    AnyBuilder = Annotated[
        Union[  # noqa: UP007
            tuple(Annotated[kind, Tag(f"<{kind.__name__}>")] for kind in dict.fromkeys(BUILDERS.values()))
        ],
        Discriminator(_tag),
        BeforeValidator(_known),
    ]


class Build(Workload):
    """A graph made from a few sizes."""

    build_: Annotated[AnyBuilder, Field(alias="build")]

    def build(self, document: Document, machine: Machine) -> Graph:
        """Make the graph."""
        try:
            return self.build_.graph()
        except InputError as error:
            raise document.error(_HERE, str(error)) from error

    def default_machine(self) -> Mapping[str, Any] | None:
        """Return the builder's."""
        return self.build_.default_machine()
