"""What each experiment may be told, with its default, its bounds and one line of help."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from treewise.recipe import load_recipe, nearest, parse_overrides
from treewise.sections import Positive, Section

Device = Literal["auto", "cpu", "cuda"]
Size = Literal["tiny", "small"]
SIZES = "GPT-2 from its config: tiny (2 layers of 64) or small (GPT-2-small: 12 of 768)"

T = TypeVar("T")


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]


def _once(values: tuple[T, ...]) -> tuple[T, ...]:
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"{value} is given twice")
    return values


# One or more different values, from a text with commas, a list, or a single value.
Several = Annotated[tuple[T, ...], BeforeValidator(_split), AfterValidator(_once), Field(min_length=1)]


class Options(Section):
    """Of every experiment. A list is written with commas: `--presets grpo,lambda_grpo`."""

    # What the experiment sets itself in every recipe that it trains, and the option that says to what.
    decided: ClassVar[Mapping[str, str]] = MappingProxyType({})
    unit: ClassVar[tuple[str, str]] = ("training", "trainings")  # what people call a cell, and several

    seeds: Positive = Field(5, description="how many seeds: 0, 1, …")
    device: Device = Field("auto", description="where models run; auto: cuda if there is one")

    def plan(self, cells: int) -> str:
        """What is to be measured, in words."""
        return f"{cells} {self.unit[cells != 1]}"

    @property
    def trains(self) -> bool:
        """Whether runs are trained, with a log each."""
        return False

    def record(self) -> dict[str, Any]:
        """All that decides what is measured."""
        return self.model_dump(mode="json")


class Theorem(Options):
    """Theorem 1: outcome and process advantages give the same loss and gradient, and where that ends."""

    unit: ClassVar = ("batch", "batches")

    seeds: Positive = Field(20, description="how many batches of random groups")
    size: Size = Field("tiny", description=SIZES)


class SyntheticTree(Options):
    """The left/right tree of depth 4, on which a popular prefix misleads."""

    seeds: Positive = Field(20, description="how many seeds: 0, 1, …")
    size: Size = Field("tiny", description=SIZES)
    methods: Several[str] = Field(
        ("grpo", "half", "lambda_grpo", "parent", "tree_rloo"),
        description="columns: grpo, half (p = ½), lambda_grpo, parent (R̂ minus the parent's), treerl, tempo, tree_rloo",
    )
    rates: Several[str] = Field(("adamw:0.0003",), description="optimizer:learning rate (adamw or sgd), one or more")
    shared: Several[int] = Field((1, 2), description="n, first tokens of the target that lead into the trap")
    traps: Several[float] = Field((-0.5, -1.0, -1.5), description="r_neg, reward of the other paths behind them")
    group_size: Annotated[int, Field(ge=2, strict=True)] = Field(16, description="G, samples per step")
    steps: Positive = Field(250, description="optimizer steps")


class Training(Options):
    """Of the experiments that train with a recipe; its options follow as `--section.field value`."""

    recipe: str = Field("quickstart", description="a bundled recipe, or a TOML file")
    changes: dict[str, Any] = Field({}, description="options of the recipe that were given")

    @property
    def trains(self) -> bool:
        """Every cell is a run, or begins with one."""
        return True

    @property
    def given(self) -> dict[str, Any]:
        """Options on top of the recipe: those that were typed, and the device unless that is left to the recipe."""
        return self.changes | ({} if self.device == "auto" else {"model.device": self.device})

    def record(self) -> dict[str, Any]:
        """With the resolved recipe, because a recipe's file may change."""
        resolved = load_recipe(self.recipe, self.given).model_dump(mode="json")
        return {**self.model_dump(mode="json"), "resolved": resolved}


