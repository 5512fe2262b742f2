"""The pictures of docs/grpo.md: `python scripts/grpo_figures.py` (seconds).

Every curve and every number in them is computed by the library: the clip and the KL estimates by `treewise.axes`, the
credit of the Wordle games by `treewise.credit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from treewise.axes.kl import ESTIMATORS
from treewise.axes.trust_region import Clip, Tokens
from treewise.credit import group_advantages, process_advantages, process_rewards
from treewise.plot.figure import COLOURS, STYLE
from treewise.plot.tree import BETTER, INK, MUTED, WORSE, advantage_colours
from treewise.tree import PrefixTree, build_tree
from treewise.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
CLIP = Clip(clip_low=0.2, clip_high=0.2)
ESTIMATES = {  # colour, line, its width, and the formula with x for log(π/π_ref)
    "k3": (COLOURS[0], "-", 3.2, r"e^{-x} + x - 1"),
    "k1": (COLOURS[4], "-.", 1.4, "x"),
    "k2": (COLOURS[2], "--", 1.4, r"x^2/2"),
}


class Game(NamedTuple):
    """One game of Wordle: its guesses, and 1 if the last one was right."""

    name: str
    guesses: tuple[str, ...]
    reward: float


GAMES = (
    Game("A", ("SLATE", "MUMMY", "BRACE", "CRANE"), 1.0),
    Game("B", ("SLATE", "BRACE", "CRAVE", "CRAZE"), 0.0),
    Game("C", ("SLATE", "BRACE", "CRANE"), 1.0),
    Game("D", ("MUMMY", "SLATE", "BRACE", "CRAZE"), 0.0),
)


def clip_objective(ratios: FloatArray, advantage: float) -> FloatArray:
    """`min(ρa, clip(ρ, 1 − ε_low, 1 + ε_high)a)` for many ratios."""
    log_ratios = torch.log(torch.as_tensor(ratios))
    nothing = torch.zeros_like(log_ratios)
    tokens = Tokens(log_ratios, nothing, torch.full_like(nothing, advantage), nothing.long(), log_ratios)
    values: FloatArray = CLIP(tokens).values.numpy()
    return values


def kl_estimate(name: str, log_ratios: FloatArray) -> FloatArray:
    """One of the estimates of KL(π ‖ π_ref), for many log(π/π_ref)."""
    to_reference = torch.as_tensor(log_ratios)
    values: FloatArray = ESTIMATORS[name](to_reference, torch.zeros_like(to_reference)).numpy()
    return values


def game_tree(games: Sequence[Game]) -> PrefixTree:
    """The games' prefix tree; a guess is one token, and so is the feedback after it, which nobody sampled.

    All games have the same secret word, so equal guesses have equal feedback.
    """
    words = sorted({guess for game in games for guess in game.guesses})
    rows = [[2 * words.index(guess) + mark for guess in game.guesses for mark in (0, 1)] for game in games]
    return build_tree(rows, [[True, False] * len(game.guesses) for game in games])


def _draw_clip(axes: Axes, advantage: float) -> None:
    ratios = np.linspace(0.0, 2.0, 401)
    better = advantage > 0
    colour, sign = (BETTER, 1) if better else (WORSE, -1)
    flat = (1 + CLIP.clip_high, 2.0) if better else (0.0, 1 - CLIP.clip_low)
    axes.axvspan(*flat, color=colour, alpha=0.12, linewidth=0)
    axes.plot(ratios, ratios * advantage, "--", color=MUTED, linewidth=1.2, label=r"$\rho\,a$, without the clip")
    label = r"$\min(\rho\,a,\ \mathrm{clip}(\rho)\,a)$"
    axes.plot(ratios, clip_objective(ratios, advantage), color=colour, linewidth=2.8, label=label)
    axes.plot([1.0], [advantage], "o", color=INK, markersize=7)
    axes.annotate(
        r"$\rho = 1$: slope $a$",
        (1.0, advantage),
        (1.1, 0.45) if better else (0.5, -1.6),
        ha="left" if better else "center",
        arrowprops={"arrowstyle": "-", "color": MUTED, "shrinkB": 6},
    )
    axes.text(float(np.mean(flat)), 1.0 * sign, "flat:\nno gradient", ha="center", va="center")
    axes.set(xlim=(0, 2), ylim=(0, 2) if better else (-2, 0), xlabel=r"$\rho = \pi\,/\,\pi_{\mathrm{old}}$")
    axes.set_ylabel("objective of the token")
    bounds = [0, 1 - CLIP.clip_low, 1, 1 + CLIP.clip_high, 2]
    names = ["0", r"$1 - \varepsilon_{\mathrm{low}}$", "1", r"$1 + \varepsilon_{\mathrm{high}}$", "2"]
    axes.set_xticks(bounds, names)
    axes.set_yticks([sign * 0.5 * n for n in range(5)])
    for tick, side in zip(axes.get_xticklabels()[1:4:2], ("right", "left"), strict=True):
        tick.set_horizontalalignment(side)
    _title(axes, f"a = {'+1' if better else '−1'}: make the token {'more' if better else 'less'} likely")
    axes.legend(loc="upper left" if better else "upper right", fontsize=11.5)


def _draw_kl(axes: Axes) -> None:
    log_ratios = np.linspace(-2.0, 2.0, 401)
    axes.axhline(0, color="#bbbbbb", linewidth=1)
    for name, (colour, line, width, formula) in ESTIMATES.items():
        values = kl_estimate(name, log_ratios)
        axes.plot(log_ratios, values, line, color=colour, linewidth=width, label=f"{name} $= {formula}$")
    axes.set(xlim=(-2, 2), ylim=(-2, 5), xlabel=r"$x = \log(\pi\,/\,\pi_{\mathrm{ref}})$ of the sampled token")
    axes.set_ylabel("estimate of the KL")
    axes.set_xticks(range(-2, 3))
    axes.text(-1.55, -1.85, r"rarer than in $\pi_{\mathrm{ref}}$", color=MUTED, size=11)
    axes.text(1.9, -1.85, r"likelier than in $\pi_{\mathrm{ref}}$", color=MUTED, size=11, ha="right")
    _title(axes, r"kl, the distance to $\pi_{\mathrm{ref}}$")
    axes.legend(loc="upper right", fontsize=11.5)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", size=13.5, color=INK, pad=10)


def draw_clip_kl(path: Path) -> Figure:
    """The clipped objective for both signs of a, and the three KL estimates."""
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(15, 4.8), dpi=100, layout="constrained")
        panels = figure.subplots(1, 3)
        _draw_clip(panels[0], 1.0)
        _draw_clip(panels[1], -1.0)
        _draw_kl(panels[2])
        figure.savefig(path)
    return figure


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−") if abs(value) > 5e-3 else "0"


def _box(axes: Axes, x: int, y: float, height: float, text: str, shade: float) -> None:
    colour = advantage_colours()(0.5 + 0.5 * shade)
    axes.add_patch(Rectangle((x, y), 1, height, facecolor=colour, edgecolor="white", linewidth=2))
    ink = "white" if abs(shade) > 0.8 else INK
    axes.text(x + 0.5, y + height / 2, text, ha="center", va="center", color=ink, linespacing=1.35)


def _empty(axes: Axes, title: str, text: str) -> None:
    turns = max(len(game.guesses) for game in GAMES)
    axes.set(xlim=(0, turns + 0.5), ylim=(len(GAMES), 0))
    axes.set_xticks(np.arange(turns) + 0.5, [f"turn {turn}" for turn in range(1, turns + 1)])
    axes.set_yticks(np.arange(len(GAMES)) + 0.5, [f"game {game.name}" for game in GAMES])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", size=13.5, pad=30)
    axes.text(0, -0.12, text, size=11, color=MUTED).set_in_layout(False)
    for number, game in enumerate(GAMES):
        axes.text(len(game.guesses) + 0.08, number + 0.5, "won" if game.reward else "lost", va="center", color=MUTED)


def draw_wordle(path: Path) -> Figure:
    """Four games: the advantage of each turn, and what each process set gets in total under GRPO and λ-GRPO."""
    rewards = np.array([game.reward for game in GAMES])
    outcome = group_advantages(rewards.tolist())
    tree = game_tree(GAMES)
    process, values = process_advantages(tree, rewards), process_rewards(tree, rewards)
    sizes = tree.size[tree.index]
    limit = float(np.abs(outcome).max())
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(18, 4.8), dpi=100, layout="constrained")
        turns, totals, divided = figure.subplots(1, 3)
        _empty(turns, "GRPO, turn by turn", "number: the game's advantage")
        _empty(totals, "GRPO, in total for each prefix", "last number: the total, |λ| × process advantage")
        _empty(divided, "λ-GRPO, in total for each prefix", "number: the process advantage, once")
        entry, drawn = 0, set[int]()
        for number, game in enumerate(GAMES):
            for turn, guess in enumerate(game.guesses):
                advantage, size = outcome[number], int(sizes[entry])
                _box(turns, turn, number, 1, f"{guess}\n{_signed(advantage)}", advantage / limit)
                if tree.index[entry] not in drawn:  # games that share a set lie together
                    drawn.add(int(tree.index[entry]))
                    once, total = process[entry], size * process[entry]
                    product = f"{size} × {_signed(once)}\n= " if size > 1 else ""
                    text = f"{guess}\nR̂ = {values[entry]:.2f}\n{product}{_signed(total)}"
                    _box(totals, turn, number, size, text, total / limit)
                    _box(divided, turn, number, size, f"{guess}\n{_signed(once)}", once / limit)
                entry += 1
        figure.savefig(path)
    return figure


def main() -> None:
    """Draw everything."""
    draw_clip_kl(DOCS / "grpo_clip_kl.png")
    draw_wordle(DOCS / "grpo_wordle.png")


if __name__ == "__main__":
    main()
