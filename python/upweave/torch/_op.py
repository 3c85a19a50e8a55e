"""The custom operator: a pipeline's text and its tensors in, its results out, on a plan that is kept."""

from __future__ import annotations

import collections
import functools
import math
import threading
import warnings
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .._plan import Plan, compile
from . import _eager, _recipes, _tune, _weights

MOST_PLANS = 128  # dynamic shapes make plans; the one that was not used for longest goes

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
_NAMED = {name: dtype for dtype, name in DTYPES.items()}


class Options(NamedTuple):
    """How a call runs; its str() travels with the call."""

    engine: str = ""  # "": where the tensors are
    precision: str = "strict"  # "": as PyTorch's own switches say, at each call
    algorithm: str = "auto"
    dtype: Optional[torch.dtype] = None  # what is computed in; None: the input's
    rounded: Optional[torch.dtype] = None  # what the convolution reads is rounded to it first
    shows: str = ""  # how the graph shows each output, / between them: see Show; "": as they are
    keep: bool = False  # the tensors are weights: what is packed of them is kept
    autotune: bool = False  # PyTorch's way is measured beside ours where a shape is met first

    def __str__(self) -> str:
        words = (f"{k}={DTYPES.get(v, v)}" for k, v in self._asdict().items() if v != self._field_defaults[k])
        return ";".join(words)


@functools.lru_cache(maxsize=512)
def parse_options(text: str) -> Options:
    given = dict(word.split("=", 1) for word in text.split(";") if word)
    for name in ("dtype", "rounded"):
        if name in given:
            given[name] = _NAMED[given[name]]
    return Options(**{**given, "keep": "keep" in given, "autotune": "autotune" in given})  # type: ignore[arg-type]


class Show(NamedTuple):
    """How the graph shows an output: dtype:axes:strides."""

    dtype: torch.dtype
    axes: tuple[tuple[int, ...], ...]  # how its axes run through the pipeline's, 0.23.1 for N HW C; (): as they are
    strides: str  # numbers, or the order of the axes from the slowest, behind a >; "": row-major


@functools.lru_cache(maxsize=512)
def parse_shows(text: str) -> tuple[Show, ...]:
    shows = []
    for word in text.split("/") if text else []:
        dtype, axes, strides = word.split(":")
        shows.append(Show(_NAMED[dtype], tuple(tuple(map(int, g)) for g in axes.split(".")) if axes else (), strides))
    return tuple(shows)


class Statistics(NamedTuple):
    """What the operator has done in this process."""

    calls: int  # of the operator
    compiled: int  # plans made
    kept: int  # plans alive
    eager: int  # calls that PyTorch's operators served, because no engine could
    packed: int  # times that weights were packed to be used again


_warned: set[str] = set()


def warn_left(what: str, error: Exception) -> None:
    """That PyTorch takes something over, and why: each sentence once in a process."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    sentence = f"upweave: {what} is left to PyTorch: {reason}"
    if sentence not in _warned:
        _warned.add(sentence)
        warnings.warn(sentence, stacklevel=2)


# --- Plans ---


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
        made = make()
        with self.lock:
            self.compiled += 1
            made = self.plans.setdefault(key, made)  # another thread may have made it meanwhile
            while len(self.plans) > MOST_PLANS:
                self.plans.popitem(last=False)
        return made


_plans = _Plans()


def statistics() -> Statistics:
    """Counts since the process began, for tests and for the curious."""
    return Statistics(_plans.calls, _plans.compiled, len(_plans.plans), _plans.eager, _weights.kept.packed)


def precision_for(given: str, device: torch.device) -> str:
    """Where PyTorch would multiply a convolution in TF32 (or bfloat16, on the CPU), so do we."""
    if given:
        return given
    backend = torch.backends.cudnn if device.type == "cuda" else torch.backends.mkldnn
    return "fast" if backend.conv.fp32_precision in ("tf32", "bf16") else "strict"


def engine_for(options: Options, dtype: torch.dtype, device: torch.device) -> str:
    return options.engine or ("cuda" if device.type == "cuda" else "reference" if dtype == torch.float64 else "cpu")


def plan_for(text: str, shape: Sequence[int], shapes: dict[str, tuple[int, ...]], dtype: torch.dtype,
             device: torch.device, options: Options) -> Optional[Plan]:
    """The plan, or None where no engine takes it and PyTorch's operators must."""
    word = DTYPES.get(dtype)
    if word is None or device.type not in ("cpu", "cuda"):
        return None
    engine = engine_for(options, dtype, device)
    precision = options.precision
    key = (text, tuple(shape), tuple(shapes.items()), word, engine, precision, options.algorithm, device)

    def make() -> Optional[Plan]:
        try:
            first = _eager.parse(text).inputs[0]
            return compile(text, dtype=word, engine=engine, precision=precision, algorithm=options.algorithm,
                           **{first: tuple(shape)}, **shapes)
        except (ValueError, NotImplementedError, MemoryError, RuntimeError, OverflowError) as error:
            warn_left(f"'{text}'", error)
            return None

    return _plans.get(key, make)


