"""Write docs/options.md from the recipe's fields: `python scripts/options.py`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from treewise.config import Recipe
from treewise.recipe import options
from treewise.sections import RewardItem, SourceItem

HEADER = """# Options

Every option of a recipe. In TOML they stand in sections (`[train]` with `steps = 100`), on the command line as
`--train.steps 100`. `treewise train --dry-run` prints the resolved recipe. Written by `python scripts/options.py`.
"""


# Options that are lists of tables, and the page about them.
ITEMS = {"reward": (RewardItem, "rewards.md"), "data.mix": (SourceItem, "data.md")}


def render() -> str:
    """The page: one table per section, and one for each list of tables in it."""
    lines = [HEADER]
    section = None
    behind: list[str] = []
    for name, default, text in options():
        head = name.partition(".")[0]
        if head != section:
            lines += behind
            section, behind = head, []
            about = getattr(Recipe.model_fields[head].annotation, "__doc__", None)
            title = about if "." in name and about else (Recipe.model_fields[head].description or "")
            lines += [f"\n## {head}\n", f"{title.strip()}\n", "| option | default | |", "|---|---|---|"]
        shown = "" if default is None or default in ((), {}) else f"`{default}`"
        shown = shown.replace("\n", "\\n")
        if head == "reward":
            shown = '`[{function = "…", weight = 1}]`'
        lines.append(f"| `{name}` | {shown} | {text.replace('|', chr(92) + '|')} |")
        if name in ITEMS:
            behind = _table(name, *ITEMS[name])
    return "\n".join([*lines, *behind]) + "\n"


def _table(name: str, item: type[BaseModel], page: str) -> list[str]:
    lines = [f"\nEach of them ([{page}]({page})):\n", f"| in `[[{name}]]` | default | |", "|---|---|---|"]
    for own, entry in item.model_fields.items():
        default = "" if entry.is_required() or entry.default in (None, {}) else f"`{entry.default}`"
        lines.append(f"| `{own}` | {default} | {entry.description} |")
    return lines


if __name__ == "__main__":
    Path(__file__).parents[1].joinpath("docs", "options.md").write_text(render(), encoding="utf-8")
