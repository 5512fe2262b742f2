"""What the synthetic tree's rows say: the paper's table beside ours, where seeds ended, and how the rate matters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from treewise.plot.synthetic_tree import draw_synthetic_tree
from treewise.reproduce.engine import Report, Row, Table
from treewise.reproduce.gpt2 import SIZES
from treewise.reproduce.options import SyntheticTree
from treewise.statistics import FEWEST, counted, interval, shown, sign_flips, smallest_p
from treewise.types import FloatArray

LAST = 50  # steps at the end whose samples are counted
BLOCK = 25  # steps to a point of the learning curve
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
SHARE, GAIN = (0.0, 1.0), (-1.0, 1.0)  # what a share, and a difference of two, can be
NAMES = MappingProxyType(
    {"grpo": "GRPO", "half": "p = ½", "lambda_grpo": "λ-GRPO", "treerl": "TreeRL", "tempo": "TEMPO"}
)

Tree = tuple[int, float]  # n and r_neg
Study = Mapping[tuple[str, str, int, float], Mapping[str, FloatArray]]


def blocks(steps: int) -> dict[str, tuple[int, int]]:
    """The columns of the learning curve, with the first and the last step that each is the mean of."""
    ends = [min(end, steps) for end in range(BLOCK, steps + BLOCK, BLOCK)]
    return {f"to_{end}": ((end - 1) // BLOCK * BLOCK + 1, end) for end in ends}


def study_of(options: SyntheticTree, rows: Sequence[Row]) -> Study:
    """(rate, method, n, r_neg) → column → its values, [seeds]."""
    found: dict[tuple[str, str, int, float], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        found.setdefault((row["rate"], row["method"], row["shared"], row["trap"]), []).append(row)
    columns = ("share", "safe", "reward", *blocks(options.steps))
    return {key: {name: np.array([row[name] for row in own]) for name in columns} for key, own in found.items()}


def report(options: SyntheticTree, rows: Sequence[Row]) -> Report:
    """The paper's table once per rate, which seeds found the target, and how that depends on the rate."""
    study, trees = study_of(options, rows), list(itertools.product(options.shared, options.traps))
    tables = [_shares(options, study, trees, rate) for rate in options.rates]
    tables.append(_seeds(options, study, trees))
    if len(options.rates) > 1:
        tables.append(_rates(options, study, trees))
    figure = draw_synthetic_tree(
        [f"n = {n}\nr = {trap:g}".replace("-", "−") for n, trap in trees],
        {
            name_of(method): [interval(study[options.rates[0], method, *tree]["share"], within=SHARE) for tree in trees]
            for method in options.methods
        },
        {NAMES[method]: [PAPER[tree][at] if tree in PAPER else None for tree in trees] for at, method in PAIR},
        _sweeps(options, study, trees),
        _curves(options, study, trees),
        rate=options.rates[0],
        note=f"{counted(options.seeds, 'seed')} · {_setting(options)}",
    )
    return Report(tables, figure)


def name_of(method: str) -> str:
    """A method as a heading."""
    return NAMES.get(method, method)


def _setting(options: SyntheticTree) -> str:
    layers, width, _ = SIZES[options.size]
    return f"GPT-2 of {layers} layers of {width}, fresh weights · G = {options.group_size} · {options.steps} steps"


def _tree(tree: Tree) -> dict[str, str]:
    return {"n": str(tree[0]), "r_neg": f"{tree[1]:g}".replace("-", "−")}


def _compared(shares: Mapping[str, FloatArray]) -> dict[str, str]:
    """Every method's share, and λ-GRPO against GRPO over the same seeds where both were run."""
    found = {name_of(method): shown(values, ".2f", within=SHARE) for method, values in shares.items()}
    if {"grpo", "lambda_grpo"} <= shares.keys():
        gained = shares["lambda_grpo"] - shares["grpo"]
        found["λ-GRPO − GRPO"] = shown(gained, "+.2f", within=GAIN)
        found["p"] = f"{sign_flips(gained):.2g}"
    return found


def _table(title: str, lines: Sequence[Mapping[str, str]], note: str = "") -> Table:
    return Table(title, tuple(lines[0]), [tuple(line.values()) for line in lines], note)


def _paper(shares: Sequence[float]) -> dict[str, str]:
    names = [f"paper: {NAMES[method]}" for _, method in PAIR]
    return dict(zip(names, [f"{share:.4f}" for share in shares] or ["–", "–"], strict=True))


