"""Runs a function or module once as it is and once through torch.compile, and lists every difference that a caller
could see: exceptions, structure, values, shapes, dtypes, strides, aliases, changed arguments and state, gradients.

Values have a bound from float64: with `truth` the same call on float64 copies of everything, the compiled result may be
off by 8 times the larger of two measured errors, and by 4 roundings of the tensor's largest magnitude:
    eager's own error                                    max |eager - truth|
    the function's condition, by inputs that are all     max |truth(inputs * (1 +- eps)) - truth|
    one rounding away, the sign of each drawn at random
Both sum in float32 in another order, which a factor of 8 covers; eps is that of the coarsest type on the way. A step
(relu'(0), a tie of max_pool) can be met by one draw of the data, so callers try a failing case on fresh data.

UPWEAVE_TEST_BACKEND names another backend (aot_eager, inductor) to test these tests; UPWEAVE_TEST_OPTIONS is JSON that
is added to the backend's options.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

BACKEND = os.environ.get("UPWEAVE_TEST_BACKEND", "upweave")
OPTIONS = {"take": "all", **json.loads(os.environ.get("UPWEAVE_TEST_OPTIONS", "{}"))}  # small ones would not pay
# 1 is for every day; a soak takes more.
EFFORT = float(os.environ.get("UPWEAVE_TEST_EFFORT", "1"))


def fresh_seed() -> int:
    """A seed of this run; UPWEAVE_TEST_SEED repeats one."""
    return int(os.environ.get("UPWEAVE_TEST_SEED", time.time_ns() % 1_000_000_000))


@dataclass(frozen=True)
class Mode:
    """How a function is called."""

    grad: str = "none"  # none (no_grad), inference, forward (grad mode, no backward), backward, double
    autocast: bool = False  # bfloat16
    dynamic: Any = None
    rest: str = "eager"
    eps: float = 2.0 ** -23  # of the coarsest type that the function itself casts to

    @property
    def rounding(self) -> float:
        return max(self.eps, 2.0 ** -7 if self.autocast else 0)

    def __str__(self) -> str:
        words = [self.grad, *(["autocast"] if self.autocast else []), *(["dynamic"] if self.dynamic else []), self.rest]
        return " ".join(words)


def compiled(function: Callable, *, rest: str = "eager", dynamic: Any = None, backend: str = BACKEND,
             **options: Any) -> Callable:
    """The function through the backend under test."""
    if backend != "upweave":
        return torch.compile(function, backend=backend, dynamic=dynamic)
    return torch.compile(function, backend="upweave", dynamic=dynamic, options={"rest": rest, **OPTIONS, **options})


# --- Copies ---


def _map(function: Callable[[Tensor], Tensor], model: Callable, args: Any) -> tuple[Callable, Any]:
    """A copy of both, the function applied to their floating tensors; tensors that share memory still do."""
    storages: dict[int, Tensor] = {}

    def convert(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.device.type == "meta":
            return t
        storage = t.untyped_storage()
        key = (storage.data_ptr(), t.dtype) if storage.nbytes() else id(t)
        if key not in storages:
            with torch.no_grad():
                storages[key] = function(torch.empty(0, dtype=t.dtype).set_(storage))
        view = storages[key].as_strided(t.size(), t.stride(), t.storage_offset())
        return view.detach().requires_grad_(t.requires_grad)

    model, args = copy.deepcopy((model, args))
    if isinstance(model, nn.Module):
        for module in model.modules():
            for name, t in list(module._parameters.items()):
                if t is not None:
                    module._parameters[name] = nn.Parameter(convert(t).detach(), t.requires_grad)
            for name, t in list(module._buffers.items()):
                module._buffers[name] = convert(t)
    return model, pytree.tree_map(convert, args)


def _double(model: Callable, args: Any) -> tuple[Callable, Any]:
    return _map(lambda t: t.double(), model, args)


def _wiggled(model: Callable, args: Any, eps: float) -> tuple[Callable, Any]:
    generator = torch.Generator().manual_seed(1)

    def wiggle(t: Tensor) -> Tensor:
        signs = torch.randint(0, 2, t.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return t.double() * (1 + eps * signs)

    return _map(wiggle, model, args)


# --- Runs ---


@dataclass
class Seen:
    """What one call did."""

    spec: Any = None
    outputs: list = field(default_factory=list)
    state: dict[str, Tensor] = field(default_factory=dict)  # arguments and the module's state afterwards
    grads: list = field(default_factory=list)
    shares: set = field(default_factory=set)  # pairs of tensors, by name, in one storage
    same: set = field(default_factory=set)  # pairs that are one object


def _weights(t: Tensor) -> Tensor:
    """Fixed weights for a loss, none of them alike."""
    return torch.cos(torch.arange(t.numel(), dtype=torch.float64, device=t.device) * 0.7 + 0.3).reshape(t.shape)


def _loss(tensors: list[Tensor]) -> Tensor:
    return sum((t.double() * _weights(t)).sum() for t in tensors)


def _contexts(mode: Mode) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context({"none": torch.no_grad, "inference": torch.inference_mode}.get(mode.grad, torch.enable_grad)())
    if mode.autocast:
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
    return stack


def _run(call: Callable, model: Callable, args: tuple, mode: Mode, inner: tuple[int, ...] = ()) -> Seen:
    """`inner`: arguments that are handed over as values with a history, so that they may change in place."""
    torch.manual_seed(5)
    seen = Seen()
    given = tuple(a.clone() if i in inner and mode.grad in ("forward", "backward", "double") else a
                  for i, a in enumerate(args))
    leaves = [t for t in pytree.tree_leaves(given) if isinstance(t, Tensor)]
    with _contexts(mode):
        result = call(*given)
    seen.outputs, seen.spec = pytree.tree_flatten(result)
    names = {f"argument {i}": t for i, t in enumerate(leaves)}
    if isinstance(model, nn.Module):
        names.update(dict(model.named_buffers()))
        names.update(dict(model.named_parameters()))
    everything = {**names, **{f"output {i}": t for i, t in enumerate(seen.outputs) if isinstance(t, Tensor)}}
    listed = list(everything.items())
    for i, (a, s) in enumerate(listed):
        for b, t in listed[i + 1:]:
            if s is t:
                seen.same.add((a, b))
            if _address(s) and _address(s) == _address(t):
                seen.shares.add((a, b))
    if mode.grad in ("backward", "double"):
        wanted = [t for t in pytree.tree_leaves(args) if isinstance(t, Tensor) and t.requires_grad]
        if isinstance(model, nn.Module):
            wanted += [p for p in model.parameters() if p.requires_grad]
        ends = [t for t in seen.outputs if isinstance(t, Tensor) and t.requires_grad and t.is_floating_point()]
        if wanted and ends:
            double = mode.grad == "double"
            seen.grads = list(torch.autograd.grad(_loss(ends), wanted, allow_unused=True, create_graph=double))
            again = [g for g in seen.grads if g is not None and g.requires_grad] if double else []
            if again:
                penalty = sum(g.double().square().sum() for g in again)
                seen.grads += torch.autograd.grad(penalty, wanted, allow_unused=True)
            elif double:  # linear
                seen.grads += [None] * len(wanted)
    seen.state = {name: t.detach() for name, t in names.items()}
    return seen


def _address(t: Tensor) -> int:
    if t.layout != torch.strided or t.device.type == "meta":
        return 0
    return t.untyped_storage().data_ptr()


# --- Comparison ---


def _strides(t: Tensor) -> tuple:
    """The strides that say something."""
    return tuple(s for n, s in zip(t.shape, t.stride()) if n > 1) if t.numel() else ()


def _values(name: str, eager: Tensor, ours: Tensor, truth: Any, wiggled: Any, rounding: float) -> list[str]:
    if eager.device.type == "meta" or not eager.numel():
        return []
    eager, ours = eager.detach(), ours.detach()
    if not (eager.is_floating_point() or eager.is_complex()):
        return [] if torch.equal(eager, ours) else [f"{name}: {int((eager != ours).sum())} of {eager.numel()} differ"]
    e, o = eager.double(), ours.double()
    odd = ~torch.isfinite(e) | ~torch.isfinite(o)
    if not torch.equal(torch.nan_to_num(e[odd], 7.0), torch.nan_to_num(o[odd], 7.0)):
        return [f"{name}: other places with NaN or infinity"]
    e, o = e[~odd], o[~odd]
    if not e.numel():
        return []
    rounding = max(rounding, torch.finfo(eager.dtype).eps)
    if truth is None or truth.shape != odd.shape:
        t, error = e, 0.0
    else:
        t = truth.detach().double()[~odd]
        w = wiggled.detach().double()[~odd]
        error = torch.maximum((e - t).abs(), (w - t).abs()).nan_to_num(0, 0, 0).max().item()
    bound = 8 * error + 4 * rounding * max(t.abs().nan_to_num(0, 0, 0).max().item(), e.abs().max().item())
    worst = (o - t).abs().nan_to_num(0, 0, 0).max().item()
    if worst <= bound:
        return []
    return [f"{name}: off by {worst:.3g}, may be {bound:.3g} (largest {e.abs().max().item():.3g}, "
            f"{int(((o - t).abs() > bound).sum())} of {o.numel()} elements)"]


def _tensors(name: str, eager: Any, ours: Any, truth: Any, wiggled: Any, rounding: float, layout: bool) -> list[str]:
    if not isinstance(eager, Tensor) or not isinstance(ours, Tensor):
        if type(eager) is not type(ours):
            return [f"{name} is a {type(ours).__name__} and not a {type(eager).__name__}"]
        if isinstance(eager, float):
            return _values(name, torch.tensor(eager), torch.tensor(ours), None, None, rounding)
        return [] if eager is None or eager == ours else [f"{name} is {ours} and not {eager}"]
    wrong = []
    for what in ("shape", "dtype", "device", "layout", *(["requires_grad"] if layout else [])):
        if getattr(eager, what) != getattr(ours, what):
            wrong.append(f"{name}.{what} is {getattr(ours, what)} and not {getattr(eager, what)}")
    if wrong:
        return wrong
    if layout and _strides(eager) != _strides(ours):
        wrong.append(f"{name}.stride() is {ours.stride()} and not {eager.stride()}")
    return wrong + _values(name, eager, ours, truth, wiggled, rounding)


def differences(model: Callable, args: tuple, mode: Mode = Mode(), *, inner: tuple[int, ...] = (),
                call: Callable | None = None) -> list[str]:
    """What a caller sees differently, as sentences; an empty list is success. `call` makes the compiled callable from a
    model where torch.compile of the model itself is not what is meant."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny here: PyTorch's threads would mostly wait for each other
    try:
        return _differences(model, args, mode, inner, call)
    finally:
        torch.set_num_threads(threads)


