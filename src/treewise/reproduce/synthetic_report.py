"""What the synthetic tree's rows say: the paper's table beside ours, where seeds ended, and how the rate matters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from treewise.plot.synthetic_tree import draw_synthetic_tree
from treewise.reproduce.engine import Report, Row, Table
from treewise.reproduce.options import SyntheticTree
from treewise.statistics import interval
from treewise.types import FloatArray

LAST = 50  # steps at the end whose samples are counted
SIZES = MappingProxyType({"tiny": (2, 64, 4), "small": (12, 768, 12)})  # layers, width, heads
PAPER = MappingProxyType(  # (n, r_neg) → share of the target, GRPO and λ-GRPO
    {
        (1, -0.5): (0.3995, 0.5663),
        (1, -1.0): (0.0000, 0.7535),
        (1, -1.5): (0.2000, 0.4463),
        (2, -0.5): (0.1980, 0.4292),
        (2, -1.0): (0.0488, 0.3612),
        (2, -1.5): (0.0000, 0.3820),
    }
)
PAIR = ((0, "grpo"), (1, "lambda_grpo"))  # the methods that the paper's two numbers belong to
COMPARED = ("λ-GRPO − GRPO", "seeds won : lost")
MARGIN = 0.05  # a seed is won by a larger share than this: .999 against .998 is no win
NAMES = MappingProxyType(
    {"grpo": "GRPO", "half": "p = ½", "lambda_grpo": "λ-GRPO", "treerl": "TreeRL", "tempo": "TEMPO"}
)

Tree = tuple[int, float]  # n and r_neg
Study = Mapping[tuple[str, str, int, float], Mapping[str, FloatArray]]


def study_of(rows: Sequence[Row]) -> Study:
    """(rate, method, n, r_neg) → column → its values, [seeds]."""
    found: dict[tuple[str, str, int, float], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        found.setdefault((row["rate"], row["method"], row["shared"], row["trap"]), []).append(row)
    numbers = [name for name, value in rows[0].items() if isinstance(value, float)]
    return {key: {name: np.array([row[name] for row in own]) for name in numbers} for key, own in found.items()}


def report(options: SyntheticTree, rows: Sequence[Row]) -> Report:
    """The paper's table once per rate, which seeds found the target, and how that depends on the rate."""
    study, trees = study_of(rows), list(itertools.product(options.shared, options.traps))
    tables = [_shares(options, study, trees, rate) for rate in options.rates]
    tables.append(_seeds(options, study, trees))
    if len(options.rates) > 1:
        tables.append(_rates(options, study, trees))
    figure = draw_synthetic_tree(
        [f"n = {n}\nr = {trap:g}".replace("-", "−") for n, trap in trees],
        {
            name_of(method): [interval(study[options.rates[0], method, *tree]["share"]) for tree in trees]
            for method in options.methods
        },
        {NAMES[method]: [PAPER[tree][at] if tree in PAPER else None for tree in trees] for at, method in PAIR},
        _sweeps(options, study, trees),
        _curves(options, study, trees),
        rate=options.rates[0],
        note=f"{options.seeds} seeds · {_setting(options)}",
    )
    return Report(tables, figure)


def name_of(method: str) -> str:
    """A method as a heading."""
    return NAMES.get(method, method)


def _setting(options: SyntheticTree) -> str:
    layers, width, _ = SIZES[options.size]
    return f"GPT-2 of {layers} layers of {width}, fresh weights · G = {options.group_size} · {options.steps} steps"


def _estimate(values: FloatArray, form: str = ".2f") -> str:
    estimate = interval(values)
    mean, low, high = (format(value, form).replace("-", "−") for value in estimate)
    return mean if np.isnan(estimate.low) else f"{mean} [{low}, {high}]"


def _tree(tree: Tree) -> tuple[str, str]:
    return str(tree[0]), f"{tree[1]:g}".replace("-", "−")


def _difference(options: SyntheticTree, shares: Mapping[str, FloatArray]) -> list[str]:
    """λ-GRPO against GRPO over the same seeds; nothing where one of them was not run."""
    if not {"grpo", "lambda_grpo"} <= set(options.methods):
        return []
    gained = shares["lambda_grpo"] - shares["grpo"]
    return [_estimate(gained, "+.2f"), f"{(gained > MARGIN).sum()} : {(gained < -MARGIN).sum()}"]


