"""docs/theory.md tells the truth: its theorem holds and ends where it says, and its numbers are the library's."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from theory_figures import LAMBDA, PLAIN, fork_scale, formula
from token_trees import TokenTree, all_groups, estimates, grow, trajectory
from treewise.analysis import process_sets
from treewise.axes import Objective
from treewise.axes.advantage import ProcessAdvantage
from treewise.axes.aggregation import token_weights
from treewise.axes.correction import Truncate
from treewise.axes.trust_region import TRUST_REGIONS, Clip, Tokens
from treewise.cli import main
from treewise.credit import credit, denominator_of, group_advantages, process_advantages, reward_statistics
from treewise.objective import loss, token_terms
from treewise.presets import resolve
from treewise.records import RecordedTrajectory, read_groups
from treewise.reproduce.options import EXPERIMENTS
from treewise.tree import PrefixTree, build_tree
from treewise.types import FloatArray, Group, Problem

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())  # sentences, wherever their lines end
ANSWERS = ("ABCD", "ABEFHI", "JKLM", "JKLNQST", "JKLNQU", "VWYZ")
REWARDS = np.array([0.5, 0.5, 1.0, 0.0, 0.0, 0.5])
SETS = ("AB", "JKL", "M", "NQ", "VWYZ")  # of the table


def shown(value: float, digits: int = 3, *, sign: bool = True) -> str:
    """A number as the page writes it: halves away from 0, a real minus, 0 for rounding noise."""
    if sign and abs(value) < 1e-9:
        return "0"
    text = f"{abs(value) + 1e-12:.{digits}f}"
    return ("−" if value < 0 else "+") + text if sign else text


def table(name: str) -> list[list[str]]:
    """The cells below the header of a table between its marks."""
    (text,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE, flags=re.DOTALL)
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in text.strip().splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind == language]


# The worked example


def worked_tree() -> PrefixTree:
    return build_tree([[ord(letter) for letter in row] for row in ANSWERS], [[True] * len(row) for row in ANSWERS])


def at(tree: PrefixTree, entries: FloatArray, token: str) -> float:
    """The sum of values in trajectory space over the members of the set that a letter belongs to."""
    return float(entries[tree.tokens[tree.index] == ord(token)].sum())


@pytest.fixture
def worked_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What the script on the page writes."""
    (script,) = re.findall(r"^python - > worked.jsonl <<'end'\n(.*?)^end$", PAGE, flags=re.DOTALL | re.MULTILINE)
    exec(script, {})
    file = tmp_path / "worked.jsonl"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


def test_the_recorded_answers_on_the_page_are_the_worked_example(worked_file: Path) -> None:
    (group,) = read_groups(worked_file)
    assert tuple("".join(map(chr, row.tokens)) for row in group.trajectories) == ANSWERS
    assert [row.reward for row in group.trajectories] == REWARDS.tolist()
    drawing = blocks("")[0].splitlines()
    for number, (answer, reward) in enumerate(zip(ANSWERS, REWARDS, strict=True)):
        (line,) = [line for line in drawing if line.startswith(f"{number}  ")]
        assert re.match(rf"\d  {' '.join(answer)}  +{reward:g} ", line)


def test_inspect_says_how_much_is_shared_as_the_page_does(
    worked_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(worked_file)]) == 0
    depth, shared = re.findall(r"path depth (\S+) · shared (\S+)", capsys.readouterr().out)[0]
    assert f"leads through {depth} sets below the root on average (*path depth*), and it shares {shared} of" in TEXT
    nodes = ("AB", "CD"), ("AB", "EFHI"), ("JKL", "M"), ("JKL", "NQ", "ST"), ("JKL", "NQ", "U"), ("VWYZ",)
    assert f"{np.mean([len(path) for path in nodes]):.2f}" == depth


