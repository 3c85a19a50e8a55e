"""Operations that copy elements to other places: slices, cat, pads, upsampling, pixel shuffles."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.fx.node import map_arg

from ._stages import NotCovered, Region, Value, example, number, same, written


def _bound(x: Any, extent: Any, otherwise: int) -> int:
    if x is None:
        return otherwise
    if not isinstance(x, int) or not isinstance(extent, int):
        raise NotCovered("its extents are symbols")
    return min(max(x + extent if x < 0 else x, 0), extent)


def _crop(r: Region, value: Value, axis: int, start: int, end: int) -> Value:
    """Elements start to end of a pipeline's axis."""
    shape = [end - start if a == axis else e for a, e in enumerate(value.shape)]
    if axis == 0:
        raise NotCovered("it takes some of the samples")
    if end <= start:
        raise NotCovered("nothing is left of an axis")
    if axis == 1:
        return r.add(value, f"crop channels={start}:{end}", shape)
    slices = "x".join(f"{start}:{end}" if a == axis else ":" for a in range(2, len(value.shape)))
    return r.add(value, f"crop {slices}", shape)


def _axis(value: Value, dim: int) -> int:
    axes = value.axes[dim]
    if len(axes) != 1:
        raise NotCovered("it cuts an axis that is joined of several")
    return axes[0]


def slice_(r, x, dim=0, start=None, end=None, step=1):
    value = r.value(x)
    if same(example(r.node).shape, example(x).shape):
        return value.seen(value.axes)
    if step != 1:
        raise NotCovered("it takes each step-th element")
    extent = example(x).shape[dim]
    start, end = _bound(start, extent, 0), _bound(end, extent, extent)
    return _crop(r, value, _axis(value, dim), start, end)


def _parts(r: Region, x: Any, sizes: Sequence[int], dim: int) -> Value:
    value = r.value(x)
    axis, at, parts = _axis(value, dim), 0, []
    for size in sizes:
        if not isinstance(size, int):
            raise NotCovered("its extents are symbols")
        parts.append(_crop(r, value, axis, at, at + size))
        at += size
    return Value(value.id, value.shape, value.axes, value.deep, parts)


def split(r, x, size, dim=0):
    extent = example(x).shape[dim]
    if not isinstance(extent, int) or not isinstance(size, int) or size < 1:
        raise NotCovered("its extents are symbols")
    return _parts(r, x, [min(size, extent - at) for at in range(0, extent, size)], dim)


def split_with_sizes(r, x, sizes, dim=0):
    return _parts(r, x, sizes, dim)


def cat(r, tensors, dim=0):
    values = [r.value(x) for x in tensors if example(x).dim() != 1]  # PyTorch passes over empty vectors
    if not values or len(values) != len(tensors):
        raise NotCovered("one of its operands is empty")
    first = values[0]
    if any(v.axes != first.axes for v in values) or _axis(first, dim) != 1:
        raise NotCovered("it is not along the channels")
    if any(not same(v.shape[:1] + v.shape[2:], first.shape[:1] + first.shape[2:]) for v in values):
        raise NotCovered("its operands have different extents")
    if len(values) == 1:
        return first.seen(first.axes)
    shape = list(first.shape)
    shape[1] = sum(v.shape[1] for v in values)
    return r.add(first, "cat " + " ".join(f"{{{v.id}}}" for v in values[1:]), shape, tuple(values[1:]))


# --- Pads ---


def _pad(r: Region, x: Any, pad: Sequence[Any], words: str) -> Value:
    """Padding as PyTorch says it: the last axis first, before and behind; what is negative is cut off."""
    value = r.plain(x)
    if not all(isinstance(p, int) for p in pad) or not all(isinstance(e, int) for e in value.shape[2:]):
        raise NotCovered("its extents are symbols")
    spatial = len(value.shape) - 2
    before, behind = list(pad[0::2]), list(pad[1::2])
    if any(p for p in (*before[spatial:], *behind[spatial:])):
        raise NotCovered("it pads channels or samples")
    before, behind = (([*p[:spatial], *[0] * (spatial - len(p))])[::-1] for p in (before, behind))
    for a in range(spatial):
        start, end = max(0, -before[a]), value.shape[a + 2] - max(0, -behind[a])
        if (start, end) != (0, value.shape[a + 2]):
            value = _crop(r, value, a + 2, start, end)
    before, behind = [max(0, p) for p in before], [max(0, p) for p in behind]
    if not any((*before, *behind)):
        return value.seen(value.axes)
    text = f"pad {written(before)}" + (f" e{written(behind)}" if behind != before else "") + words
    return r.add(value, text, [*value.shape[:2], *(e + b + c for e, b, c in zip(value.shape[2:], before, behind))])


