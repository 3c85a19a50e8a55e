"""What each ATen operation is in a pipeline: a handler gets the node's own arguments and either adds stages to the
region or says why it cannot."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import torch
from torch.fx import Node

from ._stages import (FLOATS, Convolution, NotCovered, Region, Updates, Value, example, extents, is_one, number, same,
                      written)

_SPACE = ("depth", "height", "width")


# --- Convolutions ---


def convolution(r: Region, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    value = r.plain(x)
    out = example(r.node)
    if out.device.type not in ("cpu", "cuda"):
        raise NotCovered(f"no engine works on {out.device.type} tensors")
    if out.dtype != r.dtype:
        raise NotCovered(f"its dtype is {out.dtype}, and other convolutions' {r.dtype}")
    if out.dim() not in (3, 4, 5) or out.dim() != len(value.shape) or out.dim() != example(weight).dim():
        raise NotCovered("it has no batch axis, or more than three axes of space")
    if any(isinstance(e, int) and e == 0 for t in (out, example(x), example(weight)) for e in t.shape):
        raise NotCovered("one of its extents is 0")
    if r.changing:
        raise NotCovered("the weights of another convolution are computed in each call")
    kernel = r.weight(weight, "weight")
    bias = None if bias is None else r.weight(bias, "bias")
    axes, rest = out.dim() - 2, ""
    for prefix, given, default in (("s", stride, 1), ("p", padding, 0), ("op", output_padding, 0), ("d", dilation, 1)):
        values = extents(given, axes)
        if any(v != default for v in values) and (transposed or prefix != "op"):
            rest += f" {prefix}{written(values)}"
    if groups != 1:
        rest += f" g{groups}"
    word = "conv_transpose" if transposed else "conv"
    return r.add(value, "", out.shape, convolution=Convolution(word, kernel, bias, rest, groups))


# --- Pools ---


def _pool(r: Region, x: Any, name: str, window: Any, stride: Any) -> Value:
    """A pool over the graph's trailing axes; an axis that the pipeline does not have is not pooled."""
    value = r.value(x)
    rank = len(value.axes)
    window = extents(window, rank - 2)
    stride = extents(stride, rank - 2) if stride else window
    kept = [i for i, a in enumerate(value.axes[2:]) if a]
    if [(0,), (1,), *(value.axes[2 + i] for i in kept)] != [(a,) for a in range(len(value.shape))]:
        raise NotCovered("it meets a value whose axes are moved or joined")
    if any(window[i] != 1 or stride[i] != 1 for i in range(rank - 2) if i not in kept):
        raise NotCovered("it pools over an axis that the pipeline does not have")
    text = f"{name} {written([window[i] for i in kept])}"
    if stride != window:
        text += f" s{written([stride[i] for i in kept])}"
    out = example(r.node)
    out = (out[0] if isinstance(out, (tuple, list)) else out).shape
    return r.add(value, text, [*out[:2], *(out[2 + i] for i in kept)])


