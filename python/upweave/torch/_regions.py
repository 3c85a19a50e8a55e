"""Finds the parts of a functional graph that one network can say: convolutions with all that lies between and around them,
as many as there are, and puts one call in the place of each part. Nodes of such a graph change nothing and share no memory
that anyone changes, so a part may be computed wherever what it reads is there, if nothing that it reads depends on it."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

import torch
from torch.fx import GraphModule, Node

from ._op import Options
from ._stages import NotCovered, Region, Stage, example, pure
from ._translate import is_convolution, translate
from ._write import Writer


@dataclass
class Found:
    """A part of the graph: `nodes` become one call, `stopped` says why no more do."""

    convolution: Node  # the first
    nodes: list[Node] = field(default_factory=list)
    writer: Optional[Writer] = None
    stopped: list[tuple[str, str]] = field(default_factory=list)  # (node, reason)
    refused: Optional[str] = None  # why there is no call at all
    ours: float = 0.0  # seconds that the call is predicted to take, and that PyTorch is
    theirs: float = 0.0

    @property
    def text(self) -> str:
        return self.writer.text if self.writer else ""

    @property
    def convolutions(self) -> list[Node]:
        return [n for n in self.nodes if is_convolution(n)] or [self.convolution]


_CROPS = (torch.ops.aten.slice.Tensor, torch.ops.aten.split.Tensor, torch.ops.aten.split_with_sizes.default)


def describe(node: Node) -> str:
    name = getattr(node.target, "_overloadpacket", node.target)
    return f"{getattr(name, '__name__', name)} ({node.name})"


def _is_extent(node: Node) -> bool:
    """A number that the shapes of values say."""
    return isinstance(example(node), (int, torch.SymInt, torch.SymBool, torch.SymFloat))


# --- Growing ---


class _Growth:
    """Walks the graph in order. A node joins the region if it can be said and depends on nothing outside that depends on
    the region."""

    def __init__(self, seed: Node, wanted: frozenset[Node], weights: frozenset[Node], cuts: set[Node]) -> None:
        self.seed, self.wanted, self.cuts = seed, wanted, cuts
        self.region = Region(example(seed).dtype, example(seed).device, weights)
        self.outside: set[Node] = set()  # what depends on the region and is not of it
        self.why: dict[Node, str] = {}
        ordered = False  # what draws random numbers or changes something keeps its order
        for node in seed.graph.nodes:
            if node.op != "call_function":
                continue
            if not pure(node):
                if ordered or self._depends(node):
                    ordered = True
                    self.outside.add(node)
                if self._reads(node):
                    self.why[node] = "it drops at random" if "dropout" in node.name else "it must be done in its order"
            elif _is_extent(node):
                if self._depends(node):
                    self.outside.add(node)
            elif any(n in self.outside and not _is_extent(n) for n in node.all_input_nodes):
                self.outside.add(node)
            elif not self._join(node) and self._depends(node):
                self.outside.add(node)

    def _reads(self, node: Node) -> bool:
        values = self.region.values
        return any(n in values and values[n].deep for n in node.all_input_nodes)

    def _depends(self, node: Node) -> bool:
        return self._reads(node) or any(n in self.outside for n in node.all_input_nodes)

    def _join(self, node: Node) -> bool:
        region = self.region
        if node in self.cuts or region.constant(node):
            return False
        try:
            if is_convolution(node) and node not in self.wanted:
                raise NotCovered("that convolution is left to PyTorch")
            try:
                translate(region, node)
            except NotCovered:
                heads = [n for n in node.all_input_nodes if n in region.values and not region.values[n].deep
                         and region.inputs.get(region.values[n].id) is not n]
                if not heads or not (is_convolution(node) or self._reads(node)):
                    raise
                kept = {n: region.values.pop(n) for n in heads}  # as they are outside
                try:
                    translate(region, node)
                except NotCovered:
                    region.values.update(kept)
                    raise
            return True
        except NotCovered as reason:
            self.why[node] = str(reason)
            return False


class _Part:
    """What of a growth hangs together with its seed: its stages, the nodes that they make, and those that others read."""

    def __init__(self, growth: _Growth) -> None:
        region = growth.region
        self.region, self.values = region, self._connected(region, region.values[growth.seed].id)
        self.inside = [n for n, v in region.values.items() if v.id in self.values]
        self.members = set(self.inside)
        self.outputs = self._outputs()
        self.stages = self._live()
        made = {s.result for s in self.stages}
        self.inside = [n for n in self.inside if region.values[n].id in made]
        self.members = set(self.inside)

    @staticmethod
    def _connected(region: Region, start: int) -> set[int]:
        """Values that stages join, but not by an input that several read."""
        near: dict[int, set[int]] = {}
        for stage in region.stages:
            ids = [i for i in (stage.source, stage.result, *stage.uses) if i not in region.inputs]
            for i in ids:
                near.setdefault(i, set()).update(ids)
        seen, todo = {start}, [start]
        while todo:
            for i in near.get(todo.pop(), ()):
                if i not in seen:
                    seen.add(i)
                    todo.append(i)
        return seen

    def _read_outside(self, node: Node) -> bool:
        return any(u not in self.members and not self._serves(u) and not self._statistic(u) for u in node.users)

    def _serves(self, node: Node) -> bool:
        """An extent that only the region's own nodes ask for: it goes with them."""
        return _is_extent(node) and all(u in self.members or self._serves(u) for u in node.users)

    def _statistic(self, node: Node) -> bool:
        """A running average that a norm of the region gives out: the call gives it out too."""
        return (node.target is operator.getitem and node.args[1] in (3, 4)
                and any(s.updates and s.updates.norm is node.args[0] for s in self.region.stages))

    def heads_read_outside(self) -> list[Node]:
        """What no convolution is behind is computed once: outside, if others read it."""
        return [n for n in self.inside if not self.region.values[n].deep and self._read_outside(n)]

    def _outputs(self) -> list[Node]:
        """The nodes that others read, one for each value if several show it: the others are made of it."""
        values = self.region.values
        read: dict[int, list[Node]] = {}
        for n in self.inside:
            if values[n].deep and isinstance(example(n), torch.Tensor) and self._read_outside(n):
                while n.target in _CROPS or n.target is operator.getitem and n.args[0].target in _CROPS:
                    n = n.args[0]  # others read a part of it where it lies
                if n not in read.setdefault(values[n].id, []):
                    read[values[n].id].append(n)
        first = {}
        for n in self.inside:
            if isinstance(example(n), torch.Tensor):
                first.setdefault(values[n].id, n)
        return [nodes[0] if len(nodes) == 1 else first[id] for id, nodes in read.items()]

    def _live(self) -> list[Stage]:
        wanted = {self.region.values[n].id for n in self.outputs}
        live = []
        for stage in reversed(self.region.stages):
            if stage.result in wanted:
                live.insert(0, stage)
                wanted.update((stage.source, *stage.uses))
        return live


