"""Write the tables of docs/objectives.md from the code: `python scripts/objectives.py`.

The page's prose is written by hand; what stands between `<!-- NAME -->` and `<!-- end -->` comes from here: the presets
from their table, the values of each axis from their docstrings and options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from treewise.axes import AXES
from treewise.axes.kl import ESTIMATORS
from treewise.axes.ratio import RATIOS
from treewise.axes.scale import SCALES
from treewise.presets import PRESETS

PAGE = Path(__file__).parents[1] / "docs" / "objectives.md"
TABLES: Mapping[str, Mapping[str, Any]] = {**AXES, "scale": SCALES, "ratio": RATIOS, "kl_estimator": ESTIMATORS}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def presets() -> str:
    """One row for every preset: its name, the method, the options that it sets, the paper."""
    lines = ["| preset | method | sets | source |", "|---|---|---|---|"]
    for name, preset in PRESETS.items():
        options = ", ".join(f"{key} {_value(value)}" for key, value in preset.options.items()) or "the defaults"
        lines.append(f"| `{name}` | {_cell(preset.title)} | {_cell(options)} | {_linked(preset.source)} |")
    return "\n".join(lines)


def axis(name: str) -> str:
    """One row for every value of an axis: its formula and remarks, its options with their defaults, its source."""
    lines = [f"| `{name}` | what it computes | options | source |", "|---|---|---|---|"]
    for value, kind in TABLES[name].items():
        about, _, source = (inspect.getdoc(kind) or "").partition("Source: ")
        own = [(field.name, field.default) for field in fields(kind)] if is_dataclass(kind) else []
        options = ", ".join(f"`{key}` {_value(default)}" for key, default in own)
        lines.append(f"| `{value}` | {_cell(about)} | {options} | {_linked(_cell(source).rstrip('.'))} |")
    return "\n".join(lines)


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower() if value is None else str(value)


def _linked(source: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", source)


def render(page: str) -> str:
    """The page with every generated block written anew."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        table = presets() if name == "presets" else axis(name)
        return f"<!-- {name} -->\n{table}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", block, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
