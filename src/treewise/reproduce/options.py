"""What each experiment may be told, with its default, its bounds and one line of help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from treewise.config import Positive, Section
from treewise.recipe import explain_fault, load_recipe, nearest

Device = Literal["auto", "cpu", "cuda"]
Size = Literal["tiny", "small"]
SIZES = "GPT-2 from its config: tiny (2 layers of 64) or small (GPT-2-small: 12 of 768)"


class Options(Section):
    """Of every experiment. A list is written with commas: `--presets grpo,lambda_grpo`."""

    # What the experiment sets itself in every recipe that it trains.
    decided: ClassVar[tuple[str, ...]] = ()

    seeds: Positive = Field(5, description="how many seeds: 0, 1, …")
    device: Device = Field("auto", description="where models run; auto: cuda if there is one")

    @field_validator("*", mode="before")
    @classmethod
    def _list(cls, value: Any, info: ValidationInfo) -> Any:
        if not str(cls.model_fields[str(info.field_name)].annotation).startswith("tuple"):
            return value
        return value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]

    def record(self) -> dict[str, Any]:
        """All that decides what is measured."""
        return self.model_dump(mode="json")


class Theorem(Options):
    """Theorem 1: outcome and process advantages give the same loss and gradient, and where that ends."""

    seeds: Positive = Field(20, description="how many batches of random groups")
    size: Size = Field("tiny", description=SIZES)


class SyntheticTree(Options):
    """The left/right tree of depth 4, on which a popular prefix misleads."""

    seeds: Positive = Field(20, description="how many seeds: 0, 1, …")
    size: Size = Field("tiny", description=SIZES)
    methods: tuple[str, ...] = Field(
        ("grpo", "half", "lambda_grpo", "parent", "tree_rloo"),
        description="columns: grpo, half (p = ½), lambda_grpo, parent (R̂ minus the parent's), treerl, tempo, tree_rloo",
    )
    rates: tuple[str, ...] = Field(("adamw:0.0003",), description="optimizer:learning rate (adamw or sgd), one or more")
    shared: tuple[int, ...] = Field((1, 2), description="n, first tokens of the target that lead into the trap")
    traps: tuple[float, ...] = Field((-0.5, -1.0, -1.5), description="r_neg, reward of the other paths behind them")
    group_size: Annotated[int, Field(ge=2, strict=True)] = Field(16, description="G, samples per step")
    steps: Positive = Field(250, description="optimizer steps")


class Training(Options):
    """Of the experiments that train with a recipe; its options follow as `--section.field value`."""

    recipe: str = Field("quickstart", description="a bundled recipe, or a TOML file")
    changes: dict[str, Any] = Field({}, description="options of the recipe that were given")

    @property
    def given(self) -> dict[str, Any]:
        """Options on top of the recipe: those that were typed, and the device unless that is left to the recipe."""
        return self.changes | ({} if self.device == "auto" else {"model.device": self.device})

    def record(self) -> dict[str, Any]:
        """With the resolved recipe, because a recipe's file may change."""
        resolved = load_recipe(self.recipe, self.given).model_dump(mode="json")
        return {**self.model_dump(mode="json"), "resolved": resolved}


class ProcessTrees(Training):
    """How much of a tree the groups of a training run are, over its steps."""

    decided: ClassVar = ("rollout.group_size",)

    seeds: Positive = Field(1, description="how many seeds: 0, 1, …")
    group_sizes: tuple[int, ...] = Field((6, 36), description="G, one training run each")
    runs: tuple[str, ...] = Field((), description="run folders, or rollout files, to read in place of training")

    def record(self) -> dict[str, Any]:
        """Runs that are recorded already have their own recipes."""
        return self.model_dump(mode="json") if self.runs else super().record()

    @model_validator(mode="after")
    def _has_effect(self) -> ProcessTrees:
        idle = sorted(self.model_fields_set - {"runs"})
        if self.runs and idle:
            raise ValueError(f"--{idle[0].replace('_', '-')} has no effect on runs that are recorded already")
        return self


