"""Programs of JAX and XLA as text: flop as XLA counts them, sizes, loops, devices, and what is wrong."""

import itertools
import random
import re
import warnings
from contextlib import suppress

import pytest
from cli_runner import sim
from examples import examples, seeds
from hypothesis import given
from hypothesis import strategies as st
from jax_programs import drawn, record, written

from scenarios.importers import load_graph, xla_program
from scenarios.importers.xla_costs import _positions
from scenarios.importers.xla_hlo import replica_groups
from sim.base.errors import InputError

PROGRAMS = written()
TEXTS = ("stablehlo", "hlo", "compiled")
ON_DEVICES = ("sharded", "permuted")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(is not compiled|was compiled for a CPU|nobody knows how often|branch)"
)


@pytest.fixture
def load(tmp_path):
    def read(text, **options):
        path = tmp_path / "program.txt"
        path.write_text(text)
        return load_graph(path, **options)

    return read


def hlo(*lines, header="HloModule f", before=""):
    body = "\n".join(f"  {line}" for line in lines)
    return f"{header}\n{before}\nENTRY main {{\n{body}\n}}\n"


def attributes(graph, name):
    return graph.attributes.get(graph.op_names.index(name), {})


# -- XLA's own numbers ----------------------------------------------------------------------------


def within(found, cost):
    return abs(found - sum(cost)) <= max(1, 0.01 * sum(cost))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ON_DEVICES])
def test_flop_are_those_of_xlas_cost_analysis(load, name, text):
    program = PROGRAMS[name]
    cost = program["compiled_cost"] if text == "compiled" else program["cost"]
    assert within(int(load(program[text]).flops.sum()), cost or program["cost"])


@pytest.mark.parametrize("text", TEXTS)
def test_each_device_has_its_part(load, text):
    graph = load(PROGRAMS["sharded"][text])
    products = [op for op in range(len(graph)) if graph.kind(op) == "matmul"]
    assert len(products) == 8
    assert graph.pins == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert {(graph.attributes[op]["m"], graph.attributes[op]["k"]) for op in products} == {(8, 32)}
    assert int(graph.flops.sum()) == 4 * 33_024
    met = {}
    for op in graph.in_communicators:
        met.setdefault(graph.attributes[op]["communicator"], set()).add(graph.op_names[op].split("/")[0])
    assert sorted(map(sorted, met.values())) == [
        ["gpu0", "gpu1"],
        ["gpu0", "gpu2"],
        ["gpu1", "gpu3"],
        ["gpu2", "gpu3"],
    ]


@pytest.mark.parametrize("seed", seeds(100))
def test_new_programs_have_the_flop_of_xla(load, seed):
    pytest.importorskip("jax")
    program = record(*drawn(1000 + seed))
    for text in TEXTS:
        cost = program["compiled_cost"] if text == "compiled" else program["cost"]
        assert within(int(load(program[text]).flops.sum()), cost)


