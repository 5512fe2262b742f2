"""treewise: post-train language models with GRPO and λ-GRPO on the prefix tree of their answers.

    from treewise import load_recipe, train
    run = train(load_recipe("recipe.toml"), problems=problems, reward=reward)

Importing the package loads neither torch nor transformers; the first use of `train` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treewise.loop import train
    from treewise.recipe import load_recipe
    from treewise.types import Problem

__version__ = "0.1.0"
__all__ = ["Problem", "load_recipe", "train"]

_HOMES = {"load_recipe": "treewise.recipe", "train": "treewise.loop", "Problem": "treewise.types"}


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'treewise' has no attribute {name!r}")
