"""Two writers of parallel training cannot drift: sizes of `train`, and rewrites of any graph.

A GPT's layer of `scenarios.builders.train.layers` beside that of `scenarios.builders.gpt` under the rewrites:
the same products, attention and messages in the same order, messages as large and beside the same kernels,
and as many bytes kept. A step of `train` under FSDP gathers and reduces as the rewrite ``fsdp2`` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from policies.parallel.accumulation import GradientAccumulation
from policies.parallel.context_parallel import ContextParallel
from policies.parallel.expert_parallel import ExpertParallel
from policies.parallel.fsdp2 import FullyShard
from policies.parallel.rank_grid import OnRanks, all_ranks
from policies.parallel.tensor_parallel import TensorParallel
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import OpEntry, Records, read
from scenarios.builders.gpt import Gpt
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.kernels import Collective, Kernel, Pass, Product
from scenarios.builders.train.layers import RankWork
from scenarios.builders.train.layout import ParallelLayout, ReplicaBatch
from scenarios.builders.train.step import step_graph
from scenarios.builders.train.training import Training

LAYERS, HIDDEN, HEADS, WORDS, SEQUENCE, SAMPLES = 3, 256, 16, 1000, 128, 2
TOKENS = SAMPLES * SEQUENCE
SIZES: dict[str, Any] = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "vocabulary": WORDS}
MESSAGES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send")
FEED_FORWARD = r"layer\d+(?=\.(?:up|gelu|down))"


def rewritten(*steps: OnRanks) -> Records:
    """Return what the first rank runs of a step of the GPT."""
    model = Gpt(model="gpt", **SIZES, sequence=SEQUENCE, batch=SAMPLES)
    return read(all_ranks(TrainingRewrite(optimizer="adam").apply(model.graph()), *steps))


def layer_of(records: Records) -> tuple[list[OpEntry], list[OpEntry]]:
    """Return the ops of the second layer on the first rank: of its forward and its backward."""
    found = [
        op for name, op in records.ops.items() if name.removeprefix("gpu0/")[:7] in ("layer1.", "layer1/")
    ]
    mine = [op for op in found if op.kind not in ("adam", "recv")]
    return [op for op in mine if op.phase == "F"], [op for op in mine if op.phase != "F"]


def of_ops(ops: Sequence[OpEntry]) -> list[tuple[Any, ...]]:
    """Return what runs: flop of products and attention; of messages the bytes, and what they run beside."""
    found: list[tuple[Any, ...]] = []
    for k, op in enumerate(ops):
        if op.kind in MESSAGES:
            nbytes = op.attributes.get("nbytes") or sum(op.attributes["sends"].values())
            beside = op.attributes["stream"] != "compute"
            found.append((op.kind, nbytes, next(map(part, ops[k + 1 :])) if beside else None))
        elif "k" in op.attributes:
            found.append((part(op), 2 * op.attributes["m"] * op.attributes["k"] * op.attributes["n"]))
        elif part(op) == "attention":
            found.append(("attention",))
    return found


def part(op: OpEntry) -> str | None:
    return "attention" if op.kind.startswith("attention") else op.phase


def of_kernels(kernels: Sequence[Kernel]) -> list[tuple[Any, ...]]:
    """Return the same of the kernels of pieces."""
    found: list[tuple[Any, ...]] = []
    for each in kernels:
        if isinstance(each, Collective):
            beside = None if each.hidden_by is None else getattr(each.hidden_by, "part", "attention")
            found.append((each.kind, each.nbytes, beside))
        elif isinstance(each, Product):
            found.append((each.part, each.flops))
        elif not isinstance(each, Pass):
            found.append(("attention",))
    return found


@pytest.mark.parametrize(
    ("steps", "layout", "context"),
    [
        ((), {}, "ring"),
        ((TensorParallel(2),), {"tp": 2, "sequence_parallel": False}, "ring"),
        ((TensorParallel(4, sequence_parallel=True),), {"tp": 4}, "ring"),
        *(
            ((ContextParallel(2, context=how),), {"cp": 2}, how)
            for how in ("ring", "all-gather", "all-to-all")
        ),
        *(
            ((ContextParallel(4, context=how),), {"cp": 4}, how)
            for how in ("ring", "all-gather", "all-to-all")
        ),
        (
            (TensorParallel(2, sequence_parallel=True), ContextParallel(2, context="all-to-all")),
            {"tp": 2, "cp": 2},
            "all-to-all",
        ),
        ((ExpertParallel(2, FEED_FORWARD, experts=4, tokens=TOKENS),), {"ep": 2, "dp": 2}, "ring"),
        ((ExpertParallel(4, FEED_FORWARD, experts=4, tokens=TOKENS),), {"ep": 4, "dp": 4}, "ring"),
    ],
)
def test_a_layer_runs_and_keeps_the_same(
    steps: tuple[OnRanks, ...], layout: dict[str, Any], context: str
) -> None:
    """What is left out: passes, which differ, and what the GPT does not have, statistics and a router.

    For its router, a norm keeps what it wrote; the GPT's keeps what it read.
    """
    records = rewritten(*steps)
    forward, backward = layer_of(records)
    experts = 4 * ("ep" in layout)
    model = Architecture(**SIZES, positions=SEQUENCE, experts=experts, top_k=bool(experts))
    work = RankWork(model, ParallelLayout(**layout), ReplicaBatch(SAMPLES, SEQUENCE, context=context))
    pieces = [piece for piece in work.layer(model.kind(1)) if piece.name != "router"]
    assert of_ops(forward) == of_kernels([each for piece in pieces for each in piece.forward])
    assert of_ops(backward) == of_kernels([each for piece in pieces[::-1] for each in piece.backward])

    read_back = dict.fromkeys(tensor for op in backward for tensor, _ in op.inputs)
    makers = {tensor: records.producer(tensor) for tensor in read_back}
    found = sum(records.nbytes(t) for t, maker in makers.items() if maker is not None and maker.phase == "F")
    norms, choices = (1, 8 * work.load.copies) if experts else (2, 0)
    statistics = 4 * norms * work.few + 4 * work.tokens * HEADS // work.t + choices
    expected = sum(piece.saved for piece in pieces) - statistics
    if layout.get("cp") and context == "ring":  # queries are a part of one tensor, which stays
        expected += 2 * work.tokens * HIDDEN * work.e
    assert found == expected


Message = tuple[str, str, int]
"""Kind, module, and behind how many blocks of modules it may start."""


def messages_of_rewrite(micro_batches: int) -> list[Message]:
    """Return what a rank sends under ``fsdp2``; behind a copy out is behind the block before it."""
    accumulated = (GradientAccumulation(micro_batches),) if micro_batches > 1 else ()
    found, blocks, block = list[Message](), 0, ""
    begun: dict[str, int] = {}
    """Op on the stream of all → blocks before it, or up to it."""
    for name, op in rewritten(*accumulated, FullyShard(4, r"layer\d+")).ops.items():
        if not name.startswith("gpu0/") or op.kind == "adam":
            continue
        own = re.search(r"layer\d+", name)
        whose = own.group() if own else "root"
        if op.kind in MESSAGES:
            behind = max(begun.get(other, 0) for other, _ in [*op.after, (op.inputs[0][0], 0)])
            found.append((op.kind, whose, behind))
        elif op.kind not in ("copy_in", "copy_out", "add") and f"{op.micro_batch}/{whose}" != block:
            block, blocks = f"{op.micro_batch}/{whose}", blocks + 1
        if op.kind != "copy_in" or "reduce" in name:
            begun[name] = blocks
    return found


def messages_of_train(micro_batches: int) -> list[Message]:
    """Return the same of a step of `train`."""
    model, layout = Architecture(**SIZES, positions=SEQUENCE), ParallelLayout(dp=4, sharding="fsdp")
    plain = TrainingCalibration("plain", 1e15, 1e12)
    of = Training(model, layout, plain, SEQUENCE, SAMPLES, 4 * SAMPLES * micro_batches)
    found, begun = list[Message](), dict[str, int]()
    for name, op in read(step_graph(of, of.schedule)[0]).ops.items():
        if op.kind in MESSAGES:
            whose = name.split(".")[0].split()[1]
            behind = max((begun.get(other, 0) for other, _ in op.after), default=0)
            found.append((op.kind, whose if whose == "root" else f"layer{whose}", behind))
        else:
            begun[name] = len(begun) + 1
    return found


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_fsdp_gathers_and_reduces_in_the_same_order(micro_batches: int) -> None:
    """Two modules ahead in the forward, one in the backward: behind the root and each copy out but one."""
    found = messages_of_train(micro_batches)
    assert found == messages_of_rewrite(micro_batches)
    assert found[:10] == [
        ("all_gather", "root", 0),
        ("all_gather", "layer0", 0),
        ("all_gather", "layer1", 0),  # the root is copied out before all
        ("all_gather", "layer2", 1),  # layer 0 is, behind the embedding
        ("all_gather", "layer2", 3),  # layer 2 is, behind layer 1; for the backward
        ("all_gather", "layer1", 5),
        ("reduce_scatter", "layer2", 6),
        ("all_gather", "layer0", 6),
        ("reduce_scatter", "layer1", 7),
        ("reduce_scatter", "layer0", 8),
    ]