@examples(400)
@given(
    *(st.integers(1, 12) for _ in range(3)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(-3, 9),
    st.integers(1, 4),
)
def test_places_of_a_window_are_counted_one_by_one(made, kernel, size, steps, low, apart):
    stride, dilation = steps
    at = [o * stride + k * dilation - low for o, k in itertools.product(range(made), range(kernel))]
    assert _positions(made, kernel, size, steps, low, apart) == sum(
        n % apart == 0 and 0 <= n // apart < size for n in at
    )


# -- one instruction at a time --------------------------------------------------------------------


def test_products_have_sizes(load):
    graph = load(PROGRAMS["scores"]["hlo"])
    assert graph.attributes[0] == {"m": 17, "n": 29, "k": 8, "batch": 12, "transposed": True}
    assert load(PROGRAMS["product"]["stablehlo"]).attributes[0] == {"m": 37, "n": 71, "k": 53}
    assert load(PROGRAMS["bf16"]["hlo"]).dtypes[0] == "bf16"


CONVS = {
    "strided": {
        "kernel_shape": [5, 5],
        "strides": [2, 3],
        "pads": [1, 1, 2, 1],
        "group": 1,
        "out_channels": 8,
    },
    "grouped": {
        "kernel_shape": [3, 3],
        "dilations": [2, 1],
        "pads": [2, 0, 2, 3],
        "group": 4,
        "out_channels": 32,
    },
}


@pytest.mark.parametrize("text", ["stablehlo", "hlo"])
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_have_the_sizes_of_their_window(load, name, text):
    graph = load(PROGRAMS[name][text])
    shared = {"batch": 2, "in_channels": 16, "input_shape": [28, 27]}
    assert graph.kind(0) == "conv"
    assert (CONVS[name] | shared).items() <= graph.attributes[0].items()


@pytest.mark.parametrize("text", ["stablehlo", "hlo"])
def test_gradients_of_a_convolution_have_the_sizes_of_the_forward(load, text):
    graph = load(PROGRAMS["conv_gradients"][text])
    found = {
        graph.kind(op): graph.attributes[op]
        for op in range(len(graph))
        if "kernel_shape" in graph.attributes.get(op, {})
    }
    assert set(found) == {"conv", "conv_input_grad", "conv_weight_grad"}
    for sizes in found.values():
        assert {**sizes, "pads": 0} == {**found["conv"], "pads": 0}


CUDNN = "window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="


@pytest.mark.parametrize(
    ("target", "given", "made", "kind"),
    [
        ("Forward", ("bf16[4,32,32,64]", "bf16[96,3,3,64]"), "bf16[4,16,16,96]", "conv"),
        ("BackwardInput", ("bf16[4,16,16,96]", "bf16[96,3,3,64]"), "bf16[4,32,32,64]", "conv_input_grad"),
        ("BackwardFilter", ("bf16[4,32,32,64]", "bf16[4,16,16,96]"), "bf16[96,3,3,64]", "conv_weight_grad"),
    ],
)
def test_a_call_of_cudnn_is_a_convolution(load, target, given, made, kind):
    graph = load(
        hlo(
            f"x = {given[0]}{{3,2,1,0}} parameter(0)",
            f"y = {given[1]}{{3,2,1,0}} parameter(1)",
            f'ROOT c = ({made}{{3,2,1,0}}, u8[0]{{0}}) custom-call(x, y), {CUDNN}"__cudnn$conv{target}"',
        )
    )
    sizes = graph.attributes[0]
    assert graph.kind(0) == kind
    assert graph.flops[0] == 2 * 4 * 64 * 96 * 47 * 47  # of 48 places a side one is padding
    assert (sizes["in_channels"], sizes["out_channels"], sizes["kernel_shape"]) == (64, 96, [3, 3])
    assert sizes["input_shape"] == [32, 32]


def test_a_call_of_cublas_is_a_product(load):
    config = (
        '{"gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["0"],'
        '"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}'
    )
    graph = load(
        hlo(
            "a = bf16[768,2304]{1,0} parameter(0)",
            "b = bf16[8192,768]{1,0} parameter(1)",
            "c = (bf16[2304,8192]{1,0}, s8[4194304]{0}) custom-call(a, b),",
            f'  custom_call_target="__cublas$lt$matmul", backend_config={config}',
            "ROOT r = bf16[2304,8192]{1,0} get-tuple-element(c), index=0",
        )
    )
    assert graph.kind(0) == "matmul"
    assert graph.flops[0] == 2 * 768 * 2304 * 8192
    assert graph.attributes[0] == {"m": 2304, "n": 8192, "k": 768, "transposed": True}


FUSED = """
fused {
  p = f32[64,128]{1,0} parameter(0)
  i = s32[] parameter(1)
  u = f32[1,128]{1,0} parameter(2)
  z = s32[] constant(0)
  s = f32[1,128]{1,0} dynamic-slice(p, i, z), dynamic_slice_sizes={1,128}
  e = f32[1,128]{1,0} exponential(s)
  a = f32[1,128]{1,0} add(e, u)
  ROOT d = f32[64,128]{1,0} dynamic-update-slice(p, a, i, z)
}
"""


def test_a_fusion_is_one_op_that_moves_what_it_touches(load):
    graph = load(
        hlo(
            "p = f32[64,128]{1,0} parameter(0)",
            "i = s32[] parameter(1)",
            "u = f32[1,128]{1,0} parameter(2)",
            "ROOT f = f32[64,128]{1,0} fusion(p, i, u), kind=kLoop, calls=fused,",
            '  metadata={op_name="jit(f)/body/add"}',
            header="HloModule f, is_scheduled=true",
            before=FUSED,
        )
    )
    assert (len(graph), graph.flops[0], graph.bytes_read[0], graph.bytes_written[0]) == (
        1,
        256,
        2 * 512 + 4,
        512,
    )
    assert graph.attributes[0] == {
        "fused": ["slice", "exp", "add", "dynamic_update_slice"],
        "view_of": 0,
        "operator": "add",
        "module": "jit(f)/body",
    }


def test_what_repeats_a_tensor_is_read_as_it_is_and_counters_are_none(load):
    graph = load(PROGRAMS["softmax"]["stablehlo"])
    kinds = [graph.kind(op) for op in range(len(graph))]
    assert kinds == ["reduce_max", "maximum", "sub", "exp", "reduce_sum", "div"]
    assert graph.bytes_read.tolist() == [3392, 64, 3392 + 64, 3392, 3392, 3392 + 64]
    powers = load(PROGRAMS["powers"]["hlo"])
    assert [name.split("/")[1] for name in powers.op_names if "dot" in name] == [*"0123456"]


def test_bits_of_a_number_that_was_converted_are_computed_nowhere(load):
    counted = (
        "c = f32[] constant(2.5)",
        "i = s32[] convert(c)",
        "n = s32[] constant(3)",
        "a = s32[] and(i, n)",
    )
    bits = "b = s32[4]{0} broadcast(a), dimensions={}"
    graph = load(hlo("x = s32[4]{0} parameter(0)", *counted, bits, "ROOT y = s32[4]{0} multiply(x, b)"))
    assert graph.kinds == ("mul",)


@pytest.mark.parametrize("text", TEXTS)
def test_loops_whose_counts_are_not_known_run_once_and_a_line_says_so(load, text):
    with pytest.warns(UserWarning, match="nobody knows how often .* runs, which is counted once"):
        graph = load(PROGRAMS["until"][text])
    assert sum(graph.kind(op) == "matmul" for op in range(len(graph))) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_of_a_conditional_the_branch_with_most_flop_runs_and_a_line_says_so(load, text):
    with pytest.warns(UserWarning, match="the branch with most flop runs"):
        graph = load(PROGRAMS["branch"][text])
    assert "matmul" in graph.kinds


# -- devices --------------------------------------------------------------------------------------

PAIR = (
    "HloModule f, is_scheduled=true, num_partitions=4",
    "s = bf16[256]{0} all-reduce-start(x), channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), to_apply=sum",
    "sum {\n  a = bf16[] parameter(0)\n  b = bf16[] parameter(1)\n  ROOT c = bf16[] add(a, b)\n}\n",
)


def test_a_start_and_its_done_are_one_op_beside_the_others(load):
    graph = load(
        hlo(
            "x = bf16[256]{0} parameter(0)",
            PAIR[1],
            "e = bf16[256]{0} exponential(x)",
            "d = bf16[256]{0} all-reduce-done(s)",
            "ROOT r = bf16[256]{0} add(d, e)",
            header=PAIR[0],
            before=PAIR[2],
        )
    )
    assert [*graph.op_names[:3]] == ["gpu0/s", "gpu0/e", "gpu0/r"]
    assert len(graph) == 12
    assert [attributes(graph, f"gpu0/{name}").get("stream") for name in "ser"] == [1, 0, 0]
    assert [attributes(graph, f"gpu{n}/s")["communicator"] for n in range(4)] == ["group0", "group1"] * 2


APART = """
wrapped {
  p = f32[8]{0} parameter(0)
  ROOT a = f32[8]{0} all-to-all(f32[8]{0} %p), channel_id=3, replica_groups={{0,1}}, dimensions={0}
}
"""
SYNC = 'calls=wrapped, backend_config={"collective_backend_config":{"is_sync":%s}}'
TWO = "(f32[2,8]{1,0}, f32[2,8]{1,0})"


def test_what_starts_apart_may_be_several_tensors_or_a_computation(load):
    graph = load(
        hlo(
            "x = f32[8]{0} parameter(0)",
            "y = f32[2,8]{1,0:T(2,128)S(1)} parameter(1)",
            f"c = ({TWO}, {TWO}) collective-permute-start(y, y), source_target_pairs={{{{0,1}}}}",
            f"s = ((f32[8]{{0}}), f32[8]{{0}}, u32[]) async-start(f32[8]{{0}} %x), {SYNC % 'true'}",
            "d = f32[8]{0} async-done(((f32[8]{0}), f32[8]{0}, u32[]) %s)",
            f"t = ((f32[8]{{0}}), f32[8]{{0}}, u32[]) async-start(d), {SYNC % 'false'}",
            f"e = {TWO} collective-permute-done(c)",
            "f = f32[8]{0} async-done(t)",
            "g = (f32[8]{0}, f32[16]{0}) all-gather-start(f), replica_groups=[1,2]<=[2], dimensions={0}",
            "ROOT h = f32[16]{0} all-gather-done(g)",
            header="HloModule f, is_scheduled=true, num_partitions=2",
            before=APART,
        )
    )
    assert [*graph.op_names[:4]] == ["gpu0/c", "gpu0/s/a", "gpu0/t/a", "gpu0/g"]
    assert [graph.attributes[op]["stream"] for op in range(4)] == [1, 0, 1, 1]
    assert graph.attributes[0]["sends"] == {"gpu1": 128}
    assert graph.bytes_written[:4].tolist() == [128, 32, 32, 64]


def test_a_permutation_is_an_exchange(load):
    for text in TEXTS:
        graph = load(PROGRAMS["permuted"][text])
        sends = {
            graph.op_names[op].split("/")[0]: graph.attributes[op]["sends"]
            for op in graph.in_communicators
            if "sends" in graph.attributes[op]
        }
        assert sends == {"gpu0": {"gpu2": 512}, "gpu1": {"gpu3": 512}, "gpu2": {}, "gpu3": {}}


def test_groups_may_be_rows_of_an_array():
    assert replica_groups("[4,2]<=[8]") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert replica_groups("[2,4]<=[2,2,2]T(1,0,2)") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    with pytest.raises(InputError, match="replica groups"):
        replica_groups("[3,4]<=[8]")


def test_a_text_may_begin_with_comments(load):
    comments = "// -----// IR Dump Before //----- //\n\n// RUN: x\n"
    for text in TEXTS:
        program = PROGRAMS["sharded" if text == "compiled" else "mlp"][text]
        assert load(comments + program).pins == load(program).pins
        assert load(comments + program).flops.tolist() == load(program).flops.tolist()
    alone = "func.func @f(%x : tensor<4xf32>) -> tensor<4xf32> {\n%0 = stablehlo.sine %x : tensor<4xf32>\n"
    assert load(alone + "return %0 : tensor<4xf32>\n}\n").kinds == ("sin",)


def test_names_of_functions_may_be_quoted(load):
    text = PROGRAMS["mlp"]["stablehlo"]
    assert load(text.replace("@relu", '@"<lambda>"')).flops.tolist() == load(text).flops.tolist()


def test_a_loop_may_have_attributes(load):
    text = PROGRAMS["recurrent"]["stablehlo"]
    told = re.sub(r"(stablehlo\.while\(.*)", r"\1 attributes {mhlo.period = 3 : i64}", text)
    assert told != text
    assert load(told).flops.tolist() == load(text).flops.tolist()


GENERIC_LOOP = """\
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = "stablehlo.while"(%c, %x) ({
  ^bb0(%i: tensor<i32>, %y: tensor<4xf32>):
    %n = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %y: tensor<4xf32>):
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    %3 = stablehlo.sine %y : tensor<4xf32>
    stablehlo.return %2, %3 : tensor<i32>, tensor<4xf32>
  }) : (tensor<i32>, tensor<4xf32>) -> (tensor<i32>, tensor<4xf32>)
  return %0#1 : tensor<4xf32>
}
"""


def test_a_loop_may_be_in_the_generic_form_of_mlir(load):
    assert load(GENERIC_LOOP).kinds == ("sin",)
    assert load(GENERIC_LOOP).flops.tolist() == [4, 4, 4]


def test_quantized_tensors_have_the_bytes_of_what_they_store(load):
    text = "module {\nfunc.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xi8> {\n"
    for made in ("i8:f32, 0.5:-3", "i8:f32:1, {0.1:-30, 0.5, 0.2, 0.3}"):
        of = f"tensor<8x4x!quant.uniform<{made}>>"
        quantize = f"%0 = stablehlo.uniform_quantize %x : (tensor<8x4xf32>) -> {of}\n"
        add = f"%1 = stablehlo.add %0, %0 : {of}\nreturn %1 : {of}\n}}\n}}\n"
        assert load(text + quantize + add).bytes_written.tolist() == [32, 32]


def test_a_program_that_is_not_divided_is_told(load):
    text = PROGRAMS["softmax"]["stablehlo"].replace("num_partitions = 1", "num_partitions = 4")
    with pytest.warns(UserWarning, match="is for 4 devices and not divided among them"):
        assert not load(text).pins


# -- files ----------------------------------------------------------------------------------------


def test_a_program_runs_from_the_command_line(tmp_path):
    (tmp_path / "model.hlo").write_text(PROGRAMS["mlp"]["hlo"])
    result = sim("import", tmp_path / "model.hlo", "--out", tmp_path / "graph.json")
    assert result.exit_code == 0
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "machine: {devices: {gpu0: {preset: h100-sxm}}}\nworkload: {graph: model.hlo}\npolicy: in-order\n"
    )
    result = sim("run", scenario)
    assert result.exit_code == 0
    assert "35 tasks ran" in result.output


