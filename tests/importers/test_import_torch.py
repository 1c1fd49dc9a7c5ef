"""PyTorch modules: by hand, against PyTorch's own counter, and in scenarios."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from scenario_texts import write

from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.batch import Batch
from policies.rewrite.records import read
from policies.rewrite.simplify import CommonSubexpressions
from scenarios.importers.torch_export import import_torch
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import InputError, ScenarioError, UnknownNameError
from sim.graph.attributes import SIZES
from sim.graph.graph import Graph, Role
from sim.graph.views import storage_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of PyTorch about its own inside
    torch = pytest.importorskip("torch")

nn, F = torch.nn, torch.nn.functional


class Calls(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, forward, **parts) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, *tensors):
        return self.function(self, *tensors)


def graph_of(forward, *inputs, **parts) -> Graph:
    return import_torch(Calls(forward, **parts).eval(), inputs)


def rows(graph: Graph) -> list[tuple[str, int, int, int]]:
    """Return kind, flops, bytes read and bytes written of every op."""
    return [
        (graph.kind(op), int(graph.flops[op]), int(graph.bytes_read[op]), int(graph.bytes_written[op]))
        for op in range(len(graph))
    ]


def test_a_linear_layer() -> None:
    """8 x 64 times 64 x 10: 2 flop a multiply-add, one for each bias; fp32."""
    graph = graph_of(lambda m, x: m.part(x), torch.empty(8, 64), part=nn.Linear(64, 10))
    read = 4 * (8 * 64 + 64 * 10 + 10)
    assert rows(graph) == [("gemm", 2 * 8 * 64 * 10 + 80, read, 4 * 80)]
    said = {"aten": "aten.linear.default", "arguments": ["tensor"] * 3}
    assert graph.attributes[0] == {**said, "m": 8, "n": 10, "k": 64, "transposed": True}
    assert graph.dtypes == ("fp32",)
    assert [*graph.external_names] == ["part.weight", "part.bias", "tensors_0"]
    roles = graph.tensor_role[:3].tolist()
    assert roles == [Role.PARAMETER, Role.PARAMETER, Role.INPUT]


def test_a_convolution_and_what_follows() -> None:
    def forward(m, x):
        return F.max_pool2d(torch.relu(m.norm(m.conv(x))), 2).mean((2, 3))

    graph = graph_of(
        forward, torch.empty(2, 3, 16, 16), conv=nn.Conv2d(3, 8, 3, padding=1), norm=nn.BatchNorm2d(8)
    )
    out = 2 * 8 * 16 * 16
    assert [(kind, flops) for kind, flops, _, _ in rows(graph)] == [
        ("conv", out * (2 * 27 + 1)),
        ("batch_norm", 2 * out),
        ("relu", out),
        ("max_pool", out),  # a quarter of the elements, four comparisons each
        ("reduce_mean", out // 4),
    ]


def test_attention_of_heads() -> None:
    q = torch.empty(2, 4, 16, 8)
    graph = graph_of(lambda m, q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q)
    scores = 2 * 4 * 16 * 16
    assert rows(graph) == [("attention", 4 * scores * 8 + 6 * scores, 3 * 4 * q.numel(), 4 * q.numel())]
    shape = {
        "batch": 2,
        "seq_len": 16,
        "kv_len": 16,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 8,
        "causal": True,
    }
    assert shape.items() <= graph.attributes[0].items()


def test_recurrent_layers() -> None:
    """Two layers, both directions: 7 steps of 3 sequences, 4 gates of 16, from 8 and then 2 x 16 numbers."""
    part = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)
    graph = graph_of(lambda m, x: m.part(x)[0], torch.empty(3, 7, 8), part=part)
    (op,) = (op for op in range(len(graph)) if graph.kind(op) == "lstm")
    products = 2 * 4 * 16 * (8 + 16 + 32 + 16)
    assert graph.flops[op] == 3 * 7 * 2 * (products + 2 * 26 * 16)
    sizes = {"m": 3, "n": 4 * 16, "k": (8 + 16 + 32 + 16) // 2, "seq_len": 2 * 7, "batch": 2}
    assert sizes.items() <= graph.attributes[op].items()
    numbers = 3 * 7 * 8 + sum(p.numel() for p in part.parameters()) + 2 * 4 * 3 * 16
    assert graph.bytes_read[op] == 4 * numbers
    part = nn.LSTM(8, 16, bidirectional=True, proj_size=4)
    graph = graph_of(lambda m, x: m.part(x)[0], torch.empty(7, 3, 8), part=part)
    assert [of["batch"] for of in graph.attributes.values() if "seq_len" in of] == [2]


@pytest.mark.parametrize(("part", "kind", "gates"), [(nn.LSTMCell, "lstm", 4), (nn.RNNCell, "rnn", 1)])
def test_a_cell_is_one_step_of_a_layer(part, kind: str, gates: int) -> None:
    graph = graph_of(lambda m, x: m.part(x), torch.empty(3, 8), part=part(8, 16))
    (op,) = (op for op in range(len(graph)) if graph.kind(op) == kind)
    sizes = {"m": 3, "n": gates * 16, "k": 8 + 16, "seq_len": 1}
    assert sizes.items() <= graph.attributes[op].items()


def test_attention_of_windows_is_no_fused_kernel() -> None:
    """Of five axes PyTorch computes the products and the softmax one by one, in fp32; a mask stays fused."""
    q = torch.empty(2, 3, 4, 16, 8, dtype=torch.float16)
    graph = graph_of(lambda m, q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.0), q)
    kinds = ["cast"] * 3 + ["mul", "mul", "matmul", "softmax", "matmul", "cast"]
    found = [(kind, read) for kind, _, read, _ in rows(graph) if kind not in ("identity", "reshape")]
    assert [kind for kind, _ in found] == kinds
    assert found[6] == ("softmax", 2 * 3 * 4 * 16 * 16 * 4)
    mask = torch.zeros(16, 16, dtype=torch.float16)
    graph = graph_of(lambda m, q: F.scaled_dot_product_attention(q, q, q, mask), q)
    assert "attention" in [row[0] for row in rows(graph)]


@pytest.mark.parametrize(
    ("function", "row"),
    [
        (lambda x: F.mse_loss(x, x), ("reduce_sum_square", 48, 192, 4)),
        (lambda x: x.sort(0)[0], ("top_k", 24 * 3, 96, 96 + 192)),
        (lambda x: x.max(1)[0], ("reduce_max", 24, 96, 16 + 32)),
        (lambda x: torch.max(x, x), ("maximum", 24, 192, 96)),
        (lambda x: x.std(1), ("reduce_l2", 48, 96, 16)),
        (lambda x: x**3.0, ("square", 24, 96, 96)),  # kernels of pow multiply, as for a square
        (lambda x: x**2.5, ("pow", 24, 96, 96)),
        (F.glu, ("silu", 5 * 12, 96, 48)),
        (lambda x: x.multinomial(1), ("multinomial", 3 * 24, 96, 32)),
        (lambda x: F.interpolate(x[None], scale_factor=2, mode="linear"), ("resize", 2 * 2 * 48, 96, 192)),
        (
            lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3),
            ("attention", 2 * 48 * 4 + 6 * 16, 288, 96),
        ),
        (lambda x: torch.broadcast_tensors(x, x)[1].relu_(), ("relu", 24, 96, 96)),
        (lambda x: F.binary_cross_entropy(x, x), ("binary_cross_entropy", 8 * 24, 192, 4)),
        (
            lambda x: F.binary_cross_entropy_with_logits(x, x),
            ("binary_cross_entropy_with_logits", 7 * 24, 192, 4),
        ),
        (lambda x: torch.searchsorted(x, x), ("search_sorted", 24 * 3, 192, 192)),
        (lambda x: torch.bucketize(x, x[0, :3]), ("search_sorted", 24 * 2, 96 + 12, 192)),
        (
            lambda x: torch.stft(x, 4, 2, center=False, return_complex=True),
            ("stft", 5 * 24 * 2, 96, 8 * 24),  # of 2 frames in each row 3 complex numbers
        ),
        (lambda x: torch.addmv(x[:, 0], x, x[0]), ("gemm", 2 * 24 + 4, 4 * (4 + 24 + 6), 16)),
    ],
)
def test_operators_with_another_name(function, row) -> None:
    found = rows(graph_of(lambda m, x: function(x), torch.empty(4, 6)))
    assert [each for each in found if each[0] != "identity"] == [row]


def test_bags_read_a_row_for_each_index() -> None:
    """Of a table of 100 rows; the gradient sums as many, and neither reads the table as a whole."""
    words = torch.zeros(20, dtype=torch.int64), torch.tensor([0, 3])
    table = nn.EmbeddingBag(100, 8, mode="sum")
    graph = graph_of(lambda m, *given: m.table(*given).sum(), *words, table=table)
    assert rows(graph)[0][:3] == ("embedding_bag", 20 * 8, 4 * 20 * 8 + 8 * 22)
    made = read(TrainingRewrite().apply(graph)).ops["embedding_bag/weight_grad"]
    assert (made.kind, made.flops, made.bytes_read) == ("embedding_grad", 20 * 8, 4 * 2 * 8 + 8 * 22)


def test_masks_changed_in_place_are_what_is_read_next() -> None:
    def forward(m, x):
        mask = x > 0
        mask &= x < 1
        return mask | mask

    graph = graph_of(forward, torch.empty(4, 6))
    assert rows(graph)[2:] == [("and", 24, 48, 24), ("or", 24, 48, 24)]
    assert graph.attributes[2]["view_of"] == 0
    assert len({*graph.inputs.row(3).tolist()} | {*graph.outputs.row(2).tolist()}) == 1


def test_autocast_casts() -> None:
    """Within the forward or around the import; a dropout that drops nothing copies nothing."""

    def dropped(m, x):
        return F.dropout(m.part(F.dropout(x, 0.1, False)), 0.1, True)

    def under(device):
        def forward(m, x):
            with torch.autocast(device, dtype=torch.bfloat16):
                return dropped(m, x)

        return forward

    x, parts = torch.empty(8, 64), {"part": nn.Linear(64, 10)}
    inside = graph_of(under("cpu"), x, **parts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        around = graph_of(dropped, x, **parts)
    assert rows(inside) == rows(around)
    assert [row[0] for row in rows(inside)] == ["identity"] + ["cast"] * 3 + ["gemm", "dropout"]
    assert inside.bytes_written[5] == (2 + 1) * 8 * 10  # the mask counts once where it is an output, too
    assert inside.dtypes[inside.dtype_code[4]] == "bf16"
    if not torch.cuda.is_available():
        assert rows(graph_of(under("cuda"), x, **parts)) == rows(inside)


def test_autocast_of_a_gpu_that_is_not_here() -> None:
    """Norms and sums with what they read are in fp32; attention's heads lie side by side for its reader."""

    def forward(m, x):
        with torch.autocast("cuda"):
            y = F.scaled_dot_product_attention(*[m.part(x).view(2, 8, 4, 16).transpose(1, 2)] * 3)
            return m.norm(y.permute(0, 2, 1, 3).flatten(2) + x)

    if torch.cuda.is_available():
        pytest.skip("tensors on the host are not cast for a GPU that is here")
    graph = graph_of(forward, torch.empty(2, 8, 64), part=nn.Linear(64, 64), norm=nn.LayerNorm(64))
    moving = [op for op in range(len(graph)) if graph.bytes_read[op]]
    kinds = [(graph.kind(op), graph.dtypes[graph.dtype_code[op]]) for op in moving]
    products = [("gemm", "fp16"), ("attention", "fp16")]
    assert kinds == [("cast", "fp16")] * 3 + products + [("add", "fp32"), ("layer_norm", "fp32")]
    assert [*graph.external_names] == ["part.weight", "part.bias", "norm.weight", "norm.bias", "tensors_0"]


