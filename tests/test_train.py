"""The loop, end to end on a tiny model: it learns, resumes exactly, and says what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from folders import tiny_tokenizer, write_problems, write_tiny_model
from tiny import model as tiny_family
from treewise import checkpoint, cli
from treewise.config import Recipe
from treewise.loop import train
from treewise.recipe import load_recipe, make_recipe
from treewise.types import Problem


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def recipe(model: Path, tmp_path: Path, **overrides: Any) -> Recipe:
    """Two problems × four short answers a step."""
    problems = tmp_path / "problems.jsonl"
    if not problems.exists():
        write_problems(problems, 10)
    return make_recipe(
        {},
        {
            "model.path": str(model),
            "model.dtype": "float32",
            "data.source": str(problems),
            "rollout.problems_per_step": 2,
            "rollout.group_size": 4,
            "rollout.max_new_tokens": 6,
            "optimizer.learning_rate": 1e-2,
            "train.steps": 4,
            "train.save_every": 0,
            "train.output": str(tmp_path / "runs"),
            "train.name": "run",
            **overrides,
        },
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def share_of_a(completion: str) -> float:
    """A reward that a tiny model can learn from: how much of the reply is the letter a."""
    return completion.count("a") / 6


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "dapo", "lambda_grpo", "tree_rloo", "gspo", "cispo", "tempo"])
def test_a_tiny_model_learns_what_is_rewarded(model: Path, tmp_path: Path, preset: str) -> None:
    run = train(
        recipe(
            model,
            tmp_path,
            **{
                "objective.preset": preset,
                "train.steps": 30,
                "train.updates_per_batch": 2,
                "objective.overlong_penalty": 0.0,  # here the longest answer is the best one
            },
        ),
        reward=share_of_a,
    )
    rewards = [row["reward"] for row in rows(run / "metrics.jsonl")]
    assert sum(rewards[:3]) / 3 < 0.1
    assert sum(rewards[-3:]) / 3 > 0.5


def test_the_same_seed_gives_the_same_run_and_another_seed_another(model: Path, tmp_path: Path) -> None:
    runs = [
        train(recipe(model, tmp_path, **{"train.name": name, "train.seed": seed}), reward=share_of_a)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    texts = [(run / "rollouts.jsonl").read_text() for run in runs]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    for name, tensor in weights(runs[0] / "model").items():
        assert torch.equal(tensor, weights(runs[1] / "model")[name])


def comparable(run: Path) -> list[dict[str, Any]]:
    """Metrics without the times."""
    return [{k: v for k, v in row.items() if "time" not in k} for row in rows(run / "metrics.jsonl")]


def assert_resuming_is_exact(whole: Path, *, last: int, reward: Callable[..., Any]) -> None:
    """A copy of the run without its last checkpoint goes on to the same metrics, answers and weights."""
    half = whole.with_name("half")
    shutil.copytree(whole, half)
    shutil.rmtree(half / "checkpoints" / f"step_{last:06d}")
    shutil.rmtree(half / "model")
    train(resume=half, reward=reward)
    assert comparable(half) == comparable(whole)
    for name in ("rollouts.jsonl", "eval.jsonl"):
        assert (half / name).exists() == (whole / name).exists()
        assert not (whole / name).exists() or (half / name).read_bytes() == (whole / name).read_bytes()
    for path in (whole / "model").glob("*.safetensors"):
        resumed = load_file(half / "model" / path.name)
        assert all(torch.equal(tensor, resumed[name]) for name, tensor in load_file(path).items())


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c06_d02_resuming_is_exact(model: Path, tmp_path: Path, lora: int, dtype: str) -> None:
    if lora:
        pytest.importorskip("peft")
    options = {
        "model.dtype": dtype, "lora.rank": lora, "train.save_every": 2, "objective.kl_coef": 0.1,
        "train.keep_last": 9, "optimizer.schedule": "cosine", "rollout.problems_per_step": 3,
        "eval.source": str(tmp_path / "problems.jsonl"), "eval.every": 2,
    }  # fmt: skip
    whole = train(recipe(model, tmp_path, **options, **{"train.name": "whole"}), reward=share_of_a)
    assert_resuming_is_exact(whole, last=4, reward=share_of_a)


def test_a_continued_run_must_be_the_same_run(model: Path, tmp_path: Path) -> None:
    run = train(recipe(model, tmp_path, **{"train.steps": 2}), reward=share_of_a)
    longer = load_recipe(run / "config.json", {"train.steps": 3})
    with pytest.raises(ValueError, match="was trained with other rewards"):
        train(longer, resume=run)
    with pytest.raises(ValueError, match="was trained with other recipe"):
        train(
            load_recipe(run / "config.json", {"train.steps": 3, "objective.preset": "grpo"}),
            resume=run,
            reward=share_of_a,
        )
    with pytest.raises(ValueError, match="was trained with other problems"):
        train(longer, resume=run, reward=share_of_a, problems=[Problem("0", "0"), Problem("1", "1")])
    assert train(longer, resume=run, reward=share_of_a) == run
    assert load_recipe(run / "config.json") == longer


def test_a_run_that_was_killed_before_its_summary_is_finished(model: Path, tmp_path: Path) -> None:
    run = train(recipe(model, tmp_path), reward=share_of_a)
    before = (run / "summary.json").read_text()
    (run / "summary.json").unlink()
    shutil.rmtree(run / "model")
    train(resume=run, reward=share_of_a)
    assert (run / "summary.json").read_text() == before
    assert (run / "model" / "model.safetensors").is_file()


def test_records_that_were_shortened_are_reported_and_not_padded(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(recipe(model, tmp_path, **{"train.steps": 2}), reward=share_of_a)
    (run / "rollouts.jsonl").unlink()
    train(load_recipe(run / "config.json", {"train.steps": 3}), resume=run, reward=share_of_a)
    assert "rollouts.jsonl has lost" in capsys.readouterr().out
    assert {row["step"] for row in rows(run / "rollouts.jsonl")} == {3}


def test_t10_problems_that_do_not_fit_the_model_are_left_out_and_counted(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [{"problem": "1+1=?" if n else "1+" * 200, "answer": "2"} for n in range(4)]
    run = train(recipe(model, tmp_path, **{"train.steps": 3}), problems=problems, reward=share_of_a)
    assert "1 left out with more than 250 prompt tokens" in capsys.readouterr().out
    assert {row["problem"] for row in rows(run / "rollouts.jsonl")} == {"1", "2", "3"}


def test_every_held_out_answer_is_recorded(model: Path, tmp_path: Path) -> None:
    options = {"train.steps": 1, "eval.source": str(tmp_path / "problems.jsonl")}
    run = train(recipe(model, tmp_path, **options), reward=share_of_a)
    answers = rows(run / "eval_rollouts.jsonl")
    assert [row["step"] for row in answers] == [0] * 10 + [1] * 10
    assert [row["reward"] for row in answers[10:]] == rows(run / "eval.jsonl")[1]["scores"]["reward"]


def test_options_of_the_evaluation_without_problems_for_it_are_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the eval section has no effect without held-out problems"):
        train(recipe(model, tmp_path, **{"eval.temperature": 1.0}), reward=share_of_a)


def test_the_best_checkpoint_by_evaluation_is_kept(model: Path, tmp_path: Path) -> None:
    """Whichever step was the best stays on the disk, beside the last one."""
    options = {"eval.source": str(tmp_path / "problems.jsonl"), "eval.every": 1, "train.keep_last": 1}
    run = train(recipe(model, tmp_path, **options, **{"train.steps": 6}), reward=share_of_a)
    evaluations = [(row["accuracy"]["reward"]["mean"], -row["step"]) for row in rows(run / "eval.jsonl")]
    best = -max(evaluations)[1]
    assert checkpoint.steps(run) == sorted({best, 6} - {0})
    assert json.loads((run / "summary.json").read_text())["best"]["step"] == best


def test_resuming_can_add_steps(model: Path, tmp_path: Path) -> None:
    run = train(recipe(model, tmp_path, **{"train.steps": 2}), reward=share_of_a)
    with pytest.raises(ValueError, match="has done all of its 2 steps; give a larger --train.steps"):
        train(resume=run, reward=share_of_a)
    train(load_recipe(run / "config.json", {"train.steps": 3}), resume=run, reward=share_of_a)
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == [1, 2, 3]


def test_d02_every_epoch_uses_every_problem_once(model: Path, tmp_path: Path) -> None:
    run = train(recipe(model, tmp_path, **{"train.steps": 5}), reward=share_of_a)
    seen = [row["problem"] for row in rows(run / "rollouts.jsonl") if row["index"] == 0]
    assert sorted(seen) == sorted(str(n) for n in range(10))


def test_d04_more_problems_per_step_than_there_are_is_an_error(model: Path, tmp_path: Path) -> None:
    problems = [Problem("one", "1+1=?", "2")]
    with pytest.raises(ValueError, match="a step takes 2 different ones of it, and there are 1"):
        train(recipe(model, tmp_path), problems=problems, reward=share_of_a)


def test_a04_an_answer_without_verdict_is_left_out_and_shown(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(10**6))

    def sometimes_broken(completion: str) -> float | None:
        number = next(calls)
        if number % 4 == 0:
            raise RuntimeError("grader is down")
        return None if number % 4 == 1 else share_of_a(completion)

    run = train(recipe(model, tmp_path, **{"train.steps": 1}), reward=sometimes_broken)
    recorded = rows(run / "rollouts.jsonl")
    assert [row["reward"] is None for row in recorded] == [True, True, False, False] * 2
    assert recorded[0]["cause"] == "sometimes_broken: RuntimeError: grader is down"
    assert rows(run / "metrics.jsonl")[0]["no_verdict"] == 4
    assert "4 of 8 answers got no verdict" in capsys.readouterr().out.replace("\n", " ")


def test_a01_a05_a_step_without_signal_does_not_move_the_weights(model: Path, tmp_path: Path) -> None:
    """Momentum would move them, so there is no optimizer step at all."""
    run = train(
        recipe(model, tmp_path, **{"train.steps": 2, "train.save_every": 1, "train.keep_last": 9}),
        reward=lambda completion: 0.95,
    )
    for row in rows(run / "metrics.jsonl"):
        assert (row["loss"], row["updates/empty"], row["frac_reward_zero_std"]) == (0.0, 1, 1.0)
    for name, tensor in weights(run / "model").items():
        assert torch.equal(tensor, weights(model)[name])


def test_a_first_step_without_any_verdict_is_an_error_with_its_cause(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="8 of 8 answers got no verdict.*ZeroDivisionError.*mend the rewards"):
        train(recipe(model, tmp_path), reward=lambda completion: 1 / 0)


def test_a_later_step_without_any_verdict_is_survived(model: Path, tmp_path: Path) -> None:
    calls = iter(range(100))
    run = train(
        recipe(model, tmp_path), reward=lambda completion: None if 8 <= next(calls) < 16 else share_of_a(completion)
    )
    row = rows(run / "metrics.jsonl")[1]
    assert (row["reward"], row["updates/empty"], row["no_verdict"]) == (None, 1, 8)


def test_p10_p13_the_first_update_has_ratio_1_and_the_second_does_not(model: Path, tmp_path: Path) -> None:
    once = train(recipe(model, tmp_path, **{"train.steps": 1, "train.name": "once"}), reward=share_of_a)
    twice = train(
        recipe(
            model,
            tmp_path,
            **{
                "train.steps": 1,
                "train.name": "twice",
                "train.updates_per_batch": 2,
                "optimizer.learning_rate": 0.05,
            },
        ),
        reward=share_of_a,
    )
    assert rows(once / "metrics.jsonl")[0]["clip_ratio/region_mean"] == 0.0
    assert rows(twice / "metrics.jsonl")[0]["clip_ratio/region_mean"] > 0.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [0, 4])
def test_k01_the_kl_term_is_0_at_the_start(model: Path, tmp_path: Path, lora: int, dtype: str) -> None:
    options = {"objective.kl_coef": 0.1, "lora.rank": lora, "train.steps": 1, "model.dtype": dtype}
    run = train(recipe(model, tmp_path, **options), reward=share_of_a)
    assert rows(run / "metrics.jsonl")[0]["kl"] == 0.0


def test_the_sampler_and_the_trainer_agree_on_log_probs(model: Path, tmp_path: Path) -> None:
    options = {"rollout.temperature": 0.7, "train.updates_per_batch": 3}
    run = train(recipe(model, tmp_path, **options), reward=share_of_a)
    for row in rows(run / "metrics.jsonl"):
        assert row["sampling/sampling_logp_difference/max"] < 1e-4


@pytest.mark.parametrize("attention", ["tree", "flat"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_memory_options_do_not_change_the_run(model: Path, tmp_path: Path, attention: str, checkpointing: bool) -> None:
    plain = train(recipe(model, tmp_path, **{"train.name": "plain"}), reward=share_of_a)
    other = train(
        recipe(
            model,
            tmp_path,
            **{
                "train.name": "other",
                "model.attention": attention,
                "model.gradient_checkpointing": checkpointing,
                "train.token_budget": 24,
                "rollout.max_rows": 3,
            },
        ),
        reward=share_of_a,
    )
    for one, two in zip(comparable(plain), comparable(other), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-3, abs=1e-5)
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(
    "family",
    ["mistral-window", "gemma2-softcap", "gemma3", "gpt_oss", "bloom", "mamba", "lfm2", "qwen3_next", "gpt2", "llama"],
)
def test_any_family_trains_on_the_path_that_is_right_for_it(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tiny_tokenizer()
    folder = tmp_path / family
    made = tiny_family(family, dtype=torch.float32, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    run = train(recipe(folder, tmp_path, **{"train.steps": 2, "objective.kl_coef": 0.1}), reward=share_of_a)
    told = capsys.readouterr().out
    assert ("prefix tree" in told) == (family in ("gpt2", "llama"))
    assert ("one row per answer" in told) == (family not in ("gpt2", "llama"))
    for row in rows(run / "metrics.jsonl"):
        assert row["sampling/sampling_logp_difference/max"] < 1e-3


def test_x03_non_finite_steps_are_skipped_and_a_row_of_them_stops(model: Path, tmp_path: Path) -> None:
    options = {"train.max_skipped_steps": 2, "objective.preset": "dr_grpo", "train.save_every": 1}
    with pytest.raises(FloatingPointError, match="2 optimizer steps in a row"):
        # Fine in float64, infinite in float32.
        train(recipe(model, tmp_path, **options), reward=lambda completion: 1e60 * completion.count("a"))
    run = tmp_path / "runs" / "run"
    assert [row["updates/skipped"] for row in rows(run / "metrics.jsonl")] == [1, 1]
    folder, _ = checkpoint.newest(run)
    assert folder is not None
    assert all(torch.equal(t, weights(model)[name]) for name, t in weights(folder / "model").items())


def test_c03_c05_what_is_saved_gives_the_trained_log_probs(model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for tied in (True, False):
        start = write_tiny_model(tmp_path / f"model_{tied}", tie_word_embeddings=tied)
        name = f"tied_{tied}"
        run = train(recipe(start, tmp_path, **{"train.name": name, "train.save_every": 4}), reward=share_of_a)
        ids = torch.arange(3, 20)[None]
        base, final, saved = (
            AutoModelForCausalLM.from_pretrained(folder)(ids).logits
            for folder in (start, run / "model", run / "checkpoints" / "step_000004" / "model")
        )
        assert torch.equal(final, saved)
        assert (final - base).abs().max() > 1e-3


def test_the_model_folder_of_a_bf16_run_holds_float32_master_weights(model: Path, tmp_path: Path) -> None:
    run = train(recipe(model, tmp_path, **{"model.dtype": "bfloat16"}), reward=share_of_a)
    saved = weights(run / "model")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    embedding = saved["model.embed_tokens.weight"]
    assert not torch.equal(embedding, embedding.bfloat16().float())


SLOW_REWARD = """
import time
def reward(completion):
    time.sleep(0.02)
    return completion.count("a") / 6