def test_ranks_meet_on_a_machine(tmp_path):
    (tmp_path / "model.hlo").write_text(PROGRAMS["permuted"]["compiled"])
    scenario = tmp_path / "s.yaml"
    scenario.write_text("machine: {preset: dgx-h100}\nworkload: {graph: model.hlo}\npolicy: in-order\n")
    result = sim("run", scenario)
    assert result.exit_code == 0
    assert "24 tasks ran" in result.output


def test_what_nobody_knows_is_refused_or_counted_by_bytes(load):
    text = hlo(
        "x = f32[8,8]{1,0} parameter(0)",
        'ROOT c = f32[8,8]{1,0} custom-call(x), custom_call_target="mine"',
    )
    with pytest.raises(InputError, match=r"without a cost formula: mine \(1\)"):
        load(text)
    with pytest.warns(UserWarning, match="counted by their bytes, with no flop: mine"):
        assert load(text, unknown="bytes").bytes_read.tolist() == [256]


def test_that_more_would_be_fused_is_told(load):
    with pytest.warns(UserWarning, match="is not compiled: its 35 ops are kernels of their own"):
        load(PROGRAMS["mlp"]["hlo"])
    with pytest.warns(UserWarning, match="was compiled for a CPU"):
        load(PROGRAMS["product"]["compiled"])


