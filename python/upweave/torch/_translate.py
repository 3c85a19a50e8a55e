"""One node of a captured graph -> stages of a pipeline, by the table of all functions that have a handler."""

from __future__ import annotations

import operator
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch.fx import Node

from . import _handlers as h
from ._stages import NotCovered, Region


def _table() -> dict[Any, Callable]:
    t: dict[Any, Callable] = {}

    def row(handler: Callable, *targets: Any) -> None:
        for target in targets:
            if target is not None:
                t[target] = handler

    def named(handler: Callable, *names: str) -> None:
        """The function in torch, in torch.nn.functional and as a method, with its in-place form."""
        for name in names:
            row(handler, getattr(torch, name, None), getattr(F, name, None), name)
            row(h.changing(handler), getattr(torch, f"{name}_", None), getattr(F, f"{name}_", None), f"{name}_")

    for n in (1, 2, 3):
        row(h.conv_transpose, getattr(torch, f"conv_transpose{n}d"), getattr(F, f"conv_transpose{n}d"))
        named(h.pool("avg_pool"), f"avg_pool{n}d")
        named(h.pool("max_pool"), f"max_pool{n}d")
        named(h.global_pool("mean"), f"adaptive_avg_pool{n}d")
        named(h.global_pool("max"), f"adaptive_max_pool{n}d")
    for handler in (h.layer_norm, h.group_norm, h.instance_norm, h.batch_norm):
        row(handler, getattr(F, handler.__name__))
    for name in ("relu", "tanh", "sigmoid", "exp", "mish", "hardswish"):
        named(h.unary(name), name)
    named(h.unary("swish"), "silu")
    named(h.unary("clamp 0.0 6.0"), "relu6")
    named(h.unary("mul -1.0"), "neg", "negative")
    row(h.unary("mul -1.0"), operator.neg)
    for handler in (h.gelu, h.leaky_relu, h.hardtanh, h.hardsigmoid, h.clamp, h.dropout, h.softmax, h.square):
        named(handler, handler.__name__)
    named(h.dropout, "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
    named(h.clamp, "clip")
    named(lambda r, x, min: h.clamp(r, x, min=min), "clamp_min")
    named(lambda r, x, max: h.clamp(r, x, max=max), "clamp_max")
    named(h.identity, "contiguous")
    for name, function in (("sum", "sum"), ("mean", "mean"), ("max", "amax"), ("min", "amin"),
                           ("logsumexp", "logsumexp")):
        named(h.reduce(name), function)
    named(h.extreme("max"), "max")
    named(h.extreme("min"), "min")
    row(h.getitem, operator.getitem)
    for name in ("view", "reshape", "flatten", "squeeze", "unsqueeze"):
        row(h.reshape, getattr(torch, name, None), name)
    row(h.permute, torch.permute, "permute")
    row(h.movedim, torch.movedim, "movedim")
    for name, words, op in (("add", "add", "add"), ("sub", "sub subtract", "sub"), ("mul", "mul multiply", "mul"),
                            ("div", "div divide true_divide", "truediv")):
        named(h.binary(name), *words.split())
        row(h.binary(name), getattr(operator, op))
        row(h.changing(h.binary(name)), getattr(operator, f"i{op}"))
    named(h.binary("minimum"), "minimum")
    named(h.binary("maximum"), "maximum")
    return t


TABLE = _table()
CONVOLUTIONS = tuple(target for target, handler in TABLE.items() if handler is h.conv_transpose)
# What may stand before the convolution: pools, functions of one value, arithmetic with numbers, norms.
HEADS = tuple(target for target, handler in TABLE.items()
              if handler in (h.gelu, h.leaky_relu, h.hardtanh, h.hardsigmoid, h.clamp, h.dropout, h.identity, h.batch_norm,
                             h.layer_norm, h.group_norm, h.instance_norm, h.softmax)
              or handler.__qualname__.startswith(("pool", "unary", "binary")))


def translate(region: Region, node: Node) -> None:
    """Adds the node to the region, or raises NotCovered and leaves the region as it was."""
    handler = TABLE.get(node.target) if node.op in ("call_function", "call_method") else None
    if handler is None:
        raise NotCovered("the vocabulary has no such operation")
    region.node, before = node, dict(region.tensors)
    region.stages[node] = []
    try:
        region.values[node] = handler(region, *node.args, **node.kwargs)
    except (NotCovered, TypeError, AttributeError) as error:
        region.tensors = before
        del region.stages[node]
        if isinstance(error, NotCovered):
            raise
        raise NotCovered(f"it is called in a way that is not known ({error})") from None
