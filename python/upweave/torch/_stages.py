"""A pipeline while it is found: values of the graph, the stages that make them, and the tensors they need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch._dynamo.source import AttrSource
from torch.fx import Node

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class NotCovered(Exception):
    """Why a node stays with PyTorch."""


@dataclass
class Value:
    """A value of the region. `shape` is N C and space; `layout` says how the graph's tensor shows it:
    plain (so), flat (N C and one axis for space), last (channels last), loose (otherwise: pointwise use only)."""

    id: int
    shape: list
    layout: str = "plain"


@dataclass
class Stage:
    result: int
    source: int
    text: str  # {3} stands for value 3
    uses: tuple[int, ...] = ()
    affine: bool = False  # a norm with known statistics, as a scale and a shift for each channel
    moments: Optional[tuple] = None  # running mean, running variance, momentum: to be updated from its input


@dataclass
class Region:
    """The stages around one convolution, while they are found."""

    values: dict[Node, Value] = field(default_factory=dict)
    stages: dict[Node, list[Stage]] = field(default_factory=dict)
    tensors: dict[str, tuple] = field(default_factory=dict)  # name -> (kind, arguments): see `tensor` and `folded_norm`
    node: Node = None  # type: ignore[assignment]
    count: int = 0

    def value(self, x: Any, *layouts: str) -> Value:
        if not isinstance(x, Node) or x not in self.values:
            raise NotCovered("its first operand is not the pipeline's value")
        value = self.values[x]
        if layouts and value.layout not in layouts:
            raise NotCovered(f"it meets a value whose axes are {value.layout}")
        return value

    def new_value(self, shape: list, layout: str = "plain") -> Value:
        self.count += 1
        return Value(self.count, list(shape), layout)

    def add(self, source: Value, text: str, shape: Optional[list] = None, uses: tuple[Value, ...] = (),
            **more: Any) -> Value:
        result = self.new_value(source.shape if shape is None else shape, source.layout)
        self.stages[self.node].append(Stage(result.id, source.id, text, tuple(v.id for v in uses), **more))
        return result

    def tensor(self, node: Any, what: str, view: Optional[list] = None) -> str:
        """The name of a tensor from outside, seen with the shape `view`."""
        if not isinstance(node, Node) or not isinstance(example(node), torch.Tensor):
            raise NotCovered(f"its {what} is not a tensor")
        if example(node).dtype not in FLOATS:
            raise NotCovered(f"its {what} has dtype {example(node).dtype}")
        if node in self.values:
            raise NotCovered(f"its {what} is the pipeline's own value")
        return self._name("tensor", (node, None if view is None else tuple(view)))

    def _name(self, kind: str, arguments: tuple) -> str:
        for name, known in self.tensors.items():
            if known == (kind, arguments):
                return name
        name = f"t{len(self.tensors)}"
        self.tensors[name] = (kind, arguments)
        return name

    def folded_norm(self, mean: Node, variance: Node, weight: Optional[Node], bias: Optional[Node],
                    eps: float) -> tuple[str, str]:
        arguments = (mean, variance, weight, bias, eps)
        return self._name("scale", arguments), self._name("shift", arguments)


def example(node: Node) -> Any:
    return node.meta.get("example_value")


def same(a: Any, b: Any) -> bool:
    """Equal extents, without asking a symbol for its value."""
    return len(a) == len(b) and all(x is y or str(x) == str(y) for x, y in zip(a, b))


def _settled(x: Any) -> Any:
    """With dynamic=True PyTorch makes symbols of a module's own numbers too, an eps or a slope: they are read now, and
    PyTorch compiles again should one change. Numbers that are arguments may change at every call and stay symbols."""
    value = example(x) if isinstance(x, Node) else x
    if not isinstance(value, torch.SymFloat):
        return x
    sources = value.node.shape_env.var_to_sources.get(value.node.expr, [])
    own = bool(sources) and all(isinstance(source, AttrSource) for source in sources)
    return float(value) if own or value.node.expr.is_number else x


def number(x: Any, what: str = "operand") -> str:
    x = _settled(x)
    if isinstance(x, bool) or not isinstance(x, (int, float)) or math.isnan(x):
        raise NotCovered(f"its {what} is {x}, not a number known now")
    return repr(float(x))


def extents(x: Any) -> str:
    values = [x] if isinstance(x, int) else list(x)
    if not all(isinstance(v, int) for v in values):
        raise NotCovered("its extents are symbols")
    return "x".join(map(str, values if len(set(values)) > 1 else values[:1]))
