"""Programs of JAX, as texts, and what XLA's own cost analysis says of them.

``python tests/jax_programs.py`` writes ``tests/data/jax_programs.json.gz`` (JAX 0.10.2, on a CPU); it needs
``pip install jax``, which is no dependency of this project. `drawn` gives programs drawn at random.
"""

import gzip
import json
import os
import random
from pathlib import Path

DATA = Path(__file__).parent / "data/jax_programs.json.gz"
RECORDED = range(16)
"""Drawn programs in the file."""


def written():
    """Return the programs in the file: name → texts and costs."""
    return json.loads(gzip.decompress(DATA.read_bytes()))


def record(function, arguments, unrolled=None):
    """Return a program's texts, and XLA's flop and transcendentals, of loops those of `unrolled`."""
    import jax

    lowered = jax.jit(function).lower(*arguments)
    counted = lowered if unrolled is None else jax.jit(unrolled).lower(*arguments)
    compiled = lowered.compile()
    return {
        "stablehlo": lowered.as_text(),
        "hlo": lowered.as_text(dialect="hlo"),
        "compiled": compiled.as_text(),
        "cost": _cost(counted),
        "compiled_cost": None if unrolled else _cost(compiled),
    }


def _cost(analysed):
    found = analysed.cost_analysis()
    return [int(found.get("flops", 0)), int(found.get("transcendentals", 0))]


def of(*dims, dtype="float32"):
    import jax

    return jax.ShapeDtypeStruct(dims, dtype)


