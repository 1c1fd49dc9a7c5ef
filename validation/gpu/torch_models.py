"""One training step of a GPT and of a residual network, op by op, from torch's own modules.

A model is a list of segments; an op is the forward or the backward of one, and the last op updates::

    0f ─ 1f ─ ... ─ 5f ─ 5b ─ ... ─ 1b ─ 0b ─ update        kinds gpt-0-f, ..., gpt-0-b, gpt-update

A backward differentiates only its segment (`torch.autograd.grad`), starting from the gradient left by the
segment after it. The gradients are compared with those of a serial step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sim.base.errors import RunError
from sim.graph.graph import Graph

SEGMENTS: Final = 6
"""Segments of either model: an entrance, four blocks, and the loss."""

SHAPES: Final = {"width": 768, "heads": 12, "tokens": 256, "words": 8192, "channels": 64, "pixels": 64}
"""A small GPT (Radford et al. 2019 has this width and 12 blocks) and a narrow ResNet (He et al. 2016)."""

_TOLERANCE: Final = 0.05
_LAUNCHES: Final = 45
"""Approximate number of kernels that an op launches."""


def step_kinds(model: str) -> list[str]:
    """Return the kinds of the ops of a step, in order.

    Examples
    --------
    >>> step_kinds("gpt")[4:8], step_kinds("gpt")[-1]
    (['gpt-4-f', 'gpt-5-f', 'gpt-5-b', 'gpt-4-b'], 'gpt-update')
    """
    forward = [f"{model}-{k}-f" for k in range(SEGMENTS)]
    return [*forward, *[f"{kind[:-1]}b" for kind in reversed(forward)], f"{model}-update"]


Segment = tuple[Callable[[Any], Any], list[Any]]
"""Function of the input, and the parameters that it uses."""


class ModelWork:
    """The step of a model; a graph has the ops of `step_kinds`, each with the attribute ``batch``.

    Parameters
    ----------
    torch : module
    graph : Graph
    device : str
        ``"cpu"`` to test the arithmetic without a GPU.
    """

    def __init__(self, torch: Any, graph: Graph, device: str = "cuda") -> None:
        self.torch, self.device = torch, device
        self.names = graph.op_names
        self.kinds = [graph.kind(op) for op in range(len(graph))]
        self.batch = int(graph.attributes[0]["batch"])
        self.model = self.kinds[0].partition("-")[0]
        self.order = graph.topological_order.tolist()
        torch.manual_seed(0)
        self.input, self.segments = (self._gpt if self.model == "gpt" else self._resnet)()
        self.originals = [[p.detach().clone() for p in parameters] for _, parameters in self.segments]
        self.not_captured = ""
        self.left: dict[str, Any] = {}
        self.gradients: dict[int, list[Any]] = {}
        self.serial: dict[int, list[Any]] | None = None

    # -- the models ---------------------------------------------------------------------------

    def _segment(self, function: Callable[[Any], Any], *modules: Any) -> Segment:
        for module in modules:
            module.to(self.device, self.torch.bfloat16)
        return function, [parameter for module in modules for parameter in module.parameters()]

    def _gpt(self) -> tuple[Any, list[Segment]]:
        torch, nn = self.torch, self.torch.nn
        width, heads, tokens, words = (SHAPES[key] for key in ("width", "heads", "tokens", "words"))
        ids, target = (torch.randint(words, (self.batch, tokens), device=self.device) for _ in range(2))
        table, place = nn.Embedding(words, width), nn.Embedding(tokens, width)
        block = partial(
            nn.TransformerEncoderLayer, width, heads, 4 * width,
            dropout=0.0, activation="gelu", batch_first=True, norm_first=True,
        )  # fmt: skip
        causal = nn.Transformer.generate_square_subsequent_mask(tokens, self.device, torch.bfloat16)
        head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))

        def embed(x: Any) -> Any:
            return table(x) + place.weight

        def loss(x: Any) -> Any:
            return nn.functional.cross_entropy(head(x).flatten(0, 1).float(), target.flatten())

        layers = [block() for _ in range(SEGMENTS - 2)]
        blocks = [self._segment(partial(layer, src_mask=causal, is_causal=True), layer) for layer in layers]
        return ids, [self._segment(embed, table, place), *blocks, self._segment(loss, head)]

    def _resnet(self) -> tuple[Any, list[Segment]]:
        torch, nn = self.torch, self.torch.nn
        channels, pixels, classes = SHAPES["channels"], SHAPES["pixels"], 1000
        images = torch.randn(self.batch, 3, pixels, pixels, device=self.device).to(torch.bfloat16)
        target = torch.randint(classes, (self.batch,), device=self.device)

        def convolution(thin: int, wide: int, size: int, stride: int) -> Any:
            convolved = nn.Conv2d(thin, wide, size, stride, size // 2, bias=False)
            return nn.Sequential(convolved, nn.BatchNorm2d(wide, track_running_stats=False))

        def block(thin: int, wide: int) -> Segment:
            body = nn.Sequential(convolution(thin, wide, 3, 2), nn.ReLU(), convolution(wide, wide, 3, 1))
            shortcut = convolution(thin, wide, 1, 2)
            return self._segment(lambda x: torch.relu(body(x) + shortcut(x)), body, shortcut)

        def loss(x: Any) -> Any:
            return nn.functional.cross_entropy(head(x.mean((2, 3))).float(), target)

        stem = nn.Sequential(convolution(3, channels, 3, 1), nn.ReLU())
        head = nn.Linear(channels << (SEGMENTS - 3), classes, bias=False)
        blocks = [block(channels << max(0, k - 1), channels << k) for k in range(SEGMENTS - 2)]
        return images, [self._segment(stem, stem), *blocks, self._segment(loss, head)]

    # -- interface of work to a backend ---------------------------------------------------------

    @property
    def launches(self) -> int:
        """Approximate number of kernels that one run launches."""
        return _LAUNCHES * len(self.kinds)

    def reset(self) -> None:
        """Discard activations and gradients, and undo the update."""
        self.left, self.gradients = {}, {}
        with self.torch.no_grad():
            for (_, parameters), originals in zip(self.segments, self.originals, strict=True):
                for parameter, original in zip(parameters, originals, strict=True):
                    parameter.copy_(original)

    def capture(self, op: int, stream: Any) -> None:
        """Capture nothing: these steps are launched kernel by kernel."""

    def launch(self, op: int) -> None:
        """Launch one op on the current stream.

        Raises
        ------
        RunError
            One of its inputs does not exist: the order was broken.
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
            self.left[f"{k} in"], self.left[f"{k} out"] = x, function(x)
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
