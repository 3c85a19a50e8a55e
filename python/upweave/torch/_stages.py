"""A network while it is found: values of the graph, the stages that make them, and the tensors they need."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .. import _core
from . import _recipes

NARROW = (torch.float32, torch.float16, torch.bfloat16)
FLOATS = (*NARROW, torch.float64)
MOST = 560  # stages and parameters of one network: a text may have 600
MOST_INPUTS = 60
_LONGEST = 400  # bytes of an expression of weights: a longer one is left to the graph
_aten = torch.ops.aten
_CASTS = (_aten._to_copy.default, _aten.clone.default, _aten.alias.default, _aten.detach.default,
          _aten.lift_fresh_copy.default)
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.unsqueeze.default,
          _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims)


@functools.lru_cache(maxsize=1)
def _words() -> frozenset[str]:
    """Every operation's name."""
    return frozenset(row[0] for row in _core.vocabulary())


class NotCovered(Exception):
    """Why a node stays with PyTorch."""


class Value:
    """A value of the region. `shape` is N C and space, as the pipeline has it. `axes` says how the graph's tensor shows
    it: for each axis of that tensor the pipeline's axes that it runs through, in order: ((0,), (1,), (2,), (3,)) is the
    same tensor, ((0,), (2,), (3,), (1,)) has channels last, ((0,), (1,), (2, 3)) has space as one axis, () is an axis of
    extent 1 that the pipeline does not have. Axes that nobody shows have extent 1. `deep` is what a convolution of the
    region is behind; what is not could be computed before the call as well."""

    def __init__(self, id: int, shape: Sequence, axes: Optional[Sequence[tuple[int, ...]]] = None, deep: bool = False,
                 parts: Optional[list["Value"]] = None) -> None:
        self.id, self.shape, self.deep = id, list(shape), deep
        self.axes = [(a,) for a in range(len(self.shape))] if axes is None else list(axes)
        self.parts = parts  # of a node that has several results

    @property
    def plain(self) -> bool:
        return self.axes == [(a,) for a in range(len(self.shape))]

    def seen(self, axes: Optional[Sequence[tuple[int, ...]]] = None) -> "Value":
        return Value(self.id, self.shape, axes, self.deep)


@dataclass
class Convolution:
    """A stage's convolution, whose weights may still change."""

    word: str  # conv or conv_transpose
    kernel: str
    bias: Optional[str]
    rest: str
    groups: int


@dataclass
class Stage:
    result: int
    source: int
    text: str  # {3} stands for value 3
    uses: tuple[int, ...] = ()
    affine: Optional[tuple[str, str]] = None  # scale and shift of a norm with known statistics, by name
    updates: Optional["Updates"] = None  # running averages that its input's statistics go into
    convolution: Optional[Convolution] = None
    node: Any = None


@dataclass
class Updates:
    """Running averages of a batch norm in training mode: the nodes that hold them, and how fast they move."""

    norm: Node
    mean: Node
    variance: Node
    momentum: float


