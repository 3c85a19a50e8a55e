"""A norm with known statistics behind a convolution goes into its weights:
s (convT(x; K) + b) + t = convT(x; s K) + (s b + t), with s and t one value an output channel."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple, Optional

import torch
from torch import Tensor

# The convolution's value has no name: with one it would be read again.
_PATTERN = re.compile(r"conv_transpose (?P<kernel>\w+)(?: bias=(?P<bias>\w+))?(?P<rest>(?: (?:s|p|op|d|g)\d[\dx]*)*) \| "
                      r"mul (?P<scale>\w+):channel \| add (?P<shift>\w+):channel(?= \|| as |$)")
_DTYPES = (torch.float32, torch.float64)  # in 16 bits the new weights would be rounded once more


class Fold(NamedTuple):
    text: str  # without the norm; the bias has the shift's name
    kernel: str
    bias: Optional[str]
    scale: str
    shift: str
    groups: int

    def shapes(self, tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
        return {name: tuple(t.shape) for name, t in tensors.items() if name not in (self.scale, self.bias)}

    def weights(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of `text`."""
        kernel, scale, shift = (tensors[name] for name in (self.kernel, self.scale, self.shift))
        bias = shift if self.bias is None else torch.addcmul(shift, tensors[self.bias], scale)
        # Of each group's input channels, its output channels; then the taps.
        scales = scale.reshape(self.groups, 1, -1, 1)
        scaled = (kernel.reshape(self.groups, -1, scales.shape[2], kernel[0, 0].numel()) * scales).reshape(kernel.shape)
        rest = {name: t for name, t in tensors.items() if name not in (self.scale, self.bias)}
        return {**rest, self.kernel: scaled, self.shift: bias}


@functools.lru_cache(maxsize=512)
def _find(text: str) -> Optional[Fold]:
    match = _PATTERN.search(text)
    if not match:
        return None
    words = re.findall(r"\w+", text)
    if any(name and words.count(name) != 1 for name in match.group("kernel", "bias", "scale", "shift")):
        return None  # somebody else reads it too
    conv = f"conv_transpose {match['kernel']} bias={match['shift']}{match['rest']}"
    groups = next((int(word[1:]) for word in match["rest"].split() if word[0] == "g"), 1)
    return Fold(text[:match.start()] + conv + text[match.end():], *match.group("kernel", "bias", "scale", "shift"), groups)


def find(text: str, dtype: torch.dtype) -> Optional[Fold]:
    """How the text's norm goes into its convolution, if there is one that may."""
    return _find(text) if dtype in _DTYPES else None
