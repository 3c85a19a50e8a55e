"""What each function that PyTorch may call is in a pipeline: a handler gets the call's own arguments and either adds
stages to the region or says why it cannot."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch.fx import Node

from ._stages import NotCovered, Region, Value, example, extents, number, same


def _alone(r: Region, x: Node, inplace: Any) -> None:
    if inplace and len(x.users) > 1:
        raise NotCovered("it changes a value in place that others read too")


# --- The convolution ---


def conv_transpose(r: Region, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    value = r.value(x, "plain")
    out = example(r.node)
    if out.dim() != len(value.shape) or out.dim() != example(weight).dim():
        raise NotCovered("its input has no batch axis")
    text = f"conv_transpose {r.tensor(weight, 'weight')}"
    if bias is not None:
        text += f" bias={r.tensor(bias, 'bias')}"
    for prefix, given, default in (("s", stride, "1"), ("p", padding, "0"), ("op", output_padding, "0"),
                                   ("d", dilation, "1"), ("g", groups, "1")):
        if extents(given) != default:
            text += f" {prefix}{extents(given)}"
    return r.add(value, text, out.shape)


# --- Pools ---


def pool(name: str) -> Callable:
    def avg(r, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        if divisor_override is not None:
            raise NotCovered("it has a divisor of its own")
        return add(r, x, kernel_size, stride, padding, 1, ceil_mode)

    def max_(r, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        if return_indices:
            raise NotCovered("it returns indices")
        return add(r, x, kernel_size, stride, padding, dilation, ceil_mode)

    def add(r, x, kernel_size, stride, padding, dilation, ceil_mode):
        value = r.value(x, "plain")
        if extents(padding).strip("0x") or ceil_mode or extents(dilation).strip("1x"):
            raise NotCovered("it has padding, dilation or ceil_mode")
        text = f"{name} {extents(kernel_size)}"
        if stride is not None and stride != [] and stride != () and extents(stride) != extents(kernel_size):
            text += f" s{extents(stride)}"
        return r.add(value, text, example(r.node).shape)

    return avg if name == "avg_pool" else max_


def global_pool(name: str) -> Callable:
    def handler(r, x, output_size, return_indices=False):
        value = r.value(x, "plain")
        if extents(output_size).strip("1x") or return_indices:
            raise NotCovered("its output is larger than one voxel")
        return r.add(value, f"{name} space", example(r.node).shape)

    return handler


# --- Norms ---


def _affine(r: Region, weight: Any, bias: Any) -> str:
    text = "" if weight is None else f" weight={r.tensor(weight, 'weight')}"
    return text if bias is None else f"{text} bias={r.tensor(bias, 'bias')}"


def layer_norm(r, x, normalized_shape, weight=None, bias=None, eps=1e-5):
    value = r.value(x, "plain", "last")
    axes = len(normalized_shape)
    tail = f"{_affine(r, weight, bias)} eps={number(eps)}"
    if value.layout == "last":
        if axes != 1:
            raise NotCovered("it is over more than the channels")
        return r.add(value, f"layer_norm channel{tail}")
    if axes <= len(value.shape) - 2:
        return r.add(value, f"layer_norm last {axes}{tail}")
    if axes == len(value.shape) - 1 and weight is None and bias is None:
        return r.add(value, f"group_norm 1{tail}")
    raise NotCovered("it is over channels and space, with weights for each")


def batch_norm(r, x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    value = r.value(x, "plain")
    if not training:
        scale, shift = r.folded_norm(running_mean, running_var, weight, bias, eps)
        return r.add(value, f"mul {scale}:channel | add {shift}:channel", affine=True)
    moments = None
    if running_mean is not None:
        moments = (running_mean, running_var, float(number(momentum, "momentum")))
    return r.add(value, f"batch_norm{_affine(r, weight, bias)} eps={number(eps)}", moments=moments)


def group_norm(r, x, num_groups, weight=None, bias=None, eps=1e-5):
    return r.add(r.value(x, "plain"), f"group_norm {num_groups}{_affine(r, weight, bias)} eps={number(eps)}")


def instance_norm(r, x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True,
                  momentum=0.1, eps=1e-5):
    if not use_input_stats or running_mean is not None:
        raise NotCovered("it has running statistics")
    return r.add(r.value(x, "plain"), f"instance_norm{_affine(r, weight, bias)} eps={number(eps)}")


# --- Pointwise functions ---


def unary(text: str) -> Callable:
    def handler(r, x, inplace=False):
        value = r.value(x)
        _alone(r, x, inplace)
        return r.add(value, text)

    return handler


def changing(handler: Callable) -> Callable:
    """The same function under its name for changing its operand."""

    def in_place(r, x, *args, **kwargs):
        if isinstance(x, Node):
            _alone(r, x, True)
        return handler(r, x, *args, **kwargs)

    return in_place


def gelu(r, x, approximate="none"):
    return r.add(r.value(x), "gelu" if approximate == "none" else "gelu tanh")


def leaky_relu(r, x, negative_slope=0.01, inplace=False):
    value = r.value(x)
    _alone(r, x, inplace)
    return r.add(value, f"leaky_relu {number(negative_slope)}")


def hardtanh(r, x, min_val=-1.0, max_val=1.0, inplace=False):
    value = r.value(x)
    _alone(r, x, inplace)
    return r.add(value, f"clamp {number(min_val)} {number(max_val)}")


def clamp(r, x, min=None, max=None):
    lo = number(-math.inf if min is None else min, "limit")
    return r.add(r.value(x), f"clamp {lo} {number(math.inf if max is None else max, 'limit')}")


def hardsigmoid(r, x, inplace=False):
    value = r.value(x)
    _alone(r, x, inplace)
    return r.add(value, "add 3.0 | clamp 0.0 6.0 | div 6.0")


def dropout(r, x, p=0.5, training=True, inplace=False):
    value = r.value(x)
    if training and p != 0:
        raise NotCovered("it drops at random")
    return value


def identity(r, x, *args, **kwargs):
    return r.value(x)


# --- Softmax and reductions ---


def _axis(value: Value, dim: int, rank: int) -> str:
    """What an axis of the graph's tensor is to the pipeline."""
    if not isinstance(dim, int):
        raise NotCovered("its axis is not known now")
    dim %= rank
    if value.layout == "flat":
        return ("batch", "channel", "space")[dim]
    if value.layout == "last":
        dim = 0 if dim == 0 else 1 if dim == rank - 1 else dim + 1
    return "batch" if dim == 0 else "channel" if dim == 1 else ("depth", "height", "width")[dim - rank + 3]


