"""Write docs/options.md from the recipe's fields: `python scripts/options.py`."""

from __future__ import annotations

from pathlib import Path

from treewise.config import Recipe, RewardItem
from treewise.recipe import options

HEADER = """# Options

Every option of a recipe. In TOML they stand in sections (`[train]` with `steps = 100`), on the command line as
`--train.steps 100`. `treewise train --dry-run` prints the resolved recipe. Written by `python scripts/options.py`.
"""


def render() -> str:
    """The page: one table per section."""
    lines = [HEADER]
    section = None
    for name, default, text in options():
        head = name.partition(".")[0]
        if head != section:
            section = head
            about = getattr(Recipe.model_fields[head].annotation, "__doc__", None)
            title = about if "." in name and about else (Recipe.model_fields[head].description or "")
            lines += [f"\n## {head}\n", f"{title.strip()}\n", "| option | default | |", "|---|---|---|"]
        shown = "" if default is None or default in ((), {}) else f"`{default}`"
        shown = shown.replace("\n", "\\n")
        if head == "reward":
            shown = '`[{function = "…", weight = 1}]`'
        lines.append(f"| `{name}` | {shown} | {text.replace('|', chr(92) + '|')} |")
        if head == "reward":
            lines.append("\nEach of them ([rewards.md](rewards.md)):\n")
            lines += ["| in `[[reward]]` | default | |", "|---|---|---|"]
            for own, entry in RewardItem.model_fields.items():
                default = "" if entry.is_required() or entry.default in (None, {}) else f"`{entry.default}`"
                lines.append(f"| `{own}` | {default} | {entry.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).parents[1].joinpath("docs", "options.md").write_text(render(), encoding="utf-8")
