"""Puts one call of the operator in place of a region's nodes."""

from __future__ import annotations

import operator
from typing import Any, Sequence

import torch
from torch.fx import Graph, Node

from . import _fold, _recipes
from ._op import Options
from ._stages import NARROW, NotCovered, Region, Stage, Updates, example, given, is_one, same

aten = torch.ops.aten
_16_BITS = (torch.float16, torch.bfloat16)


def _text(stages: list[Stage], last: int) -> str:
    """The stages as one line. Values that are read again, and not just by the next stage, get a name; the statistics
    that running averages want are given out as m0, m1, ..."""
    wanted = {s.source for s in stages if s.updates}
    current, named = stages[0].source, set(wanted)
    for stage in [*stages, Stage(-1, last, "")]:
        named.update(stage.uses)
        if stage.source != current:
            named.add(stage.source)
        current = stage.result
    first = stages[0].source
    words = {i: "@input" if i == first else f"@v{i}" for i in named}
    line, current, count = [], first, 0
    for stage in stages:
        if stage.source != current:
            line.append(words[stage.source])
        if stage.updates:
            line += [f"moments batch out m{count}", words[stage.source]]
            count += 1
        text = stage.text
        for i in stage.uses:
            text = text.replace(f"{{{i}}}", words[i])
        line.append(text + (f" as v{stage.result}" if stage.result in named else ""))
        current = stage.result
    if current != last:
        line.append(words[last])
    return " | ".join(line)


class Writer:
    """What the one call in place of a region's nodes says, and the call itself."""

    def __init__(self, region: Region, source: Node, covered: Sequence[Node], last: Node, options: Options) -> None:
        self.region, self.source, self.last = region, source, last
        self.stages = [s for n in covered for s in region.stages.get(n, ())]
        self.updates = [s.updates for s in self.stages if s.updates]
        words = {w.rpartition("=")[2].partition(":")[0].lstrip("@") for s in self.stages for w in s.text.split()}
        recipes = {name: recipe for name, recipe in region.tensors.items() if name in words}
        inputs = [name for name in region.inputs if name in words]
        self.text = " ".join(["input input", *inputs, "| "] if inputs else []) + _text(self.stages, region.values[last].id)
        self.names = " ".join(f"{name}={recipe}" for name, recipe in recipes.items())
        self.options = self._choose(covered, options)

    def _choose(self, covered: Sequence[Node], options: Options) -> Options:
        """Everything is computed in one dtype: the convolution's, or float32 where dtypes mix, or where the scale and
        shift of a norm with known statistics would be rounded too early."""
        conv, out, value = self.region.dtype, example(self.last), self.region.values[self.last]
        recipes = _recipes.parse(self.names)
        sources = self.region.sources
        used = {i for r in recipes for i in r.sources if i is not None and r.name not in self.region.inputs}
        others = {example(sources[r.sources[0]]) for r in recipes if len(r.sources) == 1 and not r.rounded}
        dtypes = {t.dtype for t in others if t.dim()}
        dtypes |= {example(n).dtype for n in covered if isinstance(example(n), torch.Tensor)}
        wide = dtypes != {conv} or conv in _16_BITS and any(s.affine for s in self.stages)
        axes = "" if value.plain else ".".join("".join(map(str, a)) for a in value.axes)
        return options._replace(dtype=torch.float32 if wide and conv in NARROW else conv, rounded=conv, result=out.dtype,
                                axes=axes, strides=_strides(out), keep=all(given(sources[i]) for i in used))

    @property
    def runs(self) -> str:
        """The text that will run: a norm with known statistics goes into kept weights."""
        fold = _fold.find(self.text, self.options.dtype) if self.options.keep else None
        return fold.text if fold else self.text

    def write(self, graph: Graph) -> Node:
        """The call, before the region's last node; the value that takes that node's place."""
        with graph.inserting_before(self.last):
            run = graph.call_function(torch.ops.upweave.run.default,
                                      (self.source, list(self.region.sources), self.text, self.names, str(self.options)))
            result = graph.call_function(operator.getitem, (run, 0))
            for i, updates in enumerate(self.updates, 1):
                self._update(graph, updates, graph.call_function(operator.getitem, (run, i)))
        result.meta = dict(self.last.meta)
        return result

    def _update(self, graph: Graph, updates: Updates, moments: Node) -> None:
        """running <- running + momentum (statistic - running), for those that somebody reads."""
        for user in list(updates.norm.users):
            running = {3: updates.mean, 4: updates.variance}.get(user.args[1])
            if running is None:
                continue
            new = graph.call_function(aten.select.int, (moments, 0, user.args[1] - 3))
            if example(running).dtype != _wide(self.options.dtype):
                new = graph.call_function(aten._to_copy.default, (new,), {"dtype": example(running).dtype})
            new = graph.call_function(aten.lerp.Scalar, (running, new, updates.momentum))
            new.meta = dict(user.meta)
            user.replace_all_uses_with(new)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _strides(out: torch.Tensor) -> str:
    """How the result lies in memory, as Options says it."""
    shape, strides = list(out.shape), list(out.stride())
    rank = len(shape)
    static = all(isinstance(n, int) for n in (*shape, *strides))
    orders = [list(range(rank)), [0, *range(2, rank), 1]]
    if static:
        orders.append(sorted(range(rank), key=lambda a: (-strides[a], a)))
    for order in orders:
        step: Any = 1
        expected = {}
        for axis in reversed(order):
            expected[axis] = step
            step = step * shape[axis]
        there = [a for a in range(rank) if not is_one(shape[a])]
        if same([strides[a] for a in there], [expected[a] for a in there]):
            if order == sorted(order) and (not static or strides == [expected[a] for a in range(rank)]):
                return ""
            return ",".join(map(str, strides)) if static else ">" + "".join(map(str, order))
    raise NotCovered("its result lies in memory in an order that is not known")