def preset_changes(preset: str) -> dict[str, Any]:
    """The options of a preset that may have others on top of it, of the objective or of the whole recipe:
    `grpo+aggregation=token`, `lambda_grpo+optimizer.learning_rate=2e-5`.

    Raises:
        ValueError: for an option without a value, or one that is given twice.
    """
    name, *extra = re.split(r"\+(?=[a-z])", preset)  # a number may hold a plus, too
    words = [option if "." in option.partition("=")[0] else f"objective.{option}" for option in extra]
    try:
        return parse_overrides([f"--objective.preset={name}", *(f"--{word}" for word in words)])
    except ValueError as error:
        raise ValueError(f"--presets {preset}: {error}") from None


class Compared(Training):
    """Of the experiments that train with several presets."""

    alike: ClassVar[tuple[str, ...]] = ()  # options, and sections with their dot, that presets must not set

    presets: Several[str] = Field(
        ("grpo+aggregation=token", "lambda_grpo"), description="methods: NAME, or NAME+option=value"
    )

    @model_validator(mode="after")
    def _has_effect(self) -> Compared:
        own = []
        for preset in self.presets:
            own.append(preset_changes(preset).keys() - {"objective.preset"})
            for option in sorted(own[-1]):
                if reason := refusal(option, type(self)):
                    raise ValueError(f"--presets {preset}: {reason}")
                if option.startswith(self.alike):
                    raise ValueError(f"--presets {preset}: {option} must be the same for all; give --{option}")
        if idle := sorted(self.changes.keys() & set.intersection(*map(set, own))):
            raise ValueError(f"--{idle[0]} has no effect: every one of --presets sets it itself")
        return self


class ProcessTrees(Training):
    """How much of a tree the groups of a training run are, over its steps."""

    decided: ClassVar = MappingProxyType({"rollout.group_size": "--group-sizes"})
    unit: ClassVar = ("run", "runs")

    seeds: Positive = Field(1, description="how many seeds: 0, 1, …")
    group_sizes: Several[int] = Field((6, 36), description="G, one training run each")
    runs: Several[str] = Field(
        (), validate_default=False, description="run folders, or rollout files, to read in place of training"
    )

    @property
    def trains(self) -> bool:
        """Not where runs are recorded already."""
        return not self.runs

    def record(self) -> dict[str, Any]:
        """Runs that are recorded already have their own recipes."""
        return self.model_dump(mode="json") if self.runs else super().record()

    @model_validator(mode="after")
    def _has_effect(self) -> ProcessTrees:
        idle = sorted(self.model_fields_set - {"runs"})
        if self.runs and idle:
            raise ValueError(f"--{idle[0].replace('_', '-')} has no effect on runs that are recorded already")
        return self


class AB(Compared):
    """Presets against each other, calibrated by the baseline against itself."""

    decided: ClassVar = MappingProxyType({"objective.preset": "--presets", "eval.every": "--evaluations"})
    alike: ClassVar = ("train.steps", "eval.")

    seeds: Annotated[int, Field(ge=2, strict=True)] = Field(
        6, description="how many seeds: 0, 1, …; with fewer than 6 no difference can have p < .05"
    )
    presets: Annotated[Several[str], Field(min_length=2)] = Field(
        ("grpo+aggregation=token", "lambda_grpo"),
        description="the baseline, then what is compared with it: NAME, or NAME+option=value",
    )
    score: str = Field("reward", description="the held-out score that is compared")
    evaluations: Positive = Field(10, description="held-out evaluations, evenly spaced over the run")
    smoothing: Positive = Field(3, description="evaluations in the centred mean of which the peak is taken; 1: none")

    @model_validator(mode="after")
    def _smooth(self) -> AB:
        if self.smoothing % 2 == 0:
            raise ValueError(f"--smoothing {self.smoothing}: a centred mean takes an odd number of evaluations")
        if self.smoothing > self.evaluations:
            raise ValueError(
                f"--evaluations {self.evaluations} is fewer than --smoothing {self.smoothing}; add --smoothing 1, or "
                f"ask for {self.smoothing} or more evaluations"
            )
        return self

    def plan(self, cells: int) -> str:
        """With the baseline's other seeds, which nobody has asked for."""
        return (
            f"{super().plan(cells)} ({len(self.presets)} presets × {self.seeds} seeds, and the baseline with "
            f"{self.seeds} more)"
        )


