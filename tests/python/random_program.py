"""A random program: Python source of a module and its arguments, and how to make it smaller."""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable

import torch
from torch import nn

from as_eager import Mode

HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\n"


@dataclass
class Program:
    seed: int
    mode: Mode
    layers: list[str] = field(default_factory=list)  # self.name = expression
    arguments: list[tuple[str, str]] = field(default_factory=list)  # name, expression
    body: list[str] = field(default_factory=list)
    returns: list[str] = field(default_factory=list)
    form: str = "tuple"
    inner: tuple[int, ...] = ()  # arguments that arrive with a history
    training: bool = True

    def source(self) -> str:
        names = ", ".join(name for name, _ in self.arguments)
        result = {"one": self.returns[0], "tuple": "(" + "".join(f"{r}, " for r in self.returns) + ")",
                  "list": "[" + ", ".join(self.returns) + "]",
                  "dict": "{" + ", ".join(f'"{i}": {r}' for i, r in enumerate(self.returns)) + "}"}[self.form]
        layers = "".join(f"        self.{line}\n" for line in self.layers)
        body = textwrap.indent("\n".join(self.body), "        ")
        made = "".join(f"    {name} = {expression}\n" for name, expression in self.arguments)
        return (f"{HEAD}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{layers}\n"
                f"    def forward(self, {names}):\n{body}\n        return {result}\n\n"
                f"def arguments():\n{made}    return {names},\n")

    def make(self, data: int = 0) -> tuple[nn.Module, tuple]:
        space: dict[str, Any] = {"__name__": "program"}
        exec(self.source(), space)
        torch.manual_seed(self.seed + data)
        model = space["Model"]().train(self.training)
        return model, space["arguments"]()

    def __str__(self) -> str:
        return (f"seed {self.seed}, {self.mode}, {'train' if self.training else 'eval'}"
                f"{f', arguments {self.inner} with a history' if self.inner else ''}\n{self.source()}")


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 30) -> Program:
    """A program with fewer lines and results that still fails."""
    end = time.monotonic() + seconds

    def attempt(candidate: Program) -> bool:
        if time.monotonic() > end or not candidate.returns:
            return False
        try:
            return fails(candidate)
        except Exception:  # it no longer runs at all
            return False

    moved = True
    while moved and time.monotonic() < end:
        moved = False
        for part in ("returns", "body", "layers"):
            for i in reversed(range(len(getattr(program, part)))):
                lines = getattr(program, part)
                candidate = replace(program, **{part: lines[:i] + lines[i + 1:]})
                if attempt(candidate):
                    program, moved = candidate, True
        used = "\n".join(program.body + program.returns)
        kept = [a for a in program.arguments if a[0] in used or any(a[0] in e for _, e in program.arguments)]
        if len(kept) < len(program.arguments) and attempt(replace(program, arguments=kept)):
            program, moved = replace(program, arguments=kept), True
    return program
