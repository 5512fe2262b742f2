"""Recipes: defaults, overrides, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from treewise.axes import Objective
from treewise.axes.trust_region import Clip, Dppo, Sapo
from treewise.config import Recipe
from treewise.presets import resolve
from treewise.recipe import bundled_recipes, load_recipe, make_recipe, options, parse_overrides
from treewise.sections import RewardItem, SourceItem

OPTIONS = """
curriculum.high curriculum.low curriculum.rest curriculum.score
data.duplicates data.examples data.limit data.max_prompt_tokens data.mix data.options data.source data.split
data.stream data.subset data.system data.template data.template_options
env.concurrency env.episode_seconds env.name env.options env.retries env.step_seconds env.weights
eval.every eval.limit eval.min_p eval.name eval.options eval.repetition_penalty eval.source eval.split eval.subset
eval.temperature eval.top_k eval.top_p
lora.alpha lora.rank
model.attention model.device model.dtype model.gradient_checkpointing model.path
optimizer.beta1 optimizer.beta2 optimizer.learning_rate optimizer.max_grad_norm optimizer.schedule
optimizer.warmup_steps optimizer.weight_decay
reward
rollout.group_size rollout.max_new_tokens rollout.max_rows rollout.problems_per_step rollout.step_separator
rollout.stop rollout.temperature
train.keep_last train.max_skipped_steps train.minibatches train.name train.output train.save_every train.seed
train.steps train.token_budget train.updates_per_batch
"""


def test_the_list_of_options_is_pinned() -> None:
    """Those of the objective follow from the axes, and stand in docs/options.md."""
    assert sorted(name for name, _, _ in options() if not name.startswith("objective.")) == sorted(OPTIONS.split())


def test_the_options_of_rewards_and_sources_are_pinned() -> None:
    assert " ".join(RewardItem.model_fields) == "function weight name options gate seconds when"
    assert " ".join(SourceItem.model_fields) == "source name weight split subset limit options stream"
    fields = [*RewardItem.model_fields.values(), *SourceItem.model_fields.values()]
    assert all(entry.description and "\n" not in entry.description for entry in fields)


def test_every_option_has_one_line_of_help() -> None:
    for name, _, text in options():
        assert text, name
        assert "\n" not in text, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train.stpes", "3"], "unknown option train.stpes; the nearest is train.steps"),
        (["--beta", "0.1"], "TRL's beta is objective.kl_coef here"),
        (["--rollout.num_generations", "8"], "TRL's num_generations is rollout.group_size here"),
        (["--objective.kl_coeff", "1"], "the nearest is objective.kl_coef"),
        (["--steps", "3"], "the nearest is train.steps"),
        (["--train.steps.more", "3"], "unknown option train.steps.more"),
        (["--train.steps"], "--train.steps needs a value"),
        (["--train.steps", "3", "--train.steps", "4"], "given twice"),
        (["steps=3"], "got 'steps=3'"),
        (["--train.steps", "many"], "train.steps = 'many'"),
        (["--train.steps", "0"], "train.steps = 0"),
        (["--rollout.temperature", "0"], "rollout.temperature = 0"),
        (["--rollout.group_size", "1"], "rollout.group_size = 1"),
        (["--rollout.top_p", "0.9"], "rollout.top_p is refused: training needs the log-prob"),
        (["--eval.top_k", "5"], "eval.top_k has no effect with eval.temperature = 0"),
        (["--objective.preset", "gpro"], "unknown preset 'gpro'; there are grpo"),
        (["--objective.max_completion_tokens", "9"], "has no effect with aggregation 'token'"),
        (["--lora.alpha", "8"], "lora.alpha has no effect without lora.rank"),
        (["--train.minibatches", "9"], "rollout.problems_per_step is 8"),
        (["--reward", '[{function = "numeric", weight = 0}]'], "every reward has weight 0"),
        (["--reward", '[{fn = "numeric"}]'], "reward.0.fn"),
        (["--train.steps", "500", "--optimizer.warmup_steps", "500"], "the run has 500 optimizer steps"),
        (["--objective.clip_low", "0.1"], "objective.clip_low has no effect: with one optimizer step per batch"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match="(?s).*") as caught:
        make_recipe({}, parse_overrides(arguments))
    assert message in str(caught.value)


def test_a_recipe_is_read_from_toml_with_overrides_on_top(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[train]\nsteps = 7\nseed = 3\n[objective]\npreset = "grpo"\n')
    recipe = load_recipe(path, parse_overrides(["--train.steps", "9", "--objective.kl_coef=0.04"]))
    assert (recipe.train.steps, recipe.train.seed) == (9, 3)
    assert recipe.objective.resolve() == Objective(aggregation="sequence", kl_coef=0.04)


def test_a_resolved_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    recipe = make_recipe({}, {"train.steps": 9, "reward": [{"function": "numeric"}], "data.options": {"size": 3}})
    path = tmp_path / "config.json"
    path.write_text(recipe.model_dump_json())
    assert load_recipe(path) == recipe


@pytest.mark.parametrize("content", ["steps = ", "[train]\nsteps = 3\nsteps = 4"])
def test_broken_toml_names_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"recipe\.toml can't be parsed"):
        load_recipe(path)


def test_a_missing_recipe_is_named() -> None:
    with pytest.raises(ValueError, match=r"can't read recipe nowhere\.toml: No such file"):
        load_recipe("nowhere.toml")


def test_values_are_read_as_toml_and_otherwise_as_text() -> None:
    found = parse_overrides(
        ["--a", "3", "--b", "0.5", "--c", "[1, 2]", "--d", "some/path", "--e", "true", "--f=x=y", "--g", "none"]
    )
    assert parse_overrides(["--train.name", "2026-11-30", "--data.system", "true"]) == {
        "train.name": "2026-11-30",
        "data.system": "true",
    }
    assert found == {"a": 3, "b": 0.5, "c": [1, 2], "d": "some/path", "e": True, "f": "x=y", "g": None}


def test_constant_aggregation_divides_by_the_samplers_limit_unless_told_otherwise() -> None:
    assert resolve("dr_grpo", {}, max_new_tokens=32).max_completion_tokens == 32
    assert resolve("dr_grpo", {"max_completion_tokens": 100}, max_new_tokens=32).max_completion_tokens == 100
    with pytest.raises(ValueError, match="set objective.max_completion_tokens"):
        resolve("dr_grpo", {})
    assert Recipe().objective.resolve(max_new_tokens=32).max_completion_tokens is None


@pytest.mark.parametrize(
    ("preset", "aggregation", "scale", "clip_high", "exponent"),
    [
        ("grpo", "sequence", "std", 0.2, 0.0),
        ("dr_grpo", "constant", "none", 0.2, 0.0),
        ("dapo", "token", "std", 0.28, 0.0),
        ("lambda_grpo", "token", "std", 0.2, 1.0),
    ],
)
def test_presets_are_what_their_papers_say(
    preset: str, aggregation: str, scale: str, clip_high: float, exponent: float
) -> None:
    objective = resolve(preset, {}, max_new_tokens=10)
    assert (objective.aggregation, objective.scale) == (aggregation, scale)
    assert objective.trust_region == Clip(clip_low=0.2, clip_high=clip_high)
    assert (objective.weight_exponent, objective.kl_coef) == (exponent, 0.0)


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_every_bundled_recipe_is_valid(name: str) -> None:
    assert load_recipe(name).data.source


def test_an_override_of_a_section_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="train = 3 in the recipe is not a section, so train.steps can't be set"):
        make_recipe({"train": 3}, {"train.steps": 4})


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("grpo", {"kappa": 2.0}, "objective.kappa has no effect: it belongs to advantage = 'tree_rloo'"),
        ("sapo", {"clip_low": 0.1}, "objective.clip_low has no effect: it belongs to trust_region = 'clip'"),
        ("grpo", {"weight_max": 3.0}, "it belongs to trust_region = 'cispo' and trust_region = 'dppo'"),
        ("grpo", {"clip_max": 1.1}, "must be above 1 + clip_high"),
        ("grpo", {"epsilon": 0.1}, "unknown option objective.epsilon"),
        ("gspo", {"trust_region": "log_clip"}, "trust_region 'log_clip' needs ratio 'token', not 'sequence'"),
        ("grpo", {"trust_region": "vespo"}, "trust_region 'vespo' needs ratio 'product'"),
        ("tempo", {"scale": "mean"}, "scale 'mean' belongs to advantage 'group_mean'"),
        ("tempo", {"scale": "whiten"}, "has one a token; choose 'whiten_tokens'"),
        ("reinforce_pp", {"scale": "std"}, "advantage 'return_to_go' is not relative to a group"),
        ("dppo", {"correction": "mask", "max_completion_tokens": 9}, "correction must be 'none'"),
        ("grpo", {"kl_refresh": 5}, "objective.kl_refresh has no effect with kl_coef 0"),
        ("grpo", {"kl_in": "reward"}, "objective.kl_in has no effect with kl_coef 0"),
        ("grpo", {"max_refills": 5}, "objective.max_refills has no effect with group_filter 'none'"),
        ("gdpo", {"kl_coef": 0.1, "kl_in": "reward"}, "would lose a KL in the reward"),
        ("gdpo", {"overlong_penalty": 0.1}, "normalises every reward function"),
        ("gspo", {"advantage": "tree_rloo"}, "so advantage 'tree_rloo' would be averaged away; choose ratio 'token'"),
        ("gspo", {"weight_exponent": 1.0}, "so weight_exponent 1 would be averaged away"),
        ("gspo", {"correction": "mask"}, "choose correction_level 'sequence' or 'geometric'"),
        ("rloo", {"aggregation": "token"}, "choose aggregation 'sequence', not 'token'"),
        ("cispo", {"length_weight": "learned"}, "is not the advantage; choose trust_region none, clip or log_clip"),
        ("sapo", {"length_weight": "learned"}, "is not the advantage; choose trust_region none, clip or log_clip"),
        ("rloo", {"kl_in": "loss"}, "would divide a KL in the loss by the length"),
        ("maxrl", {"kl_coef": 0.1, "kl_in": "reward"}, "a KL in the reward may make them negative"),
        ("maxrl", {"overlong_penalty": 0.1}, "needs rewards of at least 0"),
        ("grpo", {"kl_coef": 0.1, "kl_in": "reward"}, "scale 'std' divides a KL in the reward, too"),
        ("gdpo", {"scale": "batch_std"}, "has divided every score already"),
        ("gmpo", {"top_entropy": 0.2}, "so top_entropy 0.2 would be averaged away"),
    ],
)
def test_options_that_contradict_each_other_or_do_nothing_are_errors(
    preset: str, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        resolve(preset, overrides)
    assert message in str(caught.value)


def test_another_value_on_an_axis_takes_nothing_from_the_presets_value() -> None:
    assert resolve("dapo", {"trust_region": "sapo"}).trust_region == Sapo()
    assert resolve("cispo", {"trust_region": "dppo"}).trust_region == Dppo()
    assert resolve("dapo", {"trust_region": "clip"}).trust_region == Clip(clip_high=0.28)


def test_none_is_a_word_where_an_axis_has_it_and_unsets_elsewhere() -> None:
    found = parse_overrides(["--objective.scale", "none", "--objective.kl_coef", "none"])
    assert found == {"objective.scale": "none", "objective.kl_coef": None}


def test_a_trust_region_without_effect_is_refused_and_one_against_the_sampler_is_not() -> None:
    with pytest.raises(ValueError, match="objective.trust_region has no effect"):
        make_recipe({}, {"objective.trust_region": "sapo"})
    make_recipe({}, {"objective.preset": "dppo", "objective.divergence_low": 0.1})
    with pytest.raises(ValueError, match="objective.ratio has no effect"):
        make_recipe({}, {"objective.preset": "grpo", "objective.ratio": "sequence"})
    make_recipe({}, {"objective.preset": "rloo", "objective.ratio": "sequence"})  # of a whole answer's, which differs
    assert resolve("grpo", {"kl_refresh": 0, "kl_in": "loss"}) == resolve("grpo", {})  # the defaults, said aloud


def test_a_fault_is_one_line_without_those_that_follow_from_it() -> None:
    with pytest.raises(ValueError, match="data.stream = '3'") as raised:
        make_recipe({"data": {"stream": "3"}})
    assert len(str(raised.value).splitlines()) == 1