@dataclass
class Region:
    """The stages around some convolutions, while they are found."""

    dtype: torch.dtype  # the convolutions'
    device: torch.device
    weights: frozenset[Node] = frozenset()  # inputs of the graph that are the module's own: they stay from call to call
    values: dict[Node, Value] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)  # name -> how it is made of `sources`: see _recipes
    inputs: dict[int, Node] = field(default_factory=dict)  # values that come from outside
    sources: list[Node] = field(default_factory=list)
    changing: bool = False  # a convolution's weights are computed in each call
    node: Node = None  # type: ignore[assignment]
    count: int = 0
    constants: dict[Node, bool] = field(default_factory=dict)

    def value(self, x: Any) -> Value:
        if not isinstance(x, Node):
            raise NotCovered("its first operand is not a tensor")
        return self.values[x] if x in self.values else self.enter(x)

    def plain(self, x: Any) -> Value:
        value = self.value(x)
        if not value.plain:
            raise NotCovered("it meets a value whose axes are moved or joined")
        return value

    def enter(self, x: Node) -> Value:
        """A value from outside, which becomes an input."""
        tensor = example(x)
        if not isinstance(tensor, torch.Tensor) or tensor.dim() not in (3, 4, 5) or tensor.layout != torch.strided:
            raise NotCovered("an operand from outside is no tensor of samples, channels and one to three axes")
        if tensor.dtype not in FLOATS or (tensor.dtype == torch.float64) != (self.dtype == torch.float64):
            raise NotCovered(f"an operand has dtype {tensor.dtype}")
        if tensor.device != self.device:
            raise NotCovered(f"an operand is on {tensor.device}")
        if any(isinstance(e, int) and e == 0 for e in tensor.shape):
            raise NotCovered("one of its extents is 0")
        if len(self.inputs) >= MOST_INPUTS:
            raise NotCovered(f"the network has {MOST_INPUTS} inputs already")
        value = self.new_value(tensor.shape)
        self.values[x] = value
        self.inputs[value.id] = x
        return value

    def new_value(self, shape: Sequence, axes: Optional[Sequence[tuple[int, ...]]] = None, deep: bool = False) -> Value:
        self.count += 1
        return Value(self.count, shape, axes, deep)

    def add(self, source: Value, text: str, shape: Optional[Sequence] = None, uses: tuple[Value, ...] = (),
            axes: Optional[Sequence[tuple[int, ...]]] = None, **more: Any) -> Value:
        if len(self.stages) + len(self.tensors) > MOST:
            raise NotCovered("the network is as long as one text may be")
        for word in [more["convolution"].word] if "convolution" in more else [t.split()[0] for t in text.split(" | ")]:
            if word not in _words():
                raise NotCovered("the vocabulary has no such operation")
        deep = source.deep or "convolution" in more or any(v.deep for v in uses)
        result = self.new_value(source.shape if shape is None else shape, source.axes if axes is None else axes, deep)
        self.stages.append(Stage(result.id, source.id, text, tuple(v.id for v in uses), node=self.node, **more))
        return result

    # --- Tensors from outside ---

    def constant(self, node: Node) -> bool:
        """Whether it depends on the module's own tensors alone."""
        known = self.constants.get(node)
        if known is not None:
            return known
        todo = [node]
        while todo:  # without recursion: graphs are long
            n = todo[-1]
            if n in self.constants:
                todo.pop()
                continue
            if n.op != "call_function":
                self.constants[n] = n in self.weights or n.op == "get_attr"
                continue
            unknown = [i for i in n.all_input_nodes if i not in self.constants]
            if unknown:
                todo += unknown
            else:
                self.constants[n] = (pure(n) and bool(n.all_input_nodes)
                                     and all(self.constants[i] for i in n.all_input_nodes))
        return self.constants[node]

    def expression(self, node: Node, what: str) -> Any:
        """How a tensor is made of those that the call gets: of the module's own where that can be said."""
        if not given(node) and self.constant(node):
            before = list(self.sources)
            try:
                made = self._made(node, what)
            except NotCovered:
                made = None
            if made is not None and len(_recipes.write(made)) <= _LONGEST:
                return made
            self.sources = before
        return self.source(node, what)

    def _made(self, node: Node, what: str) -> Any:
        if given(node):
            return self.source(node, what)
        if not isinstance(node.target, torch._ops.OpOverload):  # one result of several
            made = self._made(node.args[0], what)
            return None if made is None else ["item", made, node.args[1]]
        name = str(node.target)
        if not name.startswith("aten."):
            return None

        def argument(x: Any) -> Any:
            if isinstance(x, Node):
                return {"t": self._made(x, what)}
            if isinstance(x, (list, tuple)):
                return [argument(y) for y in x]
            if isinstance(x, (torch.dtype, torch.memory_format)):
                return {"torch": str(x).rpartition(".")[2]}
            if x is None or isinstance(x, (bool, int, str)) or isinstance(x, float) and math.isfinite(x):
                return x
            raise NotCovered(f"its {what} is computed in a way that cannot be said")

        return ["aten", name[5:], argument(node.args), {k: argument(v) for k, v in node.kwargs.items()
                                                        if not isinstance(v, (torch.device, torch.layout))}]

    def source(self, node: Any, what: str) -> int:
        """The position of a tensor among those that the call gets. Its dtype may be any: casts are done with the call's."""
        if not isinstance(node, Node) or not isinstance(example(node), torch.Tensor):
            raise NotCovered(f"its {what} is not a tensor")
        tensor = example(node)
        if tensor.dtype not in FLOATS or (tensor.dtype == torch.float64) != (self.dtype == torch.float64) and tensor.dim():
            raise NotCovered(f"its {what} has dtype {tensor.dtype}")
        if node in self.values and self.values[node].id not in self.inputs:
            raise NotCovered(f"its {what} is the pipeline's own value")
        if node not in self.sources:
            self.sources.append(node)
        return self.sources.index(node)

    def weight(self, node: Any, what: str) -> str:
        """A tensor that the convolution reads: rounded to its dtype, taken from before its cast."""
        node = behind(node, _CASTS)
        expression = self.expression(node, what)
        if isinstance(expression, int) and not given(node):
            if any(s.convolution for s in self.stages):
                raise NotCovered(f"its {what} is computed in each call")
            self.changing = True
        return self.name(["w", expression])

    def full(self, node: Node, what: str) -> str:
        """A weight that is as large as a value."""
        return f"{self.name(self.expression(node, what))}:full"

    def vector(self, node: Any, what: str) -> str:
        node = behind(node, (*_CASTS, *_VIEWS))
        expression = self.expression(node, what) if isinstance(node, Node) else None
        if isinstance(node, Node) and isinstance(expression, int) and not given(node):
            raise NotCovered(f"its {what} is computed in each call, and would be packed with the weights")
        return self.name(["v", expression if expression is not None else self.source(node, what)])

    def name(self, recipe: Any) -> str:
        for name, known in self.tensors.items():
            if known == recipe:
                return name
        name = f"t{len(self.tensors)}"
        self.tensors[name] = recipe
        return name

    def norm(self, mean: Node, variance: Node, weight: Optional[Node], bias: Optional[Node],
             eps: float) -> tuple[str, str]:
        """Scale and shift of a norm with known statistics, for each channel."""
        given = [None if n is None else self.expression(n, "statistics") for n in (mean, variance, weight, bias)]
        eps = float(number(eps))
        return self.name(["scale", *given, eps]), self.name(["shift", *given, eps])


def example(node: Node) -> Any:
    return node.meta.get("val")


def given(node: Node) -> bool:
    """An input of the graph, or a constant."""
    return node.op in ("placeholder", "get_attr")


def pure(node: Node) -> bool:
    """Whether it may be computed at another time: it draws no random numbers and changes nothing."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in target.tags and not target._schema.is_mutable
    return getattr(target, "__module__", "") in ("_operator", "math")


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
