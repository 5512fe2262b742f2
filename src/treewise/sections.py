"""The sections of a recipe: options, each with its default, its bounds and one line of help.

Options of one section that contradict each other or have no effect are errors here; those of several, in
`treewise.config`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_serializer, model_validator

from treewise.axes import Objective, owners
from treewise.axes import options as objective_options
from treewise.presets import PRESETS, resolve
from treewise.steps import SEPARATOR

Positive = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]


class Section(BaseModel):
    """Frozen, and strict about names. Every field has one line of help."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )


class ModelSection(Section):
    """The model that learns."""

    path: str = Field("smollm2-135m-instruct", description="hub id, model folder, .gguf file, or built-in name")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="compute precision; weights and optimizer stay float32. auto: bfloat16 where it's fast",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where it runs; auto: cuda if there is one")
    attention: Literal["auto", "tree", "flat"] = Field(
        "auto", description="tree: shared tokens once; flat: one row per answer; auto: tree where it is exact"
    )
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, more time")


class LoraSection(Section):
    """Low-rank adapters instead of full fine-tuning."""

    rank: Count = Field(0, description="rank of the adapters; 0 trains all weights")
    alpha: float | None = Field(None, description="scale of the adapters' update; default 2 × rank")

    @model_validator(mode="after")
    def _has_effect(self) -> LoraSection:
        if self.alpha is not None and self.rank == 0:
            raise ValueError("lora.alpha has no effect without lora.rank")
        return self


class SourceItem(Section):
    """One source of a mix."""

    source: str = Field(description="like data.source")
    name: str | None = Field(None, description="column data_source of its problems; default like the source")
    weight: Annotated[float, Field(gt=0)] | None = Field(
        None, description="its share of the problems, beside the others'; default: as many as it has"
    )
    split: str | None = Field(None, description="split of a hub data set; default train")
    subset: str | None = Field(None, description="configuration of a hub data set")
    limit: Positive | None = Field(None, description="use the first problems only")
    options: dict[str, Any] = Field({}, description="parameters of a generated task")
    stream: Positive | None = Field(None, description="like data.stream")

    @property
    def label(self) -> str:
        """What it is called."""
        return self.name or self.source


class DataSection(Section):
    """The problems to learn from."""

    source: str | None = Field(
        None, description="JSONL/Parquet/CSV file, hub data set id, reasoning-gym:TASK, verifiers:NAME, sums, wordle"
    )
    split: str | None = Field(None, description="split of a hub data set; default train")
    subset: str | None = Field(None, description="configuration of a hub data set")
    limit: Positive | None = Field(None, description="use the first problems only")
    options: dict[str, Any] = Field({}, description="parameters of a generated task")
    stream: Positive | None = Field(
        None, description="read so many rows at a time, not all at once; reasoning-gym then never ends"
    )
    mix: tuple[SourceItem, ...] = Field((), description="several sources in place of one")
    duplicates: Literal["keep", "drop"] = Field(
        "keep", description="problems that ask what another, or a held-out one, asks"
    )
    system: str | None = Field(None, description="system message put before every prompt")
    template: str | None = Field(None, description="text around every prompt, with {prompt} in it")
    examples: tuple[tuple[str, str], ...] = Field((), description="worked (question, answer) turns before every prompt")
    max_prompt_tokens: Positive | None = Field(None, description="leave out problems with longer prompts")
    template_options: dict[str, Any] = Field({}, description="for the chat template, such as {enable_thinking = false}")

    @property
    def sources(self) -> tuple[SourceItem, ...]:
        """The mix, or the one source."""
        if self.mix or self.source is None:
            return self.mix
        own = {name: getattr(self, name) for name in _OF_ONE_SOURCE}
        return (SourceItem.model_validate({"source": self.source, **own}),)

    @model_validator(mode="after")
    def _has_effect(self) -> DataSection:
        own = [name for name in ("source", *_OF_ONE_SOURCE) if getattr(self, name) not in (None, {})]
        if self.mix and own:
            raise ValueError(f"data.{own[0]} has no effect beside data.mix; set it in the [[data.mix]] that it is of")
        twice = [name for name, count in Counter(item.label for item in self.mix).items() if count > 1]
        if twice:
            raise ValueError(f"two sources of data.mix are called {twice[0]}; give one of them another `name`")
        unweighted = [item for item in self.mix if item.weight is None]
        if unweighted and (len(unweighted) < len(self.mix) or any(item.stream for item in self.mix)):
            raise ValueError(
                f"the source {unweighted[0].label} of data.mix needs a weight: others have one, or are streams, which "
                "have no size to go by"
            )
        return self


