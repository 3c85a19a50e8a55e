"""One node of a functional ATen graph -> stages of a pipeline, by the table of all operations that have a handler."""

from __future__ import annotations

import copy
import operator
from typing import Any, Callable

import torch
from torch.fx import Node

from . import _handlers as h
from . import _moves as m
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

    row(h.convolution, "convolution")
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
    row(h.reciprocal, "reciprocal")
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
    row(h.unchanged, "expand")
    row(m.slice_, "slice.Tensor")
    row(m.split, "split.Tensor")
    row(m.split_with_sizes, "split_with_sizes")
    row(m.cat, "cat")
    row(m.constant_pad, "constant_pad_nd")
    for mode in ("reflect", "replicate"):
        row(m.border_pad(mode), *(f"{mode.rstrip('e') if mode == 'replicate' else mode}ion_pad{n}d" for n in (1, 2, 3)))
    for axes, kind in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
        row(m.upsample("nearest"), f"upsample_nearest{axes}d", f"upsample_nearest{axes}d.vec")
        row(m.upsample_linear, f"upsample_{kind}", f"upsample_{kind}.vec")
    row(m.index, "_unsafe_index.Tensor", "index.Tensor")
    row(m.pixel_shuffle("pixel_shuffle"), "pixel_shuffle")
    row(m.pixel_shuffle("pixel_unshuffle"), "pixel_unshuffle")
    row(m.glu, "glu")
    for name in ("add", "sub", "mul", "div"):
        row(h.binary(name), f"{name}.Tensor", f"{name}.Scalar", f"{name}.Tensor_mode", f"{name}.Scalar_mode")
    row(h.rsub, "rsub.Scalar", "rsub.Tensor")
    row(h.binary("minimum"), "minimum")
    row(h.binary("maximum"), "maximum")
    t[operator.getitem] = h.getitem
    return t


TABLE = _table()


def is_convolution(node: Node) -> bool:
    return node.op == "call_function" and node.target is aten.convolution.default


def _check_dtype(region: Region, node: Node) -> None:
    value = example(node)
    for tensor in value if isinstance(value, (tuple, list)) else [value]:
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS:
            if tensor is value:
                raise NotCovered("its result is not of floating point")
            continue  # indices that nobody may read
        if (tensor.dtype == torch.float64) != (region.dtype == torch.float64):
            raise NotCovered(f"its dtype is {tensor.dtype}, the convolution's {region.dtype}")
        if tensor.device != region.device:
            raise NotCovered(f"it is on {tensor.device}")


def _check_head(region: Region, node: Node) -> None:
    """What no convolution is behind has the convolution's dtype: it would be rounded otherwise than PyTorch rounds it."""
    for n in (node, *node.all_input_nodes):
        tensor = example(n)
        if isinstance(tensor, torch.Tensor) and tensor.dim() > 1 and tensor.dtype != region.dtype:
            raise NotCovered("it has another dtype than the convolution")


def translate(region: Region, node: Node) -> None:
    """Adds the node to the region, or raises NotCovered and leaves the region as it was."""
    handler = TABLE.get(node.target) if node.op == "call_function" else None
    if handler is None:
        raise NotCovered("the vocabulary has no such operation")
    _check_dtype(region, node)
    kept = ("values", "stages", "tensors", "inputs", "sources", "count", "changing")
    before = {name: copy.copy(getattr(region, name)) for name in kept}
    region.node = node
    try:
        value = handler(region, *node.args, **node.kwargs)
        if not value.deep:
            _check_head(region, node)
        region.values[node] = value
    except (NotCovered, TypeError, AttributeError, IndexError) as error:
        for name, was in before.items():
            setattr(region, name, was)
        if isinstance(error, NotCovered):
            raise
        raise NotCovered(f"it is called in a way that is not known ({error})") from None