def softmax(r, x, dim=None, _stacklevel=3, dtype=None):
    value = r.value(x, "plain", "flat", "last")
    axis = _axis(value, dim, example(x).dim()) if dim is not None else "batch"
    if axis == "width" and len(value.shape) == 3:
        axis = "space"
    if axis not in ("channel", "space") or dtype is not None:
        raise NotCovered("it is over neither the channels nor all of space")
    return r.add(value, f"softmax {axis}")


def reduce(name: str) -> Callable:
    def handler(r, x, dim=None, keepdim=False, dtype=None):
        value = r.value(x, "plain", "flat", "last")
        if dim is None or dtype is not None:
            raise NotCovered("it is over every axis, or in another dtype")
        rank = example(x).dim()
        axes = {_axis(value, d, rank) for d in ([dim] if isinstance(dim, int) else dim)}
        if "batch" in axes or not axes:
            raise NotCovered("it is over the batch")
        space = {"depth", "height", "width"}
        spatial = [a for a in ("depth", "height", "width")][3 - (len(value.shape) - 2):]
        if set(spatial) <= axes:
            axes = axes - space | {"space"}
        if name == "logsumexp" and (axes & space or len(axes) > 1):
            raise NotCovered("it is over neither the channels nor all of space")
        shape = list(value.shape)
        for axis in axes:
            for i in ([1] if axis == "channel" else range(2, len(shape)) if axis == "space"
                      else [len(shape) - 3 + ("depth", "height", "width").index(axis)]):
                shape[i] = 1
        order = [a for a in ("channel", "space", "depth", "height", "width") if a in axes]
        result = r.add(value, " | ".join(f"{name} {a}" for a in order), shape)
        if not keepdim or value.layout == "flat":
            result.layout = "loose"
        return result

    return handler