@pytest.mark.parametrize(
    "index",
    [0, (slice(None), 0), (..., slice(1, 3), None), (1, None, slice(None, None, 2)), ([1, 0],), (0, [2, 1])],
)
def test_tensors_are_indexed_on_a_gpu_that_is_not_here(index) -> None:
    """As on a CPU, by a PyTorch that was built without CUDA, too."""

    def under(device):
        def forward(m, x):
            with torch.autocast(device, dtype=torch.bfloat16):
                return (x + 1)[index].contiguous() * 2

        return forward

    here, there = (graph_of(under(device), torch.empty(4, 6, 8)) for device in ("cpu", "cuda"))
    assert rows(there) == rows(here)


@pytest.mark.parametrize("training", [True, False])
def test_parts_without_gradients_are_read(training: bool) -> None:
    """`no_grad` makes a module of them, as autocast does; inlined, their batch norms have other names."""

    def forward(m, x):
        with torch.no_grad():
            return m.part(x)

    part = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    made = (Calls(each, part=part).train(training) for each in (forward, lambda m, x: m.part(x)))
    found, plain = (rows(import_torch(module, (torch.empty(2, 3, 8, 8),))) for module in made)
    assert [row[:2] for row in plain if row[0] != "identity"] == [row[:2] for row in found if row[1]]