def _find(seed: Node, wanted: frozenset[Node], weights: frozenset[Node], options: Options) -> Found:
    """The largest part around the seed with convolutions of `wanted`."""
    found, cuts = Found(seed), set()
    while True:
        growth = _Growth(seed, wanted, weights, cuts)
        if seed not in growth.region.values or growth.region.values[seed].id in growth.region.inputs:
            found.refused = growth.why.get(seed, "it depends on what is left")
            return found
        part = _Part(growth)
        more = part.heads_read_outside()
        if not more:
            break
        cuts.update(more)
    place = {node: i for i, node in enumerate(seed.graph.nodes)}
    found.nodes = sorted(part.inside, key=place.__getitem__)
    near = part.members
    found.stopped = [(describe(n), why) for n, why in growth.why.items()
                     if n not in near and any(i in near for i in n.all_input_nodes) and not part._statistic(n)]
    try:
        found.writer = Writer(part.region, part.stages, part.outputs, found.nodes, options)
    except NotCovered as reason:
        found.refused = str(reason)
    return found


# --- Choosing and replacing ---


def _replace(found: Found) -> None:
    """The call behind all that it reads, and what reads it behind the call."""
    graph, writer = found.convolution.graph, found.writer
    place = {node: i for i, node in enumerate(graph.nodes)}
    after = max((n for n in (writer.source, *writer.sources)), key=place.__getitem__)
    depends = set(found.nodes)
    late = []
    for node in graph.nodes:
        if node.op == "output":
            break
        if any(n in depends for n in node.all_input_nodes):
            depends.add(node)
            late.append(node)
    first_reader = next((n for n in graph.nodes if n in depends), None)
    if place[after] < place[first_reader]:
        after = first_reader.prev
    cursor = writer.write(graph, after)
    for node in late:
        if place[node] <= place[after]:
            cursor.append(node)
            cursor = node


def _pieces(whole: Found, find: Callable, pays: Callable) -> list[Found]:
    """What pays of a part that does not: each convolution alone, and those that pay together."""
    single = []
    for node in whole.convolutions:
        found = find(node, frozenset([node]))
        found.refused = found.refused or pays(found)
        single.append(found)
    good = frozenset(f.convolution for f in single if not f.refused)
    if len(good) < 2:
        return single
    joined, left = [], set(good)
    for f in single:
        if f.convolution not in left:
            continue
        found = find(f.convolution, frozenset(left))
        inside = set(found.convolutions) & left
        found.refused = found.refused or pays(found)
        if found.refused or len(inside) == 1:
            found, inside = f, {f.convolution}
        left -= inside
        joined.append(found)
    return joined + [f for f in single if f.refused]


def rewrite(module: GraphModule, weights: Sequence[int], options: Options,
            pays: Callable[[Found], Optional[str]] = lambda found: None) -> list[Found]:
    """Rewrites the graph in place and says what was found. `weights` are the places among the graph's inputs of the
    module's own tensors; `pays` says why a call is not worth it, or None."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    fixed = frozenset(inputs[i] for i in weights)
    order = [n for n in module.graph.nodes if is_convolution(n)]
    results, left = [], dict.fromkeys(order)

    def find(seed: Node, wanted: frozenset[Node]) -> Found:
        return _find(seed, wanted, fixed, options)

    def take(found: Found) -> None:
        for n in found.convolutions:
            left.pop(n, None)
        results.append(found)
        if not found.refused:
            _replace(found)
            module.graph.eliminate_dead_code()

    while left:
        seed = next(iter(left))
        found = find(seed, frozenset(left))
        found.refused = found.refused or pays(found)
        if not found.refused or len(found.convolutions) == 1:
            take(found)
            continue
        results.append(found)
        for piece in _pieces(found, find, pays):
            if not piece.refused and any(n not in left for n in piece.convolutions):
                continue
            if not piece.refused:  # the graph may have changed around it
                piece = find(piece.convolution, frozenset(piece.convolutions))
                piece.refused = piece.refused or pays(piece)
            take(piece)
        for n in found.convolutions:
            left.pop(n, None)
    module.graph.lint()
    module.recompile()
    return results
