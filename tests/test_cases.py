"""Failures that users of other trainers reported, by the number of the case; more of them stand beside the
code that they are about. Models here are Markov chains, so that what they say can be chosen."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import compare
import tiny
from folders import tiny_tokenizer, write_problems, write_tiny_model
from oracle import Row
from treewise import checkpoint, models
from treewise.axes import Objective
from treewise.axes.aggregation import denominator
from treewise.chat import Chat
from treewise.config import Recipe
from treewise.credit import credit
from treewise.evaluate import summarise
from treewise.logprobs import _chunks, head_logprobs
from treewise.loop import train
from treewise.metrics import step_metrics
from treewise.objective import token_terms
from treewise.packing import MicroBatch, pack
from treewise.policy import Path as PolicyPath
from treewise.policy import Policy
from treewise.presets import resolve
from treewise.recipe import make_recipe
from treewise.reward import Reward
from treewise.reward.numeric import numeric
from treewise.rollout import collect
from treewise.sampler import Request
from treewise.sampler.draw import hits_stop
from treewise.sampler.hf import HFSampler
from treewise.track import read_lines
from treewise.types import Completion, Group, Problem, Sampling, Trajectory
from treewise.update import Tally

PATHS: tuple[PolicyPath, ...] = ("tree", "flat")
WORDS = ["<|end|>", "he", "llo", "hello", "h", "e", "l", "o", "ll", "a", "<tool>"]
END, HE, LLO, HELLO, E, OH, A, TOOL = 0, 1, 2, 3, 5, 7, 9, 10


def tokenizer() -> PreTrainedTokenizerFast:
    """`hello` is one token, and also what `he` and `llo` look like; `<tool>` is special and ends nothing."""
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    backend = Tokenizer(tokenizer_models.BPE(vocab={word: n for n, word in enumerate(WORDS)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence([])
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<|end|>", "<tool>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


def markov(logits: Tensor, *, place: Sequence[int] | None = None) -> LlamaForCausalLM:
    """A Llama whose logits after token i are `logits[place[i]]`, whatever stands before (place: i by default)."""
    size, width = logits.shape[1], len(logits)
    config = LlamaConfig(
        vocab_size=size, hidden_size=width, intermediate_size=2, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=2, rms_norm_eps=1e-12, max_position_embeddings=64,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    rows = torch.arange(size) if place is None else torch.tensor(place)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()  # each layer adds nothing
        model.model.embed_tokens.weight.copy_(torch.eye(width)[rows.clamp_max(width - 1)])
        model.lm_head.weight.copy_(logits.T / width**0.5)  # the last norm makes a one-hot √width long
    return model.eval()


def chain(*steps: tuple[int, int], size: int = len(WORDS)) -> LlamaForCausalLM:
    """A model that follows `before → after` and nothing else."""
    logits = torch.zeros(size, size)
    for before, after in steps:
        logits[before, after] = 60.0
    return markov(logits)


def sampler(model: Any, chat: Chat, vocab_size: int = len(WORDS)) -> HFSampler:
    return HFSampler(model, end_ids=chat.end_ids, vocab_size=vocab_size, decode=chat.decode, max_rows=8)


def answers(model: Any, prompt: str, *, seed: tuple[int, ...] = (0,), size: int = 2, length: int = 6) -> Group:
    chat = Chat(tokenizer())
    (group,) = collect(
        [Problem("p", prompt)],
        group_size=size,
        sampler=sampler(model, chat),
        sampling=Sampling(length),
        chat=chat,
        rewards=[Reward("length", lambda completion: float(len(completion)))],
        seed=seed,
    )
    return group


def one_batch(group: Group) -> MicroBatch:
    (batch,) = pack(credit([group], resolve("dapo", {})), denominator=1.0, budget=10**6)
    return batch


def rows_batch(*rows: Row) -> MicroBatch:
    return compare.micro_batch([list(rows)], resolve("dapo", {}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def recipe(folder: Path, tmp_path: Path, **overrides: Any) -> Recipe:
    """Two problems × two answers of four tokens, one step."""
    options = {
        "model.path": str(folder), "model.dtype": "float32", "rollout.problems_per_step": 2,
        "data.source": str(write_problems(tmp_path / "problems.jsonl", 4)), "rollout.group_size": 2,
        "rollout.max_new_tokens": 4, "train.steps": 1, "train.output": str(tmp_path / "runs"), "train.name": "run",
    }  # fmt: skip
    return make_recipe({}, options | overrides)


# Tokens and texts


def test_t01_what_was_sampled_is_never_encoded_again() -> None:
    chat, model = Chat(tokenizer()), chain((A, HE), (HE, LLO), (LLO, END))
    assert chat.encode_prompt("hello").tolist() == [HELLO]
    group = answers(model, "a")
    for trajectory in group.trajectories:
        assert trajectory.text == "hello"
        assert trajectory.tokens.tolist() == [A, HE, LLO, END]
        assert trajectory.sampled.tolist() == [False, True, True, True]
    batch = one_batch(group)
    found = Policy(model, 1.0, len(WORDS)).logprobs(batch)
    np.testing.assert_allclose(found.detach(), batch.sampler_logprobs, atol=1e-6)


def test_t06_special_tokens_stay_in_the_ids_and_out_of_the_text() -> None:
    group = answers(chain((E, TOOL), (TOOL, OH), (OH, END)), "e")
    for trajectory in group.trajectories:
        assert trajectory.tokens.tolist() == [E, TOOL, OH, END]
        assert trajectory.text == "o"
        assert len(trajectory.logprobs) == 4


@pytest.mark.parametrize("path", PATHS)
def test_t09_padding_of_the_vocabulary_is_masked_on_both_sides(path: PolicyPath) -> None:
    logits = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    logits[:, 12] = 12.0
    model, real = markov(logits), 10
    completions = sampler(model, Chat(tokenizer()), real).sample(
        [Request(np.array([4]), (number,)) for number in range(8)], Sampling(5)
    )
    assert max(int(completion.tokens.max()) for completion in completions) < real
    batch = rows_batch(*(Row([4], c.tokens.tolist(), [1] * len(c.tokens), n % 2) for n, c in enumerate(completions)))
    found = Policy(model, 1.0, real, path=path).logprobs(batch).detach()
    expected = torch.cat([logits[[4, *c.tokens[:-1]], :real].log_softmax(-1)[range(len(c.tokens)), c.tokens]
                          for c in completions])  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([c.logprobs for c in completions]), expected, atol=1e-5)


def test_e02_a_stop_string_that_an_answer_contains_by_chance_is_the_askers_choice() -> None:
    text = "Identify the Question first.\n#### 4"
    decode = lambda ids: "".join(map(chr, ids))  # noqa: E731
    assert hits_stop([ord(c) for c in text[:21]], ("Question",), decode)
    assert not any(hits_stop([ord(c) for c in text[:n]], ("\n\nQuestion:",), decode) for n in range(len(text) + 1))
    assert numeric(completion=text, answer="4") == 1.0
    with pytest.raises(ValueError, match=r"rollout\.stop = 'Question'"):  # never taken letter by letter
        make_recipe({}, {"rollout.stop": "Question"})


# Masks, ends and lengths


@pytest.mark.parametrize("path", PATHS)
def test_m02_l10_nothing_after_the_first_end_is_sampled_or_trained(path: PolicyPath) -> None:
    (completion,) = sampler(chain((A, E), (E, END), (END, OH)), Chat(tokenizer())).sample(
        [Request(np.array([A]), (0,))], Sampling(8)
    )
    assert completion.tokens.tolist() == [E, END]
    assert completion.stop_reason == "eos"
    policy = Policy(tiny.model("llama"), 1.0, tiny.VOCABULARY, path=path)
    alone = policy.logprobs(rows_batch(Row([3], [5, 2], [1, 1], 1.0)))
    padded = policy.logprobs(rows_batch(Row([3], [5, 2], [1, 1], 1.0), Row([3], [7] * 7, [1] * 7, 0.0)))
    torch.testing.assert_close(padded[:2], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_m07_environment_tokens_are_attended_and_not_trained(path: PolicyPath) -> None:
    policy = Policy(tiny.model("llama"), 1.0, tiny.VOCABULARY, path=path)
    one, other = (
        policy.logprobs(rows_batch(Row([3], [5, tool, 6], [1, 0, 1], 1.0), Row([3], [9], [1], 0.0))).detach()
        for tool in (20, 21)
    )
    assert len(one) == 3  # two of the first answer, one of the second
    assert one[0] == other[0]
    assert abs(one[1] - other[1]) > 1e-3


def test_m08_answers_that_are_all_cut_are_warned_about_at_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(recipe(folder, tmp_path), reward=lambda completion: 0.0)
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: step 1: 100% of the answers were cut at rollout.max_new_tokens = 4" in said
    assert "raise the limit" in said


# Log-probs


@pytest.mark.parametrize("path", PATHS)
def test_p06_a_token_is_predicted_by_the_one_before_it(path: PolicyPath) -> None:
    # Logits by position are [1,0,0], [0,1,0], [0,0,1] for the tokens 0, 2, 1.
    model = markov(torch.eye(3), place=[0, 2, 1])
    found = Policy(model, 1.0, 3, path=path).logprobs(rows_batch(Row([0], [2, 1], [1, 1], 1.0)))
    assert found.tolist() == pytest.approx([-1.55144, -0.55144], abs=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_p06_log_probs_are_those_of_scoring_one_token_at_a_time(path: PolicyPath) -> None:
    model = tiny.model("llama")
    tokens = [3, 12, 5, 30, 7, 7, 1]
    with torch.no_grad():
        expected = [
            model(input_ids=torch.tensor([tokens[:n]]), use_cache=False).logits[0, -1].log_softmax(-1)[tokens[n]].item()
            for n in range(2, len(tokens))
        ]
    found = Policy(model, 1.0, tiny.VOCABULARY, path=path).logprobs(rows_batch(Row(tokens[:2], tokens[2:], [1] * 5, 1)))
    assert found.tolist() == pytest.approx(expected, abs=1e-5)  # Llama's norms are in float32


def test_p08_trainer_side_log_softmax_is_wider_than_bf16() -> None:
    hidden, head = torch.zeros(1, 4, dtype=torch.bfloat16), torch.zeros(512, 4, dtype=torch.bfloat16)
    first = torch.zeros(1, dtype=torch.int64)
    found = head_logprobs(hidden, head, None, row=first, target=first)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(-6.23832, abs=1e-5)
    head = torch.tensor([[20.03], [19.97], [10.0]])
    assert head_logprobs(torch.ones(1, 1), head, None, row=first, target=first).item() == pytest.approx(
        -0.66362, abs=1e-5
    )


def test_p09_chunks_of_the_vocabulary_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(stop - start for start, stop in _chunks(16 * 1024, 32768)) * 32768 * 4 <= 64 * 2**20
    torch.manual_seed(0)
    hidden, head = torch.randn(37, 8, requires_grad=True), torch.randn(101, 8, requires_grad=True)
    row, target = torch.randint(37, (50,)), torch.randint(101, (50,))
    weight = torch.randn(50)
    whole = (hidden @ head.T).log_softmax(-1)[row, target]
    expected = torch.autograd.grad((weight * whole).sum(), (hidden, head))
    monkeypatch.setattr("treewise.logprobs.CHUNK_BYTES", 4 * 101 * 3)  # three rows at a time
    found = head_logprobs(hidden, head, None, row=row, target=target)
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-6)
    for one, other in zip(torch.autograd.grad((weight * found).sum(), (hidden, head)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_p10_dropout_of_a_checkpoint_is_off_while_scoring(tmp_path: Path) -> None:
    drop = {"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}
    tiny.model("gpt2", dtype=torch.float32, **drop).save_pretrained(tmp_path)
    policy = Policy(models.load_model(tmp_path).train(), 1.0, tiny.VOCABULARY, path="tree")
    batch = rows_batch(Row([3], [5, 2, 8], [1, 1, 1], 1.0), Row([3], [5, 9], [1, 1], 0.0))
    old, now = policy.logprobs(batch).detach(), policy.logprobs(batch)
    terms = token_terms(
        now,
        advantages=torch.ones(5),
        old_logprobs=old,
        sampler_logprobs=old,
        ref_logprobs=old,
        trajectory=torch.as_tensor(batch.trajectory),
        objective=Objective(kl_coef=0.1),
    )
    assert terms.ratios.tolist() == [1.0] * 5
    assert terms.kl is not None
    assert terms.kl.tolist() == [0.0] * 5


def test_p10_dropout_of_an_adapter_is_refused() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        tiny.model("llama", dtype=torch.float32),
        peft.LoraConfig(r=2, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    with pytest.raises(ValueError, match=r"has dropout 0\.1"):
        Policy(adapted, 1.0, tiny.VOCABULARY)


def test_p02_training_at_temperature_0_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rollout\.temperature = 0: Input should be greater than 0"):
        make_recipe({}, {"rollout.temperature": 0})
    with pytest.raises(ValueError, match="needs a sampling temperature above 0, got 0"):
        Policy(tiny.model("llama"), 0.0, tiny.VOCABULARY)


@pytest.mark.parametrize(("trainer", "engine"), [([-1.0, -2.0], [-1.0, -5.0]), ([-1.0, -5.0], [-1.0, -2.0])])
def test_p04_the_distance_of_trainer_and_sampler_is_measured_on_the_sampled_tokens(
    trainer: list[float], engine: list[float]
) -> None:
    batch, logprobs = rows_batch(Row([3], [5, 2], [1, 1], 1.0, old=engine)), torch.tensor(trainer)
    tally = Tally()
    terms = token_terms(
        logprobs,
        advantages=torch.zeros(2),
        old_logprobs=logprobs,
        sampler_logprobs=torch.tensor(engine),
        ref_logprobs=None,
        trajectory=torch.tensor([0, 0]),
        objective=resolve("dapo", {}),
    )
    tally.add(batch, torch.tensor(0.0), logprobs, terms)
    assert tally.sums["sampling/sampling_logp_difference/mean"] / tally.tokens == 1.5
    assert tally.largest_mismatch == 3.0


# Model folders and references


@pytest.mark.parametrize("tied", [True, False])
def test_c03_weights_are_tied_by_their_storage_and_not_by_what_the_config_says(tmp_path: Path, tied: bool) -> None:
    model = tiny.model("llama", dtype=torch.float32, tie_word_embeddings=True)
    if not tied:  # after the config was made
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 0.1)
    ids = torch.arange(3, 20)[None]
    expected = model(ids).logits
    checkpoint.save_model(model, tiny_tokenizer(), tmp_path, dict(model.named_parameters()))
    loaded = models.load_model(tmp_path)
    assert torch.equal(loaded(ids).logits, expected)
    same = loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    assert same == tied


def adapted(folder: Path) -> Any:
    """The folder's model with an adapter that does something."""
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(models.load_model(folder), settings)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def test_c05_a_saved_adapter_is_the_trained_one_alone_and_merged(folder: Path, tmp_path: Path) -> None:
    model, ids = adapted(folder), torch.arange(3, 20)[None]
    import peft

    trained, base = model(ids).logits, models.load_model(folder)(ids).logits
    checkpoint.save_model(model, tiny_tokenizer(), tmp_path, dict(model.named_parameters()))
    reloaded = peft.PeftModel.from_pretrained(models.load_model(folder), tmp_path).eval()
    assert torch.equal(reloaded(ids).logits, trained)
    torch.testing.assert_close(reloaded.merge_and_unload()(ids).logits, trained, rtol=1e-5, atol=1e-5)
    assert (trained - base).abs().max() > 1e-2
    with pytest.raises(ValueError, match="it holds a LoRA adapter: merge it"):  # K01: no silent start from the base
        models.resolve(tmp_path)