def test_products_of_heads_copy_their_operands() -> None:
    """Matrices in two axes that are not one by their strides; keys column by column; a square twice."""

    def forward(m, x):
        heads = x.transpose(1, 2)
        square, keys = heads[..., :5], heads.transpose(2, 3)
        return heads @ keys, x @ x.transpose(2, 3), torch.bmm(x[0], x[0].transpose(1, 2)), square @ square

    graph = graph_of(forward, torch.empty(2, 5, 3, 8))
    copies = [op for op in range(len(graph)) if graph.kind(op) == "transpose"]
    assert [graph.attributes[op]["columnwise"] for op in copies] == [False, True, False, False]
    assert [rows(graph)[op][1:] for op in copies] == [(0, 960, 960)] * 2 + [(0, 600, 600)] * 2


def test_channels_last_are_what_strides_say() -> None:
    """Of the image or the weights: a norm over channels leaves them last."""

    def forward(m, x):
        y = m.norm(m.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return m.conv(y)

    graph = graph_of(
        forward, torch.empty(2, 4, 8, 8), conv=nn.Conv2d(4, 4, 3, padding=1), norm=nn.LayerNorm(4)
    )
    convs = [op for op in range(len(graph)) if graph.kind(op) == "conv"]
    assert [graph.attributes[op].get("data_format") for op in convs] == [None, "NHWC"]


def test_channels_last_pass_on_where_a_cpu_gives_them_up() -> None:
    """In fp16 a CPU convolves in NCHW; a GPU keeps the format in all that follows, until a view."""

    def forward(m, x):
        y = F.relu(m.norm(m.conv(x)))
        y = m.pixel(torch.cat([y, F.max_pool2d(y, 1)], 1)[:, :4])
        return m.pixel(y.flatten(1).reshape(2, 4, 8, 8))

    modules = {"conv": nn.Conv2d(4, 4, 3, padding=1), "norm": nn.BatchNorm2d(4), "pixel": nn.Conv2d(4, 4, 1)}
    modules = {name: m.half().eval().to(memory_format=torch.channels_last) for name, m in modules.items()}
    graph = graph_of(forward, torch.empty(2, 4, 8, 8).half(), **modules)
    formats = [(graph.kind(op), graph.attributes[op].get("data_format")) for op in range(len(graph))]
    told = [of for of in formats if of[0] in ("conv", "batch_norm")]
    assert told == [("conv", "NHWC"), ("batch_norm", "NHWC"), ("conv", "NHWC"), ("conv", None)]


def test_sizes_of_operators() -> None:
    def forward(m, x, words):
        y = F.max_pool2d(m.norm(m.conv(x)), 3, stride=2, padding=1)
        y = F.avg_pool2d(m.up(y), 2).softmax(1)
        z = m.layer(m.table(words))
        return y, F.adaptive_avg_pool2d(x, 2), torch.bmm(z, z.transpose(1, 2)), F.cross_entropy(z, words)

    parts = {
        "conv": nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2, bias=False),
        "norm": nn.BatchNorm2d(8),
        "up": nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False),
        "table": nn.Embedding(50, 6),
        "layer": nn.LayerNorm(6),
    }
    words = torch.zeros(2, 6, dtype=torch.int64)
    graph = graph_of(forward, torch.empty(2, 4, 9, 9), words, **parts)
    found = {
        graph.kind(op): {key: graph.attributes[op][key] for key in graph.attributes[op] if key in SIZES}
        for op in reversed(range(len(graph)))
        if graph.kind(op) not in ("identity", "average_pool")
    }

    def windows(c, out, group, image, kernel, stride, pad):
        return {
            "batch": 2,
            "in_channels": c,
            "out_channels": out,
            "group": group,
            "input_shape": [image] * 2,
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [pad] * 4,
            "dilations": [1, 1],
        }

    assert found == {
        "conv": windows(4, 8, 2, 9, 3, 2, 1),
        "batch_norm": {"rows": 50, "columns": 8},
        "max_pool": windows(8, 8, 8, 5, 3, 2, 1),
        "conv_transpose": windows(8, 4, 1, 3, 2, 2, 0),
        "softmax": {"rows": 18, "columns": 4},
        "gather": {"rows": 12, "columns": 6},
        "layer_norm": {"rows": 12, "columns": 6},
        "matmul": {"m": 6, "n": 6, "k": 6, "batch": 2},
        "sparse_softmax_cross_entropy": {"rows": 12, "columns": 6},
    }
    pools = [graph.attributes[op] for op in range(len(graph)) if graph.kind(op) == "average_pool"]
    assert [windows(4, 4, 4, 6, 2, 2, 0).items() <= pools[0].items(), pools[1]["kernel_shape"]] == [
        True,
        [5, 5],
    ]


