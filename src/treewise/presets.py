"""The table of published objectives: a method is a row of options, not a class.

A preset names a paper and what differs from the defaults of `Objective`; the user's own options go on top of it. Every
row is held against a naive implementation of its paper's formula (`tests/oracle_presets.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from treewise.axes import AXES, Objective, options, owners
from treewise.axes.conflicts import conflicts


@dataclass(frozen=True, slots=True)
class Preset:
    """One row of the table: where the method comes from and the options that make it."""

    title: str
    source: str
    options: Mapping[str, Any]


def _row(title: str, source: str, **options: Any) -> Preset:
    return Preset(title, source, MappingProxyType(options))


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "grpo": _row("GRPO", "arXiv 2402.03300", aggregation="sequence"),
        "deepseek_math": _row("GRPO with its KL term", "arXiv 2402.03300", aggregation="sequence", kl_coef=0.04),
        "grpo_process": _row(
            "GRPO with process supervision",
            "arXiv 2402.03300, §4.1.3",
            advantage="steps",
            aggregation="sequence",
            kl_coef=0.04,
        ),
        "dr_grpo": _row("Dr. GRPO", "arXiv 2503.20783", scale="none", aggregation="constant"),
        "dapo": _row(
            "DAPO", "arXiv 2503.14476", clip_high=0.28, group_filter="spread", max_refills=9, overlong_penalty=0.2
        ),
        "lambda_grpo": _row("λ-GRPO", "arXiv 2509.21154", weight_exponent=1.0),
        "process": _row("GRPO written as a process reward model", "arXiv 2509.21154", advantage="process"),
        "tempo": _row("TEMPO", "arXiv 2509.18314", advantage="tempo", clip_high=0.28),
        "treerl": _row("TreeRL", "arXiv 2506.11902", advantage="treerl", scale="none", weight_exponent=0.5),
        "spo": _row("SPO", "arXiv 2505.23564", advantage="segments", scale="none"),
        "tree_rloo": _row(
            "prefix leave-one-out", "treewise", advantage="tree_rloo", scale="none", aggregation="constant"
        ),
        "gspo": _row(
            "GSPO", "arXiv 2507.18071", ratio="sequence", clip_low=3e-4, clip_high=4e-4, aggregation="sequence"
        ),
        "gspo_token": _row(
            "GSPO-token",
            "arXiv 2507.18071",
            ratio="sequence_token",
            clip_low=3e-4,
            clip_high=4e-4,
            aggregation="sequence",
        ),
        "cispo": _row("CISPO", "arXiv 2506.13585", trust_region="cispo"),
        "gmpo": _row("GMPO", "arXiv 2507.20673", trust_region="log_clip", aggregation="sequence"),
        "sapo": _row("SAPO", "arXiv 2511.20347", trust_region="sapo", aggregation="sequence"),
        "rloo": _row(
            "RLOO",
            "arXiv 2402.14740",
            advantage="leave_one_out",
            scale="none",
            ratio="product",
            trust_region="none",
            aggregation="sequence",
            kl_coef=0.05,
            kl_in="reward",
        ),
        "reinforce_pp": _row(
            "REINFORCE++",
            "arXiv 2501.03262",
            advantage="return_to_go",
            scale="whiten_tokens",
            aggregation="sequence",
            kl_coef=0.001,
            kl_in="reward",
        ),
        "reinforce_pp_baseline": _row(
            "REINFORCE++ with baseline",
            "arXiv 2501.03262",
            scale="whiten",
            aggregation="sequence",
            kl_coef=0.001,
            kl_estimator="k2",
        ),
        "maxrl": _row("MaxRL", "arXiv 2602.02710", scale="mean"),
        "gdpo": _row("GDPO", "arXiv 2601.05242", advantage="decoupled", scale="whiten", aggregation="sequence"),
        "luspo": _row(
            "LUSPO", "arXiv 2602.05261", ratio="sequence", clip_low=2e-3, clip_high=2.5e-3, aggregation="sum"
        ),
        "intellect_2": _row("two-sided clip", "INTELLECT-2, arXiv 2505.07291", clip_max=4.0, kl_coef=0.001),
        "dppo": _row(
            "DPPO, total variation",
            "arXiv 2602.04879",
            trust_region="dppo",
            ratio_base="sampler",
            scale="none",
            aggregation="constant",
        ),
        "dppo_kl": _row(
            "DPPO, KL",
            "arXiv 2602.04879",
            trust_region="dppo",
            divergence="kl",
            divergence_low=0.05,
            divergence_high=0.05,
            ratio_base="sampler",
            scale="none",
            aggregation="constant",
        ),
        "vespo": _row(
            "VESPO", "arXiv 2602.10693", trust_region="vespo", ratio="product", ratio_base="sampler", scale="none"
        ),
        "top_entropy": _row("80/20: tokens of high entropy", "arXiv 2506.01939", clip_high=0.28, top_entropy=0.2),
        "token_preference": _row(
            "“λ-GRPO” with learned token preferences", "arXiv 2510.06870", length_weight="learned"
        ),
        "tis": _row("truncated importance sampling", "Yao et al. 2025", correction="truncate"),
        "icepop": _row(
            "IcePop: masked importance sampling", "arXiv 2510.18855", correction="mask", aggregation="sequence"
        ),
    }
)


def _valid(name: str, value: Any) -> Any:
    """The value of an option, if it has the option's type and keeps its bounds."""
    known = options()
    if name not in known:
        raise ValueError(f"unknown option objective.{name}; there are {', '.join(known)}")
    try:
        return TypeAdapter(known[name], config=ConfigDict(allow_inf_nan=False)).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"objective.{name} = {value!r}: {error.errors()[0]['msg']}") from error


def resolve(preset: str, overrides: Mapping[str, Any], *, max_new_tokens: int | None = None) -> Objective:
    """The options of a preset with the user's own on top.

    Args:
        preset: a name of the table.
        overrides: options that differ from the preset.
        max_new_tokens: the sampler's limit, the default of `max_completion_tokens` where that is needed.

    Raises:
        ValueError: for an unknown preset or option, a value out of bounds, an option that has no effect, or options
            that contradict each other.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    overrides = {name: _valid(name, value) for name, value in overrides.items()}
    row, defaults = PRESETS[preset].options, Objective()
    chosen: dict[str, Any] = {}
    for axis, kinds in AXES.items():
        published = kinds[row[axis]] if axis in row else type(getattr(defaults, axis))
        kind = kinds[overrides[axis]] if axis in overrides else published
        # What the preset says of its own value does not hold for another one.
        given = {**row, **overrides} if kind is published else overrides
        chosen[axis] = kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})
    for name in overrides:
        if owners(name) and not any(hasattr(value, name) for value in chosen.values()):
            raise ValueError(f"objective.{name} has no effect: it belongs to {' and '.join(owners(name))}")
    plain = {name: value for name, value in {**row, **overrides}.items() if name not in AXES and not owners(name)}
    if plain.get("kl_in") == "reward" and "kl_estimator" not in overrides:
        plain["kl_estimator"] = "k1"
    if plain.get("aggregation") == "constant" and max_new_tokens is not None:
        plain.setdefault("max_completion_tokens", max_new_tokens)
    objective = Objective(**chosen, **plain)
    for message in conflicts(objective, overrides):
        raise ValueError(message)
    return objective