@pytest.mark.parametrize("path", PATHS)
def test_k01_the_adapter_is_on_again_after_a_reference_pass_that_fails(folder: Path, path: PolicyPath) -> None:
    policy = Policy(adapted(folder), 1.0, 40, path=path)
    batch = rows_batch(Row([3], [5, 2, 8], [1, 1, 1], 1.0))
    before = policy.logprobs(batch).detach()
    assert (policy.reference_logprobs(batch) - before).abs().max() > 1e-3
    with pytest.raises(IndexError):
        policy.reference_logprobs(rows_batch(Row([10**6], [5], [1], 1.0)))
    assert torch.equal(policy.logprobs(batch).detach(), before)


# Batches, seeds and figures


def test_d03_groups_that_cannot_be_kept_whole_are_an_error_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"train\.minibatches = 3 .* whole groups: .*problems_per_step is 2"):
        make_recipe({}, {"train.minibatches": 3, "rollout.problems_per_step": 2})


def test_d06_a_seed_gives_one_set_of_answers_and_another_seed_another() -> None:
    model = markov(torch.zeros(len(WORDS), len(WORDS)))

    def ids(*seed: int) -> list[list[int]]:
        return [t.tokens.tolist() for t in answers(model, "a", seed=seed, size=4, length=12).trajectories]

    assert ids(1, 0, 0) == ids(1, 0, 0)
    assert len({str(row) for seed in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)) for row in ids(*seed)}) == 16


