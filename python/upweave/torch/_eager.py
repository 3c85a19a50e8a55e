"""A pipeline's text, run by PyTorch's own operators: shapes for tracing, gradients, and what no engine can do."""

from __future__ import annotations

import functools
import re
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

_EXTENT = re.compile(r"(op|s|p|d|g|k)(-?\d[\dx,]*)$")
_AXES = {"depth": -3, "height": -2, "width": -1}


class _Stage:
    """One stage's words, sorted: numbers, names, name=value, and extents such as s2x1x2."""

    def __init__(self, text: str) -> None:
        words = text.split()
        self.label = words[-1] if len(words) >= 2 and words[-2] == "as" else None
        if self.label:
            del words[-2:]
        self.name, rest = words[0], words[1:]
        self.numbers: list[str] = []
        self.names: list[str] = []
        self.given: dict[str, str] = {}
        self.extents: dict[str, list[int]] = {}
        for word in rest:
            if "=" in word:
                key, _, value = word.partition("=")
                self.given[key] = value
            elif word[0] in "+-.0123456789" or word == "inf":
                self.numbers.append(word)
            elif (match := _EXTENT.match(word)) and self.name in ("conv_transpose", "avg_pool", "max_pool", "min_pool"):
                self.extents[match[1]] = _ints(match[2])
            else:
                self.names.append(word)

    def extent(self, prefix: str, fallback: int, axes: int) -> list[int]:
        values = self.extents.get(prefix, [fallback])
        return values * axes if len(values) == 1 else values

    def tensor(self, key: str, position: int, find: Callable[[str], Tensor]) -> Optional[Tensor]:
        name = self.given.get(key) or (self.names[position] if position < len(self.names) else None)
        return None if name is None else find(name)

    @property
    def eps(self) -> float:
        return float(self.given.get("eps", 1e-5))


def _ints(word: str) -> list[int]:
    return [int(v) for v in re.split("[x,]", word)]


@functools.lru_cache(maxsize=512)
def stages(text: str) -> tuple[_Stage, ...]:
    return tuple(_Stage(part) for part in text.split("|"))


def _space(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _dims(x: Tensor, axes: str) -> list[int]:
    return [1] if axes == "channel" else _space(x) if axes == "space" else [x.dim() + _AXES[axes]]


def _operand(x: Tensor, y: Tensor) -> Tensor:
    """A vector is a value a channel."""
    return y.reshape(-1, *(1,) * (x.dim() - 2)) if y.dim() == 1 else y


def _conv(x: Tensor, s: _Stage, find: Callable[[str], Tensor]) -> Tensor:
    axes = x.dim() - 2
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    return function(x, s.tensor("kernel", 0, find), s.tensor("bias", 1, find), s.extent("s", 1, axes),
                    s.extent("p", 0, axes), s.extent("op", 0, axes), s.extent("g", 1, 1)[0], s.extent("d", 1, axes))


def _pool(x: Tensor, s: _Stage, kind: str) -> Tensor:
    axes = x.dim() - 2
    window = _ints(s.numbers[0])
    window = window * axes if len(window) == 1 else window
    stride = s.extent("s", 0, axes) if "s" in s.extents else window
    pool = getattr(F, f"{'avg' if kind == 'avg' else 'max'}_pool{axes}d")
    return -pool(-x, window, stride) if kind == "min" else pool(x, window, stride)


def _layer_norm(x: Tensor, s: _Stage, find: Callable[[str], Tensor]) -> Tensor:
    weight, bias = s.tensor("weight", 1, find), s.tensor("bias", 2, find)
    if s.names[0] == "channel":
        return F.layer_norm(x.movedim(1, -1), x.shape[1:2], weight, bias, s.eps).movedim(-1, 1)
    last = x.shape[x.dim() - int(s.numbers[0] if s.numbers else 1):]
    return F.layer_norm(x, last, *(None if w is None else w.reshape(last) for w in (weight, bias)), s.eps)


def _moments(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, [0, *_space(x)], correction=0)
    return torch.stack([mean, variance])


def _softmax(x: Tensor, axes: str) -> Tensor:
    return F.softmax(x, 1) if axes == "channel" else F.softmax(x.flatten(2), -1).reshape(x.shape)


_REDUCE = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "logsumexp": torch.logsumexp}
_BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "minimum": torch.minimum,
           "maximum": torch.maximum}
_UNARY = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp, "swish": F.silu,
          "mish": F.mish, "hardswish": F.hardswish}


def _apply(x: Tensor, s: _Stage, find: Callable[[str], Tensor]) -> Tensor:
    name = s.name
    if name == "conv_transpose":
        return _conv(x, s, find)
    if name.endswith("_pool"):
        return _pool(x, s, name[:3])
    if name == "layer_norm":
        return _layer_norm(x, s, find)
    if name == "batch_norm":
        return F.batch_norm(x, None, None, s.tensor("weight", 0, find), s.tensor("bias", 1, find), True, 0.0, s.eps)
    if name == "group_norm":
        groups = int(s.numbers[0])
        return F.group_norm(x, groups, s.tensor("weight", 0, find), s.tensor("bias", 1, find), s.eps)
    if name == "instance_norm":
        return F.instance_norm(x, None, None, s.tensor("weight", 0, find), s.tensor("bias", 1, find), True, 0.0, s.eps)
    if name == "moments":
        return _moments(x)
    if name == "softmax":
        return _softmax(x, s.names[0])
    if name in _REDUCE:
        return _REDUCE[name](x, _dims(x, s.names[0]), keepdim=True)
    if name in _UNARY:
        return _UNARY[name](x)
    if name == "gelu":
        return F.gelu(x, approximate="tanh" if s.names else "none")
    if name == "leaky_relu":
        return F.leaky_relu(x, float(s.numbers[0]))
    if name in ("clamp", "hardtanh"):
        return torch.clamp(x, float(s.numbers[0]), float(s.numbers[1]))
    if name in _BINARY:
        y = (torch.full((), float(s.numbers[0]), dtype=x.dtype, device=x.device) if s.numbers
             else _operand(x, find(s.names[0])))
        return _BINARY[name](x, y)
    raise ValueError(f"no operation is called {name!r}")


def run(text: str, input: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """The pipeline's result, axes that `drop` names removed."""
    values, x, dropped = {"input": input}, input, set()

    def find(word: str) -> Tensor:
        return values[word[1:]] if word.startswith("@") else tensors[word.partition(":")[0]]

    for stage in stages(text):
        if stage.name.startswith("@"):
            x = values[stage.name[1:]]
            continue
        x = _apply(x, stage, find)
        if stage.label:
            values[stage.label] = x
        if stage.name in _REDUCE and "drop" in stage.names:
            dropped.update(_dims(x, stage.names[0]))
    return x.squeeze(sorted(dropped)) if dropped else x
