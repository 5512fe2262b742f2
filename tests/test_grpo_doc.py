"""docs/grpo.md tells the truth: its lines of code exist, and its numbers are what treewise computes."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from treewise.axes import Objective
from treewise.axes.aggregation import coefficients, token_weights
from treewise.credit import (
    CreditedGroup,
    credit,
    denominator_of,
    group_advantages,
    process_advantages,
    process_rewards,
    reward_statistics,
)
from treewise.objective import TokenTerms, loss, token_terms
from treewise.presets import resolve
from treewise.types import Group, Problem, Trajectory

pytest.importorskip("matplotlib")
from grpo_figures import GAMES, clip_objective, draw_clip_kl, draw_wordle, game_tree, kl_estimate

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "grpo.md").read_text(encoding="utf-8")


def tables() -> list[list[list[str]]]:
    """The page's tables, as rows of cells; the first row is the head."""
    found = re.findall(r"(?:^\|.*\|\n)+", PAGE, flags=re.MULTILINE)
    rows = [
        [re.split(r"(?<!\\)\|", line.strip("|")) for line in text.strip().splitlines() if not line.startswith("|---")]
        for text in found
    ]
    return [[[cell.strip().replace("\\|", "|") for cell in row] for row in table] for table in rows]


ANSWERS, NOTATION, BY_HAND, PLAYED, SETS, ALGORITHM = tables()


def section(number: int) -> str:
    """The page's text from this section's heading to the next one's."""
    return PAGE.partition(f"\n## {number}.")[2].partition("\n## ")[0]


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def shown(value: float, digits: int, *, signed: bool = True) -> str:
    """A number as the page writes it."""
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return "0" if signed and abs(value) < 1e-9 else text.replace("-", "−")


def functions(tree: ast.Module) -> dict[str, ast.AST]:
    """Functions by name, methods as `Class.method`."""
    found: dict[str, ast.AST] = {}
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + m.name: m for m in members if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


@pytest.mark.parametrize(
    "row", [row for row in ALGORITHM[1:] if not row[2].startswith("none")], ids=lambda row: f"{row[3]} {row[4]}"
)
def test_every_quoted_line_stands_in_the_function_that_the_page_names(row: list[str]) -> None:
    file, function, quote = (cell.strip("`") for cell in row[2:])
    source = (ROOT / "src" / "treewise" / file).read_text(encoding="utf-8")
    node = functions(ast.parse(source))[function]
    text = ast.get_source_segment(source, node)
    assert text is not None
    assert len(quote) > 10
    assert any(quote in line for line in text.splitlines())


def test_the_algorithm_has_its_twelve_lines_in_order() -> None:
    assert [row[0] for row in ALGORITHM[1:] if row[0]] == [str(line) for line in range(1, 13)]
    assert [row[0] for row in ALGORITHM[1:] if row[2].startswith("none")] == ["2", "12"]


@pytest.mark.parametrize("table", tables(), ids=lambda table: table[0][1])
def test_every_row_of_a_table_has_as_many_cells_as_its_head(table: list[list[str]]) -> None:
    assert {len(row) for row in table} == {len(table[0])}


def test_the_options_that_the_page_names_are_what_it_says() -> None:
    assert Objective().kl_refresh == 0
    assert (resolve("grpo", {}).kl_coef, resolve("lambda_grpo", {}).kl_coef) == (0.0, 0.0)
    assert (resolve("deepseek_math", {}).kl_coef, resolve("deepseek_math", {}).weight_exponent) == (0.04, 0.0)
    assert resolve("lambda_grpo", {}).weight_exponent == 1.0
    assert [resolve(name, {}).aggregation for name in ("grpo", "deepseek_math", "lambda_grpo")] == [
        "sequence",
        "sequence",
        "token",
    ]
    assert resolve("grpo", {"aggregation": "token"}) == resolve("lambda_grpo", {"weight_exponent": 0.0})


def written(answer: str) -> str:
    """An answer of the page without its code marks."""
    return answer.strip("`")


