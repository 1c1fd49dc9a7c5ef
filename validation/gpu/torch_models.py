"""One training step of a GPT and of a residual network, op by op, from torch's own functions.

A model is a list of segments; an op is the forward or the backward of one, and the last op updates::

    0f ─ 1f ─ ... ─ 5f ─ 5b ─ ... ─ 1b ─ 0b ─ update        kinds gpt-0-f, ..., gpt-0-b, gpt-update

A backward differentiates its segment alone (`torch.autograd.grad`), from the gradient that the segment after
it has left. The gradients are compared with those of a serial step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sim.graph.graph import Graph
from sim.words.errors import RunError

__all__ = ["SEGMENTS", "SHAPES", "ModelWork", "step_kinds"]

SEGMENTS: Final = 6
"""Of either model: an entrance, four blocks, and the loss."""

SHAPES: Final = {"width": 768, "heads": 12, "tokens": 256, "words": 8192, "channels": 64, "pixels": 64}
"""A small GPT (Radford et al. 2019 has this width and 12 blocks) and a narrow ResNet (He et al. 2016)."""

_TOLERANCE: Final = 0.05
_LAUNCHES: Final = 45
"""About how many kernels an op launches."""


def step_kinds(model: str) -> list[str]:
    """Return the kinds of the ops of a step, in order.

    Examples
    --------
    >>> step_kinds("gpt")[4:8], step_kinds("gpt")[-1]
    (['gpt-4-f', 'gpt-5-f', 'gpt-5-b', 'gpt-4-b'], 'gpt-update')
    """
    forward = [f"{model}-{k}-f" for k in range(SEGMENTS)]
    return [*forward, *[f"{kind[:-1]}b" for kind in reversed(forward)], f"{model}-update"]


Segment = tuple[Callable[..., Any], list[Any]]
"""function of (input, parameters), and the parameters"""


class ModelWork:
    """The step of a model; a graph has the ops of `step_kinds`, each with the attribute ``batch``.

    Parameters
    ----------
    torch : module
    graph : Graph
    device : str
        ``"cpu"`` where the arithmetic is to be tried without a GPU.
    """

    def __init__(self, torch: Any, graph: Graph, device: str = "cuda") -> None:
        self.torch, self.device = torch, device
        self.names = graph.op_names
        self.kinds = [graph.kind(op) for op in range(len(graph))]
        self.batch = int(graph.attributes[0]["batch"])
        self.model = self.kinds[0].partition("-")[0]
        self.order = graph.topological_order.tolist()
        torch.manual_seed(0)
        self.input, self.target, self.segments = (self._gpt if self.model == "gpt" else self._resnet)()
        self.originals = [[p.detach().clone() for p in parameters] for _, parameters in self.segments]
        self.not_captured = ""
        self.left: dict[str, Any] = {}
        self.gradients: dict[int, list[Any]] = {}
        self.serial: dict[int, list[Any]] | None = None

    # -- the models ---------------------------------------------------------------------------

    def _parameter(self, *shape: int, scale: float | None = None) -> Any:
        fan_in = 1
        for n in shape[1:]:
            fan_in *= n
        value = self.torch.randn(*shape, device=self.device) * (fan_in**-0.5 if scale is None else scale)
        return value.to(self.torch.bfloat16).requires_grad_()

    def _norm(self, n: int) -> list[Any]:
        ones = self.torch.ones(n, device=self.device, dtype=self.torch.bfloat16)
        return [ones.requires_grad_(), self._parameter(n, scale=0.02)]

    def _gpt(self) -> tuple[Any, Any, list[Segment]]:
        torch, functional = self.torch, self.torch.nn.functional
        width, heads, tokens, words = (SHAPES[key] for key in ("width", "heads", "tokens", "words"))
        ids, target = (torch.randint(words, (self.batch, tokens), device=self.device) for _ in range(2))

        def embed(x: Any, table: Any, place: Any) -> Any:
            return functional.embedding(x, table) + place

        def block(x: Any, g1: Any, b1: Any, qkv: Any, out: Any, g2: Any, b2: Any, up: Any, down: Any) -> Any:
            y = functional.linear(functional.layer_norm(x, (width,), g1, b1), qkv)
            parts = y.view(self.batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + functional.linear(seen.transpose(1, 2).reshape(self.batch, tokens, width), out)
            y = functional.linear(functional.layer_norm(x, (width,), g2, b2), up)
            return x + functional.linear(functional.gelu(y), down)

        def loss(x: Any, g: Any, b: Any, table: Any) -> Any:
            logits = functional.linear(functional.layer_norm(x, (width,), g, b), table)
            return functional.cross_entropy(logits.view(-1, words).float(), self.target.view(-1))

        p = self._parameter
        blocks = [
            (
                block,
                [
                    *self._norm(width), p(3 * width, width), p(width, width),
                    *self._norm(width), p(4 * width, width), p(width, 4 * width),
                ],
            )
            for _ in range(SEGMENTS - 2)
        ]  # fmt: skip
        entrance = (embed, [p(words, width, scale=0.02), p(tokens, width, scale=0.02)])
        return ids, target, [entrance, *blocks, (loss, [*self._norm(width), p(words, width)])]

    def _resnet(self) -> tuple[Any, Any, list[Segment]]:
        torch, functional = self.torch, self.torch.nn.functional
        channels, pixels, classes = SHAPES["channels"], SHAPES["pixels"], 1000
        images = torch.randn(self.batch, 3, pixels, pixels, device=self.device).to(torch.bfloat16)
        target = torch.randint(classes, (self.batch,), device=self.device)

        def convolve(x: Any, p: Sequence[Any], stride: int) -> Any:
            weight, g, b = p
            y = functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
            return functional.batch_norm(y, None, None, g, b, training=True)

        def stem(x: Any, weight: Any, g: Any, b: Any) -> Any:
            return functional.relu(convolve(x, (weight, g, b), 1))

        def block(x: Any, *p: Any) -> Any:
            y = convolve(functional.relu(convolve(x, p[:3], 2)), p[3:6], 1)
            return functional.relu(y + convolve(x, p[6:9], 2))

        def loss(x: Any, weight: Any) -> Any:
            return functional.cross_entropy(functional.linear(x.mean((2, 3)), weight).float(), self.target)

        p = self._parameter
        segments: list[Segment] = [(stem, [p(channels, 3, 3, 3), *self._norm(channels)])]
        for k in range(SEGMENTS - 2):
            thin, wide = channels << max(0, k - 1), channels << k
            convolutions = [(wide, thin, 3, 3), (wide, wide, 3, 3), (wide, thin, 1, 1)]
            segments.append((block, [x for shape in convolutions for x in (p(*shape), *self._norm(wide))]))
        return images, target, [*segments, (loss, [p(classes, channels << (SEGMENTS - 3))])]

    # -- what a backend asks of work ------------------------------------------------------------

    @property
    def launches(self) -> int:
        """About how many kernels one run launches."""
        return _LAUNCHES * len(self.kinds)

    def reset(self) -> None:
        """Forget activations and gradients, and undo the update."""
        self.left, self.gradients = {}, {}
        with self.torch.no_grad():
            for (_, parameters), originals in zip(self.segments, self.originals, strict=True):
                for parameter, original in zip(parameters, originals, strict=True):
                    parameter.copy_(original)

    def capture(self, op: int, stream: Any) -> None:
        """Capture nothing: a step of these is launched kernel by kernel."""

    def launch(self, op: int) -> None:
        """Launch one op on the current stream.

        Raises
        ------
        RunError
            What it reads is not there: the order was broken.
        """
        try:
            self.compute(op)
        except KeyError as error:
            raise RunError(f"op {self.names[op]!r} reads {error}, which is not made yet") from error

    def compute(self, op: int) -> None:
        """Do the arithmetic of one op."""
        what = self.kinds[op].split("-")
        if what[1] == "update":
            with self.torch.no_grad():
                for k, (_, parameters) in enumerate(self.segments):
                    self.torch._foreach_add_(parameters, self.gradients[k], alpha=-1e-3)
            return
        k = int(what[1])
        function, parameters = self.segments[k]
        if what[2] == "f":
            x = self.left[f"{k - 1} out"].detach().requires_grad_() if k else self.input
            self.left[f"{k} in"], self.left[f"{k} out"] = x, function(x, *parameters)
            return
        gradient = self.left[f"{k + 1} gradient"] if k + 1 < SEGMENTS else None
        read = [self.left[f"{k} in"]] if k else []
        found = self.torch.autograd.grad(self.left[f"{k} out"], [*read, *parameters], gradient)
        if k:
            self.left[f"{k} gradient"] = found[0]
        self.gradients[k] = list(found[len(read) :])
        del self.left[f"{k} in"], self.left[f"{k} out"]

    def wrong(self) -> list[str]:
        """Return the backward ops whose gradients differ from those of a serial step."""
        self.torch.cuda.synchronize()
        mine = self.gradients
        if self.serial is None:
            self.reset()
            for op in self.order:
                self.compute(op)
                self.torch.cuda.synchronize()
            self.serial = self.gradients
        return [
            f"{self.model}-{k}-b"
            for k, right in sorted(self.serial.items())
            if k not in mine or not all(_alike(a, b) for a, b in zip(mine[k], right, strict=True))
        ]


def _alike(mine: Any, right: Any) -> bool:
    away = (mine.float() - right.float()).norm().item()
    return bool(away <= _TOLERANCE * right.float().norm().item() + 1e-6)
