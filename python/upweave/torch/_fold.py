"""A norm with known statistics behind a convolution goes into its weights:
s (conv(x; K) + b) + t = conv(x; s K) + (s b + t), with s and t one value an output channel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection

from ._stages import Stage


def fold(stages: list[Stage], given_out: Collection[int], tensors: dict[str, Any]) -> tuple[list[Stage], dict[str, Any]]:
    """The stages without such norms, and the tensors that they read. `given_out` are values that others read: a
    convolution's among them is not scaled, nor one that is read twice."""
    tensors, readers = dict(tensors), {}
    for stage in stages:
        for i in {stage.source, *stage.uses}:
            readers.setdefault(i, []).append(stage)
    result: list[Stage] = []
    folded: dict[int, Stage] = {}  # by the convolution's value
    for stage in stages:
        conv = folded.pop(stage.source, None) if stage.affine else None
        if conv is None:
            result.append(stage)
            alone = len(readers.get(stage.result, ())) == 1 and stage.result not in given_out
            if stage.convolution and alone:
                folded[stage.result] = stage
            continue
        c, (scale, shift) = conv.convolution, (tensors[name] for name in stage.affine)
        bias = None if c.bias is None else tensors[c.bias]
        names = f"t{len(tensors)}", f"t{len(tensors) + 1}"
        tensors[names[0]] = ["fold", tensors[c.kernel], scale, c.groups, c.word == "conv_transpose"]
        tensors[names[1]] = ["affine", bias, scale, shift]
        result[result.index(conv)] = replace(conv, result=stage.result,
                                             convolution=replace(c, kernel=names[0], bias=names[1]))
    return result, tensors