def example() -> Group:
    """The four answers to `solve 2x + 3 = 7`, a token a word."""
    answers = [written(row[1]).split() for row in ANSWERS[1:]]
    words = sorted({word for answer in answers for word in answer})
    trajectories = [
        Trajectory(
            tokens=np.array([0, *(1 + words.index(word) for word in answer)]),
            sampled=np.array([False] + [True] * len(answer)),
            logprobs=np.zeros(1 + len(answer)),
            text=" ".join(answer),
            reward=number(row[3]),
            stop_reason="eos",
        )
        for answer, row in zip(answers, ANSWERS[1:], strict=True)
    ]
    return Group(Problem("q", "solve 2x + 3 = 7"), tuple(trajectories))


def test_the_rewards_follow_the_rule_of_the_example() -> None:
    for row in ANSWERS[1:]:
        words = written(row[1]).split()
        reward = 0.8 * (words[-1] == "2") + 0.2 * (words[-3:-1] == ["x", "="])
        assert number(row[3]) == pytest.approx(reward)


def second_update(preset: str, **options: str) -> tuple[CreditedGroup, TokenTerms, torch.Tensor, torch.Tensor]:
    """The example's credit and terms, its coefficients over D, and ∂loss/∂log π.

    The first token of o₁ and o₃ has the probabilities of the page; for all others nothing has moved.
    """
    objective = resolve(preset, {"kl_coef": 0.04, **options})
    (credited,) = credit([example()], objective)
    first = np.flatnonzero(credited.tree.index == credited.tree.index[0])
    values = torch.zeros(3, len(credited.advantages), dtype=torch.float64)
    values[:, first] = torch.tensor([0.50, 0.40, 0.60], dtype=torch.float64).log()[:, None]
    logprobs = values[0].clone().requires_grad_()
    terms = token_terms(
        logprobs,
        advantages=torch.tensor(credited.advantages),
        old_logprobs=values[1],
        sampler_logprobs=values[1],
        ref_logprobs=values[2],
        trajectory=torch.tensor(credited.tree.trajectory),
        objective=objective,
    )
    shares = torch.tensor(credited.coefficients) / denominator_of([credited], objective)
    (gradient,) = torch.autograd.grad(loss(terms, shares), logprobs)
    return credited, terms, shares, gradient


def test_every_symbol_of_the_notation_has_the_value_that_treewise_computes() -> None:
    credited, terms, shares, _ = second_update("lambda_grpo")
    tree, rewards = credited.tree, np.array([t.reward for t in credited.trajectories])
    mean, std = reward_statistics(rewards.tolist())
    assert mean is not None
    assert std is not None
    assert terms.kl is not None
    size = int(tree.size[tree.index[0]])
    members = [f"o{'₁₂₃₄'[n]}" for n in range(4) if tree.index[0] in tree.index[tree.trajectory == n]]
    objective = resolve("lambda_grpo", {})
    expected = {
        "q": f"`{credited.group.problem.prompt}`",
        "G": str(len(rewards)),
        "o_i": f"o₁ = {ANSWERS[1][1]}, {credited.lengths[0]} tokens; o₁₁ = `2x`",
        "r_i": f"r₁ = {rewards[0]}",
        "mean r": shown(mean, 2, signed=False),
        "std r": shown(std, 4, signed=False),
        "a_i": f"a₁ = {shown(credited.advantages[0], 4)}",
        "π": "0.50",
        "π_old": "0.40",
        "π_ref": "0.60",
        "ρ": f"0.50/0.40 = {terms.ratios[0].item():.2f}",
        "ε_low, ε_high": f"0.2 and 0.2: clip(1.25) = {clip_objective(terms.ratios.detach().numpy()[:1], 1.0)[0]:.1f}",
        "kl, or k3": f"1.2 − log 1.2 − 1 = {terms.kl[0].item():.4f}",
        "β": "0.04",
        "λ": "{" + ", ".join(members) + "}",
        "|λ|": str(size),
        "R̂(λ)": f"(1.0 + 0.2)/2 = {process_rewards(tree, rewards)[0]:.2f}",
        "p": f"{objective.weight_exponent:g}",
        "w": f"1/{round(1 / credited.coefficients[0])}",
        "D": f"{' + '.join(map(str, credited.lengths))} = {denominator_of([credited], objective):g}",
        "μ": "2",
    }
    assert {row[0]: row[2] for row in NOTATION[1:]} == expected
    added = -(shares * terms.objective)[0].item()
    capped = clip_objective(terms.ratios.detach().numpy()[:1], credited.advantages[0])[0]
    a, kl = credited.advantages[0], terms.kl[0].item()
    assert (
        f"\n− 1/19 · 1/2 · [ min(1.25 · {a:.4f}, 1.2 · {a:.4f}) − 0.04 · {kl:.4f} ]"
        f"  =  − 1/19 · 1/2 · [ {capped:.4f} − {0.04 * kl:.4f} ]  =  {shown(added, 4)}\n"
    ) in PAGE