def constant_pad(r, x, pad, value=0):
    return _pad(r, x, pad, "" if value == 0 else f" value={number(value)}")


def border_pad(mode: str) -> Callable:
    def handler(r, x, pad):
        if any(not isinstance(p, int) or p < 0 for p in pad):
            raise NotCovered("its padding is negative or a symbol")
        return _pad(r, x, pad, f" {mode}")

    return handler


# --- Larger images ---


def _factors(r: Region, x: Any) -> tuple[Value, list[int]]:
    value, out = r.plain(x), example(r.node).shape
    extents_ = value.shape[2:]
    if not all(isinstance(e, int) for e in (*extents_, *out[2:])) or any(o % e for o, e in zip(out[2:], extents_)):
        raise NotCovered("it enlarges by no whole number, or by a symbol")
    return value, [o // e for o, e in zip(out[2:], extents_)]


def _scaled(scales: Sequence[Optional[float]], factors: Sequence[int]) -> None:
    """PyTorch takes places from a factor that it is given, not from the extents."""
    if any(s is not None and s != f for s, f in zip(scales, factors)):
        raise NotCovered("its factor is not that of its extents")


def _given(more: Sequence[Any]) -> list[Any]:
    """Factors from what follows the output's size: one each, or a list of them."""
    flat: list[Any] = []
    for m in more:
        flat += m if isinstance(m, (list, tuple)) else [m]
    return [f for f in flat if f is None or isinstance(f, (int, float))]


def upsample(mode: str) -> Callable:
    def handler(r, x, size=None, *scales):
        value, factors = _factors(r, x)
        _scaled(_given(scales), factors)
        if all(f == 1 for f in factors):
            return value.seen(value.axes)
        return r.add(value, f"upsample {written(factors)} {mode}", example(r.node).shape)

    return handler


def _constant(node: Node) -> tuple[list[int], list[int]]:
    """The shape and the elements of indices that depend on nothing but numbers."""
    known: dict[Node, Any] = {}

    def of(n: Node) -> Any:
        if n in known:
            return known[n]
        if n.op != "call_function" or "val" not in n.meta or not isinstance(n.meta["val"], Tensor):
            raise NotCovered("its indices are no constants")
        args = map_arg(n.args, of)
        kwargs = {k: torch.device("cpu") if k == "device" else v for k, v in map_arg(n.kwargs, of).items()}
        known[n] = n.target(*args, **kwargs)
        return known[n]

    try:
        with unset_fake_temporarily():
            places = of(node)
            return list(places.shape), places.flatten().tolist()
    except (RuntimeError, TypeError) as error:
        raise NotCovered("its indices are no constants") from error


def index(r, x, indices):
    """A nearest upsampling as PyTorch takes it apart: each spatial axis by indices 0 0 1 1 ..."""
    value = r.plain(x)
    spatial = len(value.shape) - 2
    if len(indices) != spatial + 2 or indices[0] is not None or indices[1] is not None:
        raise NotCovered("it takes elements by their indices")
    factors = []
    for axis, (at, extent) in enumerate(zip(indices[2:], value.shape[2:])):
        size = example(r.node).shape[axis + 2]
        if not isinstance(size, int) or not isinstance(extent, int) or size % extent or at is None:
            raise NotCovered("it takes elements by their indices")
        along = [size if a == axis else 1 for a in range(axis, spatial)]
        if _constant(at) != (along, [i // (size // extent) for i in range(size)]):
            raise NotCovered("it takes elements by their indices")
        factors.append(size // extent)
    return r.add(value, f"upsample {written(factors)} nearest", example(r.node).shape)


def upsample_linear(r, x, size, align_corners, *scales):
    value, factors = _factors(r, x)
    if not align_corners:
        _scaled(_given(scales), factors)
    if all(f == 1 for f in factors):
        return value.seen(value.axes)
    return r.add(value, f"upsample {written(factors)} linear{' corners' if align_corners else ''}", example(r.node).shape)


def pixel_shuffle(name: str) -> Callable:
    def handler(r, x, factor):
        value = r.plain(x)
        if len(value.shape) != 4 or not isinstance(factor, int):
            raise NotCovered("it has other than two axes of space")
        return r.add(value, f"{name} {factor}", example(r.node).shape)

    return handler


def glu(r, x, dim=-1):
    value = r.value(x)
    if _axis(value, dim) != 1:
        raise NotCovered("it is not over the channels")
    return r.add(value, "glu channel", [e // 2 if a == 1 else e for a, e in enumerate(value.shape)])