def avg_pool(r, x, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    if divisor_override is not None or ceil_mode or any(extents(padding, len(r.value(x).axes) - 2)):
        raise NotCovered("it has padding, ceil_mode or a divisor of its own")
    return _pool(r, x, "avg_pool", kernel_size, stride)


def max_pool(r, x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
    rank = len(r.value(x).axes) - 2
    if ceil_mode or any(extents(padding, rank)) or any(d != 1 for d in extents(dilation, rank)):
        raise NotCovered("it has padding, dilation or ceil_mode")
    return _pool(r, x, "max_pool", kernel_size, stride)


# --- Norms ---


def _affine(r: Region, weight: Any, bias: Any) -> str:
    text = "" if weight is None else f" weight={r.vector(weight, 'weight')}"
    return text if bias is None else f"{text} bias={r.vector(bias, 'bias')}"


def layer_norm(r, x, normalized_shape, weight, bias, eps):
    value = r.value(x)
    count = len(normalized_shape)
    over = value.axes[len(value.axes) - count:]
    tail = f"{_affine(r, weight, bias)} eps={number(eps)}"
    rank = len(value.shape)
    if over == [(1,)]:
        return r.add(value, f"layer_norm channel{tail}")
    if count <= rank - 2 and over == [(a,) for a in range(rank - count, rank)]:
        return r.add(value, f"layer_norm last {count}{tail}")
    if sorted(a for axes in over for a in axes) == list(range(1, rank)) and weight is None and bias is None:
        return r.add(value, f"group_norm 1{tail}")
    raise NotCovered("it is over neither the channels nor the last axes, or over both with weights for each")


def _channels(r: Region, x: Any) -> Value:
    value = r.value(x)
    if len(value.axes) < 2 or value.axes[1] != (1,):
        raise NotCovered("the second axis is not the channels'")
    return value


def _batch(r: Region, x: Any, weight: Any, bias: Any, eps: float, updates: Any = None) -> Value:
    """With the batch's own statistics."""
    value = r.value(x)
    if len(value.axes) > 1 and value.axes[:2] == [(), (0, 1)]:  # samples as channels: an instance norm
        if updates is not None:
            raise NotCovered("its running statistics are of instances")
        weight, bias = (w and _once(w, value) for w in (weight, bias))
        return r.add(value, f"instance_norm{_affine(r, weight, bias)} eps={number(eps)}")
    value = _channels(r, x)
    return r.add(value, f"batch_norm{_affine(r, weight, bias)} eps={number(eps)}", updates=updates)


def _once(vector: Node, value: Value) -> Node:
    """The vector that was repeated for every sample."""
    if vector.target is not torch.ops.aten.repeat.default or not same(vector.args[1], value.shape[:1]):
        raise NotCovered("its weights differ from sample to sample")
    return vector.args[0]


def batch_norm(r, x, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        return batch_norm_known(r, x, weight, bias, running_mean, running_var, momentum, eps)
    if not r.value(x).deep:
        raise NotCovered("it gives out statistics of what the convolution has not seen")
    updates = Updates(r.node, running_mean, running_var, float(number(momentum, "momentum")))
    return _batch(r, x, weight, bias, eps, updates)


def batch_norm_alone(r, x, weight, bias, training, momentum, eps):
    return _batch(r, x, weight, bias, eps)


def batch_norm_known(r, x, weight, bias, running_mean, running_var, momentum, eps):
    value = _channels(r, x)
    scale, shift = r.norm(running_mean, running_var, weight, bias, eps)
    return r.add(value, f"mul {scale}:channel | add {shift}:channel", affine=(scale, shift))


def group_norm(r, x, weight, bias, n, c, hxw, groups, eps):
    value = _channels(r, x)
    return r.add(value, f"group_norm {groups}{_affine(r, weight, bias)} eps={number(eps)}")


# --- Pointwise functions ---


def unary(text: str) -> Callable:
    return lambda r, x: r.add(r.value(x), text)


def gelu(r, x, *, approximate="none"):
    return r.add(r.value(x), "gelu" if approximate == "none" else "gelu tanh")


def leaky_relu(r, x, negative_slope=0.01):
    return r.add(r.value(x), f"leaky_relu {number(negative_slope)}")


def elu(r, x, alpha=1.0, scale=1.0, input_scale=1.0):
    if input_scale != 1:
        raise NotCovered("it scales its input")
    scaled = "" if scale == 1 else f" | mul {number(scale)}"
    return r.add(r.value(x), f"elu {number(alpha)}{scaled}")


def softplus(r, x, beta=1.0, threshold=20.0):
    return r.add(r.value(x), f"softplus beta={number(beta)} threshold={number(threshold)}")


def prelu(r, x, weight):
    value = r.value(x)
    text = _operand(r, value, weight)
    if text.endswith(":full"):
        raise NotCovered("its weight is neither one value nor one a channel")
    return r.add(value, f"prelu {text}")


def hardtanh(r, x, min_val=-1.0, max_val=1.0):
    return r.add(r.value(x), f"clamp {number(min_val)} {number(max_val)}")


def clamp(r, x, min=None, max=None):
    lo = number(-math.inf if min is None else min, "limit")
    return r.add(r.value(x), f"clamp {lo} {number(math.inf if max is None else max, 'limit')}")


def power(r, x, exponent):
    value = r.value(x)
    if exponent == 2:
        return r.add(value, f"mul {{{value.id}}}", uses=(value,))
    return r.add(value, f"pow {number(exponent, 'exponent')}")


def reciprocal(r, x):
    return r.add(r.value(x), "pow -1.0")


def copy(r, x, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    """A copy, or a cast from one floating type to another: the pipeline rounds once, at its end. A cast before the first
    convolution rounds what that reads."""
    value = r.value(x)
    if example(r.node).dtype not in FLOATS or example(r.node).device != example(x).device:
        raise NotCovered("it moves the value, or makes something else of its numbers")
    if not value.deep and example(r.node).dtype != example(x).dtype:
        raise NotCovered("it rounds what the convolution reads")
    return value.seen(value.axes)


def dropout(r, x, p, train):
    if train and p:
        raise NotCovered("it drops at random")
    return r.value(x).seen(r.value(x).axes)


# --- Softmax and reductions ---


def _names(value: Value, dims: Sequence[int]) -> set[str]:
    """What axes of the graph's tensor are to the pipeline."""
    if not all(isinstance(d, int) for d in dims):
        raise NotCovered("its axes are not known now")
    rank = len(value.shape)
    axes = {a for d in dims for a in value.axes[d]}
    if 0 in axes:
        raise NotCovered("it is over the batch")
    if not axes:
        raise NotCovered("it is over no axis of the pipeline")
    names = {"channel"} if 1 in axes else set()
    spatial = {a for a in axes if a > 1}
    if spatial == set(range(2, rank)):
        return names | {"space"}
    return names | {_SPACE[a - rank + 3] for a in spatial}


def softmax(r, x, dim, half_to_float):
    value = r.value(x)
    names = _names(value, [dim])
    if names not in ({"channel"}, {"space"}):
        raise NotCovered("it is over neither the channels nor all of space")
    return r.add(value, f"softmax {names.pop()}")


def reduce(name: str) -> Callable:
    def handler(r, x, dim=None, keepdim=False, *, dtype=None):
        value = r.value(x)
        dims = [dim] if isinstance(dim, int) else list(dim or ())
        if not dims:
            raise NotCovered("it is over every axis")
        dims = [d % len(value.axes) for d in dims]
        names = _names(value, dims)
        if name == "logsumexp" and names not in ({"channel"}, {"space"}):
            raise NotCovered("it is over neither the channels nor all of space")
        gone = {a for d in dims for a in value.axes[d]}
        shape = [1 if a in gone else e for a, e in enumerate(value.shape)]
        axes = [a for d, a in enumerate(value.axes) if keepdim or d not in dims]
        order = [a for a in ("channel", "space", *_SPACE) if a in names]
        return r.add(value, " | ".join(f"{name} {a}" for a in order), shape, axes=axes)

    return handler


def getitem(r, x, index):
    if x not in r.values:
        raise NotCovered("it is a result of what the pipeline does not have")
    value = r.values[x]
    if value.parts is not None:
        return value.parts[index]
    if not isinstance(example(x), (tuple, list)) or index != 0:
        raise NotCovered("it is a result that the pipeline does not have")
    return value.seen(value.axes)


# --- Shapes ---


def view(r, x, size):
    """The same numbers in the same order, in other axes: each a run of the pipeline's."""
    value = r.value(x)
    order = [a for axes in value.axes for a in axes if not is_one(value.shape[a])]
    axes: list[tuple[int, ...]] = []
    for extent in example(r.node).shape:
        run: list[int] = []
        product: Any = 1
        while order and not same([product], [extent]):
            run.append(order.pop(0))
            product = product * value.shape[run[-1]]
        if not same([product], [extent]):
            raise NotCovered("it cuts an axis of the pipeline, or its extents are symbols")
        axes.append(tuple(run))
    if order:
        raise NotCovered("it cuts an axis of the pipeline")
    if [a for a in axes if a] == [(a,) for a, e in enumerate(value.shape) if not is_one(e)] \
            and same(example(r.node).shape, value.shape):
        return value.seen()  # axes of extent 1 are where the pipeline has them
    return value.seen(axes)


def permute(r, x, dims):
    value = r.value(x)
    return value.seen([value.axes[d] for d in dims])


def transpose(r, x, first, second):
    order = list(range(len(r.value(x).axes)))
    order[first], order[second] = order[second], order[first]
    return permute(r, x, order)


def unsqueeze(r, x, dim):
    value = r.value(x)
    axes = list(value.axes)
    axes.insert(dim % (len(axes) + 1), ())
    return value.seen(axes)


def squeeze(r, x, dim=None):
    value = r.value(x)
    shape, rank = example(x).shape, len(value.axes)
    dims = range(rank) if dim is None else [d % rank for d in ([dim] if isinstance(dim, int) else dim)]
    if len(example(r.node).shape) != rank - sum(is_one(shape[d]) for d in dims):
        raise NotCovered("its extents are symbols")
    return value.seen([a for d, a in enumerate(value.axes) if not (d in dims and is_one(shape[d]))])


def unchanged(r, x, *args, **kwargs):
    """Where the result has the operand's shape: expansions to what it is."""
    value = r.value(x)
    if not same(example(r.node).shape, example(x).shape):
        raise NotCovered("it repeats a value")
    return value.seen(value.axes)


# --- Arithmetic ---


def _operand(r: Region, value: Value, node: Node) -> str:
    """A weight with the axes that the pipeline gives it: one value, a value a channel, or all axes."""
    shape, rank = list(example(node).shape), len(value.axes)
    if len(shape) > rank:
        raise NotCovered("a tensor has more axes than the value")
    full = [1] * (rank - len(shape)) + shape
    there = [d for d, e in enumerate(full) if not is_one(e)]
    if not there:
        return f"{r.vector(node, 'operand')}:scalar"
    if [value.axes[d] for d in there] == [(1,)]:
        return f"{r.vector(node, 'operand')}:channel"
    if value.plain and same(shape, value.shape) and r.constant(node):
        return r.full(node, "operand")
    raise NotCovered("a tensor is neither one value, nor one a channel, nor of the value's shape")


def _value_side(r: Region, x: Any, y: Any) -> bool:
    """Whether x is the value and y what is done to it."""
    if not isinstance(x, Node) or not isinstance(example(x), torch.Tensor):
        return False
    if x in r.values or not isinstance(y, Node) or not isinstance(example(y), torch.Tensor):
        return True
    return y not in r.values and example(x).dim() >= 3 and not r.constant(x) and same(example(x).shape, example(r.node).shape)


def binary(name: str) -> Callable:
    def handler(r, x, y, *, alpha=1, rounding_mode=None):
        if alpha != 1 or rounding_mode is not None:
            raise NotCovered("it has alpha or a rounding mode")
        if _value_side(r, x, y):
            return _with(r, r.value(x), name, y, x)
        value = r.value(y)  # on the right
        if name == "div":
            return _with(r, r.add(value, "pow -1.0"), "mul", x, y)
        if name == "sub":
            return _with(r, r.add(value, "mul -1.0"), "add", x, y)
        return _with(r, value, name, x, y)

    return handler


_FILLED = (torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default)


def _with(r: Region, value: Value, op: str, other: Any, shown: Node) -> Value:
    """`other` on the right of a value that the graph shows as `shown`."""
    if not isinstance(other, Node):
        return r.add(value, f"{op} {number(other)}")
    if not isinstance(example(other), torch.Tensor):
        raise NotCovered("its operand is a symbol")
    out = example(r.node).shape
    if other.target in _FILLED and same(out, example(shown).shape):  # a tensor that is one number everywhere
        return r.add(value, f"{op} {number(other.args[-1])}")
    if other not in r.values:
        try:
            if not same(out, example(shown).shape):
                raise NotCovered("a tensor enlarges the value")
            return r.add(value, f"{op} {_operand(r, value, other)}")
        except NotCovered:
            if not value.plain or not same(example(other).shape, example(shown).shape):
                raise
    second = r.value(other)
    if value.axes != second.axes:
        raise NotCovered("its operands show their axes differently")
    if not same(value.shape[:1], second.shape[:1]):
        raise NotCovered("its operands have different batches")
    shape = [b if is_one(a) else a for a, b in zip(value.shape, second.shape)]
    return r.add(value, f"{op} {{{second.id}}}", shape, (second,))


def rsub(r, x, other, alpha=1):
    if alpha != 1:
        raise NotCovered("it has alpha")
    return _with(r, r.add(r.value(x), "mul -1.0"), "add", other, x)