def test_views_move_nothing_and_copies_do() -> None:
    def forward(m, x):
        left, right = x.view(4, 6).t().split(3)
        return left.contiguous() + right

    graph = graph_of(forward, torch.empty(24))
    moving = [row for row in rows(graph) if row[0] != "identity"]
    assert moving == [("transpose", 0, 48, 48), ("add", 12, 96, 48)]
    views = [op for op in range(len(graph)) if graph.kind(op) == "identity"]
    assert len(views) == 4  # view, t, two parts
    assert all(graph.attributes[op]["view_of"] == 0 for op in views)


def test_a_shape_that_its_strides_do_not_have_is_copied() -> None:
    def forward(m, x):
        heads = x.transpose(1, 2)
        return (
            heads.reshape(2, 3, 20),
            heads.flatten(2),
            heads.clone(),
            x.reshape(40, 3),
            heads[0].reshape(3, 4, 5),
        )

    graph = graph_of(forward, torch.empty(2, 4, 3, 5))
    kinds = [row[0] for row in rows(graph)]
    assert (kinds.count("transpose"), kinds.count("copy")) == (2, 1)  # a clone keeps its strides
    assert {row[1:] for row in rows(graph) if row[0] == "transpose"} == {(0, 480, 480)}


def test_several_outputs_are_told_apart() -> None:
    """`topk` has values and places; what comes next reads the one that it is given."""
    graph = graph_of(lambda m, x: torch.topk(x, 2)[1].to(torch.float32).relu(), torch.empty(8))
    assert rows(graph) == [("top_k", 8 * 2, 32, 8 + 16), ("cast", 0, 16, 8), ("relu", 2, 8, 8)]
    assert graph.inputs.row(1).tolist() == [2]  # tensors: the input, values, places