def _shares(options: SyntheticTree, study: Study, trees: Sequence[Tree], rate: str) -> Table:
    lines = []
    for tree in trees:
        shares = {method: study[rate, method, *tree]["share"] for method in options.methods}
        paper = [f"{share:.4f}" for share in PAPER[tree]] if tree in PAPER else ["–", "–"]
        lines.append((*_tree(tree), *paper, *map(_estimate, shares.values()), *_difference(options, shares)))
    if len(trees) > 1:
        shares = _over_trees(options, study, trees, rate)
        known = [PAPER[tree] for tree in trees if tree in PAPER] if set(trees) <= set(PAPER) else []
        paper = [f"{np.mean(column):.4f}" for column in zip(*known, strict=True)] or ["–", "–"]
        lines.append(("all", "", *paper, *map(_estimate, shares.values()), *_difference(options, shares)))
    header = ("n", "r_neg", "paper: GRPO", "paper: λ-GRPO", *map(name_of, options.methods), *COMPARED)
    return Table(
        f"Share of the target in the last {min(LAST, options.steps)} steps, {rate}",
        header[: len(lines[0])],
        lines,
        f"Mean [95 % t interval] over {options.seeds} seeds, the same for all methods; a seed mostly ends near 0 or "
        f"1, for which such an interval is rough. all: a seed's mean over the trees counts as one value. Won: "
        f"λ-GRPO's share is larger by more than {MARGIN:g}. "
        f"{_setting(options)} of one group each; temperature 1, float32, AdamW with "
        "β .9 and .999, SGD without momentum, nothing decayed, scheduled or clipped. All methods divide by the "
        "group's standard deviation and by D = 4 G, so that a rate means the same (the presets of TreeRL, SPO and "
        "tree_rloo have no deviation in them); parent is SPO with segments of one token. The paper's numbers are means "
        "of 5 seeds of GPT-2-small; its optimizer and first weights are not known to us, its learning rate (1e-5) only "
        "at second hand.",
    )


def _seeds(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> Table:
    lines = []
    for rate, tree in itertools.product(options.rates, trees):
        cells = [study[rate, method, *tree] for method in options.methods]
        ends = [[own["share"], own["safe"], 1 - own["share"] - own["safe"]] for own in cells]
        counts = [" · ".join(str((shares > 0.5).sum()) for shares in own) for own in ends]
        rewards = [f"{own['reward'].mean():.2f}".replace("-", "−") for own in cells]
        shown = [f"{count} ({reward})" for count, reward in zip(counts, rewards, strict=True)]
        lines.append((rate, *_tree(tree), *shown))
    return Table(
        f"Where the {options.seeds} seeds ended: target · safe paths · trap (mean reward)",
        ("rate", "n", "r_neg", *map(name_of, options.methods)),
        lines,
        f"By the samples of the last {min(LAST, options.steps)} steps: more than half of them. A group of equal paths "
        "has no signal, so a policy that always draws the same one stays there, even in the trap.",
    )


def _over_trees(options: SyntheticTree, study: Study, trees: Sequence[Tree], rate: str) -> dict[str, FloatArray]:
    """Method → mean share over the trees, [seeds]."""
    return {m: np.mean([study[rate, m, *tree]["share"] for tree in trees], axis=0) for m in options.methods}


def _rates(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> Table:
    lines = []
    for rate in options.rates:
        shares = _over_trees(options, study, trees, rate)
        lines.append((rate, *map(_estimate, shares.values()), *_difference(options, shares)))
    return Table(
        f"How that depends on the rate: share of the target, mean over the {len(trees)} trees",
        ("rate", *map(name_of, options.methods), *COMPARED)[: len(lines[0])],
        lines,
        "A seed's mean over the trees counts as one value.",
    )


def _sweeps(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> dict[str, dict[str, list[Any]]]:
    """Optimizer → method → (rate, estimate), for optimizers with more than one rate."""
    found: dict[str, dict[str, list[Any]]] = {}
    for rate in sorted(options.rates, key=lambda rate: float(rate.partition(":")[2])):
        optimizer, _, number = rate.partition(":")
        for method, shares in _over_trees(options, study, trees, rate).items():
            own = found.setdefault(optimizer, {}).setdefault(name_of(method), [])
            own.append((float(number), interval(shares)))
    return {name: methods for name, methods in found.items() if len(next(iter(methods.values()))) > 1}


def _curves(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> dict[str, list[tuple[int, float]]]:
    """Method → (step, mean share of the steps up to there) at the first rate, over seeds and trees."""
    blocks = [name for name in next(iter(study.values())) if name.startswith("to_")]
    return {
        name_of(method): [
            (int(name[3:]), float(np.mean([study[options.rates[0], method, *tree][name] for tree in trees])))
            for name in blocks
        ]
        for method in options.methods
    }
