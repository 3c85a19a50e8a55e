"""Whether a region is worth taking, by what it is predicted to take and what PyTorch is."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

from .. import _core
from . import _fold, _op, _peer, _recipes
from ._regions import Found
from ._stages import example

# Seconds around a call's launches, between operations of a graph that Inductor runs; the CPU's prediction has them.
_CALL = {"cuda": 100e-6, "cpu": 0.0}
# Bytes that packing moves for each byte of the convolution's weights, where it is done in every call.
_PACKED = 20


def predict(found: Found) -> tuple[float, float]:
    """Seconds that the call is predicted to take, and that PyTorch is."""
    writer = found.writer
    options, sources = writer.options, writer.region.sources
    source, result = example(writer.source), example(writer.last)
    device = source.device
    precision = _op.precision_for(options.precision, device)
    shapes = {}
    for recipe in _recipes.parse(writer.names):
        shape = _hints(example(sources[recipe.sources[0]]))
        shapes[recipe.name] = (math.prod(shape),) if recipe.flat else shape
    fold = _fold.find(writer.text, options.dtype) if options.keep else None
    if fold:
        shapes = {name: shape for name, shape in shapes.items() if name not in (fold.scale, fold.bias)}
    ours = _core.predicted_seconds(writer.runs, False, {}, {"input": _hints(source), **shapes}, _op.DTYPES[options.dtype],
                                   _op.engine_for(options, options.dtype, device), precision, options.algorithm, 0)
    ours += _CALL.get(device.type, 0.0) + _peer.copies([source, result], device)
    ours += _peer.moved([t for t in (source, result) if t.dtype != options.dtype], device)
    read = _recipes.sources(writer.names, writer.region.inputs)
    ours += _peer.copies([example(sources[i]) for i in read], device)
    if not options.keep:
        ours += _PACKED * _peer.moved([example(n) for i, n in enumerate(sources) if i not in read], device)
    return ours, _peer.estimate(found.nodes, device, precision == "fast" and options.dtype == torch.float32)


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
