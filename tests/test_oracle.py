"""The oracle, the flat path and the tree path give one loss and one gradient.

Relative tolerances: 1e-9 where the model is float64 throughout, 1e-6 with transformers' stock norms and
rotary embeddings, which round to float32 inside.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
import tiny
from compare import (
    UNLIMITED,
    Rows,
    Step,
    assert_close,
    by_oracle,
    by_treewise,
    credited,
    micro_batch,
    objectives,
)
from oracle import Row
from treewise import attention
from treewise.policy import Path, Policy, flat_reason, self_check
from treewise.presets import resolve
from treewise.update import accumulate, prepare

EXACT, ROUNDED = 1e-9, 1e-6
TEMPERATURE = 0.8
PATHS: tuple[Path, ...] = ("tree", "flat")
PRESETS = tuple(objectives())
EVERY_SHAPE = tuple(tiny.SHAPES.values())
BUDGETS = (1, 30, UNLIMITED)

# The policy's own old log-probs (ratio 1), others nearby (no clip), others far away (clips on both sides).
OLD = {"ratio_1": None, "unclipped": 0.05, "clipped": 1.0}

TREE_FAMILIES = [name for name in tiny.FAMILIES if flat_reason(tiny.config(name)) is None]
FLAT_FAMILIES = [name for name in tiny.FAMILIES if flat_reason(tiny.config(name)) is not None]


def policy(model: Any, path: Path, **options: Any) -> Policy:
    """Around a copy, because the tree path changes the model's attention."""
    defaults = {"temperature": TEMPERATURE, "vocab_size": tiny.VOCABULARY, "path": path}
    made = Policy(model=copy.deepcopy(model), **{**defaults, **options})
    if not hasattr(model, "peft_config"):
        made.reference = reference(model)
        if path == "tree":
            made.reference.set_attn_implementation(attention.NAME)
    return made


def reference(model: Any) -> Any:
    """The same architecture with other weights."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter) * 0.1)
    return other


def scored_by(model: Any, rows: Rows, *, field: str, width: float = 0.0) -> list[list[Row]]:
    """Fill `old` or `ref` with the model's own log-probs plus noise of ±`width`."""
    generator = np.random.default_rng(0)

    def values(row: Row) -> list[float]:
        filled = [0.0] * len(row.completion)
        with torch.no_grad():
            own = oracle.logprobs(model, row, temperature=TEMPERATURE, vocab_size=tiny.VOCABULARY)
        for t, value in zip(oracle.sampled_positions(row), own, strict=True):
            filled[t] = value.item() + float(generator.uniform(-width, width))
        return filled

    return [[replace(row, **{field: values(row)}) for row in group] for group in rows]


def batch_of(model: Any, rows: Rows = EVERY_SHAPE, *, old: float | None, kl: bool) -> list[list[Row]]:
    """One optimizer step: old log-probs within ±`old` of the model's own, and those of a reference."""
    if old is not None:
        rows = scored_by(model, rows, width=old, field="old")
    if kl:
        rows = scored_by(reference(model), rows, field="ref")
    return [list(group) for group in rows]


def assert_paths_equal_oracle(
    model: Any, rows: Rows, objective: Any, *, tolerance: float, budgets: tuple[int, ...] = BUDGETS
) -> Step:
    expected = by_oracle(model, rows, objective, temperature=TEMPERATURE)
    for path in PATHS:
        here = policy(model, path)
        for budget in budgets:
            assert_close(by_treewise(here, rows, objective, budget=budget), expected, tolerance=tolerance)
    return expected


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return tiny.model("gpt2")


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_equals_the_oracle_on_every_shape_and_split(
    gpt2: Any, preset: str, kl_coef: float, old: str
) -> None:
    rows = batch_of(gpt2, old=OLD[old], kl=kl_coef > 0)
    expected = assert_paths_equal_oracle(gpt2, rows, objectives(kl_coef=kl_coef)[preset], tolerance=EXACT)
    assert max(gradient.abs().max() for gradient in expected.gradients.values()) > 1e-3


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shape", tiny.SHAPES)
def test_each_group_alone_equals_the_oracle(gpt2: Any, shape: str, preset: str) -> None:
    rows = batch_of(gpt2, [tiny.SHAPES[shape]], old=0.6, kl=True)
    objective = objectives(kl_coef=0.05)[preset]
    assert_paths_equal_oracle(gpt2, rows, objective, tolerance=EXACT, budgets=(1, UNLIMITED))


