"""Finds each transposed convolution of a captured graph with the largest part around it that one pipeline can say,
and puts one call in its place."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch.fx import Graph, GraphModule, Node

from ._translate import CONVOLUTIONS, FLOATS, HEADS, NotCovered, Region, Stage, example, same, translate


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
    activation = getattr(node.target, "__module__", "") == "torch.nn.functional" and "pool" not in name
    return node.op == "call_function" and (node.kwargs.get("inplace") is True or name.endswith("_")
                                           or name in ("iadd", "isub", "imul", "itruediv")
                                           or (activation and True in node.args[1:]))


# --- Finding ---


def _head(convolution: Node, taken: set[Node]) -> list[Node]:
    """The chain before the convolution that nobody else reads, first node first."""
    chain: list[Node] = []
    node = convolution.args[0]
    while (isinstance(node, Node) and node.target in HEADS and node not in taken and len(node.users) == 1
           and not _in_place(node) and node.args and isinstance(node.args[0], Node)):
        chain.insert(0, node)
        node = node.args[0]
    return chain


def _start(convolution: Node, head: list[Node]) -> tuple[Region, Node]:
    """A region that holds the head and the convolution; its input is value 0."""
    region = Region()
    source = (head or [convolution])[0].args[0]
    shape = example(source).shape
    value = region.new_value(shape)
    region.values[source] = value
    for node in [*head, convolution]:
        translate(region, node)
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


# --- Saying ---


def _text(stages: list[Stage], last: int) -> str:
    """The stages as one line. Values that are read again, and not just by the next stage, get a name."""
    current, named = stages[0].source if stages else last, set()
    for stage in [*stages, Stage(-1, last, "")]:
        named.update(stage.uses)
        if stage.source != current:
            named.add(stage.source)
        current = stage.result
    first = stages[0].source
    words = {i: "@input" if i == first else f"@v{i}" for i in named}
    line, current = [], first
    for stage in stages:
        if stage.source != current:
            line.append(words[stage.source])
        text = stage.text
        for i in stage.uses:
            text = text.replace(f"{{{i}}}", words[i])
        line.append(text + (f" as v{stage.result}" if stage.result in named else ""))
        current = stage.result
    if current != last:
        line.append(words[last])
    return " | ".join(line)


def bn_scale(mean, variance, weight, bias, eps):
    wide = torch.promote_types(variance.dtype, torch.float32)
    scale = torch.rsqrt(variance.to(wide) + eps)
    return scale if weight is None else scale * weight


def bn_shift(mean, variance, weight, bias, eps):
    shift = -mean * bn_scale(mean, variance, weight, bias, eps)
    return shift if bias is None else shift + bias


def fold_kernel(kernel, scale):
    return kernel * scale.reshape(1, -1, *(1,) * (kernel.dim() - 2))


def fold_bias(bias, scale, shift):
    return shift if bias is None else bias * scale + shift


_sites = itertools.count()  # tells calls with the same text apart, for the weights that are kept with each


class _Writer:
    """Writes the one call in place of a region's nodes."""

    def __init__(self, graph: Graph, region: Region, source: Node, convolution: Node, covered: list[Node],
                 stages: list[Stage], options: str) -> None:
        self.graph, self.region, self.source = graph, region, source
        self.convolution, self.last, self.stages, self.options = convolution, covered[-1], stages, options
        self.made: dict[str, Any] = {}
        self.choose_dtypes(covered)

    def choose_dtypes(self, covered: list[Node]) -> None:
        """What the convolution reads is rounded as PyTorch rounds it (autocast); everything is then computed in one
        dtype, float32 where dtypes mix, and the result has the dtype that the graph expects."""
        self.conv_dtype = example(self.convolution).dtype
        self.out_dtype = example(self.last).dtype
        conv_tensors = {a for a in self.convolution.args[:3] if isinstance(a, Node)}
        others = {example(a).dtype for _, arguments in self.region.tensors.values() for a in arguments
                  if isinstance(a, Node) and a not in conv_tensors and example(a).dim() > 0}
        values = {example(n).dtype for n in covered if isinstance(example(n), torch.Tensor)}
        seen = others | values
        if torch.float64 in seen and len(seen) > 1 or any(d not in FLOATS for d in seen):
            raise NotCovered("its dtypes mix float64 with others")
        folded = any(stage.affine for stage in self.stages)  # its scale and shift would be rounded too early
        alone = seen == {self.conv_dtype} and not (folded and self.conv_dtype in (torch.float16, torch.bfloat16))
        self.dtype = self.conv_dtype if alone else torch.float32

    def call(self, function: Any, *args: Any) -> Node:
        return self.graph.call_function(function, args)

    def cast(self, node: Any, rounded: bool, have: Optional[torch.dtype]) -> Any:
        for dtype in ([self.conv_dtype] if rounded else []) + [self.dtype]:
            if have != dtype:
                node, have = self.graph.call_method("to", (node, dtype)), dtype
        return node

    def tensor(self, name: str) -> Any:
        if name in self.made:
            return self.made[name]
        kind, arguments = self.region.tensors[name]
        if kind == "tensor":
            node, view = arguments
            result = self.cast(node, node in self.convolution.args[:3], example(node).dtype)
            if view is not None and not same(view, example(node).shape):
                result = self.graph.call_method("reshape", (result, view))
            if example(node).device != example(self.source).device:
                result = self.graph.call_method("to", (result, example(self.source).device))
        else:
            result = self.call(bn_scale if kind == "scale" else bn_shift, *arguments)
            result = self.cast(result, False, None)
        self.made[name] = result
        return result

    def fold(self) -> None:
        """A norm with known statistics right behind the convolution goes into its weights, where that costs no
        accuracy: not where PyTorch rounds the convolution's operands to 16 bits."""
        if self.conv_dtype != self.dtype or self.convolution.kwargs:
            return
        at = next(i for i, s in enumerate(self.stages) if s.text.startswith("conv_transpose"))
        if at + 1 == len(self.stages) or not self.stages[at + 1].affine:
            return
        conv, norm = self.stages[at], self.stages[at + 1]
        if any(w.startswith("g") for w in conv.text.split()):  # a grouped kernel has no axis of all channels
            return
        if any(conv.result in (s.source, *s.uses) for s in self.stages[at + 2:]):
            return
        scale, shift = (self.tensor(name) for name in norm.affine)
        words = conv.text.split()
        bias = next((w[5:] for w in words if w.startswith("bias=")), None)
        self.made["kernel"] = self.call(fold_kernel, self.tensor(words[1]), scale)
        self.made["bias"] = self.call(fold_bias, bias and self.tensor(bias), scale, shift)
        text = " ".join(["conv_transpose kernel bias=bias", *(w for w in words[2:] if not w.startswith("bias="))])
        self.stages[at:at + 2] = [Stage(norm.result, conv.source, text)]

    def write(self) -> str:
        graph, stages = self.graph, self.stages
        with graph.inserting_before(self.last):
            self.fold()
            text = _text(self.stages, self.region.values[self.last].id)
            updates = [(_text(self.stages[:i], s.source), s.moments)
                       for i, s in enumerate(self.stages) if s.moments]
            words = {w.rpartition("=")[2].partition(":")[0] for s in self.stages for w in s.text.split()}
            names = [n for n in (*self.region.tensors, "kernel", "bias") if n in words]
            tensors = [self.tensor(n) for n in names]
            source = self.cast(self.source, True, example(self.source).dtype)
            run = self.call(torch.ops.upweave.run.default, source, tensors, text, " ".join(names),
                            "\n".join(prefix for prefix, _ in updates), f"{self.options},{next(_sites)}")
            result = self.call(operator.getitem, run, 0)
            for i, (_, (mean, variance, momentum)) in enumerate(updates, 1):
                moments = graph.call_method("detach", (self.call(operator.getitem, run, i),))
                for row, running in enumerate((mean, variance)):
                    new = graph.call_method("to", (self.call(operator.getitem, moments, row), example(running).dtype))
                    graph.call_method("mul_", (running, 1 - momentum))
                    graph.call_method("add_", (running, new), {"alpha": momentum})
            result = self.finish(result)
        self.last.replace_all_uses_with(result)
        result.meta = dict(self.last.meta)
        return text

    def finish(self, result: Node) -> Node:
        """The graph's own view of the value: its axes, its dtype, its order in memory."""
        value, out = self.region.values[self.last], example(self.last)
        if value.layout == "last":
            rank = len(value.shape)
            result = self.graph.call_method("permute", (result, 0, *range(2, rank), 1))
        elif value.layout != "plain":
            result = self.graph.call_method("reshape", (result, [e if isinstance(e, int) else -1 for e in out.shape]))
        if self.dtype != self.out_dtype:
            result = self.graph.call_method("to", (result, self.out_dtype))
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if (out.dim() in formats and value.layout == "plain" and not out.is_contiguous()
                and out.is_contiguous(memory_format=formats[out.dim()])):
            result = self.graph.call_method("contiguous", (result,), {"memory_format": formats[out.dim()]})
        return result


def _replace(convolution: Node, taken: set[Node], options: str) -> Found:
    found = Found(convolution)
    try:
        head = _head(convolution, taken)
        try:
            region, source = _start(convolution, head)
        except NotCovered:  # without its head it may still be possible
            head = []
            region, source = _start(convolution, head)
        covered = _grow(region, convolution, taken, found)
        while covered and not (_whole(covered) and not _changed_between(region, source, covered)):
            dropped = covered.pop()
            if covered:
                found.stopped.insert(0, (describe(dropped), "others read what lies inside"))
        if not covered:
            raise NotCovered("what it reads is changed in place, or others read its parts")
        stages = [s for n in [*head, *covered] for s in region.stages[n]]
        graph = convolution.graph
        found.text = _Writer(graph, region, source, convolution, covered, stages, options).write()
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
