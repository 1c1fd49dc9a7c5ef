"""Layout: transposes that cancel."""

from __future__ import annotations

import itertools
from typing import Any

from rewrite_helpers import graph, shape

from policies.rewrite.layout import Layout
from policies.rewrite.records import read


def test_transposes_between_convolutions_cancel() -> None:
    """x → conv → relu → conv → y in NHWC: one transpose before the first conv, one after the last."""
    nhwc = {"attributes": {"data_format": "NHWC"}, "kind": "conv"}
    g = graph(
        {
            "c1": {"inputs": ["x"], **nhwc},
            "r": {"kind": "relu", "inputs": ["c1"]},
            "c2": {"inputs": ["r"], **nhwc},
            "y": {"kind": "softmax", "inputs": ["c2"]},
        }
    )
    after = shape(Layout("NCHW").apply(g))
    assert [name for name, (kind, _) in after.items() if kind == "transpose"] == ["c1/to_NCHW", "c2/to_NHWC"]
    assert after["r"][1] == ["c1"]
    assert after["c2"][1] == ["r"]
    assert after["y"][1] == ["c2/to_NHWC"]
    assert shape(Layout("NHWC").apply(g)) == shape(g)


def test_a_norm_takes_the_format_of_its_neighbours_and_its_gradient_keeps_its_own() -> None:
    nhwc = {"attributes": {"data_format": "NHWC"}}
    ops = {
        "c1": {"kind": "conv", "inputs": ["x"], **nhwc},
        "norm": {"kind": "batch_norm", "inputs": ["c1"], **nhwc},
        "c2": {"kind": "conv", "inputs": ["norm"], **nhwc},
        "grad": {"kind": "batch_norm_grad", "inputs": ["c2", "y"], **nhwc},
    }
    after = Layout("NCHW").apply(graph(ops, ("x", "y")))
    formats = {
        after.op_names[op]: given["data_format"] for op, given in after.attributes.items() if len(given) < 2
    }
    assert formats == {"c1": "NCHW", "norm": "NCHW", "c2": "NCHW", "grad": "NHWC"}
    assert shape(after)["grad"][1] == ["c2/to_NHWC", "y"]


def test_the_gradient_of_weights_is_no_image() -> None:
    nhwc = {"attributes": {"data_format": "NHWC"}}
    ops = {
        "conv": {"kind": "conv", "inputs": ["x"], **nhwc},
        "grad": {"kind": "conv_weight_grad", "inputs": ["y", "conv"], **nhwc},
        "update": {"kind": "sgd", "inputs": ["grad"]},
    }
    after = shape(Layout("NCHW").apply(graph(ops, ("x", "y"))))
    assert after["grad"] == ("conv_weight_grad", ["y", "conv/to_NHWC"])
    assert after["update"] == ("sgd", ["grad"])


def test_every_pair_of_transposes_that_meet_cancels() -> None:
    """x → conv → conv → conv → conv in NHWC: three pairs meet, with nothing that sinks in between."""
    chain = ["x", "c1", "c2", "c3", "c4"]
    g = graph(
        {
            op: {"kind": "conv", "inputs": [before], "attributes": {"data_format": "NHWC"}}
            for before, op in itertools.pairwise(chain)
        }
    )
    after = shape(Layout("NCHW").apply(g))
    assert [name for name, (kind, _) in after.items() if kind == "transpose"] == ["c1/to_NCHW", "c4/to_NHWC"]
    assert [after[op][1] for op in chain[2:]] == [["c1"], ["c2"], ["c3"]]


def transposed(there: str, inputs: list[Any], **more: Any) -> dict[str, Any]:
    back = {"NHWC": "NCHW", "NCHW": "NHWC"}[there]
    return {"kind": "transpose", "inputs": inputs, "attributes": {"from": back, "to": there}, **more}


def test_transposes_of_different_iterations_stay() -> None:
    """What is read of the iteration before is no longer the same tensor once a transpose is gone."""
    pair = {"first": transposed("NCHW", [("last", 1)]), "second": transposed("NHWC", ["first"])}
    g = graph({**pair, "last": {"kind": "softmax", "inputs": ["second"]}})
    assert shape(Layout().apply(g)) == shape(g)
    sinking = {"t": transposed("NCHW", ["x"]), "r": {"kind": "relu", "inputs": [("t", 1)]}}
    g = graph({**sinking, "last": {"kind": "softmax", "inputs": ["r"]}})
    assert shape(Layout().apply(g)) == shape(g)


def test_a_transpose_that_is_fetched_or_waits_stays() -> None:
    g = graph({"first": transposed("NCHW", ["x"]), "fetched": transposed("NHWC", ["first"])})
    assert shape(Layout().apply(g)) == shape(g)
    late = transposed("NHWC", ["first"], after=["p"])
    g = graph(
        {
            "p": {"kind": "exp", "inputs": ["x"]},
            "first": transposed("NCHW", ["x"]),
            "late": late,
            "last": {"kind": "softmax", "inputs": ["late"]},
        }
    )
    assert shape(Layout().apply(g)) == shape(g)


def test_what_follows_a_transpose_that_cancels_follows_what_it_read() -> None:
    g = graph(
        {
            "made": {"kind": "exp", "inputs": ["x"]},
            "first": transposed("NCHW", ["made"]),
            "second": transposed("NHWC", ["first"]),
            "last": {"kind": "softmax", "inputs": ["second"]},
            "follower": {"kind": "exp", "inputs": ["x"], "after": ["first", "second"]},
        }
    )
    after = Layout().apply(g)
    assert shape(after) == {"made": ("exp", ["x"]), "last": ("softmax", ["made"]), "follower": ("exp", ["x"])}
    assert read(after).ops["follower"].after == [("made", 0)]


def test_what_follows_the_last_of_three_transposes_follows_what_they_read_in_the_end() -> None:
    """The second and third cancel first: who followed the third follows the first, which cancels as well."""
    g = graph(
        {
            "made": {"kind": "exp", "inputs": ["x"]},
            "t1": transposed("NCHW", ["made"]),
            "t2": transposed("NHWC", ["t1"]),
            "t3": transposed("NCHW", ["t2"]),
            "t4": transposed("NHWC", ["t3"]),
            "last": {"kind": "softmax", "inputs": ["t4"]},
            "follower": {"kind": "exp", "inputs": ["x"], "after": ["t4"]},
        }
    )
    after = Layout().apply(g)
    assert [*after.op_names] == ["made", "last", "follower"]
    assert read(after).ops["follower"].after == [("made", 0)]


def test_a_residual_sum_lets_transposes_through() -> None:
    nhwc = {"attributes": {"data_format": "NHWC"}, "kind": "conv"}
    g = graph(
        {
            "c1": {"inputs": ["x"], **nhwc},
            "c2": {"inputs": ["x"], **nhwc},
            "s": {"kind": "add", "inputs": ["c1", "c2"]},
            "c3": {"inputs": ["s"], **nhwc},
            "y": {"kind": "softmax", "inputs": ["c3"]},
        }
    )
    after = shape(Layout("NCHW").apply(g))
    assert after["s"][1] == ["c1", "c2"]
    assert sum(kind == "transpose" for kind, _ in after.values()) == 3  # x twice, y once
