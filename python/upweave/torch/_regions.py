"""Finds each transposed convolution of a captured graph with the largest part around it that one pipeline can say,
and puts one call in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch.fx import GraphModule, Node

from ._stages import NotCovered, Region, example
from ._translate import CONVOLUTIONS, HEADS, translate
from ._write import Writer


@dataclass
class Found:
    """One convolution's part of the graph: `nodes` become one call, `stopped` says why no more do."""

    convolution: Node
    nodes: list[Node] = field(default_factory=list)
    text: str = ""
    stopped: list[tuple[str, str]] = field(default_factory=list)  # (node, reason)
    refused: Optional[str] = None  # why there is no call at all


def describe(node: Node) -> str:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if name == "fn":  # PyTorch's dispatcher between forms with and without indices
        name = next((n for n, f in vars(torch.nn.functional).items() if f is target), name)
    return f"{name} ({node.name})"


def _in_place(node: Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    name = getattr(node.target, "__name__", "")
    activation = (getattr(node.target, "__module__", "") == "torch.nn.functional" and "pool" not in name
                  and not name.endswith("norm"))  # a norm's True is its use of the input's statistics
    return node.op == "call_function" and (node.kwargs.get("inplace") is True or name.endswith("_")
                                           or name in ("iadd", "isub", "imul", "itruediv")
                                           or (activation and True in node.args[1:]))


# --- Finding ---


def _leads(node: Any, taken: set[Node]) -> bool:
    """True if the node may stand before the convolution, for all that can be said without translating it."""
    if not isinstance(node, Node) or node.target not in HEADS or node in taken or len(node.users) != 1:
        return False
    if _in_place(node) or not node.args or not isinstance(node.args[0], Node):
        return False
    others = [a for a in node.args[1:] if isinstance(a, Node) and isinstance(example(a), torch.Tensor)]
    return all(example(a).dim() == 1 for a in others)  # a norm's vectors; other tensors would be read as weights are


def _heads(convolution: Node, taken: set[Node]) -> list[list[Node]]:
    """The chains before the convolution that nobody else reads, the longest first, each with its first node first."""
    chain: list[Node] = []
    node = convolution.args[0]
    while _leads(node, taken):
        chain.insert(0, node)
        node = node.args[0]
    # Autocast rounds what the convolution reads, not what its head does.
    dtype = example(convolution).dtype
    return [chain[i:] for i in range(len(chain)) if example(chain[i].args[0]).dtype == dtype] + [[]]


def _start(convolution: Node, head: list[Node]) -> tuple[Region, Node]:
    """A region that holds the head and the convolution; its input is value 0."""
    region = Region()
    source = (head or [convolution])[0].args[0]
    shape = example(source).shape
    value = region.new_value(shape)
    region.values[source] = value
    for node in [*head, convolution]:
        translate(region, node)
        if any(stage.moments for stage in region.stages[node]):
            raise NotCovered("it updates its statistics, and stands before the convolution")
    return region, source


def _grow(region: Region, convolution: Node, taken: set[Node], found: Found) -> list[Node]:
    """Every node behind the convolution that can be said, in order."""
    covered, tainted = [convolution], set()
    nodes = list(convolution.graph.nodes)
    for node in nodes[nodes.index(convolution) + 1:]:
        if node.op == "output":
            break
        inputs = node.all_input_nodes
        if any(i in tainted for i in inputs):
            tainted.add(node)
        elif any(i in covered for i in inputs):
            try:
                if node in taken:
                    raise NotCovered("it belongs to another convolution")
                if node.target in CONVOLUTIONS:
                    raise NotCovered("it is another convolution")
                translate(region, node)
                covered.append(node)
            except NotCovered as reason:
                tainted.add(node)
                found.stopped.append((describe(node), str(reason)))
    return covered


def _whole(covered: list[Node]) -> Optional[Node]:
    """The one node that others read, if it is the last."""
    inside, last = set(covered), covered[-1]
    read = [n for n in covered if any(u not in inside for u in n.users)]
    return last if read in ([last], []) and isinstance(example(last), torch.Tensor) else None


def _changed_between(region: Region, source: Node, covered: list[Node]) -> bool:
    """True if a tensor that the region reads is changed in place while the region runs."""
    outside = {source} | {a for _, arguments in region.tensors.values() for a in arguments if isinstance(a, Node)}
    nodes = list(source.graph.nodes)
    between = nodes[nodes.index(covered[0]):nodes.index(covered[-1])]
    inside = set(covered)
    return any(n not in inside and _in_place(n) and n.args and n.args[0] in outside for n in between)


# --- Replacing ---


def _replace(convolution: Node, taken: set[Node], options: str) -> Found:
    found = Found(convolution)
    try:
        for head in _heads(convolution, taken):
            try:
                region, source = _start(convolution, head)
                break
            except NotCovered:  # with a shorter head, or with none, it may still be possible
                if not head:
                    raise
        covered = _grow(region, convolution, taken, found)
        while covered and not (_whole(covered) and not _changed_between(region, source, covered)):
            dropped = covered.pop()
            if covered:
                found.stopped.insert(0, (describe(dropped), "others read what lies inside"))
        if not covered:
            raise NotCovered("what it reads is changed in place, or others read its parts")
        stages = [s for n in [*head, *covered] for s in region.stages[n]]
        graph = convolution.graph
        found.text = Writer(graph, region, source, convolution, covered, stages, options).write()
        found.nodes = [*head, *covered]
        for node in reversed(found.nodes):
            graph.erase_node(node)
    except NotCovered as reason:
        found.refused = str(reason)
    return found


def rewrite(module: GraphModule, options: str = ",strict") -> list[Found]:
    """Rewrites the graph in place and says what was found."""
    taken: set[Node] = set()
    results = []
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in CONVOLUTIONS:
            found = _replace(node, taken, options)
            taken.update(found.nodes)
            results.append(found)
    module.graph.lint()
    module.recompile()
    return results
