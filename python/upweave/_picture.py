"""A plan's passes as a picture: SVG, without any library."""

from __future__ import annotations

import html
import json
from typing import Any

_WIDTH, _LINE, _PAD = 760, 18, 12
_STYLE = ("text{font:13px sans-serif;fill:#223}.s{font-family:monospace}.q{fill:#667;font-size:12px}"
          ".b{fill:#eef3fb;stroke:#4a6fa5}.f{fill:#4a6fa5}.u{fill:#d5dce8}")


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{html.escape(words)}</text>'


def _bar(y: float, name: str, fused: float, unfused: float, unit: float, label: str) -> str:
    """Two bars on one scale: as written, and as run."""
    scale = 420 / max(unfused, fused, 1e-30)
    rows = []
    for offset, kind, value, who in ((0, "u", unfused, "as written"), (_LINE, "f", fused, "upweave")):
        rows.append(f'<rect x="150" y="{y + offset:g}" width="{max(1, value * scale):g}" height="12" class="{kind}"/>')
        rows.append(_text(_PAD, y + offset + 11, f"{name}, {who}", "q"))
        rows.append(_text(158 + value * scale, y + offset + 11, f"{value / unit:,.3g} {label}", "q"))
    return "".join(rows)


def svg(facts: dict[str, Any]) -> str:
    """The passes from top to bottom, each with its stages, bytes and operations; then both against the unfused."""
    parts, y = [], 8.0
    for number, one in enumerate(facts["passes"], 1):
        stages = one.get("stages") or ["nothing"]
        height = _PAD * 2 + _LINE * (len(stages) + 2)
        parts.append(f'<rect x="{_PAD}" y="{y:g}" width="{_WIDTH - 2 * _PAD}" height="{height}" rx="6" class="b"/>')
        parts.append(_text(2 * _PAD, y + 24, f"pass {number}: {one['flops'] / 1e9:,.3f} GFLOP, "
                                             f"{one['bytes'] / 1e6:,.1f} MB"))
        for i, stage in enumerate(stages):
            parts.append(_text(3 * _PAD, y + 24 + _LINE * (i + 1), stage, "s"))
        flow = f"reads {', '.join(one['reads']) or 'nothing'}; writes {', '.join(one['writes']) or 'nothing'}"
        if one["finishes"]:
            flow += f"; finishes {', '.join(one['finishes'])}"
        parts.append(_text(2 * _PAD, y + 24 + _LINE * (len(stages) + 1), flow, "q"))
        y += height + 10
    cost = facts["cost"]
    parts.append(_bar(y + 4, "memory", cost["bytes"], cost["unfused_bytes"], 1e6, "MB"))
    parts.append(_bar(y + 4 + 2.5 * _LINE, "operations", cost["flops"], cost["unfused_flops"], 1e9, "GFLOP"))
    total = y + 4 + 5 * _LINE
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{total:g}" '
            f'viewBox="0 0 {_WIDTH} {total:g}"><style>{_STYLE}</style>{"".join(parts)}</svg>')


class Explanation(str):
    """The text of an explanation; a notebook shows its picture instead."""

    __slots__ = ("facts",)
    facts: dict[str, Any]  # the same for a program

    def __new__(cls, text: str, facts: str) -> Explanation:
        self = super().__new__(cls, text)
        self.facts = json.loads(facts)
        return self

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str:
        return svg(self.facts)

    def _repr_html_(self) -> str:
        return f"{svg(self.facts)}<details><summary>text</summary><pre>{html.escape(str(self))}</pre></details>"