def test_what_differs_in_plain_arguments_is_not_merged() -> None:
    g = graph_of(lambda m, x: [x * 2, x * 3, *x.split(2)], torch.empty(6))
    assert len(CommonSubexpressions().apply(g)) == len(g)


def test_arguments_in_another_order_and_in_place() -> None:
    a, b, c = torch.empty(5), torch.empty(3, 4), torch.empty(4, 5)
    graph = graph_of(lambda m, a, b, c: torch.addmm(a, b, c).relu_(), a, b, c)
    assert [row[:2] for row in rows(graph)] == [("gemm", 2 * 3 * 4 * 5 + 15), ("relu", 15)]


def test_who_reads_a_tensor_reads_what_was_written_into_a_part_of_it() -> None:
    """A gradient finds its way back, too; `new_zeros` reads no data."""

    def forward(m, x):
        h = m.a(x)
        y = h.new_zeros(4, 16)
        y[:, :8], y[:, 8] = m.b(h), torch.tensor(1.0)
        return m.c(y)

    graph = graph_of(forward, torch.empty(4, 8), a=nn.Linear(8, 8), b=nn.Linear(8, 8), c=nn.Linear(16, 4))
    step = TrainingRewrite().apply(graph)
    updated = [name for name in step.op_names if name.endswith("/update")]
    assert sorted(updated) == [f"{part}.{what}/update" for part in "abc" for what in ("bias", "weight")]
    own = (graph.tensor_role == Role.ACTIVATION) & (storage_of(graph) < 0)
    assert graph.tensor_nbytes[own].tolist() == [128, 256, 128, 64]  # what is written into has its place