def test_a_batch_cannot_be_set(load):
    with pytest.raises(InputError, match="batch=4 cannot be set"):
        load(PROGRAMS["mlp"]["hlo"], batch=4)


X = "x = f32[4]{0} parameter(0)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (hlo(X, "ROOT y = f32[4] exponential(z)"), "main reads 'z', which no instruction before it makes"),
        (hlo(X, "ROOT y = f32[5] exponential(x)"), r"y: exponential does not make \[5\] of \[4\]"),
        (hlo(X, "ROOT y = f32[4] call(x), to_apply=g"), "line 5: y calls g, which is not in the file"),
        (hlo(X, "ROOT y = f32[4] map(x), dimensions={0}"), r"y \(map\): what it reads does not fit"),
        (hlo(X, "ROOT y = f99[4] exponential(x)"), "line 5: a tensor of f99, whose size is not known"),
        (hlo(X, "ROOT y = f32[4] exponential(x"), "ends in the middle of the computation main"),
        (hlo(X, "x = f32[4] exponential(x)"), "line 5: x is there twice"),
        (hlo(X, "ROOT y = f32[%s] exponential(x)" % ("9" * 400)), "line 5: a number of more than 18 digits"),
        (
            hlo(X, "nothing of the kind", "ROOT y = f32[4] exponential(x)"),
            "line 4: no attribute of x: 'nothing",
        ),
        ("HloModule f\n", "has no ENTRY computation"),
        (PROGRAMS["mlp"]["stablehlo"].partition("%4 =")[0], "ends in the middle of a function"),
        (PROGRAMS["mlp"]["stablehlo"].replace("tensor<32x20xf32>", "tensor<?x20xf32>"), "open shape"),
        (
            PROGRAMS["mlp"]["stablehlo"].replace("@relu(%arg0", "@reul(%arg0"),
            "calls @relu, which is not in the file",
        ),
    ],
)
def test_what_is_wrong_is_told_in_a_line(load, text, message):
    with pytest.raises(InputError, match=message) as told:
        load(text, format="hlo")
    assert "\n" not in str(told.value)
    assert "program.txt: " in str(told.value)


