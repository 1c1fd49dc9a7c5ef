"""Recomputation: what of a layer is not kept for its backward, and runs again.

::

    full            keep the layer's input                     run all again
    selective       keep all but the inside of attention       run attention again; likewise other modules
    selective-op    keep the layer's input, what attention     run the rest again
                    and every second product make
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.kernels import Attention, Collective, Kernel, LayerPiece, Product

Recompute = Literal["none", "selective", "selective-op", "full"]

RECOMPUTED: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "core_attn": (frozenset({"attention"}), frozenset()),
    "mla_up_proj": (frozenset({"q up", "kv up"}), frozenset()),
    "layernorm": (frozenset({"norm"}), frozenset({"norm", "shared up"})),
    "mhc": (frozenset({"mix 1", "mix 2", "mix out"}), frozenset({"mix 1", "mix 2"})),
    "mlp": (frozenset({"up", "gate", "down"}), frozenset({"gate", "down"})),
    "moe_act": (frozenset({"experts gate"}), frozenset({"experts down"})),
    "moe": (
        frozenset({"router", "dispatch", "experts up", "experts gate", "experts down", "combine"}),
        frozenset({"experts up", "experts gate", "experts down"}),
    ),
}
"""Recomputed modules by name → the pieces that run again, and the pieces that save nothing.

Attention keeps neither scores (``core_attn``) nor queries, keys and values (``mla_up_proj``). Source:
Megatron-LM, core/transformer/transformer_config.py (``recompute_modules``).
"""


def recompute_modules(pieces: Iterable[LayerPiece], modules: Collection[str]) -> tuple[LayerPiece, ...]:
    """Return the pieces of a layer as they run if these modules are recomputed."""
    again = {name for module in modules for name in RECOMPUTED[module][0]}
    empty = {name for module in modules for name in RECOMPUTED[module][1]}
    result = []
    for piece in pieces:
        dropped = piece.saved if piece.name in empty else 0
        if piece.name == "attention":
            dropped = piece.dropped if "core_attn" in modules else 0
            dropped += piece.input if "mla_up_proj" in modules else 0
        if piece.name == "experts gate" and "moe_act" in modules:
            dropped = max(dropped, piece.saved - piece.input)  # clamped inputs are recomputed
        result.append(replace(piece, again=piece.forward if piece.name in again else (), dropped=dropped))
    return tuple(result)


def keeps_nothing(piece: str, recompute: Recompute | tuple[str, ...]) -> bool:
    """Whether recomputation keeps nothing of what this piece of a layer saves for its backward."""
    if isinstance(recompute, str):
        return recompute in ("selective-op", "full")
    return any(piece in RECOMPUTED[module][1] for module in recompute)


def recompute_by_op(
    pieces: Iterable[LayerPiece], split_widths: Mapping[str, Sequence[int]], t: int
) -> list[LayerPiece]:
    """Return the pieces of a layer that keeps only what fused attention and every second product make.

    It also keeps what reduce-scatters over `t` ranks and all-to-alls return. `split_widths` has the widths of
    products that are one kernel here and several there. The router and experts always run again.

    Source: torchtitan, distributed/activation_checkpoint.py (``SelectiveAC``).
    """
    result, count = [], 0
    for piece in pieces:
        widths = split_widths.get(piece.name.removeprefix("shared "), (1,))
        counted = any(isinstance(k, Product) and k.part == "F" for k in piece.forward)
        counted &= not piece.name.startswith(("router", "experts"))
        odd = sum(width for n, width in enumerate(widths, count + 1) if n % 2)
        count += len(widths) if counted else 0
        again: list[Kernel] = []
        kept = piece.output + piece.dropped if any(isinstance(k, Attention) for k in piece.forward) else 0
        for kernel in piece.forward:
            if isinstance(kernel, Product) and counted:
                columns = kernel.n * odd // sum(widths)
                kept += 2 * kernel.m * columns
                again += [kernel._replace(n=kernel.n - columns)] if columns < kernel.n else []
            elif isinstance(kernel, Collective) and kernel.kind in ("reduce_scatter", "all_to_all"):
                kept += kernel.nbytes // (t if kernel.kind == "reduce_scatter" else 1)
            elif not isinstance(kernel, Attention):
                again.append(kernel)
        result.append(replace(piece, again=tuple(again), kept=kept))
    return result


def with_recomputation(
    pieces: Sequence[LayerPiece], recompute: Recompute | tuple[str, ...], model: Architecture, t: int
) -> Sequence[LayerPiece]:
    """Return the pieces of a layer on one of `t` ranks, with what recomputation drops and runs again."""
    if recompute == "none":
        return pieces
    if recompute == "full":
        return [replace(piece, again=piece.forward) for piece in pieces]
    if recompute == "selective-op":
        split_widths = {"qkv": (model.heads, model.kv_heads, model.kv_heads), "up": (1,) * (1 + model.gated)}
        return recompute_by_op(pieces, split_widths, t)
    return recompute_modules(pieces, ("core_attn",) if recompute == "selective" else recompute)
