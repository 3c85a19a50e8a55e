"""Whether a region is worth taking, by what it is predicted to take and what PyTorch is."""

from __future__ import annotations

import functools
from typing import Optional

import torch
from torch import Tensor

from .. import _core
from . import _op, _peer, _recipes
from ._regions import Found
from ._stages import example
from ._write import Writer

# Seconds around a call's launches, between operations of a graph that Inductor runs; the CPU's prediction has them.
_CALL = {"cuda": 100e-6, "cpu": 0.0}
# Bytes that packing moves for each byte of the convolution's weights, where it is done in every call.
_PACKED = 20


def predict(found: Found) -> tuple[float, float]:
    """Seconds that the call is predicted to take, and that PyTorch is."""
    writer = found.writer
    options, sources = writer.options, writer.sources
    source, results = example(writer.source), [example(n) for n in writer.outputs]
    device = source.device
    precision = _op.precision_for(options.precision, device)
    others = list(writer.inputs.values())[1:]
    shapes = _shapes(writer)
    ours = _seconds(writer.text, tuple(shapes.items()), _op.DTYPES[options.dtype],
                    _op.engine_for(options, options.dtype, device), precision, options.algorithm)
    ours += _CALL.get(device.type, 0.0) + _peer.copies([source, *results], device)
    ours += _peer.turned([writer.source, *writer.outputs], found.nodes, device)
    ours += _peer.moved([t for t in (source, *results) if t.dtype != options.dtype], device)
    read = _recipes.sources(writer.names, others)
    ours += _peer.copies([example(sources[i]) for i in read], device)
    if not options.keep:
        ours += _PACKED * _peer.moved([example(n) for i, n in enumerate(sources) if i not in read], device)
    return ours, _peer.estimate(found.nodes, device, precision == "fast" and options.dtype == torch.float32)


@functools.lru_cache(maxsize=256)
def _seconds(text: str, shapes: tuple, *how: str) -> float:
    return _core.predicted_seconds(text, False, {}, dict(shapes), *how, 0)


def _shapes(writer: Writer) -> dict[str, tuple[int, ...]]:
    """Of every tensor of the text, from tensors that have no memory."""
    tensors = [torch.empty(_hints(example(n)), dtype=example(n).dtype, device="meta") for n in writer.sources]
    made = _recipes.make(writer.names, tensors, torch.float32, torch.float32, torch.device("meta"))
    return {"input": _hints(example(writer.source)), **{name: tuple(t.shape) for name, t in made.items()}}


def _hints(tensor: Tensor) -> tuple[int, ...]:
    return tuple(_peer.hint(extent) for extent in tensor.shape)


def pays(found: Found) -> Optional[str]:
    """None if the region is worth it, else why not. Both predictions stay with the region."""
    try:
        found.ours, found.theirs = predict(found)
    except (ValueError, NotImplementedError, MemoryError, RuntimeError) as error:
        return str(error)
    if _peer.pays(found.ours, found.theirs, example(found.writer.source).device):
        return None
    return "it is not predicted to be faster"
