"""Context parallelism: who computes what of attention, what is exchanged, and when."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from parallel_helpers import by_stream, of_rank, run

from policies.parallel.context_parallel import ContextParallel, attention_shares
from policies.parallel.ddp import DistributedDataParallel
from policies.parallel.rank_grid import Ranked, RankOrder, UnsummedWarning, all_ranks, warn_of_unsummed
from policies.parallel.tensor_parallel import TensorParallel
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import read
from scenarios.builders.gpt import Gpt
from sim import Graph, GraphBuilder
from sim.base.errors import GraphError, InputError

GPT = Gpt(model="gpt", layers=2, hidden=64, heads=8, sequence=32, vocabulary=128, batch=2)
BSH = 2 * 2 * 32 * 64
STEP = TrainingRewrite().apply(GPT.graph())


def exchanged(graph: Graph, what: str, phase: str, rank: str = "gpu0") -> Counter[tuple[str, int]]:
    """Return kind and bytes of what is exchanged for an op in a phase, counted."""
    return Counter(
        (each.kind, each.attributes["nbytes"])
        for name, each in of_rank(graph, rank).items()
        if name.startswith(what) and "communicator" in each.attributes and each.phase == phase
    )


# -- whose work -----------------------------------------------------------------------------------


@given(st.integers(1, 5), st.booleans(), st.booleans(), st.integers(1, 3))
@examples(40)
def test_shares_are_what_counting_pairs_gives(c: int, causal: bool, balanced: bool, length: int) -> None:
    """Another formulation: token by token; that of a token with itself counts half under a causal mask."""
    tokens = 2 * c * length
    owner = {}
    for token in range(tokens):
        chunk = token // length
        owner[token] = min(chunk, 2 * c - 1 - chunk) if balanced else chunk // 2
    count: Counter[tuple[int, int]] = Counter()
    for q, k in product(range(tokens), repeat=2):
        weight = 2 if not causal or k < q else 1 if k == q else 0
        count[owner[q], owner[k]] += weight
    total = sum(count.values())
    for rank in range(c):
        found = attention_shares(c, rank, causal=causal, balanced=balanced)
        assert found == [Fraction(count[rank, other], total) for other in range(c)]
        if balanced or not causal:
            assert found == [Fraction(1, c * c)] * c


def test_neighbours_have_unequal_work() -> None:
    found = [sum(attention_shares(4, rank, causal=True, balanced=False)) for rank in range(4)]
    assert found == [Fraction(k, 16) for k in (1, 3, 5, 7)]
    graph = ContextParallel(4, partition="contiguous").apply(STEP)
    flops = [
        sum(each.flops for name, each in of_rank(graph, f"gpu{r}").items() if each.kind == "attention")
        for r in range(4)
    ]
    whole = 2 * sum(each.flops for each in read(STEP).ops.values() if each.name == "layer0.attention")
    assert flops == [pytest.approx(whole * k / 16, abs=8) for k in (1, 3, 5, 7)]


# -- how much -------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [2, 4])
def test_a_ring_exchanges_keys_and_values(c: int) -> None:
    """c - 1 times 2bsh/c forward; backward the same, and their gradients c - 1 times, one exchange later."""
    graph, kv = ContextParallel(c).apply(STEP), 2 * BSH // c
    forward = {("send", kv): c - 1, ("recv", kv): c - 1}
    assert exchanged(graph, "layer1.attention", "F") == forward
    both = {(kind, n): k for kind in ("send", "recv") for n, k in ((kv, 2), (2 * kv, c - 2)) if k}
    assert exchanged(graph, "layer1.attention", "I") == both
    for r in range(c):  # the neighbours, as places of the next and of the one before
        ops = of_rank(graph, f"gpu{r}")
        peers = [ops[f"layer0.attention{name}"].attributes["peer"] for name in ("/send0", "/recv0")]
        assert peers == [f"gpu{(r + 1) % c}", f"gpu{(r - 1) % c}"]
        back = [ops[f"layer0.attention/grad{name}"].attributes["peer"] for name in ("/send0", "/recv0")]
        assert back == peers[::-1]


def test_all_gather_and_all_to_all() -> None:
    """Keys and values whole, gathered again and scattered backward; Ulysses: four of bsh/c each way."""
    gathered = ContextParallel(4, "all-gather").apply(STEP)
    assert exchanged(gathered, "layer1.attention", "F") == {("all_gather", BSH): 2}
    assert exchanged(gathered, "layer1.attention", "I") == {
        ("all_gather", BSH): 2,
        ("reduce_scatter", BSH): 2,
    }
    ulysses = ContextParallel(4, "all-to-all").apply(STEP)
    assert exchanged(ulysses, "layer1.attention", "F") == {("all_to_all", BSH // 4): 4}
    assert exchanged(ulysses, "layer1.attention", "I") == {("all_to_all", BSH // 4): 4}
    shape = of_rank(ulysses)["layer1.attention/heads"].attributes
    assert (shape["heads"], shape["seq_len"]) == (2, 32)


@pytest.mark.parametrize("method", ["ring", "all-gather", "all-to-all"])
def test_all_else_is_shared_and_parameters_are_whole(method: str) -> None:
    graph = ContextParallel(4, method).apply(STEP)
    old, ops = read(STEP).ops, of_rank(graph)
    assert {
        n[5:]: e.nbytes
        for n, e in read(graph).externals.items()
        if n.startswith("gpu0/") and "tokens" not in n
    } == {name: each.nbytes for name, each in read(STEP).externals.items() if name != "tokens"}
    for name, each in ops.items():
        if name not in old or "attention" in name:
            continue
        if each.kind == "sgd" or name == "embed.words/grad_sum":
            assert each.flops == old[name].flops
        else:
            assert each.flops == pytest.approx(old[name].flops / 4, abs=1)
        if each.kind == "matmul":
            assert each.flops == 2 * each.attributes["m"] * each.attributes["n"] * each.attributes["k"]
        gradient = each.phase == "W" or name == "embed.words/grad_sum"
        if len(each.outputs) == 1 and each.kind not in ("sgd", "reduce_sum"):
            assert each.outputs[0] == old[name].outputs[0] // (1 if gradient else 4), name
    work = sum(each.flops for name, each in ops.items() if each.kind.startswith("attention"))
    whole = sum(each.flops for each in old.values() if each.kind.startswith("attention"))
    assert work == pytest.approx(whole / 4, abs=20)


# -- when -----------------------------------------------------------------------------------------


def attention(ns: int = 900) -> Graph:
    """Return a forward: queries, keys and values of 90 bytes each, given."""
    b = GraphBuilder("attention")
    for name in "qkv":
        b.input(name, 90)
    causal = {"is_causal": True}
    b.op("a", kind="attention", inputs=["q", "k", "v"], outputs=90, duration_ns=ns, attributes=causal)
    return b.build()


def test_a_ring_worked_by_hand() -> None:
    """Three ranks: a block takes 900 / 9, a message of 60 bytes 60 ns. What is received goes on at once."""
    found = by_stream(run(ContextParallel(3).apply(attention()), 3))
    assert found == {
        "compute": [(0, 100, "a/block0"), (100, 200, "a/block1"), (200, 300, "a")],
        "context parallel send": [(0, 60, "a/send0"), (60, 120, "a/send1")],
        "context parallel recv": [(0, 60, "a/recv0"), (60, 120, "a/recv1")],
    }
    slow = by_stream(run(ContextParallel(3).apply(attention(180)), 3))  # blocks of 20 ns wait for messages
    assert slow["compute"] == [(0, 20, "a/block0"), (60, 80, "a/block1"), (120, 140, "a")]


def test_neighbours_chunks_end_with_the_last_rank() -> None:
    """Of 18 parts of 50 ns rank 0 has 1 x 2, rank 2 has 2 + 4 + 4: it needs what rank 0 sends first."""
    trace = run(ContextParallel(3, partition="contiguous").apply(attention()), 3)
    assert by_stream(trace)["compute"] == [(0, 100, "a")]
    assert by_stream(trace, "gpu2")["compute"] == [
        (0, 100, "a/block0"),
        (100, 300, "a/block1"),
        (300, 500, "a"),
    ]


def test_gathering_is_exposed() -> None:
    found = by_stream(run(ContextParallel(3, "all-gather").apply(attention()), 3))
    assert found["compute"] == [(0, 90, "a/all_gather_k"), (90, 180, "a/all_gather_v"), (180, 480, "a")]


def test_a_backward_ring_runs_to_its_end() -> None:
    """Three layers of attention with products between them, forward and backward, on four ranks."""
    b = GraphBuilder("training")
    x = b.input("x", 120)
    for k in range(3):
        w = b.parameter(f"w{k}", 40)
        y = b.op(f"l{k}", kind="matmul", inputs=[x, w], outputs=360, duration_ns=120, dtype="fp32")
        x = b.op(f"a{k}", kind="attention", inputs=[y], outputs=120, duration_ns=160, dtype="fp32")
    for method in ("ring", "all-gather", "all-to-all"):
        step = TrainingRewrite().apply(b.build())
        graph = all_ranks(step, ContextParallel(4, method), DistributedDataParallel(1))
        trace = run(graph, 4)
        found = by_stream(trace)["compute"]
        assert found[-1][2].endswith("/update")
        assert [by_stream(trace, f"gpu{r}")["compute"] for r in range(1, 4)] == [found] * 3


def test_a_backward_worked_by_hand() -> None:
    """Two ranks: kv and dkv are 120 bytes, so 120 ns; blocks take 40 forward, 100 backward.

    The backward begins with the other's keys and values, which the forward left; its own come home meanwhile.
    """
    b = GraphBuilder("training")
    b.input("x", 120), b.parameter("w", 40)
    b.op("l", kind="matmul", inputs=["x", "w"], outputs=360, duration_ns=120, dtype="fp32")
    b.op("a", kind="attention", inputs=["l"], outputs=120, duration_ns=160, dtype="fp32")
    graph = all_ranks(TrainingRewrite().apply(b.build()), ContextParallel(2), DistributedDataParallel(1))
    found = by_stream(run(graph, 2))
    assert found["context parallel send"] == [
        (60, 180, "a/send0"),
        (300, 420, "a/grad/send0"),
        (420, 540, "a/grad/send1"),
    ]
    assert found["compute"] == [
        (0, 60, "l"),
        (60, 100, "a/block0"),
        (180, 220, "a"),
        (220, 300, "a/loss_grad"),
        (300, 400, "a/grad/block0"),
        (420, 520, "a/grad/block1"),
        (540, 540, "a/grad/sum1"),
        (540, 540, "a/grad"),
        (540, 600, "l/weight_grad"),
        (680, 681, "w/update"),
    ]


# -- together -------------------------------------------------------------------------------------


def test_tensor_context_and_data_parallelism_together() -> None:
    """Order tp-cp-dp, 2 of each: gradients are summed over cp and dp; other orders move ranks only."""
    rewrites = TensorParallel(2, sequence_parallel=True), ContextParallel(2), DistributedDataParallel(2)
    graph = all_ranks(STEP, *rewrites)
    members: dict[str, list[str]] = {}
    for op in graph.in_communicators:
        row = members.setdefault(graph.attributes[op]["communicator"], [])
        device = graph.pins[graph.pin_code[op]]
        if device not in row:
            row.append(device)
    assert {name: sorted(row) for name, row in members.items()} == {
        **{f"tensor parallel {k}": [f"gpu{2 * k}", f"gpu{2 * k + 1}"] for k in range(4)},
        **{f"context parallel {k}": [f"gpu{n}", f"gpu{n + 2}"] for k, n in enumerate((0, 1, 4, 5))},
        **{f"data parallel {k}": [f"gpu{n + k}" for n in (0, 2, 4, 6)] for k in range(2)},
    }
    assert exchanged(graph, "layer1.attention", "F") == {("send", BSH // 2): 1, ("recv", BSH // 2): 1}
    found = exchanged(graph, "layer1.", "F") - exchanged(graph, "layer1.attention", "F")
    assert found == {("all_gather", BSH // 2): 2, ("reduce_scatter", BSH // 2): 2}
    moved = all_ranks(STEP, *rewrites, RankOrder("dp-cp-tp"))
    tensor = [
        op for op in moved.in_communicators if moved.attributes[op]["communicator"] == "tensor parallel 0"
    ]
    assert {moved.pins[moved.pin_code[op]] for op in tensor} == {"gpu0", "gpu4"}
    ends = {run(one, 8).makespan_ns for one in (timed(graph), timed(moved))}
    assert len(ends) == 1


def timed(graph: Graph) -> Graph:
    """Return the graph with durations of a nanosecond for each thousand flop."""
    from policies.rewrite.records import write

    records = read(graph)
    for record in records.ops.values():
        if "communicator" not in record.attributes and record.duration_ns is None:
            record.duration_ns = record.flops // 1000
    return write(records)


def test_gradients_that_nobody_sums_are_told() -> None:
    split = ContextParallel(2).rewrite_ranks(Ranked.of(STEP))
    with pytest.warns(UnsummedWarning, match="nothing sums the gradients of context-parallel ranks"):
        warn_of_unsummed(split)
    warn_of_unsummed(DistributedDataParallel(1).rewrite_ranks(split))
    warn_of_unsummed(ContextParallel(2).rewrite_ranks(Ranked.of(GPT.graph())))
    warn_of_unsummed(Ranked.of(STEP))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        InputError, match="context must be one of ring, all-gather, all-to-all; found 'rings'"
    ):
        ContextParallel(2, "rings")
    b = GraphBuilder("products")
    b.input("q", 80), b.input("k", 80)
    b.op("scores", kind="matmul", inputs=["q", "k"], outputs=80)
    with pytest.raises(GraphError, match="'scores' multiplies two tensors that are no parameters"):
        ContextParallel(2).apply(b.build())
    b = GraphBuilder("no attention")
    b.input("x", 80), b.op("a", kind="relu", inputs=["x"], outputs=80)
    with pytest.raises(GraphError, match="has no op of kind attention"):
        ContextParallel(2).apply(b.build())
    with pytest.raises(GraphError, match=r"'layer0.attention' has 8 heads, which 3 ranks cannot share"):
        ContextParallel(3, "all-to-all").apply(STEP)
    with pytest.raises(GraphError, match="tensor-parallel comes before"):
        all_ranks(STEP, ContextParallel(2), TensorParallel(2))
