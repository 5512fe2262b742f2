"""Whether a reply is JSON of a given shape, in a worker process with a deadline.

    {"unit": "cm", "value": 3}                       the whole reply
    I measured it.⏎```json⏎{"value": 3}⏎```          or else what its last fence holds

A schema may hold a pattern that takes for ever on some text, hence the process. No `$ref` is fetched from the network.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, validate_call

from treewise.reward import NoVerdict
from treewise.reward.worker import Worker, WorkerError

DEADLINE_SECONDS = 3.0
_FENCE = re.compile(r"^[ \t]*```[^`\n]*$", re.M)


class JsonSchema:
    """1.0 if the reply is JSON that the schema allows, else 0.0. `format` is not checked, as JSON Schema has it.

    Args:
        schema: a JSON Schema as a table, or the path of a file with one; without it the column `schema` of the data.
        deadline: seconds for one reply.
    """

    @validate_call
    def __init__(
        self, schema: dict[str, Any] | str | None = None, deadline: Annotated[float, Field(gt=0)] = DEADLINE_SECONDS
    ) -> None:
        if importlib.util.find_spec("jsonschema") is None:
            raise ValueError('the reward "json_schema" needs jsonschema: pip install "treewise[schema]"')
        self.schema = _read(Path(schema)) if isinstance(schema, str) else schema
        self.deadline = deadline
        self._worker = Worker("treewise.reward.schema:judge", warm_up={"schema": True, "text": "0"})

    def __call__(self, *, completion: str, schema: Mapping[str, Any] | str | bool | None = None) -> float:
        """The score of a reply. Raises NoVerdict without a right schema, or if judging takes too long."""
        chosen = schema if self.schema is None else self.schema
        if chosen is None:
            raise NoVerdict("no schema: give the option `schema`, or the data a column of that name")
        if isinstance(chosen, str):
            try:
                chosen = json.loads(chosen)
            except ValueError as error:
                raise NoVerdict(f"the column schema is not JSON: {error}") from error
        text = _json_of(completion)
        if text is None:
            return 0.0
        try:
            valid, fault = self._worker.call(deadline=self.deadline, schema=chosen, text=text)
        except (TimeoutError, WorkerError) as error:
            raise NoVerdict(str(error)) from error
        if fault is not None:
            raise NoVerdict(fault)
        return float(valid)

    def close(self) -> None:
        """End the worker process; the next reply starts a new one."""
        self._worker.close()


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"can't read the schema {path}: {error}") from error


def _json_of(reply: str) -> str | None:
    """What is to be JSON: the content of the last fence that is closed, or the whole reply without one; `None` if its
    last fence is not closed."""
    fences = list(_FENCE.finditer(reply))
    if not fences:
        return reply
    opened = len(fences) % 2 == 1
    return None if opened else reply[fences[-2].end() : fences[-1].start()]


def judge(*, schema: Any, text: str) -> tuple[bool, str | None]:
    """In the worker: whether the text is JSON that the schema allows, and what is wrong with the schema."""
    import jsonschema
    from jsonschema_specifications import REGISTRY  # the drafts' own schemas; nothing else is looked up

    try:
        value = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError):
        return False, None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return False, f"the schema is wrong: {error.message}"
    return kind(schema, registry=REGISTRY).is_valid(value), None


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value
