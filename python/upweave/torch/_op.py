"""The custom operator: a pipeline's text and its tensors in, its result out, on a plan that is kept."""

from __future__ import annotations

import collections
import threading
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .._plan import Plan, compile
from . import _eager, _fold

MOST_PLANS = 128  # dynamic shapes make plans; the one that was not used for longest goes

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Statistics(NamedTuple):
    """What the operator has done in this process."""

    calls: int  # of the operator
    compiled: int  # plans made
    kept: int  # plans alive
    eager: int  # calls that PyTorch's operators served, because no engine could
    packed: int  # times that weights were packed to be used again


class _Plans:
    """A bounded table of plans, shared by all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.plans: collections.OrderedDict[tuple, Any] = collections.OrderedDict()
        self.calls = self.compiled = self.eager = 0

    def get(self, key: tuple, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key in self.plans:
                self.plans.move_to_end(key)
                return self.plans[key]
        made, gone = make(), []
        with self.lock:
            self.compiled += 1
            made = self.plans.setdefault(key, made)  # another thread may have made it meanwhile
            while len(self.plans) > MOST_PLANS:
                gone.append(self.plans.popitem(last=False)[1])
        for plan in gone:
            _packed.forget(plan)
        return made


_plans = _Plans()


class _Packed:
    """Packed weights of the calls that were made last, each beside a copy of what was packed. They serve again while
    the tensors are the same bits, which costs a look at them and can never be wrong."""

    MOST, BYTES, PATIENCE = 32, 1 << 28, 2  # more than MOST are kept while their weights are less than BYTES

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: collections.OrderedDict[tuple, tuple] = collections.OrderedDict()
        self.count = 0

    @staticmethod
    def bits(t: Tensor) -> Tensor:
        return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])

    def get(self, plan: Plan, site: str, tensors: dict[str, Tensor], fold: Optional[_fold.Fold]) -> Any:
        """Packed weights, or the plan's tensors where packing them to be kept does not pay: small ones, those on a
        device, and those that have changed more often than PATIENCE allows."""
        return self.kept(plan, site, tensors, fold) or (fold.weights(tensors) if fold else tensors)

    def kept(self, plan: Plan, site: str, tensors: dict[str, Tensor], fold: Optional[_fold.Fold]) -> Any:
        if not site or any(t.device.type != "cpu" for t in tensors.values()):
            return None
        if sum(t.numel() for t in tensors.values()) < 1 << 12:
            return None
        key = (plan, site)
        with self.lock:
            copies, weights, changes = self.entries.get(key, (None, None, 0))
            if key in self.entries:
                self.entries.move_to_end(key)
        if changes > self.PATIENCE:
            return None
        if copies and all(torch.equal(self.bits(copies[name]), self.bits(t)) for name, t in tensors.items()):
            return weights
        changes += copies is not None
        if changes > self.PATIENCE:
            entry: tuple = (None, None, changes)
        else:
            packed = plan._core.pack(fold.weights(tensors) if fold else tensors, None)
            entry = ({name: t.clone() for name, t in tensors.items()}, packed, changes)
        with self.lock:
            self.count += entry[1] is not None
            self.entries.pop(key, None)
            self.entries[key] = entry
            while len(self.entries) > self.MOST and sum(map(self.size, self.entries.values())) > self.BYTES:
                self.entries.popitem(last=False)
        return entry[1]

    def forget(self, plan: Any) -> None:
        with self.lock:
            for key in [key for key in self.entries if key[0] is plan]:
                del self.entries[key]

    @staticmethod
    def size(entry: tuple) -> int:
        return sum(t.nbytes for t in (entry[0] or {}).values())


_packed = _Packed()


def statistics() -> Statistics:
    """Counts since the process began, for tests and for the curious."""
    return Statistics(_plans.calls, _plans.compiled, len(_plans.plans), _plans.eager, _packed.count)


def _plan(text: str, input: Tensor, shapes: dict[str, tuple[int, ...]], options: str) -> Plan | None:
    """The plan, or None where no engine takes it and PyTorch's operators must."""
    engine, precision, _ = (*options.split(","), "", "")[:3]
    dtype = _DTYPES.get(input.dtype)
    if dtype is None or input.device.type not in ("cpu", "cuda"):
        return None
    if not engine:
        engine = "cuda" if input.device.type == "cuda" else "reference" if dtype == "f64" else "cpu"
    key = (text, tuple(input.shape), tuple(shapes.items()), dtype, engine, precision, input.device)

    def make() -> Plan | None:
        try:
            return compile(text, input=tuple(input.shape), dtype=dtype, engine=engine, precision=precision or "strict",
                           **shapes)
        except NotImplementedError:
            return None

    return _plans.get(key, make)


