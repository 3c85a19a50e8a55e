"""What the backend makes of a model, told to a person."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from . import _peer
from ._backend import calls, choose, take
from ._regions import Found, describe
from ._translate import is_convolution


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


@dataclass
class Graph:
    found: list[Found]
    covered: list[str]  # the nodes of each, in words
    left: list[str]  # the nodes that stay with PyTorch
    flops: float = 0.0  # of all convolutions, and of those in calls
    inside: float = 0.0


@dataclass
class Report:
    """What the backend makes of a model: print it."""

    graphs: list[Graph] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Calls of Upweave in one forward."""
        return len(self.texts)

    @property
    def texts(self) -> list[str]:
        """The pipelines, in order."""
        return [f.text for graph in self.graphs for f in graph.found if not f.refused]

    @property
    def left(self) -> list[str]:
        """The operations that stay with PyTorch."""
        return [name for graph in self.graphs for name in graph.left]

    @property
    def share(self) -> float:
        """The share of the convolutions' floating-point work that is in the calls."""
        return sum(g.inside for g in self.graphs) / max(1.0, sum(g.flops for g in self.graphs))

    @property
    def reasons(self) -> list[str]:
        """What is not in a call, and why."""
        found = [f for graph in self.graphs for f in graph.found]
        left = [f"{describe(f.convolution)}: {f.refused}" for f in found if f.refused]
        return left + [f"stops at {node}: {reason}" for f in found if not f.refused for node, reason in f.stopped]

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s), {self.calls} Upweave call(s) a forward"
                 + (f", {self.share:.0%} of the convolutions' work" if any(g.flops for g in self.graphs) else "")]
        for number, graph in enumerate(self.graphs, 1):
            lines.append(f"graph {number}")
            for f, names in zip(graph.found, graph.covered):
                times = f" (predicted {_time(f.ours)}, PyTorch {_time(f.theirs)})" if f.theirs else ""
                if f.refused:
                    more = f" and {len(f.convolutions) - 1} more in one call" if len(f.convolutions) > 1 else ""
                    lines.append(f"  {describe(f.convolution)}{more}: left to PyTorch, because {f.refused}{times}")
                    continue
                lines += [f"  {f.text}{times}", f"    covers {names}"]
                lines += [f"    stops at {node}: {reason}" for node, reason in f.stopped[:3]]
            lines.append(f"  left to PyTorch: {', '.join(graph.left) or 'nothing'}")
        return "\n".join(lines)

    __repr__ = __str__


def _copy(model: Callable) -> Callable:
    """A model of its own, so that its buffers stay as they are; itself where it cannot be copied."""
    if not isinstance(model, torch.nn.Module):
        return model
    try:
        return copy.deepcopy(model)
    except RuntimeError:  # a module that holds results of autograd
        return model


def report(model: Callable, *inputs: Any, options: Optional[Mapping[str, Any]] = None, **keywords: Any) -> Report:
    """Runs a copy of the model once, without gradients, and says which operations become one call, which do not, and
    why. What torch.compile has compiled in this process stays as it is."""
    result = Report()
    chosen = choose(options)

    def record(graph: GraphModule, _: Sequence[Any]) -> Callable:
        own = GraphModule(graph, copy.deepcopy(graph.graph))
        names = {node: describe(node) for node in own.graph.nodes}
        work = {node: _peer.flops(node) for node in own.graph.nodes if is_convolution(node)}
        found = take(own, chosen)
        left = [names[n] for n in calls(own) if n in names]  # what the rewriting itself adds is not the model's
        inside = sum(work.get(n, 0.0) for f in found if not f.refused for n in f.nodes)
        result.graphs.append(Graph(found, [", ".join(names[n] for n in f.nodes if n in names) for f in found], left,
                                   sum(work.values()), inside))
        return graph.forward

    model = _copy(getattr(model, "_orig_mod", model))
    try:
        with torch.no_grad():
            torch.compile(lambda *a, **k: model(*a, **k), backend=aot_autograd(fw_compiler=record))(*inputs, **keywords)
    except RuntimeError:  # PyTorch's operators do not run all graphs that Inductor compiles
        if not result.graphs:
            raise
    return result
