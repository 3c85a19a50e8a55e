"""The faster of our way and PyTorch's, measured where a shape is met first and remembered on disk."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from . import _autotune, _op

_lock = threading.Lock()
_known: dict[tuple, Optional[Callable]] = {}


def _inductor(function: Callable, arguments: Sequence[Tensor]) -> Callable:
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.proxy_tensor import make_fx

    with _disable_current_modes():  # a first call may be under one of AOTAutograd's
        graph = make_fx(function, tracing_mode="fake")(*arguments)
        return compile_fx(graph, list(arguments))


def faster(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, options: Any) -> Optional[Callable]:
    """PyTorch's way, compiled by Inductor, where it is the faster; None where ours is."""
    given = [input, *tensors]
    precision = _op.precision_for(options.precision, input.device)
    known = (text, names, options, precision, input.device, torch.get_num_threads(),
             *((t.shape, t.stride(), t.dtype) for t in given))
    with _lock:
        if known in _known:
            return _known[known]
    way: Optional[Callable] = None

    def theirs() -> Any:
        nonlocal way
        if way is None:
            way = _inductor(lambda x, *rest: _op.theirs(x, rest, text, names, options), given)
        return way(*given)

    key = _autotune.key(text, {f"t{i}": t for i, t in enumerate(given)}, input.device, names=names, options=options,
                        precision=precision)
    sync = torch.cuda.synchronize if input.is_cuda else lambda: None
    try:
        if _autotune.choose(key, lambda: _op.ours(input, tensors, text, names, options), theirs, sync):
            way = None
        else:
            theirs()
    except Exception as error:  # one of them cannot run: ours then goes the way that it has for that
        _op.warn_left("a measurement", error)
        way = None
    with _lock:
        return _known.setdefault(known, way)
