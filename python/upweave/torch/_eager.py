"""A pipeline run by PyTorch's own operators, from the graph that the library's parser makes of its text: shapes for
tracing, gradients, and what no engine can do."""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _core

_AXES = {"depth": -3, "height": -2, "width": -1}


class Node(NamedTuple):
    operation: str
    name: str  # a parameter's, or the label that `as` or `out` gave
    operands: tuple[Optional[int], ...]
    attributes: dict[str, Any]


class Pipeline(NamedTuple):
    nodes: tuple[Node, ...]
    output: int
    outputs: dict[str, int]  # the values that `out` gives out besides, by name

    @property
    def inputs(self) -> list[str]:
        return [node.name for node in self.nodes if node.operation == "input"]


@functools.lru_cache(maxsize=512)
def parse(text: str) -> Pipeline:
    rows, output, outputs = _core.graph(text)
    return Pipeline(tuple(Node(*row) for row in rows), output, outputs)


def _space(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _dims(x: Tensor, axes: str) -> list[int]:
    return [1] if axes == "channel" else _space(x) if axes == "space" else [x.dim() + _AXES[axes]]


def _each(a: dict, name: str, fallback: int, axes: int) -> list[int]:
    values = list(a.get(name, (fallback,)))
    return values * axes if len(values) == 1 else values


def _conv(x: Tensor, kernel: Tensor, bias: Optional[Tensor], a: dict) -> Tensor:
    axes = x.dim() - 2
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    return function(x, kernel, bias, _each(a, "stride", 1, axes), _each(a, "padding", 0, axes),
                    _each(a, "output_padding", 0, axes), _each(a, "groups", 1, 1)[0], _each(a, "dilation", 1, axes))


_MODES = {"reflect": "reflect", "replicate": "replicate", "circular": "circular"}


def _padded(x: Tensor, before: list[int], behind: list[int], mode: str, value: float = 0.0) -> Tensor:
    pads = [p for pair in zip(reversed(before), reversed(behind)) for p in pair]
    if not any(pads):
        return x
    return F.pad(x, pads, mode=_MODES[mode]) if mode in _MODES else F.pad(x, pads, value=value)


def _plain_conv(x: Tensor, kernel: Tensor, bias: Optional[Tensor], a: dict) -> Tensor:
    axes = x.dim() - 2
    function = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    before = _each(a, "padding", 0, axes)
    behind = _each(a, "padding_end", 0, axes) if "padding_end" in a else before
    if "mode" in a and a["mode"] != "zeros" or before != behind:
        x, before = _padded(x, before, behind, a.get("mode", "zeros")), [0] * axes
    return function(x, kernel, bias, _each(a, "stride", 1, axes), before, _each(a, "dilation", 1, axes),
                    _each(a, "groups", 1, 1)[0])


def _pad(x: Tensor, a: dict) -> Tensor:
    axes = x.dim() - 2
    before = _each(a, "extents", 0, axes)
    behind = _each(a, "end", 0, axes) if "end" in a else before
    return _padded(x, before, behind, a.get("mode", "zeros"), a.get("value", 0.0))


def _crop(x: Tensor, a: dict) -> Tensor:
    space = a.get("space", ":").split("x")
    slices = [a.get("channels", ":"), *(space * (x.dim() - 2) if len(space) == 1 else space)]
    return x[(slice(None), *(slice(*(int(w) if w else None for w in s.split(":"))) for s in slices))]


def _upsample(x: Tensor, a: dict) -> Tensor:
    axes = x.dim() - 2
    size = [e * s for e, s in zip(x.shape[2:], _each(a, "scale", 1, axes))]
    if a["mode"] == "nearest":
        return F.interpolate(x, size, mode="nearest")
    return F.interpolate(x, size, mode=("linear", "bilinear", "trilinear")[axes - 1], align_corners=bool(a.get("corners")))


def _shuffle(x: Tensor, a: dict) -> Tensor:
    """out[c, h r + i, w r + j] = in[(c r + i) r + j, h, w]"""
    axes = x.dim() - 2
    factors = _each(a, "factors", 1, axes)
    apart = x.reshape(x.shape[0], -1, *factors, *x.shape[2:])
    order = [0, 1, *(i for d in range(axes) for i in (2 + axes + d, 2 + d))]
    return apart.permute(order).reshape(x.shape[0], apart.shape[1], *(e * f for e, f in zip(x.shape[2:], factors)))


def _unshuffle(x: Tensor, a: dict) -> Tensor:
    axes = x.dim() - 2
    factors = _each(a, "factors", 1, axes)
    extents = [e // f for e, f in zip(x.shape[2:], factors)]
    apart = x.reshape(x.shape[0], x.shape[1], *(n for pair in zip(extents, factors) for n in pair))
    order = [0, 1, *(3 + 2 * d for d in range(axes)), *(2 + 2 * d for d in range(axes))]
    return apart.permute(order).reshape(x.shape[0], -1, *extents)


def _pool(kind: str) -> Callable:
    def run(x: Tensor, *operands: Any) -> Tensor:
        if any(sign is not None for sign in operands[:-1]):
            raise NotImplementedError("PyTorch has no pool that is largest here and smallest there")
        axes, a = x.dim() - 2, operands[-1]
        window = _each(a, "window", 1, axes)
        stride = _each(a, "stride", 1, axes) if "stride" in a else window
        pool = getattr(F, f"{'avg' if kind == 'avg' else 'max'}_pool{axes}d")
        return -pool(-x, window, stride) if kind == "min" else pool(x, window, stride)

    return run


def _layer_norm(x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], a: dict) -> Tensor:
    if a["axes"] == "channel":
        return F.layer_norm(x.movedim(1, -1), x.shape[1:2], weight, bias, _eps(a)).movedim(-1, 1)
    last = x.shape[x.dim() - a.get("count", (1,))[0]:]
    return F.layer_norm(x, last, *(None if w is None else w.reshape(last) for w in (weight, bias)), _eps(a))


def _eps(a: dict) -> float:
    return a.get("eps", 1e-5)


def _moments(x: Tensor, a: dict) -> Tensor:
    wide = x.double() if x.dtype == torch.float64 else x.float()
    variance, mean = torch.var_mean(wide, [0, *_space(x)], correction=0)
    return torch.stack([mean, variance])


def _softmax(x: Tensor, a: dict) -> Tensor:
    return F.softmax(x, 1) if a["axes"] == "channel" else F.softmax(x.flatten(2), -1).reshape(x.shape)


def _reduce(function: Callable) -> Callable:
    return lambda x, a: function(x, _dims(x, a["axes"]), keepdim=True)


def _binary(function: Callable) -> Callable:
    def run(x: Tensor, y: Optional[Tensor], a: dict) -> Tensor:
        if y is None:
            y = torch.full((), a["value"], dtype=x.dtype, device=x.device)
        elif y.dim() == 1:  # a value a channel
            y = y.reshape(-1, *(1,) * (x.dim() - 2))
        return function(x, y)

    return run


def _clamp(x: Tensor, a: dict) -> Tensor:
    return torch.clamp(x, a["lo"], a["hi"])


def _unary(function: Callable) -> Callable:
    return lambda x, a: function(x)


_REDUCE = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp}
_BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "minimum": torch.minimum,
           "maximum": torch.maximum, "pow": torch.pow}