# --- One call ---


@functools.lru_cache(maxsize=512)
def _given_out(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a text gives out beside its result: values, and moments."""
    pipeline = _eager.parse(text)
    moments = [n for n, i in pipeline.outputs.items() if pipeline.nodes[i].operation == "moments"]
    return tuple(n for n in pipeline.outputs if n not in moments), tuple(moments)


def _ordered(text: str, result: Tensor, extra: Mapping[str, Tensor]) -> list[Tensor]:
    """The result, values that are given out, moments."""
    values, moments = _given_out(text)
    return [result, *(extra[n] for n in values), *(extra[n] for n in moments)]


def _run(text: str, plan: Plan, inputs: tuple[Tensor, ...], weights: Any) -> list[Tensor]:
    out = torch.empty(plan.shape, dtype=inputs[0].dtype, device=inputs[0].device)
    if not plan._extra:
        plan._core.run(inputs, weights, out, False, None)
        return [out]
    extra = {name: torch.empty(shape, dtype=_NAMED[dtype], device=out.device)
             for name, (dtype, shape) in plan._extra.items()}
    plan._core.run(inputs, weights, out, False, None, extra)
    return _ordered(text, out, extra)


def _execute(text: str, names: str, input: Tensor, tensors: Sequence[Tensor], options: Options) -> list[Tensor]:
    """The pipeline's values, dense, in the dtype that is computed in (statistics: in float32 or float64)."""
    precision = precision_for(options.precision, input.device)
    others = _eager.parse(text).inputs[1:]

    def made(among: Optional[Sequence[str]] = None) -> dict[str, Tensor]:
        return _recipes.make(names, tensors, input.dtype, options.rounded or input.dtype, input.device, among)

    more = made(others) if others else {}
    inputs = (input, *(more[name] for name in others))
    read = _recipes.sources(names, others) if others else ()
    lasting = [t for i, t in enumerate(tensors) if i not in read] if read else tensors
    use = (text, names, options, precision, input.device, *(t.shape for t in inputs)) if options.keep else None
    entry = _weights.kept.find(use, lasting)
    if entry:
        return _run(text, entry.plan, inputs, entry.packed)
    given = made()
    weights: Any = {name: t for name, t in given.items() if name not in more}
    shapes = {name: tuple(t.shape) for name, t in given.items()}
    plan = plan_for(text, input.shape, shapes, input.dtype, input.device, options._replace(precision=precision))
    try:
        if plan is not None:
            return _run(text, plan, inputs, _weights.kept.add(use, plan, weights, lasting))
    except (NotImplementedError, MemoryError, RuntimeError) as error:
        warn_left(f"'{text}'", error)
    _plans.eager += 1
    return [t.contiguous() for t in _eagerly(text, input, given)]


def _eagerly(text: str, input: Tensor, tensors: dict[str, Tensor]) -> list[Tensor]:
    result, *extra = _eager.run(text, input, tensors)
    return _ordered(text, result, dict(zip(_eager.parse(text).outputs, extra)))


def _shown(results: list[Tensor], shows: Sequence[Show]) -> list[Tensor]:
    """The values as the graph shows them: dtype, axes, order in memory. The last of `shows` is the result's."""
    count = max(1, len(shows))
    values = results[:count] if not shows else [_show(t, s) for t, s in zip(results, (shows[-1], *shows[:-1]))]
    return [*values, *results[count:]]


def _show(result: Tensor, show: Show) -> Tensor:
    if result.dtype != show.dtype:
        result = result.to(show.dtype)
    if show.axes:
        order = [a for group in show.axes for a in group]
        shape = [math.prod([result.shape[a] for a in group]) for group in show.axes]
        order += [a for a in range(result.dim()) if a not in order]
        result = result.permute(order).reshape(shape)
    if not show.strides:
        return result.contiguous()
    strides = _strides(result.shape, show.strides)
    if result.stride() == strides:
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)


