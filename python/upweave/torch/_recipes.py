"""The tensors of a pipeline, made of the tensors that a call gets. A call's `names` is a word a tensor:

    kernel             the tensor at the word's own place
    t0=3, t0=3v        the third, as it is or as a vector
    t0=3w              the third, which the convolution reads: rounded to the convolution's dtype first
    t1=scale:4,5,6,-:1e-05, t2=shift:...   scale and shift of a norm with known statistics: mean, variance, weight, bias, eps
"""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple, Optional, Sequence

import torch
from torch import Tensor


class Recipe(NamedTuple):
    name: str
    sources: tuple[Optional[int], ...]
    make: Callable[..., Tensor]
    rounded: bool = False  # to the convolution's dtype
    flat: bool = False  # a vector, whatever its shape was


def _scale(mean: Tensor, variance: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    wide = torch.promote_types(variance.dtype, torch.float32)
    scale = torch.rsqrt(variance.to(wide) + eps)
    return scale if weight is None else scale * weight


def _shift(mean: Tensor, variance: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], eps: float) -> Tensor:
    shift = -mean * _scale(mean, variance, weight, bias, eps)
    return shift if bias is None else shift + bias


def _itself(t: Tensor) -> Tensor:
    return t


def _vector(t: Tensor) -> Tensor:
    return t.reshape(-1)


def _recipe(place: int, word: str) -> Recipe:
    name, given, how = word.partition("=")
    if not given:
        return Recipe(name, (place,), _itself)
    kind, _, rest = how.partition(":")
    if rest:
        sources, _, eps = rest.partition(":")
        make = functools.partial(_scale if kind == "scale" else _shift, eps=float(eps))
        return Recipe(name, tuple(None if s == "-" else int(s) for s in sources.split(",")), make)
    flat = how.endswith("v")
    return Recipe(name, (int(how.rstrip("vw")),), _vector if flat else _itself, how.endswith("w"), flat)


@functools.lru_cache(maxsize=512)
def parse(names: str) -> tuple[Recipe, ...]:
    return tuple(_recipe(i, word) for i, word in enumerate(names.split()))


def sources(names: str, among: Sequence[str]) -> set[int]:
    """The places of the tensors that these of the pipeline's are made of."""
    return {s for recipe in parse(names) if recipe.name in among for s in recipe.sources if s is not None}


def make(names: str, tensors: Sequence[Tensor], dtype: torch.dtype, rounded: torch.dtype,
         device: torch.device, among: Optional[Sequence[str]] = None) -> dict[str, Tensor]:
    """Every tensor of the pipeline, or those of `among`, dense, in `dtype`."""
    made = {}
    for recipe in parse(names):
        if among is not None and recipe.name not in among:
            continue
        t = recipe.make(*(None if s is None else tensors[s] for s in recipe.sources))
        if recipe.rounded:
            t = t.to(rounded)
        made[recipe.name] = t.to(device=device, dtype=dtype).contiguous()
    return made