def _differences(model: Callable, args: tuple, mode: Mode, inner: tuple[int, ...], call: Callable | None) -> list[str]:
    mine, my_args = copy.deepcopy((model, args))
    original, eager_args = copy.deepcopy((model, args))
    eager = _run(original, original, eager_args, mode, inner)
    plain = replace(mode, autocast=False)
    truth = wiggled = None
    if not any(t.device.type == "meta" for t in pytree.tree_leaves(args) if isinstance(t, Tensor)):
        try:
            wide, wide_args = _double(model, args)
            truth = _run(wide, wide, wide_args, plain, inner)
            moved, moved_args = _wiggled(model, args, mode.rounding)
            wiggled = _run(moved, moved, moved_args, plain, inner)
        except Exception:  # a cast or a table of its own keeps it from being float64: eager alone is the measure
            truth = wiggled = None
    try:
        run = call(mine) if call else compiled(mine, rest=mode.rest, dynamic=mode.dynamic)
        ours = _run(run, mine, my_args, mode, inner)
    except Exception as error:  # whatever it is, the caller of eager did not see it
        return [f"raises {type(error).__name__}: {str(error).strip()[:600]}"]
    if str(eager.spec) != str(ours.spec):
        return [f"the structure is {ours.spec} and not {eager.spec}"]
    wrong = []

    def pick(seen: Seen | None, part: str, key: Any) -> Any:
        if seen is None:
            return None
        found = getattr(seen, part)
        return found.get(key) if isinstance(found, dict) else found[key] if key < len(found) else None

    for part in ("outputs", "grads", "state"):
        theirs, others = getattr(eager, part), getattr(ours, part)
        keys = list(theirs) if isinstance(theirs, dict) else range(len(theirs))
        if len(theirs) != len(others):
            wrong.append(f"{len(others)} {part} and not {len(theirs)}")
            continue
        for key in keys:
            t, w = pick(truth, part, key), pick(wiggled, part, key)
            if not isinstance(t, Tensor) or not isinstance(w, Tensor):
                t = w = None
            wrong += _tensors(f"{part[:-1] if part != 'state' else ''} {key}".strip(), theirs[key], others[key], t, w,
                              mode.rounding, part != "grads")
    for what in ("shares", "same"):
        for a, b in sorted(getattr(eager, what) ^ getattr(ours, what)):
            verb = {"shares": "memory", "same": "being one object"}[what]
            having = "without" if (a, b) in getattr(eager, what) else "with"
            wrong.append(f"{a} and {b}: {having} {verb}")
    return wrong


