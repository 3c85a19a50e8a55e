"""Puts one call of the operator in place of a region's nodes."""

from __future__ import annotations

import operator
from typing import Any, Sequence

import torch
from torch.fx import Graph, Node

from . import _fold, _recipes
from ._op import DTYPES, Options
from ._stages import NARROW, NotCovered, Region, Stage, Updates, Value, example, given, is_one, same

aten = torch.ops.aten
_16_BITS = (torch.float16, torch.bfloat16)


def _words(stage: Stage) -> str:
    c = stage.convolution
    if c is None:
        return stage.text
    return f"{c.word} {c.kernel}" + (f" bias={c.bias}" if c.bias else "") + c.rest


def _text(stages: list[Stage], inputs: dict[int, str], outputs: Sequence[int]) -> str:
    """The stages as one line. Values that are read again, and not just by the next stage, get a name; the last output is
    the pipeline's result, the others are given out, as are the statistics that running averages want: m0, m1, ..."""
    last = outputs[-1]
    named = {s.source for s in stages if s.updates}
    current = next(iter(inputs))
    for stage in [*stages, Stage(-1, last, "")]:
        named.update(stage.uses)
        if stage.source != current:
            named.add(stage.source)
        current = stage.result
    words = {i: f"@{inputs[i]}" if i in inputs else f"@v{i}" for i in {*named, *outputs}}
    line, current, count = [], next(iter(inputs)), 0
    for stage in stages:
        if stage.source != current:
            line.append(words[stage.source])
        if stage.updates:
            line += [f"moments batch out m{count}", words[stage.source]]
            count += 1
        text = _words(stage)
        for i in stage.uses:
            text = text.replace(f"{{{i}}}", words[i])
        label = " out " if stage.result in outputs[:-1] else " as " if stage.result in named else None
        line.append(text + (f"{label}v{stage.result}" if label else ""))
        current = stage.result
    if current != last:
        line.append(words[last])
    return " | ".join(line)


