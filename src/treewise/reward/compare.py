"""math-verify's comparison, as it runs in the worker of `treewise.reward.math`; import it only there.

math-verify limits its time by signals, which don't work in threads and don't stop C code. Here it has no
limit of its own: the worker's deadline ends it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import math_verify

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that it has no time limit


def compare(*, gold: str, answers: Sequence[str]) -> tuple[bool | None, str | None]:
    """Whether all of `answers` are equal to `gold`, and the cause if that isn't True."""
    # Text comes back for what can't be parsed. Comparing that would judge some replies and not others.
    golds = [one for one in math_verify.parse(gold, parsing_timeout=None) if not isinstance(one, str)]
    if not golds:
        return None, "the gold answer can't be parsed"
    for answer in answers:
        parsed = [one for one in math_verify.parse(answer, parsing_timeout=None) if not isinstance(one, str)]
        if not parsed:
            return False, "the answer can't be parsed"
        errors = []
        for one_gold, one in itertools.product(golds, parsed):
            try:
                if math_verify.verify(one_gold, one, timeout_seconds=None, raise_on_error=True):
                    break
            except Exception as error:  # of sympy, for pairs that it can't compare; another pair may be equal
                errors.append(f"error: {type(error).__name__}: {error}")
        else:
            return (None, errors[0]) if errors else (False, "not equal")
    return True, None