class AB(Training):
    """Presets against each other, calibrated by the baseline against itself."""

    decided: ClassVar = ("objective.preset", "eval.every")

    seeds: Annotated[int, Field(ge=2, strict=True)] = Field(5, description="how many seeds: 0, 1, …")
    presets: Annotated[tuple[str, ...], Field(min_length=2)] = Field(
        ("grpo+aggregation=token", "lambda_grpo"),
        description="the baseline, then what is compared with it: NAME, or NAME+option=value",
    )
    score: str = Field("reward", description="the held-out score that is compared")
    evaluations: Positive = Field(10, description="held-out evaluations, evenly spaced over the run")
    smoothing: Positive = Field(3, description="evaluations in the centred mean of which the peak is taken; 1: none")

    @model_validator(mode="after")
    def _odd(self) -> AB:
        if self.smoothing % 2 == 0 or self.smoothing > self.evaluations:
            raise ValueError(
                f"smoothing = {self.smoothing}: a centred mean takes an odd number of evaluations, here 1 to "
                f"{self.evaluations}"
            )
        return self

    @field_validator("presets")
    @classmethod
    def _different(cls, presets: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(presets)) < len(presets):
            raise ValueError(f"{', '.join(presets)}: the baseline against itself is measured anyway; give others")
        return presets


class OpenRS(Training):
    """The paper's downstream experiment: Open-RS, and five benchmarks."""

    decided: ClassVar = (
        "model.path", "objective.preset", "objective.kl_coef", "data.source", "data.split", "data.subset",
        "eval.source", "eval.split",
    )  # fmt: skip

    seeds: Positive = Field(1, description="how many seeds: 0, 1, …")
    recipe: str = Field("openrs", description="a bundled recipe, or a TOML file")
    models: tuple[str, ...] = Field(
        ("deepseek", "llama"), description="which models; NAME=FOLDER takes a folder in place of the hub's model"
    )
    betas: tuple[Annotated[float, Field(ge=0)], ...] = Field((0.0, 0.04), description="β, weight of the KL term")
    presets: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("grpo+aggregation=token", "lambda_grpo"), description="methods: NAME, or NAME+option=value"
    )
    benchmarks: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("aime24", "math500", "amc23", "minerva", "olympiadbench"), description="what the trained models are tried on"
    )
    data: tuple[str, ...] = Field(
        (), description="NAME=FILE in place of the hub's data; NAME: train, validation, or a benchmark"
    )
    limit: Positive | None = Field(None, description="first problems of each benchmark only, for a trial")
    answer_tokens: Positive = Field(32768, description="a benchmark's answer is cut here, or at the model's own limit")


EXPERIMENTS: Mapping[str, type[Options]] = MappingProxyType(
    {
        "theorem": Theorem,
        "synthetic-tree": SyntheticTree,
        "process-trees": ProcessTrees,
        "ab": AB,
        "openrs": OpenRS,
    }
)

DECIDED = ("train.seed", "train.output", "train.name", "model.device")


def make_options(name: str, given: Mapping[str, Any], runs: Sequence[str] = ()) -> Options:
    """An experiment's options from what was typed: its own by their names, the recipe's by their dotted ones.

    Raises:
        ValueError: for an unknown option (naming the nearest), a bad value, or one that has no effect.
    """
    kind = EXPERIMENTS[name]
    known = [field for field in kind.model_fields if field not in ("changes", "runs")]
    if runs and "runs" not in kind.model_fields:
        raise ValueError(f"{name} reads no recorded runs; leave out {runs[0]}")
    values: dict[str, Any] = {"runs": tuple(runs)} if runs else {}
    changes = {}
    for option, value in given.items():
        field = option.replace("-", "_")
        if field in known:
            values[field] = value
        elif "changes" not in kind.model_fields or ("." not in option and option != "reward"):
            raise ValueError(
                f"{name} has no option --{option}; the nearest is --{nearest(field, known).replace('_', '-')}"
            )
        elif option in (*DECIDED, *kind.decided):
            instead = "; use --device" if option == "model.device" else ""
            raise ValueError(f"--{option} has no effect: {name} sets it in every run that it trains{instead}")
        else:
            changes[option] = value
    if changes:
        values["changes"] = changes
    try:
        options = kind.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain_fault(error)) from error
    if isinstance(options, Training) and not values.get("runs"):
        load_recipe(options.recipe, options.changes)
    return options