@pytest.mark.parametrize("budget", [1, 10**6])
def test_l12_advantages_follow_their_answer_through_micro_batches(budget: int) -> None:
    objective = resolve("dapo", {})
    rows = [[Row([3], [5], [1], 1.0), Row([3], [6], [1], 0.0)], [Row([4], [5], [1], 0.0), Row([4], [6], [1], 1.0)]]
    groups = credit([tiny.group(group, number) for number, group in enumerate(rows)], objective)
    batches = pack(groups, denominator=denominator([1] * 4, aggregation="token"), budget=budget)
    assert len(batches) == (4 if budget == 1 else 1)
    found = {
        batch.origin[trajectory]: advantage
        for batch in batches
        for trajectory, advantage in zip(batch.trajectory.tolist(), batch.advantages, strict=True)
    }
    assert [found[key] for key in sorted(found)] == pytest.approx([0.70701, -0.70701, -0.70701, 0.70701], abs=1e-5)


def judged(*rewards: float | None) -> list[Group]:
    """One answer each to problems 0, 1, …"""
    return [
        Group(
            Problem(str(number), "?"),
            (Trajectory(np.array([1, 2]), np.array([False, True]), np.zeros(2), "", reward, "eos", {"f": reward}),),
        )
        for number, reward in enumerate(rewards)
    ]


