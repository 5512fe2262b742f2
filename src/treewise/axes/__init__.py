"""The axes of an objective: on each of them a method chooses one value.

    advantage · scale · ratio · trust region · token weight · aggregation · KL · rollout correction · group filter

A value is a small pure function; if it has options, it is a frozen dataclass whose fields they are. Its docstring holds
the formula and the paper. Nothing here imports torch, so a recipe can be checked, and the table of methods printed,
without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field

from treewise.axes.advantage import ADVANTAGES, Advantage, GroupMean
from treewise.axes.aggregation import Aggregation
from treewise.axes.correction import CORRECTIONS, Correction, NoCorrection
from treewise.axes.length_weight import LENGTH_WEIGHTS, LengthWeight, NoLengthWeight
from treewise.axes.trust_region import TRUST_REGIONS, Clip, TrustRegion

Scale = Literal["std", "none", "mean", "batch_std", "whiten", "whiten_tokens"]
Ratio = Literal["token", "sequence", "sequence_token", "product"]
Estimator = Literal["k1", "k2", "k3", "k3_unbiased"]

# The axes whose values have options of their own.
AXES: Mapping[str, Mapping[str, type[Any]]] = MappingProxyType(
    {
        "advantage": ADVANTAGES,
        "trust_region": TRUST_REGIONS,
        "length_weight": LENGTH_WEIGHTS,
        "correction": CORRECTIONS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`loss = −1/D · Σ_it |λ(i,t)|^(−p) · [surrogate(ρ, a) − β·kl]`, with every choice made.

    `docs/objectives.md` lists the values of every axis. `treewise.presets.resolve` makes them, and refuses
    options without effect and contradictions.
    """

    advantage: Annotated[Advantage, Field(description="what a token is worth, before scaling")] = GroupMean()  # noqa: RUF009
    scale: Annotated[Scale, Field(description="what advantages are divided by")] = "std"
    ratio: Annotated[Ratio, Field(description="what ρ compares: the token or the whole answer")] = "token"
    ratio_base: Annotated[
        Literal["trainer", "sampler"],
        Field(description="whose log-probs of the sampled tokens ρ compares with"),
    ] = "trainer"
    trust_region: Annotated[TrustRegion, Field(description="how far a token may move the policy")] = Clip()  # noqa: RUF009
    weight_exponent: Annotated[float, Field(ge=0, description="p of the token weight |λ|^(−p)")] = 0.0
    length_weight: Annotated[LengthWeight, Field(description="weight of an answer by its length")] = NoLengthWeight()  # noqa: RUF009
    top_entropy: Annotated[
        float | None,
        Field(gt=0, lt=1, description="share of the batch's tokens, those of highest entropy, that are learned from"),
    ] = None
    aggregation: Annotated[Aggregation, Field(description="what the sum over tokens is divided by")] = "token"
    max_completion_tokens: Annotated[
        int | None, Field(ge=1, strict=True, description="the constant of aggregation = constant")
    ] = None
    kl_coef: Annotated[float, Field(ge=0, description="β of the KL term to the reference model")] = 0.0
    kl_estimator: Annotated[Estimator, Field(description="estimate of the KL; k3 in the loss, k1 in the reward")] = "k3"
    kl_in: Annotated[Literal["loss", "reward"], Field(description="where the KL stands")] = "loss"
    kl_refresh: Annotated[
        int, Field(ge=0, strict=True, description="make the policy the new reference every so many steps; 0: never")
    ] = 0
    correction: Annotated[Correction, Field(description="weight against the sampler's mismatch")] = NoCorrection()  # noqa: RUF009
    group_filter: Annotated[
        Literal["none", "spread"], Field(description="spread: drop groups without reward spread, and sample others")
    ] = "none"
    max_refills: Annotated[
        int, Field(ge=1, strict=True, description="batches sampled in a step to replace dropped groups")
    ] = 3
    overlong: Annotated[
        Literal["keep", "leave", "mask"],
        Field(description="answers cut at the limit: keep; leave the group; mask: in its statistics, not in the loss"),
    ] = "keep"
    overlong_penalty: Annotated[
        float,
        Field(ge=0, lt=1, description="last share of max_new_tokens in which the reward falls by up to 1; 0: off"),
    ] = 0.0

    def __str__(self) -> str:
        constant = f" of {self.max_completion_tokens} tokens an answer" if self.max_completion_tokens else ""
        ratio = self.ratio + (" to the sampler" if self.ratio_base == "sampler" else "")
        parts = [
            f"advantage {self.describe('advantage')}",
            f"scale {self.scale}",
            f"ratio {ratio}",
            f"trust region {self.describe('trust_region')}",
            f"weight |λ|^-{self.weight_exponent:g}",
            f"aggregation {self.aggregation}{constant}",
            f"KL {self.kl_coef:g}",
        ]
        if self.kl_coef:
            parts[-1] += f" ({self.kl_estimator} in the {self.kl_in})"
            parts[-1] += f", reference renewed every {self.kl_refresh} steps" if self.kl_refresh else ""
        if self.top_entropy is not None:
            parts.append(f"top entropy {self.top_entropy:g}")
        for axis in ("length_weight", "correction"):
            if self.name(axis) != "none":
                parts.append(f"{axis.replace('_', ' ')} {self.describe(axis)}")
        if self.group_filter != "none":
            parts.append(f"group filter {self.group_filter}, up to {self.max_refills} refills")
        if self.overlong != "keep":
            parts.append(f"overlong {self.overlong}")
        if self.overlong_penalty:
            parts.append(f"overlong penalty in the last {self.overlong_penalty:g} of the limit")
        return " · ".join(parts)

    @property
    def whole_answers(self) -> str | None:
        """The choice, if there is one, for which all tokens of an answer must be computed together."""
        if self.ratio != "token":
            return f"ratio {self.ratio!r}"
        if self.name("trust_region") == "log_clip":
            return "trust_region 'log_clip'"
        level = getattr(self.correction, "correction_level", "token")
        return None if level == "token" else f"correction_level {level!r}"

    def name(self, axis: str) -> str:
        """The name of the value on an axis of `AXES`: `clip`."""
        return next(name for name, kind in AXES[axis].items() if type(getattr(self, axis)) is kind)

    def describe(self, axis: str) -> str:
        """The same with its options: `clip(clip_low 0.2, clip_high 0.2)`."""
        value, name = getattr(self, axis), self.name(axis)
        own = [(field.name, given) for field in fields(value) if (given := getattr(value, field.name)) is not None]
        shown = [f"{key} {given:.3g}" if isinstance(given, float) else f"{key} {given}" for key, given in own]
        return f"{name}({', '.join(shown)})" if own else name


@cache
def options() -> Mapping[str, Any]:
    """Every option of an objective as name → annotated type, the values' own ones behind their axis."""
    found: dict[str, Any] = {}
    for name, annotation in get_type_hints(Objective, include_extras=True).items():
        if name not in AXES:
            found[name] = annotation
            continue
        found[name] = Annotated[Literal[tuple(AXES[name])], annotation.__metadata__[0]]
        for kind in AXES[name].values():
            hints = get_type_hints(kind, include_extras=True)
            found |= {field.name: hints[field.name] for field in fields(kind)}
    return MappingProxyType(found)


def owners(option: str) -> list[str]:
    """The values that have an option, as `axis = 'value'`; none for the objective's own options."""
    return [
        f"{axis} = {name!r}"
        for axis, kinds in AXES.items()
        for name, kind in kinds.items()
        if option in {field.name for field in fields(kind)}
    ]
