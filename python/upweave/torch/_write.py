"""Puts one call of the operator in place of a region's nodes."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Optional

import torch
from torch.fx import Graph, Node

from . import _fold
from ._stages import FLOATS, NotCovered, Region, Stage, example, same


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


_sites = itertools.count()  # tells calls with the same text apart, for the weights that are kept with each


class Writer:
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
                  if isinstance(a, Node) and isinstance(example(a), torch.Tensor)  # eps may be a symbol
                  and a not in conv_tensors and example(a).dim() > 0}
        values = {example(n).dtype for n in covered if isinstance(example(n), torch.Tensor)}
        seen = others | values
        if torch.float64 in seen and len(seen) > 1 or any(d not in FLOATS for d in seen):
            raise NotCovered("its dtypes mix float64 with others")
        # In 16 bits the scale and shift of a norm with known statistics would be rounded too early.
        affine = any(stage.affine for stage in self.stages)
        alone = seen == {self.conv_dtype} and not (affine and self.conv_dtype in (torch.float16, torch.bfloat16))
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

    def write(self) -> str:
        """Writes it, and says what will run."""
        graph = self.graph
        with graph.inserting_before(self.last):
            text = _text(self.stages, self.region.values[self.last].id)
            updates = [(_text(self.stages[:i], s.source), s.moments)
                       for i, s in enumerate(self.stages) if s.moments]
            words = {w.rpartition("=")[2].partition(":")[0] for s in self.stages for w in s.text.split()}
            names = [n for n in self.region.tensors if n in words]
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
        fold = _fold.find(text, self.dtype)
        return fold.text if fold else text

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