def _strides(shape: Sequence[int], text: str) -> tuple[int, ...]:
    if text[0] != ">":
        return tuple(int(s) for s in text.split(","))
    strides, step = [0] * len(shape), 1
    for axis in reversed([int(a) for a in text[1:]]):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def _unbiased(text: str, input: Tensor, names: str, tensors: Sequence[Tensor], moments: list[Tensor]) -> None:
    """Statistics as running averages take them: n/(n - 1) times the variance, n values a channel."""
    key = ("counts", text, input.shape, tuple(t.shape for t in tensors))

    def counts() -> list[float]:
        pipeline = _eager.parse(text)
        values = _eager.evaluate(pipeline, input.to("meta"), _recipes.make(names, [t.to("meta") for t in tensors], input.dtype,
                                                                           input.dtype, torch.device("meta")))
        of = (values[pipeline.nodes[pipeline.outputs[n]].operands[0]] for n in _given_out(text)[1])
        return [v.numel() / v.shape[1] for v in of]

    for m, n in zip(moments, _plans.get(key, counts)):
        m[1].mul_(n / (n - 1))


def execute(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, options: str) -> list[Tensor]:
    """What the operator does, without the operator."""
    _plans.calls += 1
    chosen = parse_options(options)
    with torch.no_grad(), torch.autocast(input.device.type, enabled=False), torch.cuda.device_of(input):
        if chosen.autotune:
            way = _tune.faster(input, tensors, text, names, chosen)
            if way:
                return list(way(input, *tensors))
        return ours(input, tensors, text, names, chosen)


def _finished(results: list[Tensor], input: Tensor, tensors: Sequence[Tensor], text: str, names: str,
              chosen: Options) -> list[Tensor]:
    moments = len(_given_out(text)[1])
    if moments:
        _unbiased(text, input, names, tensors, results[len(results) - moments:])
    return _shown(results, parse_shows(chosen.shows))


def ours(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, chosen: Options) -> list[Tensor]:
    dense = input.to(chosen.dtype or input.dtype).contiguous()
    return _finished(_execute(text, names, dense, tensors, chosen), dense, tensors, text, names, chosen)


def theirs(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, chosen: Options) -> list[Tensor]:
    """The same by PyTorch's operators."""
    return _finished(_reference(input, tensors, text, names, chosen), input, tensors, text, names, chosen)


def _reference(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, chosen: Options) -> list[Tensor]:
    """The same by PyTorch's operators, differentiable."""
    dtype = chosen.dtype or input.dtype
    made = _recipes.make(names, tensors, dtype, chosen.rounded or dtype, input.device)
    return _eagerly(text, input.to(dtype), made)