class OpenRS(Compared):
    """The paper's downstream experiment: Open-RS, and five benchmarks."""

    decided: ClassVar = MappingProxyType(
        {
            "model.path": "--models",
            "objective.preset": "--presets",
            "objective.kl_coef": "--betas",
            **dict.fromkeys(("data.source", "data.split", "data.subset", "eval.source", "eval.split"), "--data"),
        }
    )
    unit: ClassVar = ("model", "models")
    alike: ClassVar = ("model.", "lora.", "data.", "env.", "eval.")  # the benchmarks are answered as the base model's

    seeds: Positive = Field(1, description="how many seeds: 0, 1, …")
    recipe: str = Field("openrs", description="a bundled recipe, or a TOML file")
    models: Several[str] = Field(
        ("deepseek", "llama"), description="which models; NAME=FOLDER takes a folder in place of the hub's model"
    )
    betas: Several[Annotated[float, Field(ge=0)]] = Field((0.0, 0.04), description="β, weight of the KL term")
    benchmarks: Several[str] = Field(
        ("aime24", "math500", "amc23", "minerva", "olympiadbench"), description="what the trained models are tried on"
    )
    data: Several[str] = Field(
        (),
        validate_default=False,
        description="NAME=FILE, NAME: train, validation, or a benchmark (default: all from the hub)",
    )
    limit: Positive | None = Field(
        None, description="first problems of each benchmark only, for a trial (default: all)"
    )
    answer_tokens: Positive = Field(32768, description="a benchmark's answer is cut here, or at the model's own limit")

    def plan(self, cells: int) -> str:
        """With how many of them are trained."""
        return f"{super().plan(cells)} ({len(self.models)} as they are, {cells - len(self.models)} trained)"


EXPERIMENTS: Mapping[str, type[Options]] = MappingProxyType(
    {
        "theorem": Theorem,
        "synthetic-tree": SyntheticTree,
        "process-trees": ProcessTrees,
        "ab": AB,
        "openrs": OpenRS,
    }
)

DECIDED: Mapping[str, str] = MappingProxyType(
    {"train.seed": "--seeds", "train.output": "--output", "train.name": "", "model.device": "--device"}
)


def refusal(option: str, kind: type[Options]) -> str:
    """Why an option of the recipe may not be given; empty if it may."""
    found = {**DECIDED, **kind.decided}
    if option not in found:
        return ""
    instead = f"; use {found[option]}" if found[option] else ""
    return f"{option} has no effect: the experiment sets it in every run that it trains{instead}"


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
        elif reason := refusal(option, kind):
            raise ValueError(f"--{reason}")
        else:
            changes[option] = value
    if changes:
        values["changes"] = changes
    try:
        options = kind.model_validate(values)
    except ValidationError as error:
        raise ValueError("\n".join(_explain(fault, kind) for fault in error.errors())) from error
    if isinstance(options, Training) and options.trains:
        load_recipe(options.recipe, options.changes)
    return options


def _explain(fault: Mapping[str, Any], kind: type[Options]) -> str:
    """A fault in the words of the command line."""
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"]:
        return message
    field = str(fault["loc"][0])
    option = "runs" if field == "runs" else f"--{field.replace('_', '-')}"
    match fault["type"]:
        case "value_error":
            return f"{option}: {message}"
        case "too_short":
            entry = kind.model_fields[field]
            example = f", such as {','.join(map(str, entry.default))}" if entry.default else ""
            return f"{option} needs at least {fault['ctx']['min_length']} ({entry.description}){example}"
    message = message.replace("Input should be", "must be").replace("greater than or equal to", "at least")
    return f"{option} {fault['input']}: {message}"