class Writer:
    """What the one call in place of a region's nodes says, and the call itself."""

    def __init__(self, region: Region, stages: list[Stage], outputs: Sequence[Node], covered: Sequence[Node],
                 options: Options) -> None:
        if not outputs:
            raise NotCovered("nobody reads it")
        self.region, self.covered = region, covered
        order = {stage.result: i for i, stage in enumerate(stages)}
        # In the order of the stages: the last is the pipeline's result.
        self.outputs = sorted(outputs, key=lambda n: order[region.values[n].id])
        ids = [region.values[n].id for n in self.outputs]
        tensors = region.tensors
        keep = all(given(region.sources[i]) for s in stages for i in self._places(s, tensors))
        dtype = self._dtype(stages, covered)
        if keep and dtype not in _16_BITS:
            stages, tensors = _fold.fold(stages, ids, tensors)
        self.stages = stages
        self.updates = [s.updates for s in stages if s.updates]
        read = {i for s in stages for i in (s.source, *s.uses)}
        entered = [i for i in region.inputs if i in read]
        if not entered:
            raise NotCovered("it reads nothing")
        self.source = region.inputs[entered[0]]
        self._place(stages, tensors, entered)
        self.text = " ".join(["input", *self.inputs.values(), "| "] if len(entered) > 1 else []) \
            + _text(stages, self.inputs, ids)
        shows = "/".join(_show(region.values[n], example(n)) for n in self.outputs)
        self.options = options._replace(dtype=dtype, rounded=region.dtype, shows=shows, keep=keep)

    @staticmethod
    def _names(stage: Stage) -> list[str]:
        """The tensors that a stage reads."""
        return [w.rpartition("=")[2].partition(":")[0] for w in _words(stage).split()]

    def _places(self, stage: Stage, tensors: dict[str, Any]) -> list[int]:
        return [i for name in self._names(stage) if name in tensors for i in _recipes.places(tensors[name])]

    def _place(self, stages: Sequence[Stage], tensors: dict[str, Any], entered: Sequence[int]) -> None:
        """Which tensors the call gets, and how those of the text are made of them."""
        wanted = dict.fromkeys(name for s in stages for name in self._names(s) if name in tensors)
        places: dict[int, int] = {}
        for name in wanted:
            for i in _recipes.places(tensors[name]):
                places.setdefault(i, len(places))
        self.sources = [self.region.sources[i] for i in places]
        recipes = {f"t{i}": _recipes.moved(tensors[name], places) for i, name in enumerate(wanted)}
        new = {name: f"t{i}" for i, name in enumerate(wanted)}
        for i, stage in enumerate(stages):
            stages[i] = _renamed(stage, new)
        self.inputs = {entered[0]: "input"}
        for i in entered[1:]:
            node = self.region.inputs[i]
            if node not in self.sources:
                self.sources.append(node)
            self.inputs[i] = f"x{i}"
            recipes[self.inputs[i]] = self.sources.index(node)
        self.recipes = recipes
        self.names = " ".join(f"{name}={_recipes.write(recipe)}" for name, recipe in recipes.items())

    def _dtype(self, stages: Sequence[Stage], covered: Sequence[Node]) -> torch.dtype:
        """Everything is computed in one dtype: the convolutions', or float32 where dtypes mix, or where the scale and
        shift of a norm with known statistics would be rounded too early."""
        conv, tensors = self.region.dtype, self.region.tensors
        dtypes = {example(n).dtype for n in covered if isinstance(example(n), torch.Tensor)}
        for s in stages:
            for name in self._names(s):
                recipe = tensors.get(name)
                if recipe is not None and (isinstance(recipe, int) or recipe[0] == "v"):
                    read = [example(self.region.sources[i]) for i in _recipes.places(recipe)]
                    dtypes |= {t.dtype for t in read if t.dim()}
            dtypes |= {example(self.region.inputs[i]).dtype for i in (s.source, *s.uses) if i in self.region.inputs}
        wide = dtypes != {conv} or conv in _16_BITS and any(s.affine for s in stages)
        return torch.float32 if wide and conv in NARROW else conv

    def write(self, graph: Graph, after: Node) -> Node:
        """The call, behind `after`, and what takes the outputs' places; the last node of it."""
        with graph.inserting_after(after):
            run = graph.call_function(torch.ops.upweave.run.default,
                                      (self.source, list(self.sources), self.text, self.names, str(self.options)))
        self.cursor = run
        last = len(self.outputs) - 1
        for i, node in enumerate(self.outputs):
            result = self._add(graph, operator.getitem, (run, 0 if i == last else i + 1))
            result.meta = dict(node.meta)
            node.replace_all_uses_with(result)
        for i, updates in enumerate(self.updates, len(self.outputs)):
            self._update(graph, updates, self._add(graph, operator.getitem, (run, i)))
        return self.cursor

    def _add(self, graph: Graph, target: Any, args: tuple, kwargs: dict[str, Any] = {}) -> Node:
        with graph.inserting_after(self.cursor):
            self.cursor = graph.call_function(target, args, kwargs)
        return self.cursor

    def _update(self, graph: Graph, updates: Updates, moments: Node) -> None:
        """running <- running + momentum (statistic - running), for those that somebody reads."""
        for user in list(updates.norm.users):
            running = {3: updates.mean, 4: updates.variance}.get(user.args[1])
            if running is None:
                continue
            new = self._add(graph, aten.select.int, (moments, 0, user.args[1] - 3))
            if example(running).dtype != _wide(self.options.dtype):
                new = self._add(graph, aten._to_copy.default, (new,), {"dtype": example(running).dtype})
            new = self._add(graph, aten.lerp.Scalar, (running, new, updates.momentum))
            new.meta = dict(user.meta)
            user.replace_all_uses_with(new)


def _renamed(stage: Stage, names: dict[str, str]) -> Stage:
    from dataclasses import replace

    if stage.convolution:
        c = stage.convolution
        return replace(stage, convolution=replace(c, kernel=names[c.kernel], bias=c.bias and names[c.bias]))

    def new(word: str) -> str:
        head, equals, rest = word.rpartition("=")
        name, colon, kind = rest.partition(":")
        return head + equals + names.get(name, name) + colon + kind

    return replace(stage, text=" ".join(map(new, stage.text.split(" "))))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _show(value: Value, out: torch.Tensor) -> str:
    """How the graph shows a result: see _op.Show."""
    axes = "" if value.plain else ".".join("".join(map(str, a)) for a in value.axes)
    return f"{DTYPES[out.dtype]}:{axes}:{_strides(out)}"


def _strides(out: torch.Tensor) -> str:
    """How the result lies in memory, as Show says it."""
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
