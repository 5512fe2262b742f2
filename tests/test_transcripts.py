"""Episodes of several transcripts, where a chat template changed earlier turns: tree, loss, records, rollout."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

import test_chat
import tiny
from folders import write_tiny_model
from test_chat import CHATML, fast, user
from test_episode import ASK, Counter, Script, Words, playing
from treewise.analysis import inspect_group
from treewise.axes import Objective
from treewise.axes.advantage import prefix_values
from treewise.chat import Chat
from treewise.credit import credit, denominator_of
from treewise.explain import explain_groups
from treewise.loop import train
from treewise.policy import Path as Attention
from treewise.policy import Policy
from treewise.presets import resolve
from treewise.recipe import make_recipe
from treewise.records import read_groups
from treewise.track import Records, read_lines
from treewise.tree import build_tree
from treewise.types import Group, Problem, Trajectory
from treewise.update import accumulate, prepare

chatml, deepseek = test_chat.chatml, test_chat.deepseek
THINKING = CHATML.replace(
    "m.content | trim", "(m.content.split('</think>')[-1] if not loop.last else m.content) | trim"
)
Marked = list[tuple[int, int]]  # one transcript as (token, sampled?) pairs

# Each trajectory: one transcript or several, of few different tokens.
row = st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 1)), min_size=1, max_size=5)
episodes = st.lists(st.lists(row, min_size=1, max_size=3), max_size=5)


def joined(episode: Sequence[Marked], reward: float = 0.0) -> Trajectory:
    whole = [pair for row in episode for pair in row]
    starts = np.cumsum([len(row) for row in episode])[:-1]
    return Trajectory(
        np.array([token for token, _ in whole], dtype=np.int64), np.array([mark for _, mark in whole], dtype=bool),
        np.zeros(len(whole)), "", reward, "eos", starts=tuple(starts.tolist()),
    )  # fmt: skip


def members(group: Sequence[Sequence[Marked]], prefix: Marked) -> set[int]:
    """The trajectories one of whose transcripts begins like that."""
    return {n for n, rows in enumerate(group) if any(row[: len(prefix)] == prefix for row in rows)}


@given(episodes)
def test_a_trajectory_counts_once_wherever_one_of_its_transcripts_passes(group: list[list[Marked]]) -> None:
    rows = [joined(episode) for episode in group]
    tree = build_tree([t.tokens for t in rows], [t.sampled for t in rows], [t.starts for t in rows])
    rewards = np.array([2.0**n for n in range(len(group))])
    values = prefix_values(tree, rewards) if group else np.empty(0)
    entry = 0
    for number, episode in enumerate(group):
        for row in episode:
            for t, (token, mark) in enumerate(row):
                if mark:
                    node = tree.index[entry]
                    found = members(group, row[: t + 1])
                    assert (tree.tokens[node], tree.position[node], tree.trajectory[entry]) == (token, t, number)
                    assert tree.size[node] == len(found)
                    assert values[node] == pytest.approx(np.mean([rewards[n] for n in found]))
                    before = members(group, row[:t])
                    assert values[tree.parent[node]] == pytest.approx(np.mean([rewards[n] for n in before]))
                    entry += 1
    assert entry == len(tree.index)
    assert tree.count == len(group)


# A turn, the same without its thought and another turn behind it; two episodes meet again in the second transcript.
ASKED: Marked = [(30, 0), (31, 0)]
GROUP: list[list[Marked]] = [
    [[*ASKED, (5, 1), (6, 1), (9, 1)], [*ASKED, (9, 0), (32, 0), (7, 1), (8, 1)]],
    [[*ASKED, (5, 1), (4, 1), (9, 1)], [*ASKED, (9, 0), (32, 0), (7, 1), (3, 1), (2, 1)]],
    [[*ASKED, (5, 1), (6, 1), (2, 1)], [*ASKED, (2, 0), (32, 0), (7, 1)]],
    [[*ASKED, (5, 1), (6, 1), (9, 1)]],
]
REWARDS = (1.0, 0.0, 0.25, 0.5)


def the_group() -> Group:
    return Group(Problem("0", ""), tuple(joined(e, r) for e, r in zip(GROUP, REWARDS, strict=True)))


def naive(model: Any, exponent: float, aggregation: str) -> torch.Tensor:
    """−1/D Σ |λ|^(−p) · a · ρ, each transcript through the model alone."""
    mean, std = np.mean(REWARDS), np.std(REWARDS, ddof=1)
    lengths = [sum(mark for row in episode for _, mark in row) for episode in GROUP]
    total = torch.tensor(0.0, dtype=torch.float64)
    for episode, reward, length in zip(GROUP, REWARDS, lengths, strict=True):
        for row in episode:
            logits = model(input_ids=torch.tensor([[token for token, _ in row]]), use_cache=False).logits[0].double()
            for t, (token, mark) in enumerate(row):
                if mark:
                    logp = torch.log_softmax(logits[t - 1], -1)[token]
                    weight = len(members(GROUP, row[: t + 1])) ** -exponent
                    weight /= length if aggregation == "sequence" else 1
                    total = total - weight * (reward - mean) / (std + 1e-4) * torch.exp(logp - logp.detach())
    return total / (len(GROUP) if aggregation == "sequence" else sum(lengths))


@pytest.mark.parametrize("path", ["tree", "flat"])
@pytest.mark.parametrize("budget", [1, 12, 10**6])
@pytest.mark.parametrize(("exponent", "aggregation"), [(0.0, "token"), (1.0, "token"), (0.5, "sequence")])
def test_loss_and_gradient_equal_the_naive_ones(
    path: Attention, budget: int, exponent: float, aggregation: str
) -> None:
    model = tiny.model("gpt2")
    expected = naive(model, exponent, aggregation)
    expected.backward()
    gradients = tiny.gradients(model)
    objective = resolve("grpo", {"weight_exponent": exponent, "aggregation": aggregation})
    policy = Policy(copy.deepcopy(model), 1.0, tiny.VOCABULARY, path=path)
    minibatch = prepare(credit([the_group()], objective), policy, objective, budget=budget, keep_old=False)
    assert len(minibatch.batches) >= (4 if budget == 1 else 1)
    tally = accumulate(minibatch, policy, objective)
    assert tally.loss == pytest.approx(expected.item(), rel=1e-9)
    for name, gradient in tiny.gradients(policy.model).items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-9, atol=1e-12)


def test_the_computed_tree_shares_what_transcripts_share() -> None:
    objective = Objective()
    policy = Policy(tiny.model("gpt2"), 1.0, tiny.VOCABULARY, path="tree")
    (batch,) = prepare(credit([the_group()], objective), policy, objective, budget=10**6, keep_old=False).batches
    rows = [row for episode in GROUP for row in episode]
    assert len(batch.tokens) == len({tuple(row[: t + 1]) for row in rows for t in range(len(row))})


def test_what_looks_at_whole_answers_is_refused() -> None:
    options: dict[str, dict[str, Any]] = {
        "ratio 'sequence'": {"ratio": "sequence"},
        "trust_region 'log_clip'": {"trust_region": "log_clip", "aggregation": "sequence"},
        "correction_level 'geometric'": {"correction": "mask", "correction_level": "geometric"},
    }
    for name, given_options in options.items():
        with pytest.raises(ValueError, match=f"{name} looks at whole episodes"):
            credit([the_group()], resolve("grpo", given_options))
    credit([the_group()], resolve("grpo", {"correction": "mask"}))


def test_records_give_the_same_numbers_again(tmp_path: Path) -> None:
    objective = resolve("lambda_grpo", {})
    group = the_group()
    records = Records(tmp_path, {})
    records.rollouts(1, [group], lambda ids: [str(one) for one in ids])
    records.close()
    (row, *_) = (json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines())
    assert (row["prompt_ids"], row["starts"]) == ([30, 31], [3])
    read = read_groups(tmp_path / "rollouts.jsonl")
    report = explain_groups(read, objective)
    (credited,) = credit([group], objective)
    assert report["denominator"] == denominator_of([credited], objective) == 18
    terms = [term for found in report["trajectories"] if found for term in found["terms"] if term]
    expected = -credited.coefficients * credited.advantages
    np.testing.assert_allclose(terms, expected[expected != 0])

    sets = inspect_group(read[0])["sets"]
    shown = {(tuple(one["members"]), one["start"], one["end"]): one["reward"] for one in sets}
    # Positions in the first member's tokens, which stand behind the prompt.
    assert shown[(0, 1, 2, 3), 0, 1] == pytest.approx(np.mean(REWARDS))  # 5
    assert shown[(0, 2, 3), 1, 2] == pytest.approx(1.75 / 3)  # 6
    assert shown[(0, 3), 2, 3] == 0.75  # 9
    assert shown[(0, 1), 5, 8] == 0.5  # 9 32 7, after the prompt of the second transcript
    assert shown[(0,), 8, 9] == 1.0
    for found in sets:
        assert {*found["members"]} <= {0, 1, 2, 3}
        assert found["size"] == len(set(found["members"]))


@pytest.mark.parametrize("starts", [[0], [5], [2, 2], "3", [1.0], [True]])
def test_starts_outside_of_the_row_are_refused(tmp_path: Path, starts: Any) -> None:
    row = {"group": 1, "tokens": [1, 2, 3, 4, 5], "reward": 1.0, "starts": starts}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match='rows.jsonl:1: "starts" is'):
        read_groups(tmp_path / "rows.jsonl")


# In a rollout


@pytest.fixture
def forgetful(chatml: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Its template takes the thinking out of earlier turns."""
    return fast(chatml._tokenizer, THINKING, eos_token="<|endoftext|>", additional_special_tokens=["<|im_end|>"])


