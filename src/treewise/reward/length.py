"""Rewards that look at how many tokens a reply has.

soft_overlong    0 ────────╮            0, then down to −1 over the last `buffer` tokens
                           ╰── −1
cosine_length    1 ─────╮              a right reply is worth less, the longer it is; of a wrong one
                        ╰───── ½       (−1 to −½) a longer one is punished less: it has tried
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import cos, pi
from typing import Annotated, Any

from pydantic import Field, validate_call
from pydantic.dataclasses import dataclass

from treewise.reward import NoVerdict
from treewise.reward.call import as_score
from treewise.reward.load import load_reward

Tokens = Annotated[int, Field(ge=1)]


def overlong(length: int, *, limit: float, buffer: float) -> float:
    """0 up to limit − buffer tokens, from there down in a straight line to −1 at the limit and beyond it.

    Source: DAPO, arXiv 2503.14476, eq. 13, with L_max = limit and L_cache = buffer.
    """
    return max(-1.0, min(0.0, (limit - buffer - length) / buffer))


@dataclass(frozen=True)
class SoftOverlong:
    """`−min(1, max(0, tokens − (max_tokens − buffer)) / buffer)`. Source: DAPO, arXiv 2503.14476, eq. 13.

    `objective.overlong_penalty` does the same at the sampler's own limit, for all replies of an episode together. This
    is for another limit, and for the advantage `decoupled`, which looks at single scores.
    """

    max_tokens: Tokens
    buffer: Tokens

    def __post_init__(self) -> None:
        if self.buffer > self.max_tokens:
            raise ValueError(f"buffer = {self.buffer} is more than max_tokens = {self.max_tokens}")

    def __call__(self, *, completion: str, completion_ids: Sequence[int]) -> float:
        return overlong(len(completion_ids), limit=self.max_tokens, buffer=self.buffer)


class CosineLength:
    """`v_L + ½(v_0 − v_L)(1 + cos(π · tokens / max_tokens))`, and `exceed` from max_tokens on.

    A reply is right if the reward that `function` names scores it `reaches` or more. Source: the cosine reward of
    arXiv 2502.03373; the default values are ours.

    Args:
        function: built-in name, or path/file.py:function.
        max_tokens: L of the formula.
        right, wrong: (v_0, v_L), the worth of the shortest reply and that at the limit.
        options: of the reward.
    """

    @validate_call
    def __init__(
        self,
        function: str,
        max_tokens: Tokens,
        right: tuple[float, float] = (1.0, 0.5),
        wrong: tuple[float, float] = (-1.0, -0.5),
        exceed: float = -1.0,
        reaches: float = 1.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.max_tokens, self.right, self.wrong, self.exceed, self.reaches = max_tokens, right, wrong, exceed, reaches
        reward = load_reward(function, options=options)
        if reward.takes != "completion":
            raise ValueError(f"cosine_length needs a reward that judges one reply; {function} judges {reward.takes}")
        self._reward = reward
        assert reward.function is not None, "only an environment's score has none"
        # What it needs is what the reward needs, so that a column that isn't there is noticed at once.
        own = inspect.signature(reward.function)
        added = inspect.Parameter("completion_ids", inspect.Parameter.KEYWORD_ONLY)
        self._passes_ids = "completion_ids" in own.parameters
        parameters = [
            p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in own.parameters.values()
        ]
        parameters += [] if self._passes_ids else [added]
        self.__signature__ = inspect.Signature(sorted(parameters, key=lambda p: p.kind))
        self.keywords = getattr(reward.function, "keywords", {})

    async def __call__(self, *, completion_ids: Sequence[int], **arguments: Any) -> float:
        """The worth of a reply. Raises NoVerdict if nobody says whether it is right."""
        assert self._reward.function is not None, "only an environment's score has none"
        if self._passes_ids:
            arguments["completion_ids"] = completion_ids
        found = self._reward.function(**arguments)
        judged = as_score(await found if inspect.isawaitable(found) else found)
        if judged.score is None:
            raise NoVerdict(judged.cause)
        if len(completion_ids) >= self.max_tokens:
            return self.exceed
        first, last = self.right if judged.score >= self.reaches else self.wrong
        return last + (first - last) * (1 + cos(pi * len(completion_ids) / self.max_tokens)) / 2