"""


def start(model: Path, tmp_path: Path, **overrides: Any) -> subprocess.Popen[str]:
    """`treewise train` in a process of its own."""
    (tmp_path / "slow.py").write_text(SLOW_REWARD)
    config = tmp_path / "recipe.json"
    options = {"train.steps": 500, "train.save_every": 1, "train.keep_last": 2, **overrides}
    options["reward"] = [{"function": f"{tmp_path / 'slow.py'}:reward"}]
    config.write_text(recipe(model, tmp_path, **options).model_dump_json())
    return subprocess.Popen(
        [sys.executable, "-m", "treewise.cli", "train", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_reader_that_goes_away_does_not_end_the_run(model: Path, tmp_path: Path) -> None:
    process = start(model, tmp_path, **{"train.steps": 4, "train.save_every": 0})
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert (tmp_path / "runs" / "run" / "model" / "model.safetensors").is_file()


def test_ctrl_c_saves_and_says_how_to_go_on(model: Path, tmp_path: Path) -> None:
    process = start(model, tmp_path, **{"train.save_every": 0})
    run = tmp_path / "runs" / "run"
    metrics = run / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert f"treewise train --resume {run}" in output.replace("\n", "")
    step = checkpoint.steps(run)[-1]
    assert rows(metrics)[-1]["step"] == step
    steps = load_recipe(run / "config.json", {"train.steps": step + 1})
    train(steps, resume=run)
    assert [row["step"] for row in rows(metrics)] == list(range(1, step + 2))


def test_c01_a_kill_at_any_moment_leaves_a_checkpoint_that_loads(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    process = start(model, tmp_path)
    wait_for(lambda: len(checkpoint.steps(run)) >= 2, process)
    for _ in range(2):
        # Saving takes much of this run's time: kill while a partial folder is there.
        wait_for(lambda: list((run / "checkpoints").glob(".*.partial")), process)
        process.kill()
        process.communicate()
        folder, _ = checkpoint.newest(run)
        assert folder is not None
        step = int(folder.name.removeprefix("step_"))
        recorded = [row["step"] for row in rows(run / "metrics.jsonl")]
        assert step <= recorded[-1]
        process = subprocess.Popen(
            [sys.executable, "-m", "treewise.cli", "train", "--resume", str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_for(lambda step=step: (checkpoint.steps(run) or [0])[-1] > step + 1, process)
    process.kill()
    process.communicate()
    seen = [row["step"] for row in rows_of_whole_lines(run / "metrics.jsonl")]
    assert seen == list(range(1, len(seen) + 1))


def rows_of_whole_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@pytest.mark.parametrize("damage", ["missing", "truncated", "changed", "no manifest"])
def test_c01_a_damaged_newest_checkpoint_is_skipped_by_name(
    model: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"train.save_every": 2, "train.keep_last": 9}
    run = train(recipe(model, tmp_path, **options), reward=share_of_a)
    newest = checkpoint.folder_of(run, 4)
    victim = newest / "trainer.pt"
    if damage == "missing":
        victim.unlink()
    elif damage == "truncated":
        victim.write_bytes(victim.read_bytes()[:-100])
    elif damage == "changed":
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    else:
        (newest / "manifest.json").unlink()
    before = rows(run / "metrics.jsonl")
    train(resume=run, reward=share_of_a)
    assert "skipping checkpoint step_000004" in capsys.readouterr().out.replace("\n", " ")
    assert comparable(run) == [{k: v for k, v in row.items() if "time" not in k} for row in before]


def test_dry_run_prints_the_resolved_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--dry-run", "--train.steps", "7"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["train"]["steps"] == 7
    assert printed == load_recipe(overrides={"train.steps": 7}).model_dump(mode="json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--train.stpes", "3"], "the nearest is train.steps"),
        (["train", "nowhere.toml"], "can't read recipe nowhere.toml"),
        (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["train", "--resume", "x", "--train.seed", "3"], "--train.seed can't change it"),
        (["inspect", "nowhere.jsonl"], "nowhere.jsonl"),
        (["explain", "nowhere.jsonl", "--preset", "gpro"], "unknown preset 'gpro'"),
        (
            ["explain", "nowhere.jsonl", "--preset", "grpo", "--train.steps", "3"],
            "--objective.… options only",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("treewise: ")
    assert "Traceback" not in error


def test_problems_given_in_python_are_rows_of_columns_or_finished_problems(model: Path, tmp_path: Path) -> None:
    table = [{"question": f"{n}+{n}=?", "answer": str(2 * n), "level": n} for n in range(4)]
    options = {"train.steps": 1, "data.system": "add", "data.source": None}
    run = train(
        recipe(model, tmp_path, **options),
        problems=table,
        reward=lambda completion, level, answer: level,
        held_out=table,
    )
    first = rows(run / "rollouts.jsonl")[0]
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert first["reward"] == int(first["answer"]) / 2
    assert len(rows(run / "eval.jsonl")[0]["scores"]["reward"]) == 4
    again = recipe(model, tmp_path, **options, **{"train.name": "again"})
    run = train(again, problems=[Problem(str(n), f"{n}", str(n)) for n in range(4)], reward=share_of_a)
    assert rows(run / "rollouts.jsonl")[0]["prompt"] in "0123"
    with pytest.raises(ValueError, match="no problems to learn from: set data.source"):
        train(again, reward=share_of_a)


def test_it_runs_in_a_notebook_which_has_an_event_loop(model: Path, tmp_path: Path) -> None:
    async def cell() -> Path:
        return train(recipe(model, tmp_path, **{"train.steps": 1}), reward=share_of_a)

    assert (asyncio.run(cell()) / "model").is_dir()


def test_explain_takes_clip_options_as_its_file_may_be_off_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.jsonl"
    old, new = [-1.0], [-0.5]
    file.write_text(
        json.dumps({"group": 1, "tokens": [5], "reward": 1, "logprobs": new, "old_logprobs": old})
        + "\n"
        + json.dumps({"group": 1, "tokens": [6], "reward": 0, "logprobs": old, "old_logprobs": old})
        + "\n"
    )
    arguments = ["explain", str(file), "--preset", "grpo", "--objective.clip_high", "0.1", "--json"]
    assert cli.main(arguments) == 0
    first = json.loads(capsys.readouterr().out)["trajectories"][0]
    assert first["terms"] == pytest.approx([-1.1 * 0.70701], abs=1e-4)
    assert first["grad"] == [0.0]


def test_the_run_folder_says_what_was_run(model: Path, tmp_path: Path) -> None:
    chosen = recipe(model, tmp_path)
    run = train(chosen, reward=share_of_a)
    assert load_recipe(run / "config.json") == chosen
    versions = json.loads((run / "versions.json").read_text())
    assert versions["packages"]["torch"] == torch.__version__
    assert "commit" in versions
    with pytest.raises(ValueError, match="the run folder .* exists; continue it with --resume"):
        train(chosen, reward=share_of_a)