class Frozen(nn.Module):
    """A table that is trained, read at places that are computed, and much that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, 5, 8))
        self.fixed = nn.Linear(8, 8, bias=False).requires_grad_(False)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        y = self.fixed(x + self.table[0, 0]) * self.scale + torch.tensor([1.0] * 8)
        places = y.topk(2)[1][:, 0] % 4
        return self.table[places, places].sum()


def test_only_what_requires_a_gradient_is_trained() -> None:
    """Not buffers, constants and frozen parameters, nor indices, of which aten.index may have several."""
    graph = import_torch(Frozen(), (torch.zeros(4, 8),))
    assert (graph.tensor_role[:5] == Role.PARAMETER).tolist() == [True, True, True, True, False]
    step = read(TrainingRewrite(optimizer="adam").apply(graph))
    assert [name for name in step.ops if name.endswith("/update")] == ["table/update"]
    assert step.ops["index/weight_grad"].reads == ["sum_1/grad", "remainder"]
    assert not {"remainder/grad", "mul/grad1", "linear/weight_grad"} & step.ops.keys()
    larger = read(Batch(factor=3).apply(graph)).externals
    grown = {name for name, of in read(graph).externals.items() if larger[name].nbytes != of.nbytes}
    assert grown == {"x"}


def test_another_data_type() -> None:
    module = Calls(lambda m, i: m.part(i), part=nn.Embedding(100, 16)).eval()
    graph = import_torch(module, (torch.zeros(3, dtype=torch.int64),), dtype="bf16")
    assert rows(graph) == [("gather", 0, 2 * 48 + 8 * 3, 2 * 48)]
    assert graph.tensor_nbytes[graph.tensor_role == Role.PARAMETER].tolist() == [2 * 1600]
    with pytest.raises(UnknownNameError, match="dtype"):
        import_torch(module, (), dtype="bf17")


def test_dropout_costs_in_training_only() -> None:
    """With a probability of 0, PyTorch launches nothing."""
    module = Calls(lambda m, x: (F.dropout(x, 0.5, m.training), F.dropout(x, 0.0, m.training)))
    trained = import_torch(module.train(), (torch.empty(8),))
    assert rows(trained)[0] == ("dropout", 8, 32, 32 + 8)  # with a mask, a byte an element
    assert rows(trained)[1][0] == "identity"
    for dropout in (lambda m, x: F.dropout(x, 0.5, inplace=True), lambda m, x: F.dropout2d(x[None])):
        graph = import_torch(Calls(dropout), (torch.empty(4, 2, 1),))
        assert rows(graph)[-1] == ("mul", 8, 32, 32)  # with noise, by a kernel of its own
    assert rows(import_torch(module.eval(), (torch.empty(8),)))[0][:2] == ("identity", 0)


def test_pytorch_counts_the_same() -> None:
    """Products and convolutions without bias, against `torch.utils.flop_counter`."""
    from torch.utils.flop_counter import FlopCounterMode

    module = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, bias=False),
        nn.Conv2d(8, 8, 3, groups=4, bias=False),
        nn.ConvTranspose2d(8, 4, 3, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(4 * 25 * 25, 32, bias=False),
    ).eval()
    x = torch.empty(2, 3, 32, 32)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    assert int(import_torch(module, (x,)).flops.sum()) == counter.get_total_flops()


def test_pytorch_counts_the_same_in_training() -> None:
    """Products of a model with tied embeddings and heads that are cut out of one product."""
    from torch.utils.flop_counter import FlopCounterMode

    def forward(m, words):
        q, k, v = m.heads(m.table(words)).split(16, 2)
        y = m.out((q @ k.transpose(1, 2)).softmax(2) @ v)
        return F.cross_entropy(m.head(y).flatten(0, 1), words.flatten())

    sizes = {"heads": (16, 48), "out": (16, 16), "head": (16, 40)}
    parts = {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
    module = Calls(forward, table=nn.Embedding(40, 16), **parts)
    module.head.weight = module.table.weight
    words = torch.zeros(2, 8, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        module(words).backward()
    step = read(TrainingRewrite(optimizer="adam").apply(import_torch(module, (words,))))
    products = sum(op.flops for op in step.ops.values() if op.kind == "matmul")
    assert products == counter.get_total_flops()
    trained = {name: of.numel() for name, of in module.named_parameters()}
    updates = {name: op.flops / 14 for name, op in step.ops.items() if name.endswith("/update")}
    assert updates == {f"{name}/update": n for name, n in trained.items()}
    assert step.ops["linear/grad_concat"].bytes_read == 4 * 2 * 8 * 48


def test_unknown_operators_are_named() -> None:
    module = Calls(lambda m, x: torch.linalg.inv(x).relu()).eval()
    message = (
        r"Calls: operators without a cost formula: aten\.linalg_inv\w*\.\w+ \(1\); count them by their bytes"
    )
    with pytest.raises(InputError, match=message):
        import_torch(module, (torch.empty(4, 4),))
    with pytest.warns(UserWarning, match="counted by their bytes, with no flop: aten"):
        graph = import_torch(module, (torch.empty(4, 4),), unknown="bytes")
    assert rows(graph)[0][1:] == (0, 64, 64)


def test_how_lanczos_resizes_is_not_known() -> None:
    module = Calls(lambda m, x: F.interpolate(x, scale_factor=2, mode="lanczos", antialias=True))
    with pytest.raises(InputError, match=r"without a cost formula: aten.*lanczos2d_aa"):
        import_torch(module, (torch.empty(1, 2, 4, 4),))


def test_control_flow_is_refused_even_if_unknown_operators_are_not() -> None:
    """The products of its branches would count as nothing."""
    module = Calls(lambda m, x: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x + 1, (x,)))
    with pytest.raises(InputError, match="Calls: cond runs parts of the module, which are not read; export"):
        import_torch(module, (torch.empty(4, 4),), unknown="bytes")


def test_what_cannot_be_exported_is_told() -> None:
    def forward(m, x):
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(InputError, match="Calls cannot be exported: "):
        import_torch(Calls(forward), (torch.empty(4),))
    with pytest.raises(InputError, match=r"should be a torch\.nn\.Module, not int"):
        import_torch(3)


# -- in a scenario --------------------------------------------------------------------------------

CODE = """\
import torch