def assistant(content: str) -> Any:
    return {"role": "assistant", "content": content}


def test_a_turn_that_the_template_changes_begins_another_transcript(forgetful: PreTrainedTokenizerFast) -> None:
    replies: Words = [("<think>a</think>hello<|im_end|>", "eos"), ("be<|im_end|>", "eos"), ("good<|im_end|>", "eos")]
    script = Script(forgetful, replies)
    (one,) = playing(script, forgetful, lambda p: Counter(p, until=3))
    chat = Chat(forgetful)
    given = [list(ASK.prompt)]
    given.append([*given[0], assistant("<think>a</think>hello"), user("be good 1")])
    given.append([*given[1], assistant("be"), user("be good 2")])
    assert script.prefixes == [chat.encode_prompt(messages).tolist() for messages in given]
    first, second = (one.tokens[part] for part in one.transcripts)
    assert forgetful.decode(first).endswith("<think>a</think>hello<|im_end|>")
    assert "a</think>" not in forgetful.decode(second)
    assert len(one.starts) == 1  # the second reply has no thought, so the third continues it
    assert forgetful.decode(one.tokens[one.sampled]) == "".join(text for text, _ in replies)
    ends = [
        n for n in range(len(one.tokens)) if one.sampled[n] and (n + 1 == len(one.tokens) or not one.sampled[n + 1])
    ]
    assert [position for position, _ in one.steps] == ends
    assert one.reward == len("<think>a</think>hello") + 2 + 4 + 0.5


