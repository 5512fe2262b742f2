"""Tasksets of the package `verifiers` (0.4): its tasks, its games, its rewards, and our model in the seat of its agent.

    env.run(task, agents) ─▶ agents.solver.interaction(task).turn(message) ─▶ messages ─▶ model
                                                       Segment(reply) ◀─ step(reply) ◀─ reply
    task.finalize, task.score ─▶ trace.rewards ─▶ scores()

A taskset's own code decides what is said and what it is worth, and asks an agent for replies. Here the loop samples
them, so nothing needs a network and no reply is tokenised again. A task's commands run in its subprocess runtime.

Source of the protocol: `verifiers.v1` of release 0.4.0 (Taskset, Task, Env, Trace).
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from treewise.env.asking import Ask, Asking
from treewise.env.verifiers_seat import Seat, opening, plain, recorded
from treewise.text import inert
from treewise.types import Message, Problem

COLUMN = "verifiers"  # of a problem: which task of which taskset it is


class Opened(NamedTuple):
    """A taskset's environment, and its tasks as far as they were asked for."""

    env: Any
    tasks: list[Any]
    more: Iterator[Any]

    def task(self, number: int) -> Any:
        """One of its tasks. Raises IndexError behind the last one."""
        self.tasks.extend(itertools.islice(self.more, max(0, number + 1 - len(self.tasks))))
        return self.tasks[number]


def open_taskset(name: str, options: Mapping[str, Any]) -> Opened:
    """The taskset that `name` names, an importable package or `path/file.py`, with `options` in its config.

    Raises ValueError without verifiers, for a taskset that isn't there, and for options that it refuses.
    """
    return _open(name, json.dumps(options, sort_keys=True))


@cache
def _open(name: str, options: str) -> Opened:
    if importlib.util.find_spec("verifiers") is None or importlib.util.find_spec("verifiers.v1") is None:
        raise ValueError(f'the taskset {name} needs verifiers 0.4: pip install "treewise[verifiers]"')
    from verifiers.v1.utils import loaders

    try:
        identity = _import(name)
        config = loaders.taskset_config_type(identity)(id=identity, **json.loads(options))
        env = loaders.load_environment(loaders.env_config_type(identity)(taskset=config))
        return Opened(env, [], iter(env.taskset))
    except (Exception, SystemExit) as error:  # a taskset is somebody's code
        raise ValueError(f"the taskset {name} fails to load: {type(error).__name__}: {error}") from error


def _import(name: str) -> str:
    """What verifiers calls the taskset. A file is imported under its own name."""
    if not name.endswith(".py"):
        return name
    path = Path(name).resolve()
    identity = f"treewise_taskset_{path.stem}".replace("-", "_").lower()
    found = importlib.util.spec_from_file_location(identity, path)
    assert found is not None, f"{path} ends in .py"
    assert found.loader is not None, f"{path} ends in .py"
    sys.modules[identity] = module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return identity