def _fake(input: Tensor, tensors: Sequence[Tensor], text: str, names: str, options: str) -> list[Tensor]:
    chosen = parse_options(options)
    with torch.no_grad(), torch.autocast(input.device.type, enabled=False):
        values = [torch.empty_like(t, memory_format=torch.contiguous_format)
                  for t in _reference(input, tensors, text, names, chosen)]
        return _shown(values, parse_shows(chosen.shows))


# --- Gradients ---


def _save(ctx: Any, inputs: tuple, output: Any) -> None:
    input, tensors, ctx.text, ctx.names, ctx.options = inputs
    ctx.save_for_backward(input, *tensors)


def _backward(ctx: Any, grads: Sequence[Tensor]) -> tuple:
    """The pipeline again, through PyTorch's own operators, and its gradient from there; differentiable itself where
    that is asked for. Moments have none."""
    saved = ctx.saved_tensors
    needed = [ctx.needs_input_grad[0], *([True] * (len(saved) - 1) if ctx.needs_input_grad[1] is True
                                         else ctx.needs_input_grad[1] or [False] * (len(saved) - 1))]
    again = torch.is_grad_enabled()  # somebody wants the gradient's gradient
    chosen = parse_options(ctx.options)
    with torch.enable_grad(), torch.autocast(saved[0].device.type, enabled=False):
        # Each tensor under a name of its own, so that what one is made of another does not count here.
        leaves = [t.view_as(t) if again and t.requires_grad else t.detach().requires_grad_(need)
                  for t, need in zip(saved, needed)]
        out = _shown(_reference(leaves[0], leaves[1:], ctx.text, ctx.names, chosen), parse_shows(chosen.shows))
        out = out[:len(out) - len(_given_out(ctx.text)[1])]
        pairs = [(o, g.reshape(o.shape)) for o, g in zip(out, grads) if g is not None and o.requires_grad]
        wanted = [leaf for leaf, need in zip(leaves, needed) if need]
        found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True,
                                         create_graph=again))
    result = [next(found) if need else None for need in needed]
    return result[0], result[1:], None, None, None


def _vmap(info: Any, dims: tuple, input: Tensor, tensors: Sequence[Tensor], text: str, names: str,
          options: str) -> tuple:
    """A call for each slice."""
    def part(t: Tensor, dim: Optional[int], i: int) -> Tensor:
        return t if dim is None else t.select(dim, i)

    results = [torch.ops.upweave.run(part(input, dims[0], i), [part(t, d, i) for t, d in zip(tensors, dims[1])],
                                     text, names, options) for i in range(info.batch_size)]
    return [torch.stack(values) for values in zip(*results)], [0] * len(results[0])


# `names` says how the pipeline's tensors are made of `tensors` (see _recipes), `options` how it runs. Behind the result
# come the values that the text gives out.
torch.library.define("upweave::run", "(Tensor input, Tensor[] tensors, str text, str names, str options) -> Tensor[]")
torch.library.impl("upweave::run", ["CPU", "CUDA"], execute)
torch.library.register_fake("upweave::run", _fake)
torch.library.register_autograd("upweave::run", _backward, setup_context=_save)
torch.library.register_vmap("upweave::run", _vmap)


def transformed() -> bool:
    """Inside torch.func's transforms or forward-mode differentiation, which only PyTorch's own operators know."""
    return (torch._C._functorch.peek_interpreter_stack() is not None
            or torch.autograd.forward_ad._current_level >= 0)


def run(text: str, input: Tensor, *, engine: str = "", precision: str = "strict", algorithm: str = "auto",
        **tensors: Tensor) -> Tensor:
    """Runs a pipeline on tensors, with gradients: `upweave.torch.run("conv_transpose kernel | gelu", x, kernel=k)`."""
    if not torch.compiler.is_compiling() and transformed():
        return _eager.run(text, input, tensors)[0]
    options = Options(engine, precision, algorithm)
    return torch.ops.upweave.run(input, list(tensors.values()), text, " ".join(tensors), str(options))[0]