def _execute(text: str, input: Tensor, tensors: dict[str, Tensor], options: str) -> Tensor:
    site = (*options.split(","), "", "")[2]
    fold = _fold.find(text, input.dtype) if site else None  # by hand, a text is run as it is written
    shapes = fold.shapes(tensors) if fold else {name: tuple(t.shape) for name, t in tensors.items()}
    plan = _plan(fold.text if fold else text, input, shapes, options)
    if plan is None:
        _plans.eager += 1
        return _eager.run(text, input, tensors).contiguous()
    out = torch.empty(plan.shape, dtype=input.dtype, device=input.device)
    plan._core.run(input, _packed.get(plan, site, tensors, fold), out, False, None)
    return out


def _moments(text: str, input: Tensor, tensors: dict[str, Tensor], options: str) -> Tensor:
    """Mean and unbiased variance of each channel of the pipeline's value, as a running average takes them."""
    if input.dtype in (torch.float16, torch.bfloat16):
        input, tensors = input.float(), {name: t.float() for name, t in tensors.items()}
    moments = _execute(f"{text} | moments batch", input, tensors, options)
    shape = _plans.get(("shape", text, input.shape, tuple(t.shape for t in tensors.values())),
                       lambda: _eager.run(text, input.to("meta"), {n: t.to("meta") for n, t in tensors.items()}).shape)
    values = shape.numel() // shape[1]
    moments[1].mul_(values / (values - 1))
    return moments


def _named(text: str, names: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors that the text mentions, by name."""
    words = {word.rpartition("=")[2].partition(":")[0] for word in text.replace("|", " ").split()}
    return {name: t for name, t in zip(names.split(), tensors) if name in words}


def _run(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, moments: str,
         options: str) -> list[Tensor]:
    _plans.calls += 1
    with torch.no_grad(), torch.autocast(input.device.type, enabled=False), torch.cuda.device_of(input):
        dense = input.contiguous()
        given = [t.contiguous() for t in tensors]
        results = [_execute(text, dense, _named(text, names, given), options)]
        return results + [_moments(m, dense, _named(m, names, given), options) for m in moments.splitlines()]


def _fake(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, moments: str,
          options: str) -> list[Tensor]:
    with torch.no_grad(), torch.autocast(input.device.type, enabled=False):
        out = _eager.run(text, input, _named(text, names, tensors))
        results = [input.new_empty(out.shape)]
        for prefix in moments.splitlines():
            value = _eager.run(prefix, input, _named(prefix, names, tensors))
            wide = torch.float64 if input.dtype == torch.float64 else torch.float32
            results.append(input.new_empty((2, value.shape[1]), dtype=wide))
        return results


def _save(ctx: Any, inputs: tuple, output: Any) -> None:
    input, tensors, ctx.text, ctx.names, _, _ = inputs
    ctx.save_for_backward(input, *tensors)


def _backward(ctx: Any, grads: Sequence[Tensor]) -> tuple:
    """The pipeline again, through PyTorch's own operators, and its gradient from there. Moments have none."""
    saved = ctx.saved_tensors
    needed = [ctx.needs_input_grad[0], *([True] * (len(saved) - 1) if ctx.needs_input_grad[1] is True
                                         else ctx.needs_input_grad[1] or [False] * (len(saved) - 1))]
    with torch.enable_grad(), torch.autocast(saved[0].device.type, enabled=False):
        leaves = [t.detach().requires_grad_(need) for t, need in zip(saved, needed)]
        out = _eager.run(ctx.text, leaves[0], _named(ctx.text, ctx.names, leaves[1:]))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grads[0].reshape(out.shape), allow_unused=True))
    result = [next(found) if leaf.requires_grad else None for leaf in leaves]
    return result[0], result[1:], None, None, None, None


# `names` has the tensors' names, `moments` a pipeline a line whose statistics a running average wants; `options` are
# engine, precision and, for calls that a graph holds, a word of their own.
torch.library.define("upweave::run", "(Tensor input, Tensor[] tensors, str text, str names, str moments, "
                                     "str options) -> Tensor[]")
torch.library.impl("upweave::run", ["CPU", "CUDA"], _run)
torch.library.register_fake("upweave::run", _fake)
torch.library.register_autograd("upweave::run", _backward, setup_context=_save)


def run(text: str, input: Tensor, *, engine: str = "", precision: str = "strict", **tensors: Tensor) -> Tensor:
    """Runs a pipeline on tensors, with gradients: `upweave.torch.run("conv_transpose kernel | gelu", x, kernel=k)`."""
    return torch.ops.upweave.run(input, list(tensors.values()), text, " ".join(tensors), "", f"{engine},{precision}")[0]