def test_with_the_two_kinds_of_grpo_the_token_counts_as_the_page_says() -> None:
    _, terms, shares, _ = second_update("grpo")
    assert shares[0].item() == pytest.approx(1 / 7 / 4)
    assert "a further division by the 7 tokens of o₁, and D = 4" in " ".join(PAGE.split())
    assert terms.ratios[0].item() == pytest.approx(1.25)
    _, _, shares, _ = second_update("grpo", aggregation="token")
    assert shares[0].item() == pytest.approx(1 / 19)


def test_the_clip_stops_the_token_in_the_right_answer_and_not_in_the_wrong_one() -> None:
    credited, terms, shares, gradient = second_update("lambda_grpo")
    right, wrong = np.flatnonzero(credited.tree.index == credited.tree.index[0])
    assert terms.clipped[[right, wrong]].tolist() == [True, False]
    slope_of_kl = 1 - 0.60 / 0.50
    assert gradient[right].item() == pytest.approx(shares[right].item() * 0.04 * slope_of_kl)
    pushed = 1.25 * credited.advantages[wrong] - 0.04 * slope_of_kl
    assert pushed < 0
    assert gradient[wrong].item() == pytest.approx(-shares[wrong].item() * pushed)


def test_the_advantages_by_hand_are_those_of_the_library() -> None:
    rewards = [number(row[1]) for row in BY_HAND[1:]]
    mean, std = reward_statistics(rewards)
    assert mean == pytest.approx(0.55)
    assert std is not None
    found = group_advantages(rewards)
    for row, reward, advantage in zip(BY_HAND[1:], rewards, found, strict=True):
        assert row[2:] == [
            shown(reward - 0.55, 2),
            shown((reward - 0.55) ** 2, 4, signed=False),
            shown(advantage, 4),
        ]
    listed = [str(reward) for reward in rewards]
    assert f"\nRewards {', '.join(listed)}.\n" in PAGE
    assert f"Mean: ({' + '.join(listed)}) / 4 = {sum(rewards):.1f} / 4 = {mean:.2f}.\n" in PAGE
    squares = sum((reward - 0.55) ** 2 for reward in rewards)
    terms = " + ".join(row[3] for row in BY_HAND[1:])
    assert f"divided by G − 1: ({terms}) / 3 = {squares:.4f} / 3 = {squares / 3:.4f}." in PAGE
    assert f"√{squares / 3:.4f} = {std:.4f}. With ε it is {std:.4f} + 0.0001 = {std + 1e-4:.4f}." in PAGE
    assert BY_HAND[0][4] == f"a = (r − mean) / {std + 1e-4:.4f}"
    assert f"group_advantages({rewards})" in PAGE
    assert found.sum() == pytest.approx(0.0, abs=1e-12)
    assert group_advantages([1.0] * 4).tolist() == [0.0] * 4