def test_a_thought_that_the_template_had_opened_is_taken_out_whole(deepseek: PreTrainedTokenizerFast) -> None:
    """The header of a reply ends in "<think>", which the model goes on from."""
    script = Script(deepseek, [("a\n</think>hello<eos>", "eos"), ("b\n</think>be<eos>", "eos")])
    (one,) = playing(script, deepseek)
    first, second = (deepseek.decode(one.tokens[part]) for part in one.transcripts)
    assert first == "<|User|>hello there<|Assistant|><think>\na\n</think>hello<eos>"
    assert second == (
        "<|User|>hello there<|Assistant|>hello<eos><|User|>be good 1<|Assistant|><think>\nb\n</think>be<eos>"
    )


def test_a_context_is_as_long_as_its_transcript(forgetful: PreTrainedTokenizerFast) -> None:
    thought: Words = [("<think>" + "a" * 6 + "</think>hello<|im_end|>", "eos")] * 6
    (long,) = playing(Script(forgetful, thought), forgetful, lambda p: Counter(p, until=6))
    longest = max(part.stop - part.start for part in long.transcripts)
    assert len(long.starts) == 5
    assert longest < len(long.tokens) / 2
    (same,) = playing(Script(forgetful, thought, max_length=longest + 8), forgetful, lambda p: Counter(p, until=6))
    np.testing.assert_array_equal(same.tokens, long.tokens)
    (short,) = playing(Script(forgetful, thought, max_length=longest - 9), forgetful, lambda p: Counter(p, until=6))
    assert (short.stop_reason, len(short.starts) < 5) == ("length", True)


def test_group_advantages_are_of_episodes(forgetful: PreTrainedTokenizerFast) -> None:
    thought: Words = [("<think>a</think>hello<|im_end|>", "eos"), ("be<|im_end|>", "eos")]
    plain: Words = [("hello<|im_end|>", "eos"), ("good<|im_end|>", "eos")]
    group = Group(ASK, playing(Script(forgetful, thought, plain), forgetful, size=2))
    (found,) = credit([group], resolve("grpo", {}))
    assert found.tree.count == 2
    assert len(set(found.advantages[found.tree.trajectory == 0])) == 1
    assert math.isclose(sum(set(found.advantages)), 0, abs_tol=1e-12)


# In the loop

CUTTING = """{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' and not loop.last %}\
{{ m['content'][:1] }}{% else %}{{ m['content'] }}{% endif %}<|end|>{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def test_a_run_says_that_it_trains_several_transcripts_and_its_records_explain_its_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(CUTTING)

    class Say(Counter):
        def __init__(self, problem: Problem) -> None:
            super().__init__(problem, until=3, say="be")

    recipe = make_recipe(
        {
            "model": {"path": str(folder), "dtype": "float32"},
            "rollout": {"problems_per_step": 2, "group_size": 4, "max_new_tokens": 6, "stop": list("abcdefghi")},
            "train": {"steps": 2, "output": str(tmp_path / "runs"), "name": "run"},
        }
    )
    problems = [{"prompt": text, "answer": ""} for text in ("a b", "c d", "e f")]
    run = train(recipe, problems=problems, environment=Say)
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("the chat template changes earlier turns") == 1
    rows, _ = read_lines(run / "rollouts.jsonl")
    metrics, _ = read_lines(run / "metrics.jsonl")
    split = [bool(row.get("starts")) for row in rows if row["step"] == 1]
    assert metrics[0]["completions/split_ratio"] == np.mean(split) > 0.2
    first = [group for group in read_groups(run / "rollouts.jsonl") if str(group.id).startswith("1:")]
    report = explain_groups(first, resolve("lambda_grpo", {}))
    assert metrics[0]["loss"] == pytest.approx(report["loss"], rel=1e-5)
    assert metrics[0]["completions/total_tokens"] == report["denominator"]
    assert metrics[0]["sampling/sampling_logp_difference/max"] < 1e-3  # sampler and trainer were given the same