@pytest.mark.parametrize("preset", PRESETS)
def test_llama_kept_in_float64_equals_the_oracle(preset: str) -> None:
    with tiny.float64_llama():
        model = tiny.model("llama")
        rows = batch_of(model, old=1.0, kl=True)
        objective = objectives(kl_coef=0.1)[preset]
        assert_paths_equal_oracle(model, rows, objective, tolerance=EXACT, budgets=(30, UNLIMITED))


@pytest.mark.parametrize("exponent", [0.5, 2.0])
def test_other_exponents_and_bounds_equal_the_oracle(gpt2: Any, exponent: float) -> None:
    rows = batch_of(gpt2, old=0.5, kl=True)
    objective = resolve(
        "grpo",
        {"weight_exponent": exponent, "clip_low": 0.1, "clip_high": 0.4, "kl_coef": 0.3, "scale": "none"},
    )
    assert_paths_equal_oracle(gpt2, rows, objective, tolerance=EXACT, budgets=(13, UNLIMITED))


def test_budgets_range_from_one_row_each_to_everything_at_once(gpt2: Any) -> None:
    rows = batch_of(gpt2, old=None, kl=True)
    objective = resolve("dapo", {"kl_coef": 0.1})  # with a KL term no group is without signal
    answers = sum(any(row.mask) for group in rows for row in oracle.scored(group))
    for path in PATHS:
        here = policy(gpt2, path)
        counts = [by_treewise(here, rows, objective, budget=budget).micro_batches for budget in BUDGETS]
        assert counts[0] == answers
        assert counts[-1] == 1
        assert counts == sorted(counts, reverse=True)
        assert len(set(counts)) == len(BUDGETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_second_update_on_a_batch_equals_the_oracle(gpt2: Any, preset: str) -> None:
    objective = objectives(kl_coef=0.05)[preset]
    model = copy.deepcopy(gpt2)
    rows = batch_of(model, old=0.0, kl=True)
    first = by_oracle(model, rows, objective, temperature=TEMPERATURE)
    references = [reference(model) for _ in PATHS]
    steps = []
    for path, frozen in zip(PATHS, references, strict=True):
        here = policy(model, path)
        here.reference = frozen
        if path == "tree":
            frozen.set_attn_implementation(attention.NAME)
        groups, _ = credited(rows, objective)
        minibatch = prepare(groups, here, objective, budget=30, keep_old=True)
        steps.append((here, minibatch))
        accumulate(minibatch, here, objective)
        assert_close(Step(first.loss, tiny.gradients(here.model), 0), first, tolerance=EXACT)
    norm = sum(float(gradient.norm()) ** 2 for gradient in first.gradients.values()) ** 0.5
    for moved in (model, *(here.model for here, _ in steps)):
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                parameter -= first.gradients[name] / norm
    second = by_oracle(model, rows, objective, temperature=TEMPERATURE)
    assert second.loss != first.loss
    for here, minibatch in steps:
        tally = accumulate(minibatch, here, objective)
        assert_close(Step(tally.loss, tiny.gradients(here.model), 0), second, tolerance=EXACT)
        assert tally.sums["clip_ratio/low_mean"] > 0
        assert tally.sums["clip_ratio/high_mean"] > 0


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 7),
    longest=st.integers(0, 6),
    groups=st.integers(1, 3),
    budget=st.integers(1, 60),
    preset=st.sampled_from(PRESETS),
    kl_coef=st.sampled_from([0.0, 0.2]),
    width=st.sampled_from([None, 0.1, 1.5]),
)
def test_random_groups_equal_the_oracle(
    gpt2: Any,
    seed: int,
    size: int,
    longest: int,
    groups: int,
    budget: int,
    preset: str,
    kl_coef: float,
    width: float | None,
) -> None:
    generator = np.random.default_rng(seed)
    rows: Rows = [tiny.random_group(generator, size=size, longest=longest) for _ in range(groups)]
    rows = batch_of(gpt2, rows, old=width, kl=kl_coef > 0)
    assert_paths_equal_oracle(gpt2, rows, objectives(kl_coef=kl_coef)[preset], tolerance=EXACT, budgets=(budget,))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("preset", PRESETS)
