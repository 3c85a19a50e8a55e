"""Finds each transposed convolution of a functional graph with the largest part around it that one pipeline can say,
and puts one call in its place. Nodes of such a graph change nothing and share no memory that anyone changes, so a part may
be computed wherever what it reads is there."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

import torch
from torch.fx import GraphModule, Node

from ._op import Options
from ._stages import NotCovered, Region, example
from ._translate import HEADS, is_convolution, translate
from ._write import Writer


@dataclass
class Found:
    """One convolution's part of the graph: `nodes` become one call, `stopped` says why no more do."""

    convolution: Node
    nodes: list[Node] = field(default_factory=list)
    writer: Optional[Writer] = None
    stopped: list[tuple[str, str]] = field(default_factory=list)  # (node, reason)
    refused: Optional[str] = None  # why there is no call at all
    ours: float = 0.0  # seconds that the call is predicted to take, and that PyTorch is
    theirs: float = 0.0

    @property
    def text(self) -> str:
        return self.writer.runs if self.writer else ""


def describe(node: Node) -> str:
    name = getattr(node.target, "_overloadpacket", node.target)
    return f"{getattr(name, '__name__', name)} ({node.name})"


# --- Finding ---


def _leads(node: Any) -> bool:
    """True if the node may stand before the convolution, for all that can be said without translating it."""
    if not isinstance(node, Node) or node.target not in HEADS or len(node.users) != 1:
        return False
    if not node.args or not isinstance(node.args[0], Node):
        return False
    others = [a for a in node.args[1:] if isinstance(a, Node) and isinstance(example(a), torch.Tensor)]
    return all(example(a).dim() == 1 for a in others)  # a norm's vectors; other tensors would be read as weights are


def _heads(convolution: Node) -> list[list[Node]]:
    """The chains before the convolution that nobody else reads, the longest first, each with its first node first."""
    chain: list[Node] = []
    node = convolution.args[0]
    while True:
        pair = [node]
        if isinstance(node, Node) and node.target is operator.getitem and node.args[1] == 0 and len(node.users) == 1:
            node = node.args[0]  # one result of several
            pair.insert(0, node)
        if not _leads(node):
            break
        chain[:0] = pair
        node = node.args[0]
    # A cast rounds what the convolution reads, not what its head does.
    dtype = example(convolution).dtype
    starts = [i for i, n in enumerate(chain) if n.target is not operator.getitem and example(n.args[0]).dtype == dtype
              and isinstance(example(n.args[0]), torch.Tensor)]
    return [chain[i:] for i in starts] + [[]]



def _start(convolution: Node, head: list[Node], weights: frozenset[Node]) -> tuple[Region, Node]:
    """A region that holds the head and the convolution; its input is the first value."""
    region = Region(example(convolution).dtype, weights)
    source = (head or [convolution])[0].args[0]
    region.values[source] = region.new_value(example(source).shape)
    for node in [*head, convolution]:
        translate(region, node)
    return region, source


def _grow(region: Region, convolution: Node, found: Found) -> list[Node]:
    """Every node behind the convolution that can be said, in order."""
    covered, tainted = [convolution], set()
    nodes = list(convolution.graph.nodes)
    for node in nodes[nodes.index(convolution) + 1:]:
        if node.op == "output":
            break
        inputs = node.all_input_nodes
        if _is_extent(node):
            continue
        if any(i in tainted for i in inputs):
            tainted.add(node)
        elif any(i in covered for i in inputs):
            try:
                if is_convolution(node):
                    raise NotCovered("it is another convolution")
                translate(region, node)
                covered.append(node)
            except NotCovered as reason:
                tainted.add(node)
                if not _statistic(node, region):
                    found.stopped.append((describe(node), str(reason)))
    return covered


def _is_extent(node: Node) -> bool:
    """A number that the shapes of values say."""
    return isinstance(example(node), (int, torch.SymInt, torch.SymBool, torch.SymFloat))


def _serves(node: Node, inside: set[Node]) -> bool:
    """An extent that only the region's own nodes ask for: it goes with them."""
    return _is_extent(node) and all(user in inside or _serves(user, inside) for user in node.users)


def _statistic(node: Node, region: Region) -> bool:
    """A running average that a norm of the region gives out: the call gives it out too."""
    return (node.target is operator.getitem and node.args[1] in (3, 4)
            and any(s.updates and s.updates.norm is node.args[0] for s in region.stages.get(node.args[0], ())))


def _whole(region: Region, covered: list[Node], place: dict[Node, int]) -> bool:
    """True if the last node is the one that others read, and running averages are read behind it."""
    inside, last = set(covered), covered[-1]
    for node in covered:
        for user in node.users:
            if user in inside or node is last or _serves(user, inside):
                continue
            if not _statistic(user, region) or any(place[u] < place[last] for u in user.users):
                return False
    return isinstance(example(last), torch.Tensor)


# --- Replacing ---


def _find(convolution: Node, weights: frozenset[Node], options: Options) -> Found:
    found = Found(convolution)
    try:
        for head in _heads(convolution):
            try:
                region, source = _start(convolution, head, weights)
                break
            except NotCovered:  # with a shorter head, or with none, it may still be possible
                if not head:
                    raise
        covered = _grow(region, convolution, found)
        place = {node: i for i, node in enumerate(convolution.graph.nodes)}
        while covered and not found.writer:
            try:
                if not _whole(region, covered, place):
                    raise NotCovered("others read what lies inside")
                found.writer = Writer(region, source, [*head, *covered], covered[-1], options)
            except NotCovered as reason:
                dropped = covered.pop()
                if not covered:
                    raise
                found.stopped.insert(0, (describe(dropped), str(reason)))
        found.nodes = [*head, *covered]
    except NotCovered as reason:
        found.refused = str(reason)
    return found


def rewrite(module: GraphModule, weights: Sequence[int], options: Options,
            pays: Callable[[Found], Optional[str]] = lambda found: None) -> list[Found]:
    """Rewrites the graph in place and says what was found. `weights` are the places among the graph's inputs of the
    module's own tensors; `pays` says why a call is not worth it, or None."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    weights = frozenset(inputs[i] for i in weights)
    results = []
    for node in list(module.graph.nodes):
        if is_convolution(node):
            found = _find(node, weights, options)
            found.refused = found.refused or pays(found)
            if not found.refused:
                found.nodes[-1].replace_all_uses_with(found.writer.write(module.graph))
                module.graph.eliminate_dead_code()
            results.append(found)
    module.graph.lint()
    module.recompile()
    return results