def rows(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The tasks of a taskset as rows of columns; `options["size"]` is how many, and the others are its config's.

    Raises ValueError like `open_taskset`.
    """
    config = {key: value for key, value in options.items() if key != "size"}
    opened = open_taskset(name, config)
    for number in itertools.count() if "size" not in options else range(options["size"]):
        try:
            data = opened.task(number).data
        except IndexError:
            return
        except Exception as error:  # a taskset is somebody's code, and may want data that aren't there
            words = inert(" ".join(str(error).replace("*", " ").split()))
            raise ValueError(f"task {number} of {name} can't be made: {type(error).__name__}: {words}") from error
        answer = getattr(data, "answer", None)
        yield {
            "id": str(number),
            "prompt": plain(opening(data))
            if data.prompt is not None
            else [{"role": "user", "content": data.name or f"task {number}"}],
            **({} if answer is None else {"answer": answer}),
            COLUMN: {"taskset": name, "options": config, "number": number},
        }


def endless(name: str, options: Mapping[str, Any]) -> bool:
    """Whether there is no last row."""
    config = {key: value for key, value in options.items() if key != "size"}
    return "size" not in options and not open_taskset(name, config).env.taskset.bounded


class Verifiers(Asking):
    """One task. Its score `reward` is the weighted sum of the taskset's rewards; they and its metrics are recorded."""

    weights: Mapping[str, float] = {"reward": 1.0}

    def __init__(self, problem: Problem, *, runtime: Literal["subprocess"] | None = None) -> None:
        """
        Args:
            runtime: where hooks of the task run programs; "subprocess" is this machine, without any protection.

        Raises ValueError for a task with such hooks if there is no runtime.
        """
        env, task = _task_of(problem)
        if runtime not in (None, "subprocess"):
            raise ValueError(f"runtime is {runtime!r}: it can be 'subprocess', or be left out")
        hooks = _with_programs(task)
        if hooks and runtime is None:
            raise ValueError(
                f"{hooks[0]} of {type(task).__name__} may run programs: env.options.runtime = 'subprocess' lets it do "
                "so on this machine, without any protection"
            )
        super().__init__(partial(_play, env, task, runtime is not None))
        self._prompt = (problem.prompt, plain(opening(task.data)))

    @staticmethod
    def check(problem: Problem) -> None:
        """Raises ValueError for a task that can't be played here."""
        env, task = _task_of(problem)
        from verifiers.v1.configs.agent import agent_config_fields
        from verifiers.v1.env import Env
        from verifiers.v1.envs.single_agent import SingleAgentEnv
        from verifiers.v1.session import hook_boundary
        from verifiers.v1.trace import Trace
        from verifiers.v1.utils.decorators import discover_decorated
        from verifiers.v1.utils.loaders import default_harness_id

        seats, data = agent_config_fields(env.config), task.data
        own = [seat.harness for seat in seats.values() if seat.harness is not None and seat.harness.id != "null"]
        limits = (
            "model",
            "client",
            "sampling",
            "max_input_tokens",
            "max_output_tokens",
            "max_total_tokens",
            "max_turns",
        )
        stops = [hook_boundary(hook, allow_trace=True) for hook in task.hooks("stop")]
        reasons = {
            f"it has the agents {', '.join(seats)}, and one model learns here": len(seats) > 1,
            "its tools are servers": bool(task.toolsets(task.config) or env.taskset.toolsets(env.taskset.config)),
            "it needs a container": bool(task.NEEDS_CONTAINER or data.image or data.agent_user),
            "it needs skills, artifacts or rules for the network": bool(
                data.skills or data.artifacts or data.network_block or "*" not in data.network_allow
            ),
            "it has a harness of its own": bool(own) or default_harness_id(env.config.taskset.id) != "bash",
            "it has limits or a model of its own": any(
                getattr(seat, limit) is not None for seat in seats.values() for limit in limits
            ),
            "it starts services": type(env).start is not Env.start,
            "it rewrites requests (@intercept)": bool(discover_decorated(task, "intercept")),
            "it stops on requests or responses": any(boundary is not Trace for boundary in stops),
            "it has no prompt": isinstance(env, SingleAgentEnv) and data.prompt is None,
        }
        for reason, applies in reasons.items():
            if applies:
                raise ValueError(f"problem {problem.id!r} of {type(task).__name__} can't be played: {reason}")

    async def start(self) -> Sequence[Message]:
        asked = await super().start()
        made, own = self._prompt
        # The prompt as the recipe made it, with its system message and template.
        return made if asked == own and not isinstance(made, str) else asked


async def _play(env: Any, task: Any, programs: bool, ask: Ask) -> dict[str, float | None]:
    """One episode, and its scores. Raises what the taskset raises, and RuntimeError for a reward that did not run."""
    from verifiers.v1.agent import Agents
    from verifiers.v1.episode import EnvInfo, Episode

    traces: list[Any] = []
    agents = Agents(env.config, lambda name, spec: Seat(ask, traces, programs=programs))
    await env.setup(agents)
    await env.run(task, agents)
    if len(traces) != 1:
        raise RuntimeError(f"the taskset plays {len(traces)} runs in one episode, and must play one")
    episode = Episode(env=EnvInfo(id=env.config.env_id), task=recorded(task), traces=traces)
    await env.finalize(task, episode)
    (trace,) = episode.traces
    if trace.errors:
        raise RuntimeError(f"{trace.errors[-1].type}: {trace.errors[-1].message}")
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing or not trace.rewards:
        raise RuntimeError(f"the reward {missing[0]} did not run" if missing else "the taskset gave no reward")
    return {**trace.metrics, **{name: reward.score for name, reward in trace.rewards.items()}, "reward": trace.reward}


def _with_programs(task: Any) -> list[str]:
    """The task's hooks that want a runtime to run programs in."""
    from verifiers.v1.task import Task

    lifecycle = [name for name in ("setup", "finalize") if getattr(type(task), name) is not getattr(Task, name)]
    hooks = [*task.hooks("metric"), *task.hooks("reward"), *(getattr(task, name) for name in lifecycle)]
    wanted = [(hook.__name__, inspect.signature(hook).parameters.get("runtime")) for hook in hooks]
    return [name for name, parameter in wanted if parameter is not None and parameter.default is parameter.empty]


def _task_of(problem: Problem) -> tuple[Any, Any]:
    """Raises ValueError for a problem that is none of a taskset."""
    named = problem.info.get(COLUMN)
    if not isinstance(named, Mapping):
        raise ValueError(
            f"problem {problem.id!r} is no task of verifiers, which env.name = 'verifiers' plays: take them from "
            "data.source = 'verifiers:NAME'"
        )
    opened = open_taskset(named["taskset"], named["options"])
    return opened.env, opened.task(named["number"])
