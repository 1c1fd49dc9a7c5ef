"""Export a PyTorch module as it runs on a GPU, which need not be there; nor need PyTorch be built for one."""

from __future__ import annotations

import copy
import warnings
from functools import partial, update_wrapper
from typing import Any
from unittest import mock


def export_program(module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the program of a module's forward, for its own device or, if autocast names one, for a GPU.

    Whatever the module or PyTorch's tracer raises comes through.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's warnings about its own internals,
        warnings.filterwarnings("error", ".*Disabling autocast")  # but not that forward runs otherwise
        try:
            return _program(module, inputs, keywords)
        except UserWarning:
            return _program_on_a_gpu(module, inputs, keywords)


def _program(module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    import torch

    attention = torch.nn.functional.scaled_dot_product_attention
    ours = update_wrapper(partial(_attention, attention), attention)
    with mock.patch.object(torch.nn.functional, attention.__name__, ours):
        program = torch.export.export(module, inputs, keywords)
    parts = any(node.op == "get_attr" for node in program.graph.nodes)  # under autocast or no_grad
    if parts or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        for part in program.graph_module.modules():  # a dropout that drops nothing would be written as a copy
            for node in part.graph.nodes:
                if node.target is torch.ops.aten.dropout.default and not all(node.args[1:3]):
                    node.target, node.args = torch.ops.aten.alias.default, node.args[:1]
        program = program.run_decompositions({})  # inlines them, and writes casts as operators
    return program


def _attention(
    fused: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **more: Any
) -> Any:
    """Run attention as PyTorch does on a GPU: fused kernels take four axes; others (windows) are products
    and a softmax, since 2.5 in fp32 (aten/src/ATen/native/transformers).
    """
    import torch

    if query.dim() == 4 or attn_mask is not None or dropout_p or any(more.values()):
        return fused(query, key, value, attn_mask, dropout_p, **more)
    wide, root = [x.float() for x in (query, key, value)], query.shape[-1] ** -0.25
    with torch.autocast(query.device.type, enabled=False):
        scores = torch.softmax((wide[0] * root) @ (wide[1].transpose(-2, -1) * root), -1)
        return (scores @ wide[2]).to(query.dtype)


def _program_on_a_gpu(*arguments: Any) -> Any:
    """Export a copy with empty tensors on a GPU, which need not exist: autocast depends on the device."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_leaves

    module, *inputs = arguments
    moved: dict[int, Any] = {}
    with FakeTensorMode():
        for tensor in (*module.parameters(), *module.buffers(), *tree_leaves(inputs)):
            if isinstance(tensor, torch.Tensor):
                on_gpu = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
                if isinstance(tensor, torch.nn.Parameter):  # gradients there need a PyTorch built for CUDA
                    on_gpu = type(tensor)(on_gpu, requires_grad=False)
                moved[id(tensor)] = on_gpu
    no_gpu = mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False)
    with no_gpu, mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True), _without_a_device():
        return _program(*copy.deepcopy(arguments, moved))


def _without_a_device() -> Any:
    """Return a context in which tensors on a GPU are indexed where PyTorch was built without CUDA: its
    bindings of these two functions, unlike the operators, switch to the device.
    """
    import torch

    class Operators(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.__getitem__:
                return _index_tensor(*args)
            if func is torch.Tensor.contiguous:
                return torch.ops.aten.contiguous.default(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    return Operators()


def _index_tensor(tensor: Any, index: Any) -> Any:
    """Return ``tensor[index]``, axis by axis."""
    import torch

    aten, parts = torch.ops.aten, index if isinstance(index, tuple) else (index,)
    dots = [k for k, part in enumerate(parts) if part is Ellipsis]
    if dots:
        missing = tensor.dim() - sum(part is not None for part in parts) + 1
        parts = (*parts[: dots[0]], *[slice(None)] * missing, *parts[dots[0] + 1 :])
    axis, lists = 0, {}
    for part in parts:
        if part is None:
            tensor = aten.unsqueeze.default(tensor, axis)
        elif isinstance(part, slice):
            if part != slice(None):
                tensor = aten.slice.Tensor(tensor, axis, part.start, part.stop, part.step or 1)
        elif isinstance(part, torch.Tensor | list):
            lists[axis] = torch.as_tensor(part)
        else:
            tensor = aten.select.int(tensor, axis, part)
            continue
        axis += 1
    return aten.index.Tensor(tensor, [lists.get(k) for k in range(axis)]) if lists else tensor
