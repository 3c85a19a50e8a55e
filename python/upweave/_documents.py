"""Five pipelines as functions. One table says what each takes; functions, docstrings and stubs come from it."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, NamedTuple

from . import _core
from ._plan import Plan, _setting, compile

_REQUIRED = inspect.Parameter.empty
_CONV = {"stride": 1, "padding": 0, "output_padding": 0}
_WORDS = {
    "input": "N C D H W (N C H W for two axes)",
    "kernel": "C_in C_out, then one extent for each axis",
    "conv_bias": "added to the convolution, one value a channel",
    "scale": "one value a channel",
    "bn_weight": "BatchNorm's weight, one value a channel",
    "bn_bias": "BatchNorm's bias, one value a channel",
    "gn_weight": "GroupNorm's weight, one value a channel",
    "gn_bias": "GroupNorm's bias, one value a channel",
    "stride": "of the convolution: a number, or one for each axis",
    "padding": "of the convolution: a number, or one for each axis",
    "output_padding": "of the convolution: a number, or one for each axis",
    "sum_weight": "the number that is added",
    "scaling_factor": "the number that the result is multiplied by",
    "pool_kernel": "window and stride of the average pool",
    "clamp_min": "lower limit",
    "clamp_max": "upper limit",
    "groups": "accepted and without effect: the kernel is dense",
    "num_groups": "GroupNorm's groups; they divide the channels",
}


class _Document(NamedTuple):
    slug: str
    does: str
    tensors: tuple[str, ...]
    settings: dict[str, Any]  # defaults; _REQUIRED where there is none


_DOCUMENTS = (
    _Document("conv-transpose3d-sum-layernorm-avgpool-gelu",
              "conv_transpose3d, + sum_weight, LayerNorm over channels, AvgPool 2, GELU",
              ("input", "kernel"), {**_CONV, "sum_weight": _REQUIRED}),
    _Document("conv-transpose3d-layernorm-gelu-scaling",
              "conv_transpose3d, LayerNorm over channels, GELU, * scaling_factor",
              ("input", "kernel"), {**_CONV, "scaling_factor": _REQUIRED}),
    _Document("conv-transpose3d-max-max-sum",
              "conv_transpose3d + conv_bias, MaxPool 2, MaxPool 3, sum over channels",
              ("input", "kernel", "conv_bias"), {"stride": 1, "padding": 0}),
    _Document("conv-transpose3d-avgpool-clamp-softmax-multiply",
              "AvgPool, conv_transpose3d, clamp, softmax over space, * scale",
              ("input", "kernel", "scale"),
              {**_CONV, "pool_kernel": _REQUIRED, "clamp_min": _REQUIRED, "clamp_max": _REQUIRED}),
    _Document("conv-transpose2d-batchnorm-tanh-maxpool-groupnorm",
              "conv_transpose2d, BatchNorm with the batch's statistics, tanh, MaxPool 2, GroupNorm",
              ("input", "kernel", "bn_weight", "bn_bias", "gn_weight", "gn_bias"),
              {**_CONV, "groups": 1, "num_groups": _REQUIRED}),
)


@functools.lru_cache(maxsize=64)
def _plan(slug: str, settings: tuple, facts: tuple, engine: Any) -> Plan:
    tensors = {name: shape for name, _, shape, _ in facts}
    place = facts[0][3]
    chosen = engine or ("cuda" if place.startswith("cuda") else "reference" if facts[0][1] == "f64" else "cpu")
    return compile(slug, dtype=facts[0][1], engine=chosen, settings=dict(settings), **tensors)


def _function(document: _Document) -> Callable[..., Any]:
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    keyword = inspect.Parameter.KEYWORD_ONLY
    settings = sorted(document.settings.items(), key=lambda item: item[1] is not _REQUIRED)
    signature = inspect.Signature(
        [inspect.Parameter(name, positional) for name in document.tensors]
        + [inspect.Parameter(name, keyword, default=default) for name, default in settings]
        + [inspect.Parameter(name, keyword, default=None) for name in ("out", "engine")])

    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        words = tuple((name, _setting(values[name])) for name in document.settings)
        facts = tuple((name, *_core.describe(values[name], name)) for name in document.tensors)
        plan = _plan(document.slug, words, facts, values["engine"])
        return plan(out=values["out"], **{name: values[name] for name in document.tensors})

    call.__name__ = call.__qualname__ = document.slug.replace("-", "_")
    call.__module__ = "upweave"
    call.__signature__ = signature  # type: ignore[attr-defined]
    lines = [f"    {name:<16}{_WORDS[name]}" for name in (*document.tensors, *document.settings)]
    call.__doc__ = f"{document.does}.\n\n" + "\n".join(lines) + (
        "\n    out             written and returned, if given\n    engine          \"cpu\", \"cuda\" or \"reference\"; "
        "if None, where the input is\n\nPlans are kept, so a second call with the same shapes compiles nothing.")
    return call


def _stub() -> str:
    """The text of _documents.pyi, whose first line says how it is made."""
    lines = ["# Made by: python -c 'import upweave._documents as d; print(d._stub(), end=str())'", "from typing import Any, Optional, Sequence, Union", ""]
    for document in _DOCUMENTS:
        words = [f"{name}: Any" for name in document.tensors] + ["*"]
        for name, default in sorted(document.settings.items(), key=lambda item: item[1] is not _REQUIRED):
            kind = ("float" if name in ("sum_weight", "scaling_factor", "clamp_min", "clamp_max") else
                    "int" if name in ("groups", "num_groups") else "Union[int, Sequence[int]]")
            words.append(f"{name}: {kind}" + ("" if default is _REQUIRED else f" = {default}"))
        words += ["out: Any = None", "engine: Optional[str] = None"]
        lines.append(f"def {document.slug.replace('-', '_')}({', '.join(words)}) -> Any: ...")
    return "\n".join(lines) + "\n"


for _document in _DOCUMENTS:
    globals()[_document.slug.replace("-", "_")] = _function(_document)