def test_the_clip_is_flat_where_the_picture_is_shaded_and_nowhere_else() -> None:
    ratios = np.array([0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.5, 1.9])
    step = 1e-6
    for advantage, flat in ((1.0, ratios > 1.2), (-1.0, ratios < 0.8)):
        slope = (clip_objective(ratios + step, advantage) - clip_objective(ratios - step, advantage)) / (2 * step)
        np.testing.assert_allclose(slope, np.where(flat, 0.0, advantage), atol=1e-6)


def test_the_kl_estimates_in_the_picture_are_the_formulas_of_the_page() -> None:
    x = np.linspace(-2, 2, 9)
    for name, values in {"k1": x, "k2": x**2 / 2, "k3": np.exp(-x) + x - 1}.items():
        np.testing.assert_allclose(kl_estimate(name, x), values, atol=1e-12)
    assert "e^(−x) + x − 1" in PAGE
    np.testing.assert_allclose(kl_estimate("k3", np.log([0.50 / 0.60])), 1.2 - np.log(1.2) - 1)


def test_one_update_has_ratio_one_a_loss_of_zero_and_a_gradient_that_is_not() -> None:
    objective = resolve("grpo", {})
    (credited,) = credit([example()], objective)
    logprobs = torch.full((len(credited.advantages),), -1.0, dtype=torch.float64, requires_grad=True)
    terms = token_terms(
        logprobs,
        advantages=torch.tensor(credited.advantages),
        old_logprobs=logprobs.detach(),
        sampler_logprobs=logprobs.detach(),
        ref_logprobs=None,
        trajectory=torch.tensor(credited.tree.trajectory),
        objective=objective,
    )
    shares = torch.tensor(credited.coefficients) / denominator_of([credited], objective)
    value = loss(terms, shares)
    (gradient,) = torch.autograd.grad(value, logprobs)
    assert set(terms.ratios.tolist()) == {1.0}
    assert not terms.clipped.any()
    assert value.item() == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(gradient, -shares * torch.tensor(credited.advantages))
    assert gradient.abs().min() > 0


def turns(row: Sequence[str]) -> list[tuple[str, str]]:
    """(guess, feedback) of each turn of a game in the page's table."""
    return [(guess, mark.strip("`")) for guess, mark in (cell.split() for cell in row[1:5] if cell)]


def feedback(guess: str, secret: str) -> str:
    """Wordle's colours, for guesses whose letters that are in the secret don't repeat."""
    marks = [
        letter if letter == at else letter.lower() if letter in secret else "·"
        for letter, at in zip(guess, secret, strict=True)
    ]
    hits = [mark.upper() for mark in marks if mark != "·"]
    assert len(hits) == len(set(hits)), f"{guess} repeats a letter of {secret}"
    return "".join(marks)


def fits(guess: str, history: Sequence[tuple[str, str]]) -> bool:
    """Whether a guess could still be the secret."""
    return all(feedback(earlier, guess) == mark for earlier, mark in history)


def test_the_games_follow_the_rules_of_wordle() -> None:
    for row, game in zip(PLAYED[1:], GAMES, strict=True):
        played = turns(row)
        assert (row[0], tuple(guess for guess, _ in played), number(row[5])) == game
        assert all(mark == feedback(guess, "CRANE") for guess, mark in played)
        assert number(row[5]) == (played[-1][0] == "CRANE")
        assert len(played) == 4 or played[-1][0] == "CRANE"


def test_the_guess_called_poor_could_not_be_the_word_and_those_called_good_could() -> None:
    first, second = turns(PLAYED[1]), turns(PLAYED[2])
    assert first[1][0] == "MUMMY"
    assert not fits(*split(first, 1))
    assert all(fits(*split(second, turn)) for turn in (1, 2, 3))


def split(played: Sequence[tuple[str, str]], turn: int) -> tuple[str, Sequence[tuple[str, str]]]:
    return played[turn][0], played[:turn]


