"""torch.compile(model, backend="upweave").

PyTorch's own AOTAutograd makes a functional graph of what Dynamo captured: ATen operations that change nothing, share no
memory that anyone changes, with what the function does to its inputs and buffers as further results. Regions are taken
from that graph alone, and the rest of it goes to Inductor. Where gradients are needed, or nothing is taken, or anything
goes wrong on the way, the captured graph goes to Inductor as it is."""

from __future__ import annotations

import copy
import operator
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.utils import detect_fake_mode
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule, Node
from functorch.compile import make_boxed_func

from . import _judge, _op
from ._op import Options, warn_left
from ._regions import Found, rewrite

_OPTIONS = {"rest": ("inductor", "eager"), "engine": ("", "cpu", "cuda", "reference"),
            "precision": ("", "strict", "fast"), "algorithm": ("auto", "direct"), "take": ("paying", "all"),
            "autotune": (False, True)}
# What costs nothing worth compiling.
_FREE = (torch.ops.upweave.run.default, torch.ops.aten.lerp.Scalar, torch.ops.aten.select.int, torch.ops.aten.view.default,
         torch.ops.aten.permute.default, torch.ops.aten.unsqueeze.default, torch.ops.aten.squeeze.dims)


class _Nothing(Exception):
    """No region is taken."""


def choose(options: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    chosen = {name: values[0] for name, values in _OPTIONS.items()}
    for name, value in (options or {}).items():
        if name not in _OPTIONS:
            raise ValueError(f"option {name!r} is none of {', '.join(_OPTIONS)}")
        if value not in _OPTIONS[name]:
            raise ValueError(f"option {name} is {value!r}; it must be one of {', '.join(map(repr, _OPTIONS[name]))}")
        chosen[name] = value
    return chosen


def calls(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op in ("call_function", "call_method", "call_module")]


def _rest(module: GraphModule, inputs: Sequence[Any], chosen: Mapping[str, Any], patches: dict[str, Any]) -> Callable:
    """What runs a graph: PyTorch's own operators where only free ones are left, Inductor for the others."""
    if chosen["rest"] == "eager":
        return module.forward
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, list(inputs), config_patches=patches or None)


def _wants_gradients(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """True if autograd may be needed: it is on, or the graph turns it on, and something requires a gradient."""
    on = torch.is_grad_enabled() or any(n.target is torch._C._set_grad_enabled for n in module.graph.nodes)
    attributes = [*module.parameters(), *module.buffers()]
    return on and any(isinstance(t, torch.Tensor) and t.requires_grad for t in [*inputs, *attributes])


def _may_hold_a_convolution(module: torch.nn.Module) -> bool:
    return any("conv" in str(node.target) or node.op == "call_module" or node.op == "get_attr"
               for node in module.graph.nodes)


def backend(module: GraphModule, inputs: Sequence[Any], *, options: Optional[Mapping[str, Any]] = None,
            mode: Optional[str] = None, **_: Any) -> Callable:
    """The backend that `torch.compile` calls with each captured graph.

    options  rest: "inductor" (default) or "eager", what runs the operations that no pipeline covers;
             engine: "cpu", "cuda", "reference", or "" for where the tensors are;
             precision: "strict", "fast", or "" for what PyTorch's own switches say; algorithm: "auto" or "direct";
             take: "paying" (default), what is predicted to be faster than Inductor, or "all" that can be said;
             autotune: True measures both where a shape is met first, and remembers the faster on disk
    mode     as for Inductor, which gets it for the rest
    """
    chosen = choose(options)
    patches = torch._inductor.list_mode_options(mode) if mode and mode != "default" else {}
    whole = GraphModule(module, copy.deepcopy(module.graph))  # Inductor may change what it is given

    def left() -> Callable:
        return _rest(whole, inputs, chosen, patches)

    if not _may_hold_a_convolution(module) or _wants_gradients(module, inputs):
        return left()
    found: list[Found] = []

    def compile_inference(graph: GraphModule, fakes: Sequence[Any]) -> Callable:
        found.extend(take(graph, chosen))
        if all(f.refused for f in found):
            raise _Nothing
        if all(n.target in _FREE or n.target is operator.getitem for n in calls(graph)):
            return _direct(graph)
        with tracing(TracingContext(detect_fake_mode(fakes))):
            rest = _rest(graph, fakes, chosen, patches)
        return make_boxed_func(lambda *arguments: rest(*arguments))  # what it calls itself is not how it is called

    def compile_training(graph: GraphModule, fakes: Sequence[Any]) -> Callable:
        raise _Nothing

    try:
        compiled = aot_autograd(fw_compiler=compile_training, bw_compiler=compile_training,
                                inference_compiler=compile_inference)(module, list(inputs))
    except _Nothing:
        return left()
    except RestartAnalysis:  # Dynamo wants to capture it differently
        raise
    except Exception as error:
        warn_left("a graph", error)
        return left()

    def call(*arguments: Any) -> Any:
        return whole(*arguments) if _op.transformed() else compiled(*arguments)

    return call


def take(graph: GraphModule, chosen: Mapping[str, Any]) -> list[Found]:
    """Puts calls into the graph."""
    context = TracingContext.try_get()
    weights = context.fw_metadata.static_input_indices if context and context.fw_metadata else None
    options = Options(chosen["engine"], chosen["precision"], chosen["algorithm"], autotune=chosen["autotune"])

    def pays(found: Found) -> Optional[str]:
        reason = _judge.pays(found)
        judged = chosen["take"] == "paying" and not chosen["autotune"]
        return reason if judged or not found.theirs else None  # without a prediction no engine can do it

    return rewrite(graph, weights or (), options, pays)


def _direct(graph: GraphModule) -> Callable:
    """The graph as Python calls, past PyTorch's dispatcher."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.upweave.run.default:
            node.target = _op.execute
    graph.recompile()
    return graph.forward
