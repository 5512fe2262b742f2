"""Which choices don't go together, and why; and what to know of some that do. Everything else combines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treewise.axes import Objective
from treewise.axes.correction import Mask, Truncate

DEFAULT = Objective()

# Surrogates that are a detached weight times log π: the gradient is each token's own, the value no measure of worth.
LOG_FORM = ("cispo", "dppo", "vespo")


def conflicts(objective: Objective, given: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an objective, one sentence each; `given` are the options that the user set."""
    yield from _ratios(objective)
    yield from _advantages(objective)
    yield from _kl(objective)
    yield from _without_effect(objective, given)


def remarks(objective: Objective, *, updates: int) -> Iterator[str]:
    """What is not wrong, but may not be meant, with so many optimizer steps per sampled batch."""
    rule, by_length = objective.name("advantage"), objective.aggregation in ("token", "sequence")
    if updates == 1 and objective.ratio_base == "trainer":
        yield "one optimizer step per batch: the ratio is always 1, so the trust region never acts"
    if updates > 1 and objective.name("trust_region") == "none":
        yield f"{updates} optimizer steps per batch and no trust region: nothing bounds the ratio"
    if rule == "leave_one_out" and by_length and objective.ratio != "product":
        yield f"leave_one_out is not unbiased with aggregation {objective.aggregation}: constant or sum would be"
    if rule == "tree_rloo":
        reasons = [
            (objective.scale != "none", f"scale {objective.scale}"),
            (objective.weight_exponent > 0, f"weight_exponent {objective.weight_exponent:g}"),
            (by_length, f"aggregation {objective.aggregation}"),
            (objective.overlong != "keep", f"overlong {objective.overlong}"),
            (objective.top_entropy is not None, f"top_entropy {objective.top_entropy}"),
            (objective.name("length_weight") != "none", "length_weight"),
            (objective.name("correction") != "none", f"correction {objective.name('correction')}"),
            (updates > 1, f"{updates} optimizer steps per batch"),
        ]
        found = [reason for wrong, reason in reasons if wrong]
        if found:
            yield f"tree_rloo is not unbiased here, because of {', '.join(found)}"


def _ratios(objective: Objective) -> Iterator[str]:
    region = objective.name("trust_region")
    needed = {"log_clip": "token", "dppo": "token", "vespo": "product"}.get(region, objective.ratio)
    if needed != objective.ratio:
        yield f"trust_region {region!r} needs ratio {needed!r}, not {objective.ratio!r}"
    one_action = objective.ratio == "product" and region not in LOG_FORM  # the answer's gradient at each of its tokens
    if one_action and objective.aggregation != "sequence":
        yield (
            "ratio 'product' gives every token the gradient of the whole answer, so a long answer would count by its "
            f"length: choose aggregation 'sequence', not {objective.aggregation!r}"
        )
    if objective.ratio_base == "sampler" and objective.name("correction") != "none":
        yield "ratio_base 'sampler' compares with the sampler already, so correction must be 'none'"
    if one_action and objective.kl_coef and objective.kl_in == "loss":
        yield (
            "ratio 'product' needs aggregation 'sequence', which would divide a KL in the loss by the length: "
            "set kl_in 'reward'"
        )
    if one_action or region == "log_clip" or (objective.ratio == "sequence" and region not in LOG_FORM):
        choice = "trust_region 'log_clip'" if region == "log_clip" else f"ratio {objective.ratio!r}"
        instead = "another trust region" if region == "log_clip" else "ratio 'token' or 'sequence_token'"
        level = f"correction_level 'sequence' or 'geometric', or {instead}"
        of_tokens = (
            isinstance(objective.correction, Truncate | Mask) and objective.correction.correction_level == "token"
        )
        for chosen, what, choose in (
            (objective.advantage.per_token, f"advantage {objective.name('advantage')!r}", instead),
            (objective.weight_exponent > 0, f"weight_exponent {objective.weight_exponent:g}", instead),
            (objective.top_entropy is not None, f"top_entropy {objective.top_entropy}", instead),
            (of_tokens, "a correction of single tokens", level),
        ):
            if chosen:
                yield (
                    f"{choice} gives all tokens of an answer the same gradient, so {what} would be averaged away; "
                    f"choose {choose}"
                )


def _advantages(objective: Objective) -> Iterator[str]:
    rule, scale = objective.name("advantage"), objective.scale
    if scale == "mean" and rule != "group_mean":
        yield f"scale 'mean' belongs to advantage 'group_mean', not to {rule!r}"
    if scale == "std" and not objective.advantage.group_relative:
        yield f"advantage {rule!r} is not relative to a group; choose scale none, whiten or whiten_tokens"
    if scale == "batch_std" and rule == "decoupled":
        yield "advantage 'decoupled' has divided every score already; choose scale none, whiten or whiten_tokens"
    if scale == "whiten" and objective.advantage.per_token:
        yield f"scale 'whiten' needs one advantage an answer, and {rule!r} has one a token; choose 'whiten_tokens'"
    if objective.overlong_penalty and rule == "decoupled":
        yield "advantage 'decoupled' normalises every reward function; write the overlong penalty as one of them"
    if objective.overlong_penalty and scale == "mean":
        yield "scale 'mean' needs rewards of at least 0, and overlong_penalty makes them negative"
    region = objective.name("trust_region")
    if objective.name("length_weight") == "learned" and region not in ("none", "clip", "log_clip"):
        yield (
            f"length_weight 'learned' learns from the value of the surrogate, and at ratio 1 that of {region!r} is not "
            "the advantage; choose trust_region none, clip or log_clip"
        )


def _kl(objective: Objective) -> Iterator[str]:
    rule = objective.name("advantage")
    if not objective.kl_coef:
        return
    if objective.kl_in == "loss":
        if objective.kl_estimator == "k1":
            yield (
                "kl_estimator 'k1' in the loss has an expected gradient of 0, so it would only add noise; "
                "choose k2, k3 or k3_unbiased, or kl_in 'reward'"
            )
        return
    if objective.kl_estimator == "k3_unbiased":
        yield "kl_estimator 'k3_unbiased' corrects the gradient of a loss; in the reward k1 is the unbiased one"
    if rule in ("decoupled", "steps"):
        yield f"advantage {rule!r} looks at single scores or steps and would lose a KL in the reward; set kl_in 'loss'"
    if objective.scale == "mean":
        yield "scale 'mean' needs rewards of at least 0, and a KL in the reward may make them negative"
    if objective.scale == "std":
        yield (
            "scale 'std' divides a KL in the reward, too: in every group of equally good answers it would make it as "
            "large as a reward; choose scale none (or one over the whole batch), or kl_in 'loss'"
        )


def _without_effect(objective: Objective, given: Mapping[str, Any]) -> Iterator[str]:
    if objective.aggregation == "constant" and objective.max_completion_tokens is None:
        yield (
            "aggregation 'constant' divides by trajectories × max_completion_tokens: "
            "set objective.max_completion_tokens"
        )
    if objective.aggregation != "constant" and objective.max_completion_tokens is not None:
        yield (
            f"objective.max_completion_tokens = {objective.max_completion_tokens} has no effect with "
            f"aggregation {objective.aggregation!r}; leave it out or choose aggregation 'constant'"
        )
    for name in ("kl_estimator", "kl_in", "kl_refresh"):
        if not objective.kl_coef and given.get(name, getattr(DEFAULT, name)) != getattr(DEFAULT, name):
            yield f"objective.{name} has no effect with kl_coef 0"
    if "max_refills" in given and objective.group_filter == "none":
        yield "objective.max_refills has no effect with group_filter 'none'"