_OF_ONE_SOURCE = ("split", "subset", "limit", "options", "stream")


class CurriculumSection(Section):
    """Leave out for some epochs what was too easy or too hard when it was asked last."""

    low: float | None = Field(None, description="a problem rests whose pass rate is at most this, for instance 0")
    high: float | None = Field(None, description="a problem rests whose pass rate is at least this, for instance 1")
    rest: Positive = Field(2, description="epochs that do without it")
    score: str | None = Field(None, description="score whose mean is the pass rate; default the reward")

    @property
    def bounded(self) -> bool:
        """Whether any problem ever rests."""
        return self.low is not None or self.high is not None

    @model_validator(mode="after")
    def _has_effect(self) -> CurriculumSection:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"curriculum.low = {self.low} must be below curriculum.high = {self.high}")
        if not self.bounded and self.rest != type(self).model_fields["rest"].default:
            raise ValueError("curriculum.rest has no effect without curriculum.low or curriculum.high")
        return self


class EnvSection(Section):
    """What a problem is played in; without one every problem gets one reply, which the rewards judge."""

    name: str | None = Field(None, description="built-in name, or path/file.py:Class")
    options: dict[str, Any] = Field({}, description="parameters of the environment")
    weights: dict[str, float] | None = Field(
        None, description="share of each of its scores in the reward; default as the environment has them"
    )
    step_seconds: Annotated[float, Field(gt=0)] = Field(60.0, description="time of one call of the environment")
    episode_seconds: Annotated[float, Field(gt=0)] = Field(600.0, description="time of all its calls in one episode")
    retries: Count = Field(1, description="play an episode again in which the environment failed")
    concurrency: Positive = Field(
        64, description="environments that work at one time; where they run programs, by default one per processor"
    )


class RewardItem(Section):
    """One reward function."""

    function: str = Field(description="built-in name, or path/file.py:function")
    weight: float = Field(1.0, description="its share in the reward; 0 only records the score")
    name: str | None = Field(None, description="what its score is called; default like the function")
    options: dict[str, Any] = Field({}, description="keyword arguments of the function, or of the built-in reward")
    gate: float | None = Field(None, description="an answer whose score is below it earns nothing")
    seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="judge each reply in a process that is killed after this time; for your own function"
    )
    when: dict[str, Any] = Field({}, description="judge only problems with these values in these columns")

    @property
    def label(self) -> str:
        """What its score is called."""
        return self.name or self.function.rpartition(":")[2]


class RolloutSection(Section):
    """How answers are sampled."""

    problems_per_step: Positive = Field(8, description="problems (groups) per step")
    group_size: Annotated[int, Field(ge=2, strict=True)] = Field(8, description="G, answers per problem")
    max_new_tokens: Positive = Field(256, description="an answer is cut here and counted as truncated")
    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="of sampling, and of the log-probs in the loss")
    stop: tuple[str, ...] = Field((), description="strings that end an answer")
    step_separator: Annotated[str, Field(min_length=1)] = Field(
        SEPARATOR, description="text that ends a step, for reward functions with the parameter `steps`"
    )
    max_rows: Positive = Field(64, description="answers sampled at one time; lower it to save memory")

    @model_validator(mode="after")
    def _has_effect(self) -> RolloutSection:
        if r"\n" in self.step_separator:
            raise ValueError(
                f"rollout.step_separator = {self.step_separator!r} has a backslash and an n in the place of a line "
                "break; in a shell write --rollout.step_separator $'\\n\\n'"
            )
        return self