def test_every_turn_of_a_game_has_the_games_advantage() -> None:
    rewards = [number(row[5]) for row in PLAYED[1:]]
    assert [row[6] for row in PLAYED[1:]] == [shown(a, 3) for a in group_advantages(rewards)]
    mean, std = reward_statistics(rewards)
    assert f"(mean {mean:.1f}, std {std:.5f}.)" in PAGE


def test_the_text_about_the_games_names_the_numbers_of_the_tables() -> None:
    text = "\n".join(line for line in section(6).splitlines() if not line.startswith("|"))
    named = set(re.findall(r"[+−]?\d\.\d{3}\b", text))
    assert named == {PLAYED[1][6], PLAYED[2][6], PLAYED[1][6].strip("+"), SETS[1][4]}


def test_the_process_sets_of_the_games_are_those_of_the_library() -> None:
    tree, rewards = game_tree(GAMES), np.array([game.reward for game in GAMES])
    outcome = group_advantages(rewards.tolist())[tree.trajectory]
    weights = token_weights(tree, exponent=1.0)
    values, process = process_rewards(tree, rewards), process_advantages(tree, rewards)
    prefixes = [", ".join(game.guesses[: turn + 1]) for game in GAMES for turn in range(len(game.guesses))]
    rows = {row[0]: row[1:] for row in SETS[1:]}
    assert set(rows) <= set(prefixes)
    for entry, prefix in enumerate(prefixes):
        together = tree.index == tree.index[entry]
        names = [GAMES[n].name for n in tree.trajectory[together]]
        if prefix not in rows:  # the page says of all others that they belong to one game
            assert len(names) == 1
            assert process[entry] == outcome[entry]
            continue
        assert rows[prefix] == [
            ", ".join(names),
            str(len(names)),
            shown(values[entry], 3, signed=False),
            shown(process[entry], 3),
            shown(outcome[together].sum(), 3),
            shown((outcome * weights)[together].sum(), 3),
        ]


def test_under_the_mean_over_a_games_tokens_the_blame_of_a_shared_turn_does_not_cancel() -> None:
    tree = game_tree(GAMES)
    outcome = group_advantages([game.reward for game in GAMES])[tree.trajectory]
    brace = tree.index == tree.index[5]  # BRACE after SLATE, in games B and C
    for aggregation, total in (("token", 0.0), ("sequence", 0.86588 * (1 / 3 - 1 / 4))):
        shares = coefficients(tree, exponent=0.0, aggregation=aggregation)
        assert (shares * outcome)[brace].sum() == pytest.approx(total, abs=1e-5)


def test_the_pictures_of_the_page_are_there_and_can_be_drawn_again(tmp_path: Path) -> None:
    drawn = {"grpo_clip_kl.png": draw_clip_kl, "grpo_wordle.png": draw_wordle}
    assert set(re.findall(r"!\[.*?\]\((.*?)\)", PAGE)) == set(drawn)
    for name, draw in drawn.items():
        draw(tmp_path / name)
        for path in (ROOT / "docs" / name, tmp_path / name):
            assert 10_000 < path.stat().st_size < 200_000


def test_the_picture_of_the_games_says_what_the_table_says(tmp_path: Path) -> None:
    panels = draw_wordle(tmp_path / "wordle.png").axes
    given, totals, divided = ([text.get_text().split("\n") for text in axes.texts] for axes in panels)
    advantages = [shown(number(row[6]), 2) for row in PLAYED[1:] for _ in turns(row)]
    assert [box[1] for box in given if len(box) == 2] == advantages
    for prefix, _, size, reward, process, total, once in SETS[1:]:
        guess = prefix.split(", ")[-1]
        sums = [shown(number(total), 2)]
        if size != "1":
            sums = [f"{size} × {shown(number(process), 2)}", f"= {sums[0]}"]
        assert [guess, f"R̂ = {number(reward):.2f}", *sums] in totals
        assert [guess, shown(number(once), 2)] in divided
    sets = len(set(game_tree(GAMES).index.tolist()))
    assert sum(len(box) >= 3 for box in totals) == sum(len(box) == 2 for box in divided) == sets