def extreme(name: str) -> Callable:
    over_axis, other = reduce(name), binary("maximum" if name == "max" else "minimum")

    def handler(r, x, dim=None, keepdim=False, **kwargs):
        if isinstance(dim, Node) or "other" in kwargs:
            return other(r, x, kwargs.get("other", dim))
        if not isinstance(dim, int):
            raise NotCovered("it is over every axis")
        return over_axis(r, x, dim, keepdim)

    return handler


def getitem(r, x, index):
    value = r.value(x)
    if not isinstance(example(x), tuple) or index != 0:
        raise NotCovered("it takes a part of a value")
    return value


# --- Shapes ---


def reshape(r, x, *shape):
    value = r.value(x)
    if value.layout == "last":
        raise NotCovered("it mixes channels and space")
    out = example(r.node).shape
    channels = len(out) == 3 and len(value.shape) > 3 and same(out[:2], value.shape[:2])
    layout = "plain" if same(out, value.shape) else "flat" if channels else "loose"
    if layout != "plain" and any(not isinstance(e, int) for e in out[1:]):
        raise NotCovered("it has symbols among its extents")
    return Value(value.id, value.shape, layout)


def permute(r, x, *dims):
    value = r.value(x, "plain", "last")
    rank = len(value.shape)
    order = [d % rank for d in (dims[0] if dims and not isinstance(dims[0], int) else dims)]
    if value.layout == "plain" and order == [0, *range(2, rank), 1]:
        return Value(value.id, value.shape, "last")
    if value.layout == "last" and order == [0, rank - 1, *range(1, rank - 1)]:
        return Value(value.id, value.shape, "plain")
    raise NotCovered("it is neither channels last nor back")


def movedim(r, x, source, destination):
    rank = example(x).dim()
    rest = [d for d in range(rank) if d != source % rank]
    rest.insert(destination % rank, source % rank)
    return permute(r, x, rest)


# --- Arithmetic ---


def _operand(r: Region, value: Value, node: Node) -> str:
    """A tensor from outside, with the axes that the pipeline gives it: one value, a value a channel, or all axes."""
    if value.layout != "plain":
        raise NotCovered(f"a tensor meets a value whose axes are {value.layout}")
    shape, rank = list(example(node).shape), len(value.shape)
    if len(shape) > rank:
        raise NotCovered("a tensor has more axes than the value")
    full = [1] * (rank - len(shape)) + shape
    if all(same([e], [1]) for e in full):
        return f"{r.tensor(node, 'operand', [1])}:scalar"
    if all(same([e], [1]) for i, e in enumerate(full) if i != 1):
        return f"{r.tensor(node, 'operand', [full[1]])}:channel"
    if any(not isinstance(e, int) for e in full) and len(shape) != rank:
        raise NotCovered("a tensor has symbols among its extents")
    return f"{r.tensor(node, 'operand', None if len(shape) == rank else full)}:full"


def binary(name: str) -> Callable:
    def handler(r, x, y, alpha=1, rounding_mode=None):
        if alpha != 1 or rounding_mode is not None:
            raise NotCovered("it has alpha or a rounding mode")
        if not (isinstance(x, Node) and x in r.values):  # the value is on the right
            value = r.value(y)
            if name == "div":
                raise NotCovered("it divides by the value")
            if name == "sub":
                value, op = r.add(value, "mul -1.0"), "add"
            else:
                op = name
            return r.add(value, f"{op} {_operand(r, value, x) if isinstance(x, Node) else number(x)}")
        value = r.value(x)
        if not isinstance(y, Node):
            return r.add(value, f"{name} {number(y)}")
        if not isinstance(example(y), torch.Tensor):
            raise NotCovered("its operand is a symbol")
        out = example(r.node).shape
        if y in r.values:
            other = r.values[y]
            if value.layout != other.layout or (value.layout != "plain" and not same(value.shape, other.shape)):
                raise NotCovered("its operands show their axes differently")
            return r.add(value, f"{name} {{{other.id}}}", out if value.layout == "plain" else None, (other,))
        text = _operand(r, value, y)
        if not same(out, value.shape):
            raise NotCovered("a tensor enlarges the value")
        return r.add(value, f"{name} {text}")

    return handler


def square(r, x):
    value = r.value(x)
    return r.add(value, f"mul {{{value.id}}}", uses=(value,))