def test_e04_every_held_out_problem_counts_once_and_in_order() -> None:
    evaluation = summarise(judged(1.0, 0.0, 0.0, 0.0, 1.0))
    assert evaluation.scores["reward"] == (1.0, 0.0, 0.0, 0.0, 1.0)
    assert evaluation.interval("reward")[::3] == (0.4, 5)


def test_e06_a_missing_score_is_in_no_mean_and_is_counted() -> None:
    groups = judged(0.5, None)
    found = step_metrics(groups, credit(groups, resolve("grpo", {})))
    assert found["rewards/f/mean"] == 0.5
    assert found["reward"] == 0.5
    assert found["no_verdict"] == 1
    assert all(value is None or math.isfinite(value) for value in found.values())


def test_m03_an_answer_that_ends_with_the_second_end_token_is_not_truncated() -> None:
    end = tokenizer()
    chat = Chat(end, model_eos=[END, OH])
    (completion,) = sampler(chain((A, E), (E, OH)), chat).sample([Request(np.array([A]), (0,))], Sampling(8))
    assert isinstance(completion, Completion)
    assert completion.tokens.tolist() == [E, OH]
    assert completion.stop_reason == "eos"


def test_m03_a_run_ends_answers_at_every_end_token_of_the_models_folder(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    ends = [0, *range(5, 25)]  # the tokenizer and its template name 0 only
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": ends}))
    run = train(recipe(folder, tmp_path, **{"rollout.group_size": 8}), reward=lambda completion: float(len(completion)))
    rows, _ = read_lines(run / "rollouts.jsonl")
    replies = [[token for token, own in zip(row["tokens"], row["mask"], strict=True) if own] for row in rows]
    assert [row["stop_reason"] == "eos" for row in rows] == [reply[-1] in ends for reply in replies]
    assert not any(set(reply[:-1]) & set(ends) for reply in replies)
    assert {reply[-1] for reply in replies} & set(ends[1:])
    metrics, _ = read_lines(run / "metrics.jsonl")
    assert metrics[0]["completions/clipped_ratio"] == np.mean([row["stop_reason"] == "length" for row in rows])


def test_t09_a_saved_model_keeps_its_padding_and_too_many_tokens_are_refused(tmp_path: Path) -> None:
    padded = write_tiny_model(tmp_path / "padded", vocab_size=64)
    run = train(recipe(padded, tmp_path), reward=lambda completion: float(len(completion)))
    assert models.load_model(run / "model").get_input_embeddings().num_embeddings == 64
    small = write_tiny_model(tmp_path / "small", vocab_size=40)
    with pytest.raises(ValueError, match="the tokenizer has ids up to 48, the model has embeddings for 40 only"):
        train(recipe(small, tmp_path))


@pytest.mark.parametrize(
    ("stop", "why"),
    [("<tool>", "<tool> is a token, not text"), ("\n<|end|>", "<|end|> is a token, which ends replies")],
)
def test_e02_a_stop_string_that_no_text_can_have_is_refused(stop: str, why: str) -> None:
    chat = Chat(tokenizer())
    with pytest.raises(ValueError, match=re.escape(f"the stop string {stop!r} has no effect: {why}")):
        collect(
            [Problem("p", "a")],
            group_size=1,
            sampler=sampler(chain((A, END)), chat),
            sampling=Sampling(2, stop=(stop,)),
            chat=chat,
            rewards=[Reward("one", lambda completion: 1.0)],
            seed=(0,),
        )


def test_m05_an_end_token_alone_is_an_answer_with_one_trained_token() -> None:
    group = answers(chain((A, END)), "a")
    assert [t.text for t in group.trajectories] == ["", ""]
    assert [t.reward for t in group.trajectories] == [0.0, 0.0]
    assert [t.stop_reason for t in group.trajectories] == ["eos", "eos"]
    credited = credit([group], resolve("grpo", {}))[0]
    assert credited.lengths == [1, 1]
    found = step_metrics([group], [credited])
    assert (found["completions/min_length"], found["completions/clipped_ratio"]) == (1, 0.0)


def test_r03_a_failing_grader_never_looks_like_a_wrong_answer() -> None:
    from treewise.reward import Reply, score

    def broken(completion: str) -> float:
        raise RuntimeError("no network")

    (verdict,) = asyncio.run(score([Reward("broken", broken)], [Reply(Problem("p", "?"), "4")]))
    assert verdict.reward is None
    assert verdict.cause == "broken: RuntimeError: no network"


# What should hold and does not yet


def test_x03_weights_that_are_not_finite_are_never_saved(folder: Path, tmp_path: Path) -> None:
    options = {"optimizer.learning_rate": 1e38, "rollout.group_size": 4}
    with pytest.raises(FloatingPointError, match="no longer finite after a step"):
        train(recipe(folder, tmp_path, **options), reward=lambda completion: float(len(set(completion))))
    assert checkpoint.steps(tmp_path / "runs" / "run") == []


def test_a05_a_group_without_any_verdict_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [Problem("first-problem", "1+1=?", "2"), Problem("second-problem", "1+2=?", "3")]
    train(recipe(folder, tmp_path), problems=problems, reward=lambda completion, answer: None if answer == "2" else 1.0)
    assert "'first-problem': <lambda>: returned None" in capsys.readouterr().out