def nested(n, call):
    """Return computations that each call the one before twice."""
    first = "c0 {\n  p = f32[4] parameter(0)\n  ROOT b = f32[4] exponential(p)\n}\n"
    more = (
        f"c{k} {{\n  p = f32[4] parameter(0)\n  a = f32[4] call(p), to_apply=c{k - 1}\n"
        f"  ROOT b = f32[4] call(a), to_apply=c{k - 1}\n}}\n"
        for k in range(1, n)
    )
    return hlo(X, f"ROOT y = f32[4] call(x), to_apply={call}", before=first + "".join(more))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(60, "c59"), "instructions, with loops and calls written out, are more than"),
        (nested(200, "c199"), "more than 100 calls in one another"),
        (hlo("p = " + "(" * 10**5 + "f32[4] parameter(0)"), "in the middle|more than 100 tuples"),
        (
            hlo("p = " + "(" * 10**4 + "f32[4]" + ")" * 10**4 + " parameter(0)"),
            "more than 100 tuples in one another",
        ),
        (PROGRAMS["powers"]["hlo"].replace("constant(7)", "constant(99999999)"), "are more than the 9,999"),
        (
            PROGRAMS["branch"]["stablehlo"].replace("({\n", "({\n" + '%9 = "stablehlo.case"(%0) ({\n' * 999),
            "100 regions",
        ),
        (
            PROGRAMS["mlp"]["stablehlo"].replace("tensor<32x20", "tensor<" + "1x" * 10**5, 1),
            "a tensor of xf32",
        ),
    ],
)
def test_deep_and_endless_programs_are_refused(load, monkeypatch, text, message):
    monkeypatch.setattr("scenarios.importers.xla_program._MAX_INSTRUCTIONS", 9_999)
    with pytest.raises(InputError, match=message):
        load(text, format="hlo")