def _shares(options: SyntheticTree, study: Study, trees: Sequence[Tree], rate: str) -> Table:
    lines = []
    for tree in trees:
        shares = {method: study[rate, method, *tree]["share"] for method in options.methods}
        lines.append({**_tree(tree), **_paper(PAPER.get(tree, ())), **_compared(shares)})
    if len(trees) > 1:
        known = [PAPER[tree] for tree in trees] if set(trees) <= set(PAPER) else []
        paper = [float(np.mean(column)) for column in zip(*known, strict=True)]
        shares = _over_trees(options, study, trees, rate)
        lines.append({"n": "all", "r_neg": "", **_paper(paper), **_compared(shares)})
    return _table(
        f"Share of the target in the last {min(LAST, options.steps)} steps, {rate}",
        lines,
        ""
        if rate != options.rates[-1]
        else f"{_reading(options)} all: a seed's mean over the trees counts as one "
        f"value. {_setting(options)} of one group each; temperature 1, float32, AdamW with "
        "β .9 and .999, SGD without momentum, nothing decayed, scheduled or clipped. All methods divide by the "
        "group's standard deviation and by D = 4 G, so that a rate means the same (the presets of TreeRL, SPO and "
        "tree_rloo have no deviation in them); parent is SPO with segments of one token. The paper's numbers are means "
        "of 5 seeds of GPT-2-small; its optimizer and first weights are not known to us, its learning rate (1e-5) only "
        "at second hand.",
    )


def _reading(options: SyntheticTree) -> str:
    """How to read a share, a difference and a p."""
    if options.seeds < FEWEST:
        spread = "Mean (single seeds)"
    else:
        spread = "Mean [95 % t interval, cut where a share ends]"
    seeds = counted(options.seeds, "seed")
    return (
        f"{spread} over {seeds}, the same for all methods. A seed mostly ends near 0 or 1, for which a t interval is "
        "rough. p: two-sided, for each line by itself, by random signs of the seeds' differences; "
        f"{seeds} can't give less than {smallest_p(options.seeds):.2g}."
    )


def _seeds(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> Table:
    lines = []
    for rate, tree in itertools.product(options.rates, trees):
        line = {"rate": rate, **_tree(tree)}
        for method in options.methods:
            own = study[rate, method, *tree]
            ends = (own["share"], own["safe"], 1 - own["share"] - own["safe"])
            counts = " · ".join(str((shares > 0.5).sum()) for shares in ends)
            line[name_of(method)] = f"{counts} ({own['reward'].mean():.2f})".replace("-", "−")
        lines.append(line)
    return _table(
        f"Where {counted(options.seeds, 'seed')} ended: target · safe paths · trap (mean reward)",
        lines,
        f"By the samples of the last {min(LAST, options.steps)} steps: more than half of them. A group of equal paths "
        "has no signal, so a policy that always draws the same one stays there, even in the trap.",
    )


def _over_trees(options: SyntheticTree, study: Study, trees: Sequence[Tree], rate: str) -> dict[str, FloatArray]:
    """Method → mean share over the trees, [seeds]."""
    return {m: np.mean([study[rate, m, *tree]["share"] for tree in trees], axis=0) for m in options.methods}


def _rates(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> Table:
    return _table(
        f"How that depends on the rate: share of the target, mean over {counted(len(trees), 'tree')}",
        [{"rate": rate, **_compared(_over_trees(options, study, trees, rate))} for rate in options.rates],
        f"{_reading(options)} A seed's mean over the trees counts as one value.",
    )


def _sweeps(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> dict[str, dict[str, list[Any]]]:
    """Optimizer → method → (rate, estimate), for optimizers with more than one rate."""
    found: dict[str, dict[str, list[Any]]] = {}
    for rate in sorted(options.rates, key=lambda rate: float(rate.partition(":")[2])):
        optimizer, _, number = rate.partition(":")
        for method, shares in _over_trees(options, study, trees, rate).items():
            own = found.setdefault(optimizer, {}).setdefault(name_of(method), [])
            own.append((float(number), interval(shares, within=SHARE)))
    return {name: methods for name, methods in found.items() if len(next(iter(methods.values()))) > 1}


def _curves(options: SyntheticTree, study: Study, trees: Sequence[Tree]) -> dict[str, list[tuple[float, float]]]:
    """Method → (middle of a block of steps, mean share in it) at the first rate, over seeds and trees."""
    return {
        name_of(method): [
            ((first + last) / 2, float(np.mean([study[options.rates[0], method, *tree][name] for tree in trees])))
            for name, (first, last) in blocks(options.steps).items()
        ]
        for method in options.methods
    }
