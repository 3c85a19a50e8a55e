"""torch.compile(model, backend="upweave"), and a report of what it does to a model."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch.fx import GraphModule

from . import _op  # noqa: F401  (registers the operator)
from ._regions import Found, describe, rewrite

_OPTIONS = {"rest": ("inductor", "eager"), "engine": ("", "cpu", "cuda", "reference"), "precision": ("strict", "fast")}
# What costs nothing worth compiling.
_FREE = ("getitem", "to", "reshape", "contiguous", "mul_", "add_", "bn_scale", "bn_shift", "permute", "tensor", "detach",
         "view", "unsqueeze")


def _choose(options: Optional[Mapping[str, str]]) -> dict[str, str]:
    chosen = {name: values[0] for name, values in _OPTIONS.items()}
    for name, value in (options or {}).items():
        if name not in _OPTIONS:
            raise ValueError(f"option {name!r} is none of {', '.join(_OPTIONS)}")
        if value not in _OPTIONS[name]:
            raise ValueError(f"option {name} is {value!r}; it must be one of {', '.join(map(repr, _OPTIONS[name]))}")
        chosen[name] = value
    return chosen


def _left(module: GraphModule) -> list[str]:
    """The nodes that stay with PyTorch."""
    left = []
    for node in module.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module") and node.target != torch.ops.upweave.run.default:
            left.append(describe(node))
    return left


def backend(module: GraphModule, inputs: Sequence[Any], *, options: Optional[Mapping[str, str]] = None,
            mode: Optional[str] = None, **_: Any) -> Callable:
    """The backend that `torch.compile` calls with each captured graph.

    options  rest: "inductor" (default) or "eager", what runs the nodes that no pipeline covers;
             engine: "cpu", "cuda", "reference", or "" for where the tensors are; precision: "strict" or "fast"
    """
    chosen = _choose(options)
    found = rewrite(module, f"{chosen['engine']},{chosen['precision']}")
    nothing_left = all(name.partition(" ")[0] in _FREE for name in _left(module))
    if chosen["rest"] == "eager" or (nothing_left and any(not f.refused for f in found)):
        return module.forward
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, list(inputs))


@dataclass
class Report:
    """What the backend makes of a model: print it."""

    graphs: list[tuple[list[Found], list[str], list[str]]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Calls of Upweave in one forward."""
        return sum(not f.refused for found, _, _ in self.graphs for f in found)

    @property
    def texts(self) -> list[str]:
        """The pipelines, in order."""
        return [f.text for found, _, _ in self.graphs for f in found if not f.refused]

    @property
    def left(self) -> list[str]:
        """The operations that stay with PyTorch."""
        return [name for _, left, _ in self.graphs for name in left]

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s), {self.calls} Upweave call(s) a forward"]
        for number, (found, left, covered) in enumerate(self.graphs, 1):
            lines.append(f"graph {number}")
            for f, names in zip(found, covered):
                if f.refused:
                    lines.append(f"  {describe(f.convolution)}: left to PyTorch, because {f.refused}")
                    continue
                lines += [f"  {f.text}", f"    covers {names}"]
                lines += [f"    stops at {node}: {reason}" for node, reason in f.stopped[:3]]
            lines.append(f"  left to PyTorch: {', '.join(left) or 'nothing'}")
        return "\n".join(lines)

    __repr__ = __str__


def report(model: Callable, *inputs: Any, **keywords: Any) -> Report:
    """Runs a copy of the model once and says which operations became one call, which did not, and why. What
    torch.compile has compiled in this process so far is forgotten, and compiled again when it is called."""
    result = Report()

    def record(module: GraphModule, _: Sequence[Any]) -> Callable:
        names = {node: describe(node) for node in module.graph.nodes}
        found = rewrite(module)
        # What the rewriting itself adds is not the model's.
        left = [describe(n) for n in module.graph.nodes if n in names
                and n.op in ("call_function", "call_method", "call_module")]
        result.graphs.append((found, left, [", ".join(names[n] for n in f.nodes) for f in found]))
        return module.forward

    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model)
    torch._dynamo.reset()
    torch.compile(model, backend=record)(*inputs, **keywords)
    torch._dynamo.reset()
    return result
