"""What a recipe may say, and which of its options don't go together.

A recipe is frozen. Options that contradict each other or have no effect are errors; see `treewise.recipe` for
how one is read, and `treewise.sections` for what it is made of.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import Field, model_validator

from treewise.axes import owners
from treewise.axes.length_weight import LearnedPreference
from treewise.presets import PRESETS
from treewise.sections import (
    CurriculumSection,
    DataSection,
    EnvSection,
    EvalSection,
    LoraSection,
    ModelSection,
    ObjectiveSection,
    OptimizerSection,
    RewardItem,
    RolloutSection,
    Section,
    TrainSection,
)


def _default_rewards(sections: dict[str, Any]) -> tuple[RewardItem, ...]:
    played = sections.get("env", EnvSection()).name is not None
    return () if played else (RewardItem(function="numeric"),)


class Recipe(Section):
    """Everything that decides what a run does."""

    model: ModelSection = ModelSection()
    lora: LoraSection = LoraSection()
    data: DataSection = DataSection()
    curriculum: CurriculumSection = CurriculumSection()
    env: EnvSection = EnvSection()
    reward: tuple[RewardItem, ...] = Field(
        default_factory=_default_rewards,
        description="reward functions, summed by weight; default numeric, or nothing but the environment's scores",
    )
    rollout: RolloutSection = RolloutSection()
    objective: ObjectiveSection = ObjectiveSection()
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        objective = self.objective.resolve(max_new_tokens=self.rollout.max_new_tokens)
        if isinstance(objective.length_weight, LearnedPreference):
            objective.length_weight.check(self.rollout.group_size)
        if self.train.minibatches > self.rollout.problems_per_step:
            raise ValueError(
                f"train.minibatches = {self.train.minibatches} can't be filled with whole groups: "
                f"rollout.problems_per_step is {self.rollout.problems_per_step}, the most that it can be"
            )
        for source in (*(item.source for item in self.data.sources), self.eval.source or ""):
            own = source.partition(":")[0]
            if own in ("textarena", "verifiers", "verifiers_v0") and self.env.name != own:
                raise ValueError(f'{source} is played and scored by its own code: set env.name = "{own}"')
        judged = self.env.name is not None and (self.env.weights is None or any(self.env.weights.values()))
        if not judged and not any(item.weight for item in self.reward):
            raise ValueError("every reward has weight 0, so nothing could be learned; give one a weight")
        twice = [label for label, count in Counter(item.label for item in self.reward).items() if count > 1]
        if twice:
            raise ValueError(f"several rewards are called {twice[0]}; give all but one of them another `name`")
        gates = [item.label for item in self.reward if item.gate is not None]
        if gates and objective.name("advantage") == "decoupled":
            raise ValueError(
                f"advantage 'decoupled' normalises every reward function on its own, so the gate of {gates[0]} has no "
                "effect; build the condition into the functions"
            )
        updates = self.train.steps * self.train.updates_per_batch * self.train.minibatches
        if self.optimizer.warmup_steps >= updates:
            raise ValueError(
                f"optimizer.warmup_steps = {self.optimizer.warmup_steps} leaves no step at full rate: "
                f"the run has {updates} optimizer steps; lower it"
            )
        if updates == self.train.steps and objective.ratio_base == "trainer":
            # The ratio of the whole answer as one action has another gradient even where it is 1.
            action = "product" in (objective.ratio, PRESETS[self.objective.preset].options.get("ratio"))
            learned = isinstance(objective.length_weight, LearnedPreference)  # from the surrogate's value
            for name in self.objective.given():
                idle = any(owner.startswith("trust_region") for owner in owners(name))
                idle |= (name == "trust_region" and not learned and not action) or (name == "ratio" and not action)
                if idle:
                    raise ValueError(
                        f"objective.{name} has no effect: with one optimizer step per batch the ratio is always 1; "
                        "leave it out, or raise train.updates_per_batch or train.minibatches"
                    )
        return self
