"""What ops cost: against counting loops and definitions, and the same in every framework's layout."""

import itertools
import math

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.describe.field_types import BITS, sized_dtype
from scenarios.ops.attributes import FLOATING, check_dtype, nbytes
from scenarios.ops.op_costs import COSTS, cost_of
from scenarios.ops.op_formulas import Cost, OpFacts, TensorFacts
from sim.base.errors import GraphError, UnknownNameError
from sim.graph.views import VIEWS

small = st.integers(1, 4)


def tensor(*shape):
    return TensorFacts(shape, 4 * math.prod(shape))


def cost(kind, inputs, outputs, **attributes):
    return cost_of(OpFacts(kind, tuple(inputs), tuple(outputs), attributes))


@given(small, small, small, small, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
@examples(50)
def test_conv_is_what_the_loops_count(n, c, m, size, kernel, stride, group):
    """The seven loops of a direct convolution without padding, one multiply-add in the innermost."""
    c, m, size = c * group, m * group, size + kernel
    out = (size - kernel) // stride + 1
    macs = 0
    for _n, oc, _y, _x in itertools.product(range(n), range(m), range(out), range(out)):
        first = oc // (m // group) * (c // group)
        for _c, _ky, _kx in itertools.product(range(first, first + c // group), range(kernel), range(kernel)):
            macs += 1
    x, w, y = tensor(n, c, size, size), tensor(m, c // group, kernel, kernel), tensor(n, m, out, out)
    assert cost("conv", [x, w], [y]) == Cost(2 * macs, x.nbytes + w.nbytes, y.nbytes)
    bias = tensor(m)
    assert cost("conv", [x, w, bias], [y]).flops == 2 * macs + y.elements
    # TensorFlow's layout: NHWC and height x width x in x out
    nhwc = [tensor(n, size, size, c), tensor(kernel, kernel, c // group, m)]
    assert cost("conv", nhwc, [tensor(n, out, out, m)], weight_output_axis=-1).flops == 2 * macs
    # the two gradients take the work of the forward
    sizes, dy = tensor(4), tensor(n, out, out, m)
    assert cost("conv_input_grad", [sizes, nhwc[1], dy], [nhwc[0]]).flops == 2 * macs
    assert cost("conv_weight_grad", [nhwc[0], sizes, dy], [nhwc[1]]).flops == 2 * macs
    # a transposed convolution is the gradient with respect to the input: the same multiply-adds
    assert cost("conv_transpose", [y, w], [x]).flops == 2 * macs


def test_depthwise_convolution_is_a_grouped_one():
    x, y = tensor(2, 32, 10, 10), tensor(2, 64, 8, 8)
    grouped = cost("conv", [x, tensor(64, 1, 3, 3)], [y]).flops
    assert (
        cost("depthwise_conv", [tensor(2, 10, 10, 32), tensor(3, 3, 32, 2)], [tensor(2, 8, 8, 64)]).flops
        == grouped
    )


@given(small, small, small, st.lists(small, max_size=2), st.booleans(), st.booleans())
def test_matmul_is_what_the_loops_count(m, k, n, batch, transposed_a, transposed_b):
    a, b, y = (*batch, m, k), (*batch, k, n), (*batch, m, n)
    macs = np.einsum("...mk,...kn->...", np.ones(a), np.ones(b)).sum()
    stored_a = (*batch, k, m) if transposed_a else a
    stored_b = (*batch, n, k) if transposed_b else b
    assert cost("matmul", [tensor(*stored_a), tensor(*stored_b)], [tensor(*y)]).flops == 2 * macs
    assert cost("gemm", [tensor(*a), tensor(*b), tensor(n)], [tensor(*y)]).flops == 2 * macs + math.prod(y)
    if not batch:
        assert cost("einsum", [tensor(*a), tensor(*b)], [tensor(*y)], equation="mk,kn->mn").flops == 2 * macs
    dots = cost("einsum", [tensor(*a), tensor(*b)], [tensor(*y)], equation="...mk,...kn->...mn")
    assert dots.flops == 2 * macs


def test_matmul_of_vectors_and_of_nothing():
    assert cost("matmul", [tensor(5), tensor(5)], [tensor()]).flops == 10
    assert cost("matmul", [tensor(3, 5), tensor(5)], [tensor(3)]).flops == 30
    assert cost("matmul", [tensor(0, 5), tensor(5, 2)], [tensor(0, 2)]).flops == 0
    with pytest.raises(GraphError, match="the inner lengths differ"):
        cost("gemm", [tensor(2, 7), tensor(5, 3)], [tensor(2, 3)])


def test_attention_is_two_products_and_a_softmax():
    b, h, s, t, d, dv = 2, 4, 5, 7, 8, 6
    products = 2 * b * h * s * t * (d + dv)
    split = cost(
        "attention", [tensor(b, h, s, d), tensor(b, h, t, d), tensor(b, h, t, dv)], [tensor(b, h, s, dv)]
    )
    assert split.flops == products + 6 * b * h * s * t
    flat = [tensor(b, s, h * d), tensor(b, t, h * d), tensor(b, t, h * dv)]
    assert cost("attention", flat, [tensor(b, s, h * dv)], q_num_heads=h).flops == split.flops
    past = [tensor(b, h, s, d), tensor(b, h, 3, d), tensor(b, h, 3, dv), None, tensor(b, h, 4, d)]
    assert cost("attention", past, [tensor(b, h, s, dv)]).flops == split.flops  # 3 new keys and 4 cached


def test_recurrent_cells():
    steps, batch, features, hidden = 7, 3, 5, 4
    for kind, gates, pointwise in [("lstm", 4, 26), ("gru", 3, 20), ("rnn", 1, 3)]:
        x = tensor(steps, batch, features)
        w, r = tensor(1, gates * hidden, features), tensor(1, gates * hidden, hidden)
        products = 2 * gates * hidden * (features + hidden)
        expected = steps * batch * (products + pointwise * hidden)
        assert cost(kind, [x, w, r], [tensor(steps, 1, batch, hidden)]).flops == expected


def test_windows_and_normalisation():
    x, y = tensor(1, 3, 8, 8), tensor(1, 3, 4, 4)
    assert cost("max_pool", [x], [y], kernel_shape=[2, 2]).flops == x.elements
    assert cost("average_pool", [x], [y], kernel_shape=[3, 3]).flops == 9 * y.elements
    assert cost("max_pool", [x], [y]).flops == x.elements  # the window is not known
    assert cost("lrn", [x], [x], size=5).flops == 9 * x.elements
    assert cost("batch_norm", [x, *[tensor(3)] * 4], [x]) == Cost(2 * x.elements, x.nbytes + 48, x.nbytes)
    assert cost("batch_norm", [x], [x], training_mode=1).flops == 7 * x.elements
    assert cost("resize", [y], [x], mode="nearest").flops == 0
    assert cost("resize", [y], [x], mode="linear").flops == 2 * 4 * x.elements  # bilinear: four taps
    assert cost("resize", [y], [x], mode="cubic").flops == 2 * 16 * x.elements
    assert cost("grid_sample", [x, tensor(1, 4, 4, 2)], [y]).flops == 2 * 4 * y.elements
    assert cost("lp_pool", [x], [y], kernel_shape=[2, 2]).flops == 2 * x.elements  # square and add
    assert cost("dft", [tensor(2, 8, 2)], [tensor(2, 8, 2)]).flops == 5 * 16 * 3  # two of eight


def test_losses_and_boxes_that_pick():
    """Of 5 classes one a row is read; 6 scores of 3 boxes are sorted in 2 comparisons each, 2 boxes kept."""
    scores, targets, loss = tensor(4, 5, 3), tensor(4, 3), tensor(1)
    assert cost("negative_log_likelihood_loss", [scores, targets], [loss]) == Cost(36, 48 + 48, 4)
    boxes = [tensor(1, 3, 4), tensor(1, 2, 3)]
    assert cost("non_max_suppression", boxes, [tensor(2, 3)]).flops == 6 * 2 + 13 * 3 * 2


def test_elementwise_reductions_and_copies():
    x, row = tensor(4, 6), tensor(6)
    assert cost("add", [x, row], [x]) == Cost(24, 96 + 24, 96)
    assert cost("sigmoid", [x], [x]).flops == 4 * 24
    assert cost("add_n", [x, x, x], [x]).flops == 2 * 24
    assert cost("mean_n", [x, x, x], [x]).flops == 3 * 24
    assert cost("reduce_sum", [x], [row]) == Cost(24, 96, 24)
    assert cost("concat", [x, x], [tensor(8, 6)]) == Cost(0, 192, 192)
    assert cost("gather", [tensor(1000, 6), tensor(4)], [x]) == Cost(0, 96 + 16, 96)  # rows, not the table
    bags, indices = tensor(2, 6), tensor(4)
    assert cost("embedding_bag", [tensor(1000, 6), indices], [bags]) == Cost(24, 96 + 16, 48)
    assert cost("search_sorted", [tensor(7), x], [x]) == Cost(24 * 3, 28 + 96, 96)
    heads, table = tensor(2, 4, 3, 8), tensor(5000, 4)  # a row for each of six tokens
    assert cost("rotary_embedding", [heads, table, table], [heads]) == Cost(3 * 192, 768 + 2 * 96, 768)
    places = tensor(2, 3)
    for order in ([table, table, places], [places, table, table]):  # ONNX's, and ONNX Runtime's own
        assert cost("rotary_embedding", [heads, *order], [heads]).bytes_read == 768 + 2 * 96 + 24
    own = tensor(2, 3, 4)
    assert cost("rotary_embedding", [tensor(2, 3, 32), own, own], [heads]).bytes_read == 768 + 2 * 96
    assert cost("constant_of_shape", [tensor(2)], [x]) == Cost(0, 0, 96)
    assert cost("assign", [None, x], []) == Cost(0, 96, 96)
    assert cost("assign_sub", [None, x], []) == Cost(24, 192, 96)


@pytest.mark.parametrize("kind", sorted(VIEWS))
def test_views_are_free(kind):
    assert cost(kind, [tensor(4, 6)], [tensor(24)]) == Cost(0, 0, 0)


@pytest.mark.parametrize("kind", sorted(COSTS))
def test_no_formula_is_negative_or_silent_about_work(kind):
    """Every kind, on tensors that fit all of them, costs something unless it is declared free or a copy."""
    square = tensor(1, 4, 4)
    attributes = {
        "size": 3,
        "frame_length": 3,
        "equation": "bij,bjk->bik",
        "q_num_heads": 2,
        "mode": "linear",
        "kernel_shape": [1, 1],
    }
    found = cost(kind, [square, square, square], [square], **attributes)
    assert min(found) >= 0
    if found.bytes_written == 0:
        without_data = {"shape", "size", "rank", "const", "no_op", "placeholder", "control_trigger"}
        ends = {"arg", "retval", "send", "recv"}  # links and callers move what these stand for
        assert kind in {*VIEWS, *without_data, *ends}
        assert found == Cost(0, 0, 0)


def test_unknown_kinds_and_missing_inputs_are_told():
    with pytest.raises(UnknownNameError, match=r"unknown op kind 'convv'; did you mean 'conv'\?"):
        cost("convv", [], [])
    with pytest.raises(GraphError, match="the cost of 'conv' needs its input 1, which is absent"):
        cost("conv", [tensor(1, 3, 8, 8), None], [tensor(1, 3, 8, 8)])
    with pytest.raises(GraphError, match="needs its output"):
        cost("relu", [tensor(1)], [])


def test_dtypes():
    assert nbytes((2, 3), "fp32") == 24
    assert nbytes((3,), "int4") == 2
    assert nbytes((), "bf16") == 2
    assert {"fp32", "bf16", "fp8"} < FLOATING
    assert "int8" not in FLOATING
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'f32'; did you mean 'fp32'\?"):
        check_dtype("f32")


def test_onnx_knows_the_types_by_these_names_and_sizes():
    onnx = pytest.importorskip("onnx")
    for theirs, elem in onnx.TensorProto.DataType.items():
        ours = sized_dtype(theirs)
        if ours is None:
            assert theirs in ("UNDEFINED", "STRING", "FLOAT6E2M3", "FLOAT6E3M2")
        elif BITS[ours] >= 8:
            assert onnx.helper.tensor_dtype_to_np_dtype(elem).itemsize * 8 == BITS[ours]