def build(batch=1):
    return torch.nn.Linear(64, 10), (torch.empty(batch, 64),)

def wrong():
    return torch.nn.Linear(64, 10)

def broken():
    raise KeyError("nothing here")
"""


def scenario(folder: Path, function: str, more: str = "") -> Path:
    module = f"a_module_for_{folder.name}"  # Python keeps one module a name
    (folder / f"{module}.py").write_text(CODE, encoding="utf-8")
    machine = "machine: {devices: {gpu0: {kind: gpu, peak: 1TFLOP/s}}}"
    return write(folder, f"{machine}\nworkload: {{torch: '{module}:{function}'{more}}}\n")


def test_a_module_in_a_scenario(tmp_path: Path) -> None:
    path = scenario(tmp_path, "build", ", arguments: {batch: 1000}")
    trace = run_scenario(load_scenario(path, allow_code=True)).trace
    assert trace.makespan_ns == 1290  # 2 * 1000 * 64 * 10 + 10,000 flop at 1 flop/ps


def test_code_needs_leave(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"workload: runs code, .*allow it with --allow-code"):
        run_scenario(load_scenario(scenario(tmp_path, "build")))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", r"wrong should return \(nn\.Module, \(example inputs, \.\.\.\)\), not Linear"),
        ("broken", "broken failed: KeyError: 'nothing here'"),
        ("bild", "did you mean 'build'"),
    ],
)
def test_functions_that_do_not_do(tmp_path: Path, function: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=f"workload.torch: .*{message}"):
        run_scenario(load_scenario(scenario(tmp_path, function), allow_code=True))
