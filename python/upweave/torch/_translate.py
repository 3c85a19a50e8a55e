"""One node of a functional ATen graph -> stages of a pipeline, by the table of all operations that have a handler."""

from __future__ import annotations

import operator
from typing import Any, Callable

import torch
from torch.fx import Node

from . import _handlers as h
from ._stages import FLOATS, NotCovered, Region, example

aten = torch.ops.aten


def _table() -> dict[Any, Callable]:
    t: dict[Any, Callable] = {}

    def row(handler: Callable, *names: str) -> None:
        """Names as in aten.NAME.OVERLOAD; those that this PyTorch does not have are passed over."""
        for name in names:
            packet, _, overload = name.partition(".")
            found = getattr(getattr(aten, packet, None), overload or "default", None)
            if found is not None:
                t[found] = handler

    row(h.conv_transpose, "convolution")
    row(h.avg_pool, "avg_pool2d", "avg_pool3d")
    row(h.max_pool, "max_pool2d_with_indices", "max_pool3d_with_indices")
    row(h.layer_norm, "native_layer_norm")
    row(h.group_norm, "native_group_norm")
    row(h.batch_norm, "_native_batch_norm_legit_functional")
    row(h.batch_norm_alone, "_native_batch_norm_legit.no_stats")
    row(h.batch_norm_known, "_native_batch_norm_legit_no_training")
    for name, stage in (("relu", "relu"), ("tanh", "tanh"), ("sigmoid", "sigmoid"), ("exp", "exp"), ("mish", "mish"),
                        ("hardswish", "hardswish"), ("silu", "swish"), ("neg", "mul -1.0"), ("sin", "sin"), ("abs", "abs"),
                        ("sqrt", "sqrt"),
                        ("hardsigmoid", "add 3.0 | clamp 0.0 6.0 | div 6.0")):
        row(h.unary(stage), name)
    row(h.gelu, "gelu")
    row(h.leaky_relu, "leaky_relu")
    row(h.elu, "elu")
    row(h.softplus, "softplus")
    row(h.prelu, "_prelu_kernel")
    row(h.hardtanh, "hardtanh")
    row(h.clamp, "clamp")
    row(lambda r, x, min: h.clamp(r, x, min), "clamp_min")
    row(lambda r, x, max: h.clamp(r, x, None, max), "clamp_max")
    row(h.power, "pow.Tensor_Scalar")
    row(lambda r, x: h.power(r, x, 2), "square")
    row(h.copy, "_to_copy", "clone", "alias", "detach")
    row(h.dropout, "native_dropout")
    row(h.softmax, "_softmax")
    for stage, name in (("sum", "sum.dim_IntList"), ("mean", "mean.dim"), ("max", "amax"), ("min", "amin"),
                        ("logsumexp", "logsumexp"), ("max", "max.dim"), ("min", "min.dim")):
        row(h.reduce(stage), name)
    row(h.view, "view", "_unsafe_view", "reshape")
    row(h.permute, "permute")
    row(h.transpose, "transpose.int")
    row(h.unsqueeze, "unsqueeze")
    row(h.squeeze, "squeeze", "squeeze.dim", "squeeze.dims")
    row(h.unchanged, "slice.Tensor", "expand")
    for name in ("add", "sub", "mul", "div"):
        row(h.binary(name), f"{name}.Tensor", f"{name}.Scalar", f"{name}.Tensor_mode", f"{name}.Scalar_mode")
    row(h.rsub, "rsub.Scalar", "rsub.Tensor")
    row(h.binary("minimum"), "minimum")
    row(h.binary("maximum"), "maximum")
    t[operator.getitem] = h.getitem
    return t


TABLE = _table()
# What may stand before the convolution: all but what has results of its own to give out.
HEADS = {target for target, handler in TABLE.items() if handler not in (h.conv_transpose, h.batch_norm, h.getitem)}


def is_convolution(node: Node) -> bool:
    return node.op == "call_function" and node.target is aten.convolution.default and bool(node.args[6])


def _check_dtype(region: Region, node: Node) -> None:
    value = example(node)
    for tensor in value if isinstance(value, (tuple, list)) else [value]:
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS:
            if tensor is value:
                raise NotCovered("its result is not of floating point")
            continue  # indices that nobody may read
        if (tensor.dtype == torch.float64) != (region.dtype == torch.float64):
            raise NotCovered(f"its dtype is {tensor.dtype}, the convolution's {region.dtype}")


def translate(region: Region, node: Node) -> None:
    """Adds the node to the region, or raises NotCovered and leaves the region as it was."""
    handler = TABLE.get(node.target) if node.op == "call_function" else None
    if handler is None:
        raise NotCovered("the vocabulary has no such operation")
    _check_dtype(region, node)
    before = dict(region.tensors), list(region.sources)
    region.node, region.stages[node] = node, []
    try:
        region.values[node] = handler(region, *node.args, **node.kwargs)
    except (NotCovered, TypeError, AttributeError, IndexError) as error:
        region.tensors, region.sources = before
        del region.stages[node]
        if isinstance(error, NotCovered):
            raise
        raise NotCovered(f"it is called in a way that is not known ({error})") from None