_UNARY = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp, "swish": F.silu,
          "mish": F.mish, "hardswish": F.hardswish, "sin": torch.sin, "abs": torch.abs, "sqrt": torch.sqrt}
# Each takes its operands and its attributes.
_OPERATIONS: dict[str, Callable] = {
    "conv_transpose": _conv,
    "conv": _plain_conv,
    "cat": lambda *operands: torch.cat(operands[:-1], 1),
    "pad": _pad,
    "crop": _crop,
    "upsample": _upsample,
    "pixel_shuffle": _shuffle,
    "pixel_unshuffle": _unshuffle,
    "glu": lambda x, a: F.glu(x, 1),
    "avg_pool": _pool("avg"),
    "max_pool": _pool("max"),
    "min_pool": _pool("min"),
    "layer_norm": _layer_norm,
    "batch_norm": lambda x, w, b, a: F.batch_norm(x, None, None, w, b, True, 0.0, _eps(a)),
    "group_norm": lambda x, w, b, a: F.group_norm(x, a["groups"][0], w, b, _eps(a)),
    "instance_norm": lambda x, w, b, a: F.instance_norm(x, None, None, w, b, True, 0.0, _eps(a)),
    "moments": _moments,
    "softmax": _softmax,
    "gelu": lambda x, a: F.gelu(x, approximate="tanh" if a.get("tanh") else "none"),
    "leaky_relu": lambda x, a: F.leaky_relu(x, a["slope"]),
    "elu": lambda x, a: F.elu(x, a.get("alpha", 1.0)),
    "softplus": lambda x, a: F.softplus(x, a.get("beta", 1.0), a.get("threshold", 20.0)),
    "prelu": lambda x, w, a: F.prelu(x, w),
    "clamp": _clamp,
    "hardtanh": _clamp,
    **{name: _reduce(function) for name, function in _REDUCE.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    **{name: _unary(function) for name, function in _UNARY.items()},
}


def run(text: str, input: Tensor, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The pipeline's result, axes that `drop` names removed, and behind it what `out` gives out besides."""
    pipeline = parse(text)
    values = evaluate(pipeline, input, tensors)
    result, dropped, i = values[pipeline.output], set(), pipeline.output
    while pipeline.nodes[i].operands:
        node = pipeline.nodes[i]
        if node.attributes.get("drop"):
            dropped.update(d % result.dim() for d in _dims(result, node.attributes["axes"]))
        i = node.operands[0]
    return [result.squeeze(sorted(dropped)) if dropped else result, *(values[i] for i in pipeline.outputs.values())]


def evaluate(pipeline: Pipeline, input: Tensor, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The value of every node."""
    values: list[Tensor] = []
    for node in pipeline.nodes:
        if not values:  # the first input
            value = input
        elif node.operation in ("input", "param"):
            value = tensors[node.name]
        else:
            operation = _OPERATIONS.get(node.operation)
            if operation is None:
                raise NotImplementedError(f"PyTorch has no form of {node.operation} here")
            operands = (None if i is None else values[i] for i in node.operands)
            value = operation(*operands, node.attributes)
        values.append(value)
    return values