def test_the_order_of_trajectories_and_groups_does_not_matter(gpt2: Any, preset: str, path: Path) -> None:
    rows = batch_of(gpt2, old=1.0, kl=True)
    objective = objectives(kl_coef=0.1)[preset]
    here = policy(gpt2, path)
    expected = by_treewise(here, rows, objective, budget=30)
    generator = np.random.default_rng(0)
    for _ in range(3):
        shuffled = [[group[i] for i in generator.permutation(len(group))] for group in rows]
        shuffled = [shuffled[i] for i in generator.permutation(len(shuffled))]
        assert_close(by_treewise(here, shuffled, objective, budget=30), expected, tolerance=EXACT)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_without_any_verdict_or_token_has_loss_0(gpt2: Any, preset: str, path: Path) -> None:
    nothing = [[Row([5, 6], [], [], 1.0), Row([5, 6], [], [], 0.0)], tiny.SHAPES["nothing"]]
    for rows in (nothing, nothing[:1], nothing[1:]):
        step = by_treewise(policy(gpt2, path), rows, objectives()[preset])
        assert step.loss == 0.0
        assert all(not gradient.any() for gradient in step.gradients.values())


def test_float32_agrees_with_the_float64_oracle_to_float32_precision() -> None:
    rows = batch_of(tiny.model("llama"), old=0.3, kl=True)
    objective = resolve("lambda_grpo", {"kl_coef": 0.1})
    expected = by_oracle(tiny.model("llama"), rows, objective, temperature=TEMPERATURE)
    for path in PATHS:
        found = by_treewise(policy(tiny.model("llama", dtype=torch.float32), path), rows, objective, budget=30)
        assert all(gradient.dtype == torch.float32 for gradient in found.gradients.values())
        assert_close(found, expected, tolerance=2e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_in_bfloat16_the_tree_is_as_close_to_the_truth_as_rows_are(family: str) -> None:
    batch = micro_batch(EVERY_SHAPE, resolve("dapo", {}))
    with torch.no_grad():
        truth = policy(tiny.model(family), "flat").logprobs(batch)
        narrow = tiny.model(family, dtype=torch.bfloat16)
        error = {path: (policy(narrow, path).logprobs(batch) - truth).norm() for path in PATHS}
    assert error["tree"] <= 1.5 * error["flat"]


@pytest.mark.parametrize("family", TREE_FAMILIES)
def test_families_with_ordinary_attention_equal_the_oracle_on_both_paths(family: str) -> None:
    model = tiny.model(family)
    rows = batch_of(model, old=1.0, kl=True)
    objective = resolve("lambda_grpo", {"kl_coef": 0.1})
    assert_paths_equal_oracle(model, rows, objective, tolerance=ROUNDED, budgets=(30, UNLIMITED))


@pytest.mark.parametrize("family", FLAT_FAMILIES)
def test_families_with_other_layers_equal_the_oracle_on_the_flat_path(family: str) -> None:
    model = tiny.model(family)
    rows = batch_of(model, old=1.0, kl=True)
    objective = resolve("lambda_grpo", {"kl_coef": 0.1})
    expected = by_oracle(model, rows, objective, temperature=TEMPERATURE)
    for budget in (30, UNLIMITED):
        found = by_treewise(policy(model, "flat"), rows, objective, budget=budget)
        assert_close(found, expected, tolerance=ROUNDED)


# Mixtral's layers are ordinary; it is not on the list because of its router's auxiliary loss.
@pytest.mark.parametrize("family", [name for name in FLAT_FAMILIES if name != "mixtral"])
def test_the_tree_path_refuses_families_that_it_would_get_wrong(family: str) -> None:
    batch = micro_batch(EVERY_SHAPE, resolve("dapo", {}))
    with pytest.raises(ValueError):
        self_check(policy(tiny.model(family), "tree"), batch, tolerance=1e-2)


def swallow_tree(model: Any) -> Any:
    """A model whose code drops arguments that it doesn't know, as remote code may."""
    forward = model.model.forward
    model.model.forward = lambda *args, tree=None, **kwargs: forward(*args, **kwargs)
    return model


def positions_only(model: Any) -> Any:
    """A model that makes its own mask from the positions, and sees an ordinary packed row."""
    forward = model.model.forward
    model.model.forward = lambda *args, tree=None, attention_mask=None, **kwargs: forward(
        *args, **kwargs, attention_mask=attention_mask if tree is None else None
    )
    return model


@pytest.mark.parametrize("broken", [swallow_tree, positions_only])
def test_the_self_check_catches_a_model_that_ignores_our_mask(broken: Any) -> None:
    batch = micro_batch(EVERY_SHAPE, resolve("dapo", {}))
    here = policy(tiny.model("llama"), "tree")
    self_check(here, batch, tolerance=1e-5)
    broken(here.model)
    with pytest.raises(ValueError, match="flat"):
        self_check(here, batch, tolerance=1e-2)
    assert here.path == "tree"


@pytest.fixture
def adapted() -> Iterator[tuple[Any, Any]]:
    """(float64 Llama with a LoRA adapter that changes it, the same without)."""
    peft = pytest.importorskip("peft")
    with tiny.float64_llama():
        plain = tiny.model("llama")
        torch.manual_seed(0)
        lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        yield peft.get_peft_model(copy.deepcopy(plain), lora).double(), plain


@pytest.mark.parametrize("path", PATHS)
def test_an_adapter_learns_like_the_oracle_and_its_reference_is_the_model_without_it(
    adapted: tuple[Any, Any], path: Path
) -> None:
    model, plain = adapted
    rows = scored_by(plain, batch_of(model, old=0.3, kl=False), field="ref")
    objective = resolve("lambda_grpo", {"kl_coef": 0.1})
    batch = micro_batch(rows, objective)
    here = policy(model, path)
    expected = by_oracle(model, rows, objective, temperature=TEMPERATURE)
    assert_close(by_treewise(here, rows, objective, budget=30), expected, tolerance=EXACT)
    with torch.no_grad():
        reference = policy(plain, "flat").logprobs(batch)
        torch.testing.assert_close(here.reference_logprobs(batch), reference, rtol=EXACT, atol=EXACT)
        assert (here.logprobs(batch) - reference).abs().max() > 1e-2


@pytest.mark.parametrize("path", PATHS)
def test_padding_of_the_vocabulary_is_never_predicted(path: Path) -> None:
    wide = tiny.model("gpt2", vocab_size=tiny.VOCABULARY + 8)
    rows = batch_of(wide, old=1.0, kl=True)
    objective = resolve("lambda_grpo", {"kl_coef": 0.1})
    expected = by_oracle(wide, rows, objective, temperature=TEMPERATURE, vocab_size=tiny.VOCABULARY)
    assert_close(by_treewise(policy(wide, path), rows, objective), expected, tolerance=EXACT)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    model = tiny.model(family)
    rows = batch_of(model, old=1.0, kl=False)
    for path in PATHS:
        here = policy(model, path)
        expected = by_treewise(here, rows, resolve("dapo", {}), budget=30)
        here.model.train()
        here.model.gradient_checkpointing_enable()
        assert_close(by_treewise(here, rows, resolve("dapo", {}), budget=30), expected, tolerance=EXACT)


@pytest.mark.parametrize(
    ("family", "option"),
    [
        ("gpt2", "attn_pdrop"),
        ("gpt2", "embd_pdrop"),
        ("llama", "attention_dropout"),
        ("gemma3", "attention_dropout"),
    ],
)
def test_dropout_is_refused_wherever_the_model_keeps_it(family: str, option: str) -> None:
    with pytest.raises(ValueError, match="dropout"):
        policy(tiny.model(family, **{option: 0.1}), "flat")


def test_a_soft_cap_on_small_logits_is_not_overlooked() -> None:
    model = tiny.model("gemma2", final_logit_softcapping=30.0, initializer_range=0.1)
    rows = batch_of(model, old=None, kl=False)
    objective = resolve("dapo", {})
    expected = by_oracle(model, rows, objective, temperature=TEMPERATURE)
    assert_close(by_treewise(policy(model, "flat"), rows, objective), expected, tolerance=ROUNDED)


HAND_COUNTED = [
    Row([5], [1, 2, 3], [1] * 3, 0.0),
    Row([5], [1, 2, 4, 5], [1] * 4, 1.0),
    Row([5], [9], [1], 0.0),
]


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({"aggregation": "sequence", "weight_exponent": 1.0}, 0.03207),
        ({"aggregation": "token", "weight_exponent": 1.0}, -0.21647),
        ({"aggregation": "sequence"}, 0.0),
        ({"aggregation": "token"}, -0.28863),
    ],
)
def test_oracle_and_both_paths_give_the_losses_that_were_worked_out_by_hand(
    gpt2: Any, options: dict[str, Any], loss: float
) -> None:
    """Case G01: |λ| is 2 2 1 / 2 2 1 1 / 1, advantages −.57725, 1.15450, −.57725."""
    objective = resolve("grpo", options)
    found = [by_oracle(gpt2, [HAND_COUNTED], objective, temperature=1.0)]
    found += [by_treewise(policy(gpt2, path), [HAND_COUNTED], objective) for path in PATHS]
    assert [step.loss for step in found] == pytest.approx([loss] * 3, abs=6e-6)