def changed(text, draw):
    """Return a text with a few faults."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, n = draw.randrange(len(text) or 1), draw.randrange(1, 40)
        lines = text.split("\n")
        k = draw.randrange(len(lines))
        match draw.randrange(6):
            case 0:
                text = text[:at] + chr(draw.randrange(32, 127)) + text[at + 1 :]
            case 1:
                text = text[:at] + text[at + n :]
            case 2:
                text = text[: max(20, at)]
            case 3:
                text = "\n".join(lines[:k] + lines[k + 1 :])
            case 4:
                text = (
                    text[:at]
                    + draw.choice(('"', "(", ")", "{", "}", "<", "=", "\n", "0", "9" * 20))
                    + text[at:]
                )
            case _:
                text = "\n".join([*lines[:k], draw.choice(lines), *lines[k:]])
    return text


@pytest.mark.parametrize("seed", seeds(60))
def test_a_damaged_program_is_refused_in_a_line_or_read(tmp_path, seed):
    draw, path = random.Random(seed), tmp_path / "program.txt"
    for _ in range(15):
        text = changed(draw.choice([*PROGRAMS.values()])[draw.choice(TEXTS)], draw)
        path.write_text(text)
        with warnings.catch_warnings(), suppress(InputError):
            warnings.simplefilter("ignore")
            xla_program.load(path, unknown="bytes")