class _Objective(Section):
    """The loss: a preset, and what differs from it."""

    preset: str = Field("lambda_grpo", description=f"one of {', '.join(PRESETS)}")

    def given(self) -> dict[str, Any]:
        """The options that were set on top of the preset. `None` is a value where an option may be unset."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set - {"preset"})}

    @model_serializer
    def _only_what_is_set(self) -> dict[str, Any]:
        return {"preset": self.preset, **self.given()}

    def resolve(self, *, max_new_tokens: int | None = None) -> Objective:
        """The preset with this section's own options on top; `max_new_tokens` is the sampler's limit, which
        constant aggregation divides by unless told otherwise."""
        return resolve(self.preset, self.given(), max_new_tokens=max_new_tokens)


def _help(name: str, text: str) -> str:
    return f"{text} [{' or '.join(owners(name))}]" if owners(name) else text


if TYPE_CHECKING:
    ObjectiveSection = _Objective
else:
    # A field for every option of the table, so that a new method needs no line here. None: as the preset has it.
    ObjectiveSection = create_model(
        "ObjectiveSection",
        __base__=_Objective,
        __doc__="The loss: a preset, and what differs from it; objectives.md has the formulas and the presets' values.",
        **{
            name: (
                annotation,
                Field(None, validate_default=False, description=_help(name, annotation.__metadata__[0].description)),
            )
            for name, annotation in objective_options().items()
        },
    )


class OptimizerSection(Section):
    """AdamW and its schedule."""

    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-5, description="peak learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="after warm-up; linear and cosine end at 0"
    )
    warmup_steps: Count = Field(0, description="optimizer steps of linear warm-up")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="decoupled weight decay")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="AdamW's first moment")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.99, description="AdamW's second moment")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="clip the gradient's global norm")


class TrainSection(Section):
    """The loop."""

    steps: Positive = Field(80, description="sampled batches to train on")
    updates_per_batch: Positive = Field(1, description="μ, passes over each sampled batch")
    minibatches: Positive = Field(1, description="optimizer steps per pass; whole groups each")
    token_budget: Positive = Field(2048, description="tokens of one forward and backward pass")
    max_skipped_steps: Positive = Field(5, description="stop after so many non-finite steps in a row")
    save_every: Count = Field(20, description="checkpoint every so many steps; 0: only at the end")
    keep_last: Positive = Field(2, description="checkpoints to keep, besides the best one")
    seed: Seed = Field(0, description="of data order, sampling and adapters")
    output: str = Field("runs", description="folder in which the run's own folder is made")
    name: str | None = Field(None, description="name of the run's folder; default from the time")


class EvalSection(Section):
    """Greedy or sampled accuracy on held-out problems, before, during and after training."""

    source: str | None = Field(None, description="like data.source; default: no evaluation")
    name: str | None = Field(None, description="column data_source of its problems, for rewards with `when`")
    split: str | None = Field(None, description="split of a hub data set; default test")
    subset: str | None = Field(
        None, description="configuration of a hub data set; default: that of the same data.source"
    )
    limit: Positive | None = Field(200, description="use the first problems only")
    options: dict[str, Any] = Field({}, description="parameters of a generated task")
    every: Count = Field(0, description="evaluate every so many steps; 0: only before and after")
    temperature: Annotated[float, Field(ge=0)] = Field(0.0, description="0 is greedy")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="keep the likeliest tokens of this total probability"
    )
    top_k: Count = Field(0, description="keep this many likeliest tokens; 0: all")
    min_p: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="drop tokens below this share of the likeliest")
    repetition_penalty: Annotated[float, Field(gt=0)] = Field(
        1.0, description="above 1 makes earlier tokens less likely"
    )

    @model_validator(mode="after")
    def _has_effect(self) -> EvalSection:
        filters = [name for name in ("top_p", "top_k", "min_p") if getattr(self, name) not in (0, 1)]
        if filters and self.temperature == 0:
            raise ValueError(f"eval.{filters[0]} has no effect with eval.temperature = 0, which is greedy")
        return self
