"""The tensors of a pipeline, made of the tensors that a call gets. A call's `names` is a word a tensor: a bare name, for
the tensor at the word's own place, or name=EXPRESSION in JSON without spaces:

    3                                       the third tensor
    ["v",E]                                 as a vector
    ["w",E]                                 what a convolution reads: rounded to the convolution's dtype
    ["scale",mean,variance,weight,bias,eps], ["shift",...]   of a norm with known statistics; null where it has none
    ["fold",kernel,scale,groups,transposed] the kernel times a scale for each output channel
    ["affine",bias,scale,shift]             bias * scale + shift; null for no bias
    ["aten","mul.Tensor",[arguments],{}]    what the graph makes of its weights; {"t":E} is a tensor, {"torch":"float32"} a type

An expression says all that it needs, so that a graph that was kept on disk means the same in another process."""

from __future__ import annotations

import functools
import json
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor


class Recipe(NamedTuple):
    name: str
    expression: Any
    sources: tuple[int, ...]

    @property
    def flat(self) -> bool:
        return isinstance(self.expression, list) and self.expression[0] == "v"


def write(expression: Any) -> str:
    return json.dumps(expression, separators=(",", ":"))


def _scale(mean: Tensor, variance: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    wide = torch.promote_types(variance.dtype, torch.float32)
    scale = torch.rsqrt(variance.to(wide) + eps)
    return scale if weight is None else scale * weight


def _shift(mean: Tensor, variance: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    shift = -mean * _scale(mean, variance, weight, bias, eps)
    return shift if bias is None else shift + bias


def _fold(kernel: Tensor, scale: Tensor, groups: int, transposed: bool) -> Tensor:
    """s conv(x; K) = conv(x; s K), with s one value an output channel: the first axis of a convolution's kernel, and of a
    transposed one's the second in each group."""
    if not transposed:
        return kernel * scale.reshape(-1, *[1] * (kernel.dim() - 1))
    scales = scale.reshape(groups, 1, -1, 1)
    return (kernel.reshape(groups, -1, scales.shape[2], kernel[0, 0].numel()) * scales).reshape(kernel.shape)


def _affine(bias: Optional[Tensor], scale: Tensor, shift: Tensor) -> Tensor:
    return shift if bias is None else torch.addcmul(shift, bias.to(scale.dtype), scale)


def _argument(x: Any, tensors: Sequence[Tensor], rounded: torch.dtype) -> Any:
    if isinstance(x, dict):
        return getattr(torch, x["torch"]) if "torch" in x else evaluate(x["t"], tensors, rounded)
    return [_argument(y, tensors, rounded) for y in x] if isinstance(x, list) else x


def evaluate(expression: Any, tensors: Sequence[Tensor], rounded: torch.dtype) -> Any:
    if expression is None or isinstance(expression, int):
        return None if expression is None else tensors[expression]
    kind, *rest = expression

    def part(i: int) -> Any:
        return evaluate(rest[i], tensors, rounded)

    if kind == "v":
        return part(0).reshape(-1)
    if kind == "w":
        return part(0).to(rounded)
    if kind in ("scale", "shift"):
        return (_scale if kind == "scale" else _shift)(*(part(i) for i in range(4)), rest[4])
    if kind == "fold":
        return _fold(part(0), part(1), rest[2], rest[3])
    if kind == "affine":
        return _affine(part(0), part(1), part(2))
    if kind == "item":
        return part(0)[rest[1]]
    name, arguments, keywords = rest
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)
    return function(*(_argument(a, tensors, rounded) for a in arguments),
                    **{k: _argument(v, tensors, rounded) for k, v in keywords.items()})


def moved(expression: Any, places: Mapping[int, int]) -> Any:
    """The same of tensors that lie elsewhere."""
    if expression is None or isinstance(expression, int):
        return None if expression is None else places[expression]
    kind, *rest = expression
    if kind == "aten":
        return [kind, rest[0], _moved_argument(rest[1], places), _moved_argument(rest[2], places)]
    tensors = {"v": 1, "w": 1, "scale": 4, "shift": 4, "fold": 2, "affine": 3, "item": 1}[kind]
    return [kind, *(moved(e, places) for e in rest[:tensors]), *rest[tensors:]]


def _moved_argument(x: Any, places: Mapping[int, int]) -> Any:
    if isinstance(x, dict):
        return {k: moved(v, places) if k == "t" else _moved_argument(v, places) for k, v in x.items()}
    return [_moved_argument(y, places) for y in x] if isinstance(x, list) else x


class _Seen(dict):
    """A map of every place to itself, that keeps those that were asked for."""

    def __missing__(self, place: int) -> int:
        self[place] = place
        return place


def places(expression: Any) -> tuple[int, ...]:
    """The tensors that it is made of, in order."""
    seen = _Seen()
    moved(expression, seen)
    return tuple(seen)


@functools.lru_cache(maxsize=512)
def parse(names: str) -> tuple[Recipe, ...]:
    result = []
    for place, word in enumerate(names.split()):
        name, given, how = word.partition("=")
        expression = json.loads(how) if given else place
        result.append(Recipe(name, expression, places(expression)))
    return tuple(result)


@functools.lru_cache(maxsize=512)
def _read(names: str, among: tuple[str, ...]) -> frozenset[int]:
    return frozenset(s for recipe in parse(names) if recipe.name in among for s in recipe.sources)


def sources(names: str, among: Sequence[str]) -> frozenset[int]:
    """The places of the tensors that these of the pipeline's are made of."""
    return _read(names, tuple(among))


def make(names: str, tensors: Sequence[Tensor], dtype: torch.dtype, rounded: torch.dtype,
         device: torch.device, among: Optional[Sequence[str]] = None) -> dict[str, Tensor]:
    """Every tensor of the pipeline, or those of `among`, dense, in `dtype`."""
    return {recipe.name: evaluate(recipe.expression, tensors, rounded).to(device=device, dtype=dtype).contiguous()
            for recipe in parse(names) if among is None or recipe.name in among}