def drawn(seed):
    """Return a network of drawn layers, or its gradient, and its arguments."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    draw = random.Random(seed)
    dtype = draw.choice(("float32", "float32", "bfloat16"))
    batch, length, width = draw.randint(2, 9), draw.randint(4, 20), 4 * draw.randint(2, 12)
    x, weights, layers = of(batch, length, width, dtype=dtype), [], []

    def weight(*dims):
        weights.append(of(*dims, dtype=dtype))
        return len(weights) - 1

    def dense(x, w, k):
        return x @ w[k]

    def norm(x, w):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1)

    def softmax(x, w, axis):
        return jax.nn.softmax(x, axis)

    def point(x, w, function):
        return function(x)

    def attend(x, w):
        return jax.nn.softmax(x @ x.swapaxes(-1, -2) / 7) @ x

    def conv(x, w, k, stride, padding):
        return lax.conv_general_dilated(x, w[k], (stride,), padding, dimension_numbers=("NWC", "WIO", "NWC"))

    def move(x, w):
        return jnp.concatenate([x[:, ::-1], jnp.pad(x, ((0, 0), (1, 0), (0, 0)))], 1)

    def gate(x, w):
        return jnp.where(x > 0, x, x * x) / (1 + abs(x))

    for _ in range(draw.randint(2, 6)):
        layer, options = draw.choice((dense, dense, conv, conv, norm, softmax, point, attend, move, gate)), ()
        if layer is dense:
            options, width = (weight(width, made := 4 * draw.randint(1, 16)),), made
        elif layer is conv:
            k = weight(draw.randint(1, 4), width, made := 4 * draw.randint(1, 8))
            options, width = (k, draw.choice((1, 2)), "SAME"), made
        elif layer is softmax:
            options = (draw.choice((1, 2)),)
        elif layer is point:
            options = (draw.choice((jnp.tanh, jax.nn.gelu, jax.nn.silu, jax.nn.relu, jnp.sin)),)
        layers.append((layer, options))

    def network(x, weights):
        for layer, options in layers:
            x = layer(x, weights, *options)
        return x

    def loss(x, weights):
        return (network(x, weights).astype("float32") ** 2).mean()

    return jax.grad(loss, argnums=(0, 1)) if draw.random() < 0.5 else network, (x, weights)


def chosen():
    """Return programs by hand: name → function, arguments, and for loops the same without them."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as Part

    def conv(window, strides, padding, **options):
        return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **options), window

    def mlp(p, x, y):
        h = jax.nn.relu(x @ p[0] + p[1])
        return -(jax.nn.log_softmax(h @ p[2] + p[3]) * y).sum(-1).mean()

    def attention(p, x):
        b, t, d = x.shape
        q, k, v = ((x @ w).reshape(b, t, 4, d // 4).transpose(0, 2, 1, 3) for w in p[:3])
        a = jnp.where(jnp.tril(jnp.ones((t, t), bool)), q @ k.swapaxes(-1, -2) / 3, -1e9)
        return (jax.nn.softmax(a) @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ p[3]

    def recurrent(unroll):
        def loss(w, xs):
            def step(h, x):
                h = jnp.tanh(h @ w + x)
                return h, h

            return lax.scan(step, jnp.zeros((4, 16)), xs, unroll=unroll)[0].sum()

        return jax.grad(loss)

    def powers(unroll):
        return lambda w: lax.fori_loop(0, 7, lambda i, x: x @ x + i, w, unroll=unroll)

    def pool(x, strides=(1, 2, 2, 1)):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), strides, "SAME")

    def on_devices(function, given, made):
        mesh = jax.make_mesh((2, 2), ("d", "t"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        return jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=made, check_vma=False)

    def sharded(x, w, v):
        h = jax.nn.relu(x @ lax.all_gather(w, "d", tiled=True))
        return lax.psum_scatter(h @ v, "t", scatter_dimension=1, tiled=True)

    layer = (of(20, 64), of(64), of(64, 10), of(10)), of(32, 20), of(32, 10)
    block = [of(32, 32) for _ in range(4)], of(2, 24, 32)
    image = of(2, 16, 28, 27)
    grouped, _ = conv(0, (1, 1), ((2, 2), (0, 3)), rhs_dilation=(2, 1), feature_group_count=4)
    strided, _ = conv(0, (2, 3), "SAME")
    spread = Part("d", "t")
    special = jnp.sinh, jnp.cosh, jnp.arcsin, jnp.arctanh, lax.erf_inv, lax.erfc, lax.lgamma, lax.digamma
    return {
        "product": (lambda a, b: a @ b, (of(37, 53), of(53, 71))),
        "batched": (lambda a, b: a @ b, (of(4, 5, 17, 23), of(4, 5, 23, 9))),
        "scores": (lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (of(3, 17, 4, 8), of(3, 29, 4, 8))),
        "bf16": (lambda a, b: a @ b.T, (of(64, 128, dtype="bfloat16"), of(32, 128, dtype="bfloat16"))),
        "strided": (strided, (image, of(8, 16, 5, 5))),
        "grouped": (grouped, (image, of(32, 4, 3, 3))),
        "conv_gradients": (
            jax.grad(lambda x, w: (strided(x, w) ** 2).sum(), argnums=(0, 1)),
            (image, of(8, 16, 3, 3)),
        ),
        "conv_transpose": (
            lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
            (of(2, 9, 9, 16), of(3, 3, 16, 8)),
        ),
        "reductions": (lambda a: (a.sum(1), a.max(), a.mean(0), a.var(1), jnp.argmax(a, 1)), (of(37, 53),)),
        "softmax": (jax.nn.softmax, (of(16, 53),)),
        "mlp": (jax.value_and_grad(mlp), layer),
        "attention": (attention, block),
        "attention_gradients": (jax.grad(lambda p, x: (attention(p, x) ** 2).mean()), block),
        "embedding": (
            lambda e, i: jax.grad(lambda e: (e[i] ** 2).sum())(e),
            (of(999, 32), of(4, 16, dtype="int32")),
        ),
        "pools": (jax.value_and_grad(lambda x: pool(x).sum()), (of(2, 28, 28, 4),)),
        "order": (lambda a: (jnp.cumsum(a, 1), jnp.sort(a, 1), lax.top_k(a, 5)), (of(10, 100),)),
        "moves": (
            lambda a, b: (jnp.concatenate([a, b]).T, jnp.pad(a, 1), a[1:3], jnp.flip(b)),
            (of(8, 9), of(8, 9)),
        ),
        "fourier": (lambda a: abs(jnp.fft.fft(a)), (of(4, 64),)),
        "special": (lambda a: [function(a) for function in special], (of(32, 32),)),
        "random": (lambda key: jax.random.uniform(key, (64, 64)), (jax.random.key(0, impl="rbg"),)),
        "recurrent": (recurrent(1), (of(16, 16), of(10, 4, 16)), recurrent(10)),
        "powers": (powers(1), (of(16, 16),), powers(7)),
        "until": (lambda w: lax.while_loop(lambda x: x.sum() < 100, lambda x: x @ x, w), (of(16, 16),)),
        "branch": (
            lambda w, p: lax.cond(p, lambda x: x @ x, lambda x: x + 1, w),
            (of(16, 16), of(dtype="bool")),
        ),
        "sharded": (
            on_devices(sharded, (Part("d"), spread, Part("t", None)), spread),
            (of(16, 32), of(32, 64), of(64, 32)),
        ),
        "permuted": (
            on_devices(
                lambda x: (
                    lax.ppermute(x, "d", [(0, 1)])
                    + lax.all_to_all(lax.psum(x, ("d", "t")), "t", 0, 0, tiled=True)
                ),
                spread,
                spread,
            ),
            (of(16, 32),),
        ),
    }


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    found = {name: record(*program) for name, program in chosen().items()}
    found |= {f"drawn{seed}": record(*drawn(seed)) for seed in RECORDED}
    for program in found.values():  # where it was made plays no part
        program["compiled"] = "\n".join(line for line in program["compiled"].split("\n") if line[3:4] != "/")
    DATA.write_bytes(gzip.compress(json.dumps(found, indent=1).encode(), mtime=0))
