"""A rewrite never overwrites an op of the graph that has the name of one that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from policies.parallel.accumulation import GradientAccumulation
from policies.parallel.context_parallel import ContextParallel
from policies.parallel.ddp import DistributedDataParallel, MegatronDDP
from policies.parallel.expert_parallel import ExpertParallel
from policies.parallel.fsdp2 import FullyShard
from policies.parallel.parameter_server import ParameterServer
from policies.parallel.pipeline_parallel import PipelineParallel, StageCut
from policies.parallel.tensor_parallel import TensorParallel
from policies.parallel.zero import ZeroOne, ZeroThree, ZeroTwo
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.layout import Layout
from policies.rewrite.partition import Partition
from policies.rewrite.records import OpEntry, read, write
from policies.rewrite.simplify import Arithmetic
from scenarios.builders.gpt import Gpt
from sim import Graph, GraphBuilder
from sim.base.errors import GraphError

GPT = Gpt(model="gpt", layers=1, hidden=8, heads=2, sequence=4, vocabulary=16, batch=1).graph()
STEP = TrainingRewrite().apply(GPT)
FFN = "layer0.(?:up|gelu|down)(?!/(?:dispatch|combine))"
STAGED = TrainingRewrite().apply(StageCut(["layer0.attention"]).apply(GPT))


def named(graph: Graph, old: str, new: str) -> Graph:
    """Return the graph with another name for an op."""
    records = read(graph)
    moved = {old: new} | {f"{old}:{k}": f"{new}:{k}" for k in range(1, 9)}
    renamed = {name: moved.get(name, name) for name in records.ops}
    ops = (replace(record, name=renamed[name]) for name, record in records.ops.items())
    records.ops = {record.name: record for record in ops}
    for record in records.ops.values():
        record.inputs = [(moved.get(tensor, tensor), d) for tensor, d in record.inputs]
        record.after = [(moved.get(name, name), d) for name, d in record.after]
    return write(records)


def plain(*ops: OpEntry) -> Graph:
    builder = GraphBuilder("plain")
    builder.input("x", 1000)
    for record in ops:
        builder.op(**vars(record))
    return builder.build()


def op(name: str, kind: str, reads: str, after: str = "", **more: str) -> OpEntry:
    given = {"attributes": {"data_format": more.pop("format")}} if "format" in more else {}
    edges = [[(each, 0) for each in row.split()] for row in (reads, after)]
    return OpEntry(name, kind, *edges, (1000,), **more, **given)  # type: ignore[arg-type]


TWO = plain(
    *(op(name, "op", "x", device="cpu0") for name in "ab"),
    op("c", "relu", "x", device="gpu0"),
    op("d", "relu", "c", "a b", device="gpu0"),
)
SUMS = plain(op("a", "relu", "x"), op("b", "add", "a a"), op("c", "add", "b a"), op("d", "relu", "c"))
CONVS = plain(op("a", "relu", "x"), op("b", "conv", "a", format="NHWC"), op("c", "conv", "b", format="NCHW"))
CASES: dict[str, tuple[Callable[[Graph], Graph], Graph, str]] = {
    "arithmetic": (Arithmetic().apply, SUMS, "d"),
    "context, all_gather": (ContextParallel(2, "all-gather").apply, STEP, "embed"),
    "context, all_to_all": (ContextParallel(2, "all-to-all").apply, STEP, "embed"),
    "context, ring": (ContextParallel(2, "ring").apply, STEP, "embed"),
    "ddp": (DistributedDataParallel(2).apply, STEP, "embed"),
    "expert-parallel": (ExpertParallel(2, FFN, 2, tokens=4).apply, STEP, "embed"),
    "megatron-ddp": (MegatronDDP(2).apply, STEP, "embed"),
    "zero-1": (ZeroOne(2).apply, STEP, "embed"),
    "zero-2": (ZeroTwo(2).apply, STEP, "embed"),
    "zero-3": (ZeroThree(2).apply, STEP, "embed"),
    "fsdp2": (FullyShard(2).apply, STEP, "embed"),
    "gradient-accumulation": (GradientAccumulation(2).apply, STEP, "embed"),
    "layout": (Layout("NCHW").apply, CONVS, "a"),
    "parameter-server": (ParameterServer(["cpu0", "cpu1"], ["cpu0"]).apply, STEP, "embed"),
    "partition": (Partition().apply, TWO, "b"),
    "pipeline-parallel": (PipelineParallel(2, 2).apply, STAGED, "embed"),
    "tensor-parallel": (TensorParallel(2, sequence_parallel=True).apply, STEP, "layer0.gelu"),
    "training": (TrainingRewrite(optimizer="adam").apply, GPT, "embed"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_name_that_the_graph_has_is_not_taken_twice(name: str) -> None:
    """Ops that a rewrite makes (a dozen of them) are in turn the name of an op of the graph."""
    apply, graph, victim = CASES[name]
    before, after = read(graph), apply(graph)
    alike = Counter((record.kind, record.device) for record in read(after).ops.values())
    prefixes = ("gpu0/", "gpu1/", "cpu0/", "micro0/", "micro1/")
    made = set()
    for each in after.op_names:
        for prefix in prefixes:
            each = each.removeprefix(prefix)
        made.add(each)
    refused, another = {}, []
    names = [
        new
        for new in sorted(made - before.ops.keys() - before.externals.keys())
        if not new.startswith(victim)
    ]
    for new in names[:: -(-len(names) // 12)]:
        try:
            found = read(apply(named(graph, victim, new))).ops.values()
        except GraphError as error:
            refused[new] = str(error)
            continue
        another += [new for each in found if f"{new}.2" in each.name]
        assert Counter((record.kind, record.device) for record in found) == alike, new
    assert refused or another
    for new, told in refused.items():
        assert f"{new}', the graph's and one that the rewrite makes; give the graph's another name" in told
