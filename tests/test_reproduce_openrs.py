"""`treewise reproduce openrs`: models whose answers are known, trained and tried; golds; the paper's numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from folders import CONTROL, TEMPLATE
from treewise import checkpoint, cli
from treewise.benchmarks import BENCHMARKS, FIVE, Benchmark, load
from treewise.data import load_problems
from treewise.presets import resolve
from treewise.recipe import load_recipe, parse_overrides
from treewise.reproduce import openrs
from treewise.reproduce.benchmarks import PAPER, figures, paper_of
from treewise.reproduce.openrs_report import wilson
from treewise.reproduce.options import OpenRS, make_options
from treewise.reward.math import MathVerifier
from treewise.types import Group, Problem, Trajectory

PROBLEMS = {  # two of each kind, in the columns and notation of the real ones
    "aime24": [
        {"problem": "Find the remainder when $3^{40}$ is divided by $1000$.", "answer": "801"},
        {"problem": r"How many divisors does $2^4 \cdot 3^2$ have?", "answer": "15"},
    ],
    "math500": [
        {"problem": r"Simplify $\frac{6}{8}$.", "answer": r"\frac{3}{4}"},
        {"problem": "Solve $x^2 = 9$ for $x < 0$.", "answer": "-3"},
    ],
    "amc23": [{"problem": "What is $7 + 8$?", "answer": 15.0}, {"problem": "What is half of $1$?", "answer": 0.5}],
    "minerva": [
        {"problem": "What is the energy?", "solution": r"By $E = h\nu$ it is \boxed{4.5e-19} J."},
        {"problem": "At which angle?", "solution": r"So $\theta = \boxed{np.arcsin(10/13)}$."},
    ],
    "olympiadbench": [
        {"question": "Find all $x$ with $x^2 = 4$.", "answer": "$2$,$-2$"},
        {"question": r"For which $x$ is $\sqrt{1 - x}$ real and less than $1$?", "answer": "$(0, 1]$"},
    ],
}
FAMILIES = {"deepseek": "qwen2", "llama": "llama"}  # the architectures of the paper's two models
RATE = 0.005
TURNS = [*CONTROL, "<|endoftext|>"]  # the last one because Qwen's tokenizer has it anyway


def write_tokenizer(folder: Path, words: list[str], **parts: Any) -> PreTrainedTokenizerFast:
    """One token per word, after those that stand between the turns of a chat."""
    backend = Tokenizer(tokenizer_models.BPE(vocab={word: n for n, word in enumerate([*TURNS, *words])}, merges=[]))
    for name, part in {"decoder": decoders.Fuse(), **parts}.items():
        setattr(backend, name, part)
    backend.add_special_tokens(TURNS)
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|end|>")
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return made


def random_model(family: str, size: int, width: int, positions: int) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=size, hidden_size=width, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions, rms_norm_eps=1e-9, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def write_decided_model(folder: Path, family: str) -> Path:
    r"""A model that answers every prompt with `\boxed{8}`, or a little less likely with `\boxed{7}`."""
    words = [*TURNS, r"\boxed{7}", r"\boxed{8}", *"0123456789+=?"]
    end, opened, seven, eight = (words.index(word) for word in ("<|end|>", "<|assistant|>", *words[4:6]))
    write_tokenizer(folder, words[4:])
    model = random_model(family, len(words), 64, 64)
    logits = torch.full((len(words), len(words)), -20.0)
    logits[:, end] = 20.0
    logits[opened, [end, seven, eight]] = torch.tensor([-20.0, 2.0, 2.05])
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()  # each layer adds nothing
        model.model.embed_tokens.weight.copy_(torch.eye(64)[: len(words)])
        model.lm_head.weight[:, : len(words)] = logits.T / 8  # the last norm makes a one-hot √64 long
    model.save_pretrained(folder)
    return folder


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a trial in which everything is known."""
    folder = tmp_path_factory.mktemp("openrs")
    models = ",".join(f"{name}={write_decided_model(folder / name, family)}" for name, family in FAMILIES.items())
    sevens = [{"problem": f"{n}+0=?", "answer": "7"} for n in range(8)]
    train, validation = (write_rows(folder / f"{name}.jsonl", *sevens) for name in ("train", "validation"))
    aime = write_rows(folder / "aime.jsonl", *({"problem": f"{n}=?", "answer": str(n)} for n in (7, 8, 8, 5)))
    minerva = write_rows(
        folder / "minerva.jsonl",
        {"problem": "1?", "solution": r"First \boxed{8}, no: $x = \boxed{7}$ cm."},
        {"problem": "2?", "solution": r"It is \boxed{8}."},
    )
    (folder / "reward.py").write_text(
        'def boxed(completion, answer):\n    return completion == f"\\\\boxed{{{answer}}}"'
    )
    options = {
        "models": models,
        "benchmarks": "aime24,minerva",
        "data": f"train={train},validation={validation},aime24={aime},minerva={minerva}",
        "betas": 0.04,
        "reward": f'[{{function = "{folder / "reward.py"}:boxed"}}]',
        "data.system": "none",
        "model.dtype": "float32",
        "rollout.max_new_tokens": 3,
        "optimizer.learning_rate": RATE,
        "train.steps": 2,
        "eval.every": 1,
    }
    return ["reproduce", "openrs", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def test_a_trial_trains_both_models_and_says_what_they_answered(words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    assert cli.main([*words, "--output", str(folder), "--jobs", "2"]) == 0
    results = json.loads((folder / "results.json").read_text())
    assert len(results["rows"]) == 2 * (1 + 2) * 2  # models × (as it is, presets) × benchmarks
    for row in results["rows"]:
        # Of the golds 7, 8, 8, 5 the model before training has the eights, and one that learned has the seven.
        right = {"aime24": (0.5, 0.25), "minerva": (0.5, 0.5)}[row["benchmark"]]
        assert row["accuracy"] == right[row["preset"] is not None]
        assert (row["n"], row["no_verdict"], row["truncated"], row["length"]) == (
            {"aime24": 4, "minerva": 2}[row["benchmark"]], 0, 0.0, 2.0,
        )  # fmt: skip
        # Nothing was cut: 32,768 tokens are more than the model reads, so its own limit counts.
        # After one step all validation problems are right, and nothing later is better.
        assert (row["step"], row["chosen"]) == ((0, "base") if row["preset"] is None else (1, "best"))
    answers = folder / "answers" / "llama_beta0.04_lambda_grpo_0"
    assert [(line["gold"], line["text"], line["reward"]) for line in read_rows(answers / "minerva.jsonl")] == [
        ("7", r"\boxed{7}", 1.0), ("8", r"\boxed{7}", 0.0),
    ]  # fmt: skip

    run = folder / "runs" / "deepseek_beta0.04_grpo+aggregation=token_0"
    assert json.loads((run / "config.json").read_text())["objective"] == {
        "preset": "grpo", "aggregation": "token", "kl_coef": 0.04,
    }  # fmt: skip
    assert not (run / "checkpoints").exists()
    # The weights are those of step 1: Adam's first step moves what has a gradient by the learning rate.
    first = load_file(Path(words[3].split(",")[0].partition("=")[2]) / "model.safetensors")["lm_head.weight"]
    moved = load_file(run / "model" / "model.safetensors")["lm_head.weight"] - first
    assert moved[4:6, 2].tolist() == pytest.approx([RATE, -RATE], rel=1e-3)

    table, *_ = results["tables"]
    assert [row[0] for row in table["rows"]][:3] == [
        "before training",
        "β = 0.04, grpo+aggregation=token",
        "β = 0.04, lambda_grpo",
    ]
    assert table["rows"][2] == ["β = 0.04, lambda_grpo", "0.250", "0.500", "0.375", "0 %", "1 (best)"]
    assert table["rows"][-1] == ["paper: β = 0.04, λ-GRPO", "0.400", "0.298", "0.574", "–", "–"]
    assert "Warning: 4 problems of AIME24, not 30." in table["note"]
    assert (folder / "figure.png").stat().st_size > 10_000

    # A cell that was lost is measured again, from the run that is there.
    lost = [row for row in results["rows"] if (row["model"], row["preset"]) == ("llama", "lambda_grpo")]
    cell = {name: lost[0][name] for name in ("model", "beta", "preset", "seed")}
    options = make_options("openrs", parse_overrides(words[2:]))
    before = (folder / "runs" / "llama_beta0.04_lambda_grpo_0.log").read_text()
    assert openrs.measure(options, cell, folder) == lost  # type: ignore[arg-type]
    assert (folder / "runs" / "llama_beta0.04_lambda_grpo_0.log").read_text() == before


def write_random_model(folder: Path, family: str) -> Path:
    """A model that says anything, with a token per byte, so that it reads every text."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    write_tokenizer(folder, bytes_, pre_tokenizer=level, decoder=decoders.ByteLevel())
    random_model(family, len(TURNS) + len(bytes_), 16, 4096).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_the_recipe_runs_on_problems_like_the_real_ones_with_its_own_reward(name: str, tmp_path: Path) -> None:
    data = {key: write_rows(tmp_path / f"{key}.jsonl", *rows) for key, rows in PROBLEMS.items()}
    for key in ("train", "validation"):
        data[key] = write_rows(tmp_path / f"{key}.jsonl", *PROBLEMS["aime24"], *PROBLEMS["math500"])
    options = make_options(
        "openrs",
        {
            "models": f"{name}={write_random_model(tmp_path / 'model', FAMILIES[name])}",
            "data": ",".join(f"{key}={path}" for key, path in data.items()),
            "answer-tokens": 5,
            "rollout.max_new_tokens": 5,
            "train.steps": 1,
            "eval.limit": 2,
        },
    )
    assert isinstance(options, OpenRS)
    rows = openrs.measure(options, openrs.cells(options)[-1], tmp_path)
    assert [row["benchmark"] for row in rows] == list(FIVE)
    for row in rows:  # noise is never right, and never without a verdict
        assert (row["n"], row["accuracy"], row["no_verdict"], row["step"], row["chosen"]) == (2, 0.0, 0, 1, "last")
    config = json.loads((tmp_path / "runs" / f"{name}_beta0.04_lambda_grpo_0" / "config.json").read_text())
    assert r"\boxed{}" in config["data"]["system"]
    recorded = read_rows(tmp_path / "runs" / f"{name}_beta0.04_lambda_grpo_0" / "rollouts.jsonl")
    assert len(recorded) == 4 * 6
    assert all(r"\boxed{}" in line["prompt"][0]["content"] for line in recorded)


@pytest.mark.parametrize(
    ("answer", "reply", "wrong"),
    [
        ("4.5e33", r"\boxed{4.5 \cdot 10^{33}}", r"\boxed{148.5e}"),
        (r"so $E = \boxed{1e-5} \mathrm{~J}$", r"\boxed{0.00001}", r"\boxed{e-5}"),
        ("$69$,$84$", r"\boxed{69, 84}", r"\boxed{69}"),
        ("$221,$8$", r"\boxed{221, 8}", r"\boxed{221}"),
        ("-1./3", r"\boxed{-\frac{1}{3}}", r"\boxed{-0.1}"),
        ("np.arcsin(10/13)", r"\boxed{\arcsin\frac{10}{13}}", r"\boxed{\frac{10}{13}}"),
        (r"first \boxed{2}, hence \boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{2}"),
        ("$(0, 1]$", r"\boxed{(0, 1]}", r"\boxed{[0, 1]}"),
        ("$5$", r"\boxed{5}", r"\boxed{6}"),
    ],
)
def test_golds_are_judged_as_they_are_meant(answer: str, reply: str, wrong: str, judge: Any) -> None:
    assert judge(completion=reply, answer=answer) == 1.0
    assert judge(completion=wrong, answer=answer) == 0.0


def test_answers_without_a_verdict_are_no_wrong_answers() -> None:
    def group(reward: float | None, reason: Any, length: int) -> Group:
        tokens = np.arange(2 + length)
        one = Trajectory(tokens, tokens >= 2, np.zeros(len(tokens)), "", reward, reason, {"math": reward})
        return Group(Problem("p", ""), (one,))

    groups = [group(1.0, "eos", 4), group(None, "eos", 2), group(0.0, "length", 9), group(1.0, "eos", 1)]
    assert figures(groups) == {
        "n": 4, "accuracy": pytest.approx(2 / 3), "no_verdict": 1, "truncated": 0.25, "length": 4.0,
    }  # fmt: skip
    assert figures(groups[1:2])["accuracy"] is None
    assert figures([])["n"] == 0


@pytest.fixture(scope="module")
def judge() -> Any:
    verifier = MathVerifier()
    yield verifier
    verifier.close()


def test_the_columns_of_a_benchmark_on_the_hub_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "hub").mkdir()  # a folder stands in for the hub: the same function of the same library loads both
    row = {"id": 5, "problem": "right", "question": "other", "answer": 27.0, "completion": "x"}
    write_rows(tmp_path / "hub" / "train.jsonl", row, {**row, "answer": 3.5})
    columns = ("problem", "answer")
    problems = load(Benchmark("", str(tmp_path / "hub"), "train", *columns, 2, ""), chat=True, system="Think.")
    assert [(one.prompt[1]["content"], one.answer) for one in problems] == [("right", "27.0"), ("right", "3.5")]  # type: ignore[index]
    with pytest.raises(ValueError, match="has no column solution, only id, problem"):
        load(Benchmark("", str(tmp_path / "hub"), "train", "problem", "solution", 2, ""))


def test_training_and_validation_problems_are_parts_of_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "hub").mkdir()
    write_rows(tmp_path / "hub" / "train.jsonl", *({"problem": str(n), "answer": "7"} for n in range(130)))
    recipe = load_recipe("openrs")
    assert recipe.data.source == recipe.eval.source == "knoveleng/open-rs"
    parts = [
        {one.prompt for one in load_problems(str(tmp_path / "hub"), split=section.split, limit=section.limit)[0]}
        for section in (recipe.data, recipe.eval)
    ]
    assert [len(part) for part in parts] == [5, 125]
    assert len(parts[0] | parts[1]) == 130


def test_the_recipe_is_the_papers() -> None:
    recipe = load_recipe("openrs")
    rollout, optimizer = recipe.rollout, recipe.optimizer
    assert (rollout.problems_per_step, rollout.group_size, rollout.temperature, rollout.max_new_tokens) == (
        4, 6, 0.75, 1200,
    )  # fmt: skip
    assert (optimizer.learning_rate, optimizer.beta2, optimizer.weight_decay, optimizer.schedule) == (
        1e-6, 0.999, 0.0, "constant",
    )  # fmt: skip
    assert [item.function for item in recipe.reward] == ["math"]
    assert recipe.lora.rank == 0
    options = make_options("openrs", {})
    assert isinstance(options, OpenRS)
    runs = [openrs.recipe_of(options, cell, Path()) for cell in openrs.cells(options)[2:]]
    assert len({run.train.name for run in runs}) == len(runs) == 8
    assert {(run.model.path, run.objective.resolve().kl_coef) for run in runs} == {
        (path, beta) for path in openrs.MODELS.values() for beta in (0.0, 0.04)
    }
    grpo, ours = (resolve(run.objective.preset, run.objective.given()) for run in runs[:2])
    assert (grpo.aggregation, grpo.weight_exponent, ours.aggregation, ours.weight_exponent) == ("token", 0, "token", 1)


def test_weights_of_the_kl_term_that_look_alike_have_runs_of_their_own() -> None:
    options = make_options("openrs", {"models": "llama", "presets": "grpo", "betas": "0.0400000001,0.04"})
    names = [openrs.name_of(cell) for cell in openrs.cells(options)[1:]]  # type: ignore[arg-type]
    assert names == ["llama_beta0.0400000001_grpo_0", "llama_beta0.04_grpo_0"]


def test_the_known_cells_of_the_paper_are_whole_numbers_of_right_answers() -> None:
    counts = [benchmark.count for benchmark in map(BENCHMARKS.__getitem__, FIVE)]
    for rows in PAPER.values():
        for *cells, mean in rows.values():
            if None not in cells:
                right = [round(cell * count) for cell, count in zip(cells, counts, strict=True)]
                assert cells == pytest.approx([k / n for k, n in zip(right, counts, strict=True)], abs=6e-4)
                assert sum(k / n for k, n in zip(right, counts, strict=True)) / 5 == pytest.approx(mean, abs=6e-4)
    assert paper_of("llama", (0.0, "lambda_grpo+aggregation=sequence")) == {"mean": 0.1001}
    assert paper_of("llama", (0.1, "lambda_grpo")) == paper_of("llama", (0.0, "dapo")) == {}


def test_the_interval_of_a_share_is_wilsons() -> None:
    # z² / (n + z²) for none of n, and the values that textbooks give for 15 of 30.
    assert wilson(0.0, 30) == pytest.approx((0.0, 0.0, 3.8415 / 33.8415), abs=1e-4)
    assert wilson(0.5, 30) == pytest.approx((0.5, 0.3315, 0.6685), abs=1e-4)
    assert all(math.isnan(value) for value in wilson(math.nan, 0))


def rows_of(options: OpenRS, **changes: Any) -> list[dict[str, Any]]:
    """Rows of an experiment in which half of all answers were right."""
    row = {"accuracy": 0.5, "no_verdict": 0, "truncated": 0.25, "length": 9.0, "step": 50, "chosen": "best"}
    return [
        {**cell, "benchmark": name, "n": BENCHMARKS[name].count, **row, **changes}
        for cell in openrs.cells(options)
        for name in options.benchmarks
    ]


def test_a_report_says_what_so_many_problems_can_tell() -> None:
    options = make_options("openrs", {"models": "deepseek", "seeds": 2})
    assert isinstance(options, OpenRS)
    rows = rows_of(options)
    for row in rows:  # two seeds that differ: their mean is shown
        row["accuracy"] += {0: 0.1, 1: -0.1, None: 0.0}[row["seed"]]
    accuracies, precision = openrs.report(options, rows).tables
    assert accuracies.rows[1] == (
        "β = 0, grpo+aggregation=token", *["0.500"] * 6, "25 %", "50 (best), 50 (best)",
    )  # fmt: skip
    assert "Warning" not in accuracies.note
    assert "verdict on" not in accuracies.note
    # 1.96 · √(¼ / n), a little less by Wilson; two seeds answer the same problems and don't count twice.
    halves = [float(row[2].removeprefix("± ")) for row in precision.rows]
    assert halves == pytest.approx([0.168, 0.044, 0.148, 0.059, 0.038, 0.0481], abs=6e-4)
    assert [float(row[3]) for row in precision.rows] == pytest.approx([2**0.5 * half for half in halves], abs=1e-3)
    assert "+0.074 (deepseek, β = 0)" in precision.note


def test_a_report_is_made_of_what_is_there() -> None:
    options = make_options("openrs", {"models": "llama", "benchmarks": "amc23,aime24"})
    assert isinstance(options, OpenRS)
    rows = rows_of(options, no_verdict=2, chosen="last", step=1000)
    rows[0] |= {"accuracy": None, "no_verdict": 40}
    rows[1] |= {"n": 29, "chosen": "base"}
    found = openrs.report(options, rows)
    accuracies, _ = found.tables
    assert accuracies.rows[0][1:4] == ("–", "0.500", "–")
    assert accuracies.rows[1][-1] == "1000 (last)"
    assert accuracies.rows[5] == ("paper: before training", "0.075", "0.000", "0.081", "–", "–")
    assert "Warning: 29 problems of AIME24, not 30. No verdict on up to 2 answers to AIME24." in accuracies.note
    assert "No verdict on up to 40 answers to AMC23." in accuracies.note


def saved_run(run: Path, *, best: int | None) -> None:
    """A finished run of three steps with a checkpoint of steps 2 and 3."""
    for step in (2, 3):
        folder = checkpoint.folder_of(run, step)
        (folder / "model").mkdir(parents=True)
        for name in ("model/weights", "trainer.pt"):
            (folder / name).write_text(f"step {step}")
        files = {
            name: {"size": 6, "sha256": checkpoint._digest(folder / name)} for name in ("model/weights", "trainer.pt")
        }
        (folder / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    (run / "model").mkdir()
    (run / "model" / "weights").write_text("step 3")
    (run / "summary.json").write_text(json.dumps({"steps": 3, "best": None if best is None else {"step": best}}))


@pytest.mark.parametrize(
    ("best", "expected"), [(2, (2, "best")), (3, (3, "best")), (0, (3, "last")), (None, (3, "last"))]
)
def test_the_best_step_that_is_there_is_kept(tmp_path: Path, best: int | None, expected: tuple[int, str]) -> None:
    saved_run(tmp_path, best=best)
    for _ in range(2):  # a second call finds it done
        assert openrs.keep_best(tmp_path) == expected
        assert (tmp_path / "model" / "weights").read_text() == f"step {expected[0]}"
        assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("best", [1, 2])
def test_a_best_step_that_is_missing_or_damaged_is_not_the_last_one(best: int, tmp_path: Path) -> None:
    saved_run(tmp_path, best=best)
    (checkpoint.folder_of(tmp_path, 2) / "model" / "weights").write_text("spoilt")
    with pytest.raises(ValueError, match=rf"did best at step {best}, but .*(missing|damaged); delete"):
        openrs.keep_best(tmp_path)
    assert (tmp_path / "model" / "weights").read_text() == "step 3"
    assert (tmp_path / "checkpoints").is_dir()  # nothing is thrown away


def test_keeping_the_best_step_can_be_stopped_and_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, best=2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            openrs.keep_best(tmp_path)
    assert openrs.keep_best(tmp_path) == (2, "best")
    assert (tmp_path / "model" / "weights").read_text() == "step 2"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"models": "deepsek"}, "the nearest is 'deepseek'"),
        ({"models": "llama,llama=x"}, "llama is given twice"),
        ({"benchmarks": "aime42"}, "the nearest is 'aime24'"),
        ({"benchmarks": "aime24=x"}, "takes names alone"),
        ({"data": "trian=x"}, "the nearest is 'train'"),
        ({"data": "train"}, "train needs a file that exists"),
        ({"data": "train=nowhere.jsonl"}, "got 'nowhere.jsonl'"),
        ({"data": f"minerva={__file__}", "benchmarks": "aime24"}, "leaves minerva out"),
        ({"presets": "grpo+kl_coef=0.1"}, "use --betas"),
        ({"presets": "grpo,grpo+lora.rank=8"}, "lora.rank must be the same for all; give --lora.rank"),
        ({"presets": "grpo+eval.temperature=1.0"}, "eval.temperature must be the same for all"),
        ({"presets": "grop"}, "unknown preset 'grop'"),
        ({"recipe": "r1", "data.source": "x"}, "has no effect"),
        ({"objective.kl_coef": 0.1}, "has no effect"),
        ({"model.path": "x"}, "has no effect"),
        ({"betas": "-1"}, "must be at least 0"),
        ({"recipe": "quickstart", "eval.options": "{}", "eval.limit": None, "betas": 0}, "eval"),
    ],
)
def test_options_that_can_not_be_meant_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        openrs.cells(make_options("openrs", given))  # type: ignore[arg-type]