# --- Short tests ---


class Up(nn.Module):
    """A transposed convolution that doubles the extents, and a function of it, the module and the input."""

    def __init__(self, function, *layers, channels=4):
        super().__init__()
        self.u, self.function = nn.ConvTranspose2d(channels, channels, 4, 2, 1), function
        self.layers = nn.ModuleList(layers)
        self.register_buffer("buffer", torch.randn(2, channels, 10, 12))

    def forward(self, *args):
        return self.function(self, *args)


def image(*shape, last=False):
    x = torch.randn(shape or (2, 4, 5, 6))
    return x.contiguous(memory_format=torch.channels_last) if last else x


def check(model, *args, grads=("none", "backward"), inner=(), **mode):
    """Asserts that it is as eager, in inference and in training, on plain and on channels-last tensors."""
    for grad in grads:
        for last in (False, True):
            m, given = copy.deepcopy((model, args))
            if last:
                m = m.to(memory_format=torch.channels_last) if isinstance(m, nn.Module) else m
                given = tuple(a.contiguous(memory_format=torch.channels_last)
                              if isinstance(a, torch.Tensor) and a.dim() == 4 else a for a in given)
            if grad in ("backward", "double"):
                given = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
                              for a in given)
            torch._dynamo.reset()
            wrong = differences(m, given, Mode(grad=grad, **mode), inner=inner)
            assert not wrong, f"{grad}, {'channels last' if last else 'plain'}: " + "; ".join(wrong)
