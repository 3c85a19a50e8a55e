"""A pipeline while it is found: values of the graph, the stages that make them, and the tensors they need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

NARROW = (torch.float32, torch.float16, torch.bfloat16)
FLOATS = (*NARROW, torch.float64)
_aten = torch.ops.aten
_CASTS = (_aten._to_copy.default, _aten.clone.default, _aten.alias.default, _aten.detach.default,
          _aten.lift_fresh_copy.default)
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.unsqueeze.default,
          _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims)


class NotCovered(Exception):
    """Why a node stays with PyTorch."""


class Value:
    """A value of the region. `shape` is N C and space, as the pipeline has it. `axes` says how the graph's tensor shows
    it: for each axis of that tensor the pipeline's axes that it runs through, in order: ((0,), (1,), (2,), (3,)) is the
    same tensor, ((0,), (2,), (3,), (1,)) has channels last, ((0,), (1,), (2, 3)) has space as one axis, () is an axis of
    extent 1 that the pipeline does not have. Axes that nobody shows have extent 1."""

    def __init__(self, id: int, shape: Sequence, axes: Optional[Sequence[tuple[int, ...]]] = None) -> None:
        self.id, self.shape = id, list(shape)
        self.axes = [(a,) for a in range(len(self.shape))] if axes is None else list(axes)

    @property
    def plain(self) -> bool:
        return self.axes == [(a,) for a in range(len(self.shape))]

    def seen(self, axes: Sequence[tuple[int, ...]]) -> "Value":
        return Value(self.id, self.shape, axes)


@dataclass
class Stage:
    result: int
    source: int
    text: str  # {3} stands for value 3
    uses: tuple[int, ...] = ()
    affine: bool = False  # a norm with known statistics, as a scale and a shift for each channel
    updates: Optional["Updates"] = None  # running averages that its input's statistics go into


@dataclass
class Updates:
    """Running averages of a batch norm in training mode: the nodes that hold them, and how fast they move."""

    norm: Node
    mean: Node
    variance: Node
    momentum: float


@dataclass
class Region:
    """The stages around one convolution, while they are found."""

    dtype: torch.dtype  # the convolution's
    weights: frozenset[Node] = frozenset()  # inputs of the graph that are the module's own: they stay from call to call
    values: dict[Node, Value] = field(default_factory=dict)
    stages: dict[Node, list[Stage]] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)  # name -> how it is made of `sources`: see _op.Recipe
    inputs: list[str] = field(default_factory=list)  # those of them that are inputs, beside the region's own
    sources: list[Node] = field(default_factory=list)
    node: Node = None  # type: ignore[assignment]
    count: int = 0

    def value(self, x: Any) -> Value:
        if not isinstance(x, Node) or x not in self.values:
            raise NotCovered("its first operand is not the pipeline's value")
        return self.values[x]

    def plain(self, x: Any) -> Value:
        value = self.value(x)
        if not value.plain:
            raise NotCovered("it meets a value whose axes are moved or joined")
        return value

    def new_value(self, shape: Sequence, axes: Optional[Sequence[tuple[int, ...]]] = None) -> Value:
        self.count += 1
        return Value(self.count, shape, axes)

    def add(self, source: Value, text: str, shape: Optional[Sequence] = None, uses: tuple[Value, ...] = (),
            axes: Optional[Sequence[tuple[int, ...]]] = None, **more: Any) -> Value:
        result = self.new_value(source.shape if shape is None else shape, source.axes if axes is None else axes)
        self.stages[self.node].append(Stage(result.id, source.id, text, tuple(v.id for v in uses), **more))
        return result

    # --- Tensors from outside ---

    def source(self, node: Any, what: str) -> int:
        """The position of a tensor among those that the call gets. Its dtype may be any: casts are done with the call's."""
        if not isinstance(node, Node) or not isinstance(example(node), torch.Tensor):
            raise NotCovered(f"its {what} is not a tensor")
        tensor = example(node)
        if tensor.dtype not in FLOATS or (tensor.dtype == torch.float64) != (self.dtype == torch.float64) and tensor.dim():
            raise NotCovered(f"its {what} has dtype {tensor.dtype}")
        if node in self.values:
            raise NotCovered(f"its {what} is the pipeline's own value")
        if node not in self.sources:
            self.sources.append(node)
        return self.sources.index(node)

    def weight(self, node: Any, what: str) -> str:
        """A tensor that the convolution reads: rounded to its dtype, taken from before its cast."""
        return self.name(f"{self.source(behind(node, _CASTS), what)}w")

    def tensor(self, node: Any, what: str) -> str:
        """The operand for one that is as large as a value: a weight, or else an input, which is read where it is."""
        name = self.name(f"{self.source(node, what)}")
        if node in self.weights:
            return f"{name}:full"
        if name not in self.inputs:
            self.inputs.append(name)
        return f"@{name}"

    def vector(self, node: Any, what: str) -> str:
        node = behind(node, (*_CASTS, *_VIEWS))
        if isinstance(node, Node) and not given(node):
            raise NotCovered(f"its {what} is computed in each call, and would be packed with the weights")
        return self.name(f"{self.source(node, what)}v")

    def name(self, recipe: str) -> str:
        for name, known in self.tensors.items():
            if known == recipe:
                return name
        name = f"t{len(self.tensors)}"
        self.tensors[name] = recipe
        return name

    def norm(self, mean: Node, variance: Node, weight: Optional[Node], bias: Optional[Node],
             eps: float) -> tuple[str, str]:
        """Scale and shift of a norm with known statistics, for each channel."""
        given = ",".join("-" if n is None else str(self.source(n, "statistics")) for n in (mean, variance, weight, bias))
        return tuple(self.name(f"{kind}:{given}:{number(eps)}") for kind in ("scale", "shift"))


def example(node: Node) -> Any:
    return node.meta.get("val")


def given(node: Node) -> bool:
    """An input of the graph, or a constant."""
    return node.op in ("placeholder", "get_attr")


def behind(node: Any, targets: Sequence[Any]) -> Any:
    """What was given to the graph and comes through these operations alone; the node itself if there is none such."""
    first = node
    while isinstance(first, Node) and first.target in targets:
        first = first.args[0]
    if not isinstance(first, Node) or not given(first) or not isinstance(example(first), torch.Tensor):
        return node
    kept = example(first).dtype in FLOATS and example(first).device == example(node).device
    return first if kept else node


def is_one(extent: Any) -> bool:
    return statically_known_true(extent == 1)


def same(a: Sequence, b: Sequence) -> bool:
    """Equal extents, without asking a symbol for its value."""
    return len(a) == len(b) and all(statically_known_true(x == y) for x, y in zip(a, b))


def number(x: Any, what: str = "operand") -> str:
    if isinstance(x, bool) or not isinstance(x, (int, float)) or math.isnan(x):
        raise NotCovered(f"its {what} is {x}, not a number known now")
    return repr(float(x))


def extents(x: Any, count: int) -> list[int]:
    """One number for each of `count` axes, from one for all or one each."""
    values = list(x) if isinstance(x, (list, tuple)) else [x]
    if not all(isinstance(v, int) for v in values):
        raise NotCovered("its extents are symbols")
    if len(values) not in (1, count):
        raise NotCovered(f"it has {len(values)} extents for {count} axes")
    return values * count if len(values) == 1 else values


def written(values: Sequence[int]) -> str:
    return "x".join(map(str, values if len(set(values)) > 1 else values[:1]))