def explained(file: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["explain", str(file), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_the_commands_on_the_page_print_one_loss_for_both_forms_of_grpo(
    worked_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = re.findall(r"^treewise explain worked.jsonl (.*)$", PAGE, flags=re.MULTILINE)
    found = [explained(worked_file, *words.split(), capsys=capsys) for words in commands]
    outcome, process, weighted = (report["loss"] for report in found)
    assert outcome == pytest.approx(process, rel=1e-12)
    assert f"the same loss, {outcome:.6g}, as Theorem 1 says, and λ-GRPO another one, {weighted:.6g}." in TEXT


def test_gradients_of_explain_add_up_to_the_totals_of_the_table(
    worked_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [("--preset", "lambda_grpo", "--objective.weight_exponent", p) for p in ("0", "0.5", "1")]
    reports = [explained(worked_file, *words, capsys=capsys) for words in options]
    for row in table("worked"):
        for report, cell in zip(reports, row[5:], strict=True):
            assert f"times −D = −{report['denominator']:g}, is" in TEXT
            token = row[0].strip("`")[-1]
            total = sum(
                t["grad"][answer.index(token)]
                for t, answer in zip(report["trajectories"], ANSWERS, strict=True)
                if token in answer
            )
            found = -report["denominator"] * total
            assert found == pytest.approx(float(cell.replace("−", "-")), abs=1.5e-3)  # the command has ε = 1e-4


def test_the_table_of_the_worked_example() -> None:
    tree = worked_tree()
    outcome = group_advantages(REWARDS.tolist(), epsilon=0.0)[tree.trajectory]
    process = process_advantages(tree, REWARDS, epsilon=0.0)
    rows = []
    for tokens in SETS:
        first = np.flatnonzero(tree.tokens[tree.index] == ord(tokens[0]))
        members = tree.trajectory[first]
        totals = [at(tree, outcome * token_weights(tree, exponent=p), tokens[-1]) for p in (0.0, 0.5, 1.0)]
        rows.append(
            [
                f"`{' '.join(tokens)}`",
                " ".join(map(str, members)),
                str(len(members)),
                shown(REWARDS[members].mean(), sign=False),
                shown(process[first[0]]),
                *map(shown, totals),
            ]
        )
        assert totals == pytest.approx([len(members) ** (1 - p) * process[first[0]] for p in (0.0, 0.5, 1.0)])
    assert table("worked") == rows


# Theorem 1


def table_logprobs(answers: Sequence[str], rewards: Sequence[float]) -> tuple[Group, Tensor, Any]:
    """A policy of one logit per prefix and letter: the answers as a group, logits, and log π of theirs from them."""
    group = Group(
        Problem("", ""),
        tuple(trajectory(tuple(map(ord, a)), float(r)) for a, r in zip(answers, rewards, strict=True)),
    )
    prefixes = sorted({answer[:t] for answer in answers for t in range(len(answer))})
    letters = sorted({*"".join(answers), "!"})  # one that nobody draws
    logits = torch.tensor(np.random.default_rng(0).normal(size=(len(prefixes), len(letters)))).requires_grad_()
    rows = torch.tensor([prefixes.index(answer[:t]) for answer in answers for t in range(len(answer))])
    columns = torch.tensor([letters.index(letter) for answer in answers for letter in answer])
    return group, logits, lambda values: values.log_softmax(-1)[rows, columns]


def loss_and_gradient(
    group: Group, objective: Objective, logits: Tensor, logprobs: Any, old: Tensor, ref: Tensor | None = None
) -> tuple[float, Tensor]:
    (credited,) = credit([group], objective)
    now = logprobs(logits)
    terms = token_terms(
        now,
        advantages=torch.tensor(credited.advantages),
        old_logprobs=old,
        sampler_logprobs=old,
        ref_logprobs=ref,
        trajectory=torch.tensor(credited.tree.trajectory),
        objective=objective,
    )
    value = loss(terms, torch.tensor(credited.coefficients / denominator_of([credited], objective)))
    (gradient,) = torch.autograd.grad(value, logits)
    return value.item(), gradient


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("distance", [0.0, 0.05])
def test_theorem_1_gives_one_loss_and_one_gradient_on_and_off_policy(exponent: float, distance: float) -> None:
    group, logits, logprobs = table_logprobs(ANSWERS, REWARDS.tolist())
    noise = torch.tensor(np.random.default_rng(1).normal(size=logits.shape))
    old, ref = logprobs(logits + distance * noise).detach(), logprobs(logits + noise).detach()
    plain = Objective(weight_exponent=exponent, kl_coef=0.1)
    ratios = (logprobs(logits) - old).exp()
    assert (ratios > 0.8).all()
    assert (ratios < 1.2).all()
    outcome, slopes = loss_and_gradient(group, plain, logits, logprobs, old, ref)
    process, others = loss_and_gradient(group, replace(plain, advantage=ProcessAdvantage()), logits, logprobs, old, ref)
    assert outcome == pytest.approx(process, rel=1e-12)
    torch.testing.assert_close(slopes, others, rtol=1e-10, atol=1e-14)
    assert slopes.abs().max() > 0.01


@pytest.mark.parametrize(("region", "holds"), [("none", True), ("cispo", True), ("clip", False)])
def test_far_from_the_old_policy_only_what_is_linear_in_the_advantage_keeps_theorem_1(region: str, holds: bool) -> None:
    group, logits, logprobs = table_logprobs(ANSWERS, REWARDS.tolist())
    old = logprobs(logits + 3 * torch.tensor(np.random.default_rng(1).normal(size=logits.shape))).detach()
    assert (logprobs(logits) - old).exp().max() > 5  # beyond CISPO's cap
    plain = Objective(trust_region=TRUST_REGIONS[region]())
    outcome, slopes = loss_and_gradient(group, plain, logits, logprobs, old)
    process, others = loss_and_gradient(group, replace(plain, advantage=ProcessAdvantage()), logits, logprobs, old)
    assert (abs(outcome - process) < 1e-10) == holds
    assert torch.allclose(slopes, others, rtol=1e-9, atol=1e-12) == holds


def test_a_clip_costs_exactly_the_sets_whose_members_disagree() -> None:
    def surrogate(ratio: float, advantages: Sequence[float]) -> float:
        values = torch.tensor(advantages, dtype=torch.float64)
        log_ratios = torch.full_like(values, ratio).log()
        zeros = torch.zeros_like(values)
        return float(Clip()(Tokens(zeros, zeros, values, zeros.long(), log_ratios)).values.sum())

    random = np.random.default_rng(0)
    for _ in range(200):
        advantages = random.normal(size=random.integers(2, 6)).tolist()
        for ratio in (0.3, 0.7, 0.9, 1.0, 1.1, 1.3, 4.0):
            outcome = surrogate(ratio, advantages)
            process = surrogate(ratio, [float(np.mean(advantages))] * len(advantages))
            one_mind = min(advantages) >= 0 or max(advantages) <= 0
            if 0.8 <= ratio <= 1.2 or one_mind:
                assert outcome == pytest.approx(process, abs=1e-12)
            else:
                assert outcome < process - 1e-12


TWO_ANSWERS = ("so 4", "so it is 5")  # entries of trajectory space: so 0, 4 1; so 2, it 3, is 4, 5 5


def weight_of_so(
    objective: Objective, *, moved: Mapping[int, float], copies: Mapping[int, float], cut: bool = False
) -> str:
    """What stands on ∇log π(so) in −D · ∇loss, if entries have `moved` by a ratio from the old policy, and π/π_sampler
    of entries is `copies`."""
    words = sorted({word for answer in TWO_ANSWERS for word in answer.split()})
    rows = [[words.index(word) for word in answer.split()] for answer in TWO_ANSWERS]
    answers = [trajectory(tuple(row), float(number == 0)) for number, row in enumerate(rows)]
    if cut:
        answers[1] = replace(answers[1], stop_reason="length")
    (credited,) = credit([Group(Problem("", ""), tuple(answers))], objective)
    now = torch.zeros(len(credited.tree.index), dtype=torch.float64, requires_grad=True)

    def logprobs(ratios: Mapping[int, float]) -> Tensor:
        return -torch.tensor([ratios.get(entry, 1.0) for entry in range(len(now))], dtype=now.dtype).log()

    terms = token_terms(
        now,
        advantages=torch.tensor(credited.advantages),
        old_logprobs=logprobs(moved),
        sampler_logprobs=logprobs(copies),
        ref_logprobs=None,
        trajectory=torch.tensor(credited.tree.trajectory),
        objective=objective,
    )
    (gradient,) = torch.autograd.grad(loss(terms, torch.tensor(credited.coefficients)), now)
    return shown(-float(gradient[[0, len(rows[0])]].sum()), 4)


class Case(NamedTuple):
    """A row of the table of where the theorem ends, and the numbers that it quotes."""

    options: Mapping[str, Any] = {}
    moved: Mapping[int, float] = {}
    copies: Mapping[int, float] = {}
    cut: bool = False
    quoted: Sequence[float] = ()


SCORED_APART, UP = {0: 1.1, 2: 0.9}, {1: 1.21}
CASES = (
    Case(),
    Case({"aggregation": "sequence"}),
    Case({"overlong": "mask"}, cut=True),
    Case(moved={0: 1.5, 2: 1.5}, quoted=(1.5,)),
    Case({"correction": Truncate()}, copies=SCORED_APART, quoted=(1.1, 0.9)),
    Case({"ratio_base": "sampler"}, copies=SCORED_APART, quoted=(1.1, 0.9)),
    Case({"ratio": "sequence_token"}, UP, quoted=(1.21, round(1.21**0.5, 9))),
    Case({"ratio": "sequence"}, UP),
    Case({"ratio": "sequence"}),
)


def test_the_table_of_where_the_theorem_ends() -> None:
    rows = table("ends")
    for row, case in zip(rows, CASES, strict=True):
        found = [
            weight_of_so(Objective(**case.options, **form), moved=case.moved, copies=case.copies, cut=case.cut)
            for form in ({}, {"advantage": ProcessAdvantage()})
        ]
        assert row[4:] == found
        assert re.findall(r"\d\.\d+", row[3]) == [f"{value:g}" for value in case.quoted]
        assert (found[0] == found[1]) == (row[2] == "–")
    lengths = [str(len(answer.split())) for answer in TWO_ANSWERS]
    assert f"length, {' or '.join(lengths)}" in rows[1][3]


def test_the_theorem_ends_by_the_same_causes_in_the_same_order_as_on_the_page_of_results() -> None:
    causes = [row[:3] for row in table("ends") if row[0] and "overlong" not in row[1]]
    results = re.findall(r"^\| ([a-d]) \| (.*) (\(.\)) \| [^|]* \|$", RESULTS, flags=re.MULTILINE)
    assert [(letter, fails) for letter, _, fails in causes] == [(letter, fails) for letter, _, fails in results]
    for (_, cause, _), (_, measured, _) in zip(causes, results, strict=True):
        assert re.sub(r" \([^)]*%[^)]*\)| by about \d+ %", "", measured).startswith(cause)


def test_what_the_paper_reports_is_the_same_on_the_page_of_results() -> None:
    for claim in ("15 of 20 comparisons", "12 of 6,700 groups", "all six settings"):
        assert claim in TEXT
        assert claim in " ".join(RESULTS.split())


# Bias


def test_the_direction_counts_every_observed_child_by_its_size_to_the_power_of_1_minus_p() -> None:
    group, logits, logprobs = table_logprobs(ANSWERS, REWARDS.tolist())
    tree = worked_tree()
    process = process_advantages(tree, REWARDS)
    _, firsts = np.unique(tree.index, return_index=True)  # one entry of trajectory space per observed child
    for exponent in (0.0, 0.5, 1.0):
        objective = Objective(weight_exponent=exponent)
        _, gradient = loss_and_gradient(group, objective, logits, logprobs, logprobs(logits).detach())
        weights = torch.zeros(len(tree.index), dtype=torch.float64)
        weights[firsts] = torch.tensor(tree.size[tree.index][firsts] ** (1 - exponent) * process[firsts])
        (expected,) = torch.autograd.grad((weights * logprobs(logits)).sum(), logits)
        torch.testing.assert_close(-len(tree.index) * gradient, expected, rtol=1e-10, atol=1e-12)


def test_at_the_first_fork_only_lambda_grpo_moves_what_nobody_drew() -> None:
    group, logits, logprobs = table_logprobs(ANSWERS, REWARDS.tolist())
    undrawn = 0  # "!" is the first letter, the empty prefix the first row
    tree = worked_tree()
    size, process = len(tree.index), process_advantages(tree, REWARDS)
    total = sum(at(tree, process / tree.size[tree.index], letter) for letter in "AJV")
    for exponent, expected in ((0.0, 0.0), (1.0, -float(logits.detach()[0].softmax(-1)[undrawn]) * total)):
        _, gradient = loss_and_gradient(
            group, Objective(weight_exponent=exponent), logits, logprobs, logprobs(logits).detach()
        )
        assert -size * float(gradient[0, undrawn]) == pytest.approx(expected, abs=1e-12)


def test_a_branch_counts_by_how_often_it_is_drawn_or_by_whether_it_is_drawn() -> None:
    size = 8

    def counted(chance: float, exponent: float) -> float:
        tree = grow(lambda _: (0.0, chance, 1 - chance), lambda _: 0.0, limit=1)
        groups = all_groups(tree.probabilities, size)
        weights = []
        for members in groups.members:
            rows = [tree.outcomes[k].tokens for k in members]
            found = build_tree(rows, [tree.outcomes[k].sampled for k in members])
            weights.append(token_weights(found, exponent=exponent)[found.tokens[found.index] == 1].sum())
        return float(groups.weights @ np.array(weights))

    chances = (0.5, 0.01)
    often, once = ([counted(chance, exponent) for chance in chances] for exponent in (0.0, 1.0))
    assert often == pytest.approx([size * chance for chance in chances])
    assert once == pytest.approx([1 - (1 - chance) ** size for chance in chances])
    numbers = [f"{a:.3f} and {b:.3f} for x = {x:g}" for a, b, x in zip(often, once, chances, strict=True)]
    assert f"at n = {size} that is {', but '.join(numbers)}." in TEXT


def test_the_table_of_first_forks_is_the_formula_and_the_enumeration() -> None:
    sizes = (2, 4, 8, 16, 32)
    grpo = [fork_scale(0.3, size, PLAIN) for size in sizes]
    assert grpo == pytest.approx([(size - 1) / size for size in sizes])
    rows = [["GRPO, any fork", *(shown(value, sign=False) for value in grpo)]]
    for chance in (0.5, 0.1, 0.01):
        found = [fork_scale(chance, size, LAMBDA) for size in sizes]
        assert found == pytest.approx([formula(chance, size) for size in sizes], rel=1e-9)
        rows.append([f"λ-GRPO, x = {chance:g}", *(shown(value, sign=False) for value in found)])
    assert table("forks") == rows
    (written,) = re.findall(r"\(x² .*\)$", PAGE, flags=re.MULTILINE)
    for mark, code in (("²", "**2"), ("^", "**"), ("−", "-"), ("·", "*")):
        written = written.replace(mark, code)
    assert eval(written, {"x": 0.3, "G": 8}) == pytest.approx(formula(0.3, 8))


def test_the_step_of_one_draw_at_a_first_fork() -> None:
    random = np.random.default_rng(0)
    for left, right in ((1, 1), (4, 4), (7, 1)):
        chance = float(random.uniform())
        tree = grow(lambda _, x=chance: (0.0, x, 1 - x), lambda answer: float(answer == (1,)), limit=1)
        group = np.array([[0] * left + [1] * right])
        grpo, weighted = (estimates(tree, group, rule, ["constant"])["constant"][0, 0] for rule in (PLAIN, LAMBDA))
        bracket = (1 - chance) / left + chance / right
        assert weighted == pytest.approx(grpo * bracket)
        assert bracket < 1 or (left, right) == (1, 1)


def table_policy(
    rewards: Mapping[tuple[int, ...], float], chances: Mapping[tuple[int, ...], Sequence[float]]
) -> TokenTree:
    return grow(lambda prefix: (0.0, *chances[prefix]), rewards.__getitem__, limit=max(map(len, rewards)))


def expected_step(tree: TokenTree, size: int, objective: Objective) -> FloatArray:
    """[L] the expected direction on every logit, divided by G."""
    groups = all_groups(tree.probabilities, size)
    assert groups.exact
    values = estimates(tree, groups.members, objective, ["constant"])["constant"]
    step: FloatArray = groups.weights @ values * tree.limit
    return step


STEP_RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "GRPO, no std": ("dr_grpo", {}),
    "GRPO": ("grpo", {}),
    "λ-GRPO": ("lambda_grpo", {}),
    "λ-GRPO, no std": ("lambda_grpo", {"scale": "none"}),
}


@cache
def two_steps() -> dict[str, tuple[float, float, float]]:
    """The expected step on the first logit of each fork of the tree that the page draws, by rule, G = 8."""
    (drawing,) = [text for text in blocks("") if "V(left)" in text]
    left, *behind_left, right = (float(x) for x in re.findall(r"(?:left|right|usual|rare) +(0\.\d)", drawing)[:4])
    behind_right = [float(x) for x in re.findall(r"(?:usual|rare) +(0\.\d)", drawing)[2:]]
    leaves = [(1, 1), (1, 2), (2, 1), (2, 2)]
    rewards = dict(zip(leaves, map(float, re.findall(r"reward (\d)", drawing)), strict=True))
    tree = table_policy(rewards, {(): (left, right), (1,): behind_left, (2,): behind_right})
    for name, first, chances in (("left", 1, behind_left), ("right", 2, behind_right)):
        value = sum(chance * rewards[first, second] for second, chance in zip((1, 2), chances, strict=True))
        assert f"V({name}) = {value:g} " in drawing

    def firsts(step: FloatArray) -> tuple[float, float, float]:
        assert step[1::2] == pytest.approx(-step[::2], abs=1e-12)
        return float(step[0]), float(step[2]), float(step[4])

    def chosen(preset: str, options: dict[str, Any]) -> Objective:
        return resolve(preset, {"aggregation": "constant", **options}, max_new_tokens=tree.limit)

    rloo = firsts(expected_step(tree, 8, chosen("dr_grpo", {"advantage": "leave_one_out"})))
    assert rloo == pytest.approx(firsts(tree.truth), abs=1e-12)
    found = {"true gradient, RLOO": rloo}
    return found | {name: firsts(expected_step(tree, 8, chosen(*rule))) for name, rule in STEP_RULES.items()}


def test_the_table_of_the_tree_of_two_steps() -> None:
    assert table("steps") == [
        [name, *map(shown, steps), shown(steps[2] / steps[0], 2)] for name, steps in two_steps().items()
    ]
    assert "from all groups of G = 8" in TEXT
    truth, weighted = two_steps()["true gradient, RLOO"], two_steps()["λ-GRPO, no std"]
    assert weighted[0] / truth[0] == pytest.approx(formula(0.5, 8))
    assert f"(no std) takes {weighted[0] / truth[0]:.3f} of the true step, as F says." in TEXT
    assert (weighted[2] / weighted[0]) / (truth[2] / truth[0]) == pytest.approx(2, abs=0.05)  # "twice the weight"


@pytest.mark.parametrize(("reward", "towards_even"), [(1.0, True), (0.0, False)])
def test_a_fork_with_nothing_to_learn_is_pulled_to_even_in_a_good_prefix_and_sharpened_in_a_bad_one(
    reward: float, towards_even: bool
) -> None:
    rewards = {(1, 1): reward, (1, 2): reward, (2, 1): 0.5, (2, 2): 0.5}
    tree = table_policy(rewards, {(): (0.5, 0.5), (1,): (0.9, 0.1), (2,): (0.9, 0.1)})
    weighted = replace(PLAIN, max_completion_tokens=2, weight_exponent=1.0)
    assert tree.truth[2] == pytest.approx(0, abs=1e-15)
    assert expected_step(tree, 6, replace(weighted, weight_exponent=0.0))[2] == pytest.approx(0, abs=1e-12)
    step = expected_step(tree, 6, weighted)[2]  # on the frequent token
    assert (step < -1e-3) if towards_even else (step > 1e-3)


def test_with_two_answers_lambda_grpo_is_grpo_until_there_is_a_kl_term() -> None:
    group, logits, logprobs = table_logprobs(ANSWERS[2:4], [1.0, 0.0])
    old, ref = logprobs(logits).detach(), logprobs(logits * 0.5).detach()
    for kl, same in ((0.0, True), (0.1, False)):
        plain = Objective(kl_coef=kl)
        slopes = [
            loss_and_gradient(group, replace(plain, weight_exponent=p), logits, logprobs, old, ref if kl else None)[1]
            for p in (0.0, 1.0)
        ]
        assert torch.allclose(*slopes, rtol=1e-10, atol=1e-14) == same


def test_the_page_means_by_grpo_what_both_spellings_say() -> None:
    spellings = ("grpo", {"aggregation": "token"}), ("lambda_grpo", {"weight_exponent": 0.0})
    first, second = (resolve(preset, options, max_new_tokens=8) for preset, options in spellings)
    assert first == second == Objective()
    assert "`grpo+aggregation=token`, or `lambda_grpo` with p = 0." in TEXT
    assert resolve("grpo", {}, max_new_tokens=8).aggregation == "sequence"


def test_with_nothing_shared_lambda_grpo_is_grpo() -> None:
    group, logits, logprobs = table_logprobs(("AB", "CD", "EF"), [1.0, 0.0, 0.5])
    old, ref = logprobs(logits * 0.9).detach(), logprobs(logits * 0.5).detach()
    found = [
        loss_and_gradient(group, Objective(weight_exponent=p, kl_coef=0.1), logits, logprobs, old, ref)
        for p in (0.0, 1.0)
    ]
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


# The numbers in sentences


def prose() -> list[str]:
    """Every sentence on the page with a decimal in it, written with the numbers that the library computes."""
    tree = worked_tree()
    mean, std = reward_statistics(REWARDS.tolist())
    outcome = group_advantages(REWARDS.tolist(), epsilon=0.0)
    process = process_advantages(tree, REWARDS, epsilon=0.0)
    once = process / tree.size[tree.index]
    jkl = at(tree, once, "L")
    assert mean is not None
    assert std is not None
    middle = np.mean(REWARDS[2:5])
    first = sum(at(tree, once, letter) for letter in "AJV")
    assert sum(at(tree, process, letter) for letter in "AJV") == pytest.approx(0, abs=1e-12)
    pair = float(group_advantages([1.0, 0.0])[0])
    three = table_policy({(1,): 1.0, (2,): 0.85, (3,): 0.0}, {(): (0.8, 0.1, 0.1)})
    three_steps = [three.truth[1], expected_step(three, 8, PLAIN)[1], expected_step(three, 8, LAMBDA)[1]]
    (copies,) = credit(
        [Group(Problem("", ""), tuple(trajectory((1 + (k == 7),), float(k < 7)) for k in range(8)))], LAMBDA
    )
    right, wrong = (copies.tree.tokens[copies.tree.index] == token for token in (1, 2))
    totals = {
        name: [shown(float((copies.advantages * weights)[at].sum())) for at in (right, wrong)]
        for name, weights in (("GRPO", 1.0), ("λ-GRPO", copies.coefficients))
    }
    even = [fork_scale(0.5, 8, rule) for rule in (PLAIN, LAMBDA)]
    four_each = np.array([[0] * 4 + [1] * 4])
    fork = grow(lambda _: (0.0, 0.5, 0.5), lambda answer: float(answer == (1,)), limit=1)
    draw = [estimates(fork, four_each, rule, ["constant"])["constant"][0, 0] for rule in (PLAIN, LAMBDA)]
    large = [[fork_scale(x, 36, rule) * x * (1 - x) for x in (0.5, 0.1)] for rule in (PLAIN, LAMBDA)]
    return [
        f"R̂(`J K L`) = {middle:.3f} |",
        f"| {mean:.4f}, {std:.4f} |",
        f"| a_2 = {shown(outcome[2])} |",
        f"| A(`J K L`) = {shown(jkl)} |",
        f"For `J K L`: {outcome[2]:.3f} − {-outcome[3]:.3f} − {-outcome[4]:.3f} = {shown(outcome[2:5].sum())} "
        f"= 3 · ({shown(jkl)}).",
        f"a = ±{pair:.4f} (with ε = 1e-4)",
        f"lowered three times for it, by {-3 * jkl:.3f}, although",
        f"`A B` and `V W Y Z` both get {shown(at(tree, once, 'A'))}.",
        f"Σ A(h) is {shown(first)} in the worked example, so every undrawn first token falls.",
        "with probabilities 0.8, 0.1, 0.1 and rewards 1, 0.85, 0 the second branch is below the mean of "
        f"{three.probabilities @ [t.reward for t in three.outcomes]:.3f}: its logit's true gradient is "
        f"{shown(three_steps[0], 4)}, but at G = 8, without the std, GRPO's is {shown(three_steps[1], 4)} and λ-GRPO's "
        f"{shown(three_steps[2], 4)}.",
        f"GRPO's totals behind the fork are {' and '.join(totals['GRPO'])}, λ-GRPO's {' and '.join(totals['λ-GRPO'])}:",
        f"in *one draw* of 4 and 4 λ-GRPO's step is 2/G = {draw[1] / draw[0]:.3f} of GRPO's; *in expectation* it is "
        f"{even[1]:.3f} of the true step; and, as GRPO's own is {even[0]:.3f} of that, {even[1] / even[0]:.3f} of "
        "GRPO's.",
        f"GRPO's falls from {large[0][0]:.4f} at an even fork to {large[0][1]:.4f} where the rarer branch has 0.1; "
        f"λ-GRPO's rises from {large[1][0]:.4f} to {large[1][1]:.4f}.",
    ]


# The project page says so.
QUOTED = ("pay less than 0, the rest +0.7.",)
TESTED_ABOVE = (
    "leads through 2.17 sets",
    "the same loss, 0.164224, as",
    "another one, 0.0642614.",
    "4.000 and 0.996 for x = 0.5, but 0.080 and 0.077 for x = 0.01.",
    "(no std) takes 0.248 of the true step",
)


def test_every_number_in_a_sentence_is_computed_or_has_a_source() -> None:
    rest = re.sub(r"<!-- (\w+) -->.*?<!-- end -->|^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    rest = " ".join(rest.split())
    for sentence in (*prose(), *QUOTED, *TESTED_ABOVE):
        assert sentence in rest, sentence
        rest = rest.replace(sentence, "")
    rest = re.sub(r"\b\d{4}\.\d{5}\b", "arXiv id", rest)
    assert re.findall(r"\S*\d\.\d\S*", rest) == []


# Names


def resolved(name: str) -> Any:
    """What a dotted name stands for: a module as far as it goes, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def test_every_function_on_the_page_can_be_imported() -> None:
    names = set(re.findall(r"\b(?:treewise|token_trees|theory_figures)\.\w+(?:\.\w+)*", PAGE))
    assert len(names) > 30
    for name in names:
        assert resolved(name) is not None, name


def test_every_experiment_and_page_that_the_page_names_exists() -> None:
    experiments = re.findall(r"`treewise reproduce ([a-z-]+)", PAGE)
    assert set(experiments) >= {"theorem", "synthetic-tree"}
    assert set(experiments) <= set(EXPERIMENTS)
    linked = set(re.findall(r"\]\(([\w./]+\.(?:md|png))\)", PAGE))
    written_by_others = {"results.md"}
    assert {name for name in linked - written_by_others if not (ROOT / "docs" / name).is_file()} == set()


def test_the_process_sets_of_the_drawing_are_those_of_the_library(worked_file: Path) -> None:
    (group,) = read_groups(worked_file)
    rows: Sequence[RecordedTrajectory] = group.trajectories
    sets = process_sets(rows, REWARDS)
    assert f"| {len(sets)} sets with the root |" in PAGE
    drawing = blocks("")[0]
    for found in sets[1:]:
        tokens = " ".join(ANSWERS[found["members"][0]][found["start"] : found["end"]])
        assert f" {tokens} {{{' '.join(map(str, found['members']))}}}" in drawing
