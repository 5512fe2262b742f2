"""The loop.

    problems → rollout → groups → trees → credit → pack → log-probs on the tree → objective in trajectory
    space → backward (sum) → clip → step → sampler sync → record

It runs in this order below, one line each. What is left out: several processes and a sampler that runs
ahead of the trainer. Run it with `treewise train`, or from Python with `train(load_recipe())`.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from treewise import checkpoint, track
from treewise.config import Recipe, load_recipe
from treewise.credit import credit_group
from treewise.data import problem_order
from treewise.display import Display
from treewise.evaluate import Evaluation, restore, summarise
from treewise.metrics import step_metrics
from treewise.rollout import collect
from treewise.session import Given, Session, open_session
from treewise.types import Sampling
from treewise.update import update

# The first number of every sampling seed says what the answers are for.
TRAINING, EVALUATION = 0, 1
SHOW_ANSWERS_EVERY = 10


class Diverged(RuntimeError):
    """Too many steps in a row had a gradient that was not finite."""


def train(
    recipe: Recipe | None = None,
    *,
    problems: Given | None = None,
    held_out: Given | None = None,
    reward: Callable[..., Any] | None = None,
    resume: str | Path | None = None,
) -> Path:
    """Train a model as `recipe` says, and return the run folder.

    Args:
        recipe: what to do; `None` is the quick start (or, with `resume`, that run's own recipe).
        problems: in place of `data.source`: dicts with the columns of a data file, or `Problem`s.
        held_out: the same, in place of `eval.source`.
        reward: one function in place of the recipe's rewards.
        resume: a run folder to continue from its newest complete checkpoint.

    Raises:
        ValueError: for bad options, data or models, before anything is trained.
        Diverged: after `train.max_skipped_steps` non-finite steps in a row; the last checkpoint is intact.
    """
    run, recipe, state, source, warnings = _open_run(recipe, resume)
    session = open_session(recipe, source=source, problems=problems, held_out=held_out, reward=reward)
    if state is None:
        state = {"step": 0, "updates": 0, "skipped_in_a_row": 0, "best": None, "first": None, "sizes": None}
        run = track.create_run_folder(recipe.train.output, recipe.train.name)
        track.write_json(run / "config.json", recipe.model_dump(mode="json"))
        track.write_json(run / "versions.json", track.versions())
    else:
        session.optimizer.load_state_dict(state["optimizer"])
        checkpoint.restore_random_states(state["random"])
        session.sampler.sync(session.policy.model, state["step"])
    assert run is not None
    records = track.Records(run, state["sizes"])
    display = Display(total=recipe.train.steps, done=state["step"])
    for line in (f"run folder: {run}", *session.notes):
        display.note(line)
    for line in warnings:
        display.warn(line)
    try:
        with display, _interruptible(display) as interrupted:
            _loop(run, recipe, session, state, records, display, interrupted)
    finally:
        records.close()
    return run


def _loop(
    run: Path,
    recipe: Recipe,
    session: Session,
    state: dict[str, Any],
    records: track.Records,
    display: Display,
    interrupted: Callable[[], bool],
) -> None:
    rollout, loop = recipe.rollout, recipe.train
    sampling = Sampling(rollout.max_new_tokens, temperature=rollout.temperature, stop=rollout.stop)
    order = problem_order(len(session.problems), rollout.problems_per_step, seed=loop.seed, start=state["step"])
    if state["step"] == 0:
        state["first"] = _evaluate(recipe, session, state, records, display)

    for step, numbers in zip(range(state["step"], loop.steps), order, strict=False):
        started = time.perf_counter()
        groups = collect(
            [session.problems[number] for number in numbers],
            group_size=rollout.group_size,
            sampler=session.sampler,
            sampling=sampling,
            chat=session.chat,
            rewards=session.rewards,
            seed=(loop.seed, TRAINING, step),
        )
        sampled = time.perf_counter()
        credited = [credit_group(group, session.objective) for group in groups]
        learned = update(
            credited,
            session.policy,
            session.optimizer,
            session.objective,
            budget=loop.token_budget,
            passes=loop.updates_per_batch,
            minibatches=loop.minibatches,
            first_update=state["updates"],
        )
        updated = time.perf_counter()
        session.sampler.sync(session.policy.model, step + 1)

        state["step"] = step + 1
        state["updates"] += loop.updates_per_batch * loop.minibatches
        metrics = {"step": step + 1, **step_metrics(groups, credited), **learned}
        metrics |= {"time/rollout": sampled - started, "time/update": updated - sampled}
        metrics["step_time"] = time.perf_counter() - started
        records.metrics(metrics)
        records.rollouts(step + 1, groups, session.chat.pieces)
        display.step(metrics)
        _watch(metrics, state, recipe, display)
        if step % SHOW_ANSWERS_EVERY == 0:
            display.answers(max(credited, key=lambda group: float(abs(group.advantages).max(initial=0.0))).group)

        last, best = state["step"] == loop.steps, False
        if last or (recipe.eval.every and state["step"] % recipe.eval.every == 0):
            _evaluate(recipe, session, state, records, display)
            best = state["best"] is not None and state["best"]["step"] == state["step"]
        if last or best or interrupted() or (loop.save_every and state["step"] % loop.save_every == 0):
            _save(run, recipe, session, state, records)
        if interrupted() and not last:
            display.note(f"stopped after step {state['step']}; go on with: treewise train --resume {run}")
            return
    _finish(run, session, state, records, display)


def _evaluate(
    recipe: Recipe, session: Session, state: dict[str, Any], records: track.Records, display: Display
) -> dict[str, Any] | None:
    """Answer the held-out problems once each; remembers the best step so far."""
    if not session.held_out:
        return None
    section = recipe.eval
    sampling = Sampling(
        recipe.rollout.max_new_tokens,
        temperature=section.temperature,
        stop=recipe.rollout.stop,
        top_p=section.top_p,
        top_k=section.top_k,
        min_p=section.min_p,
        repetition_penalty=section.repetition_penalty,
    )
    groups = collect(
        session.held_out,
        group_size=1,
        sampler=session.sampler,
        sampling=sampling,
        chat=session.chat,
        rewards=session.rewards,
        # The same seed each time: two evaluations differ by the weights only.
        seed=(recipe.train.seed, EVALUATION),
    )
    evaluation = summarise(groups)
    row = evaluation.row(state["step"])
    records.evaluation(row)
    parts = [f"{name} {_percent(evaluation, name)}" for name in evaluation.scores]
    display.note(f"held out after step {state['step']}: {', '.join(parts)} (n = {len(groups)})")
    mean = evaluation.interval("reward").mean
    if state["best"] is None or mean > state["best"]["reward"]:
        state["best"] = {"step": state["step"], "reward": mean}
    return row


def _percent(evaluation: Evaluation, name: str) -> str:
    mean, low, high, _ = evaluation.interval(name)
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def _watch(metrics: dict[str, Any], state: dict[str, Any], recipe: Recipe, display: Display) -> None:
    """Say what a person would want to know before hours are lost, and stop a run that has diverged."""
    if metrics["updates/skipped"]:
        state["skipped_in_a_row"] += metrics["updates/skipped"]
        display.warn(f"step {metrics['step']}: the gradient was not finite; the weights were left as they are")
        if state["skipped_in_a_row"] >= recipe.train.max_skipped_steps:
            raise Diverged(
                f"{state['skipped_in_a_row']} optimizer steps in a row had a gradient that was not finite; "
                "lower optimizer.learning_rate, or look at the last rows of metrics.jsonl"
            )
    else:
        state["skipped_in_a_row"] = 0
    answers = recipe.rollout.problems_per_step * recipe.rollout.group_size
    if metrics["no_verdict"] > 0.01 * answers:
        display.warn(
            f"step {metrics['step']}: {metrics['no_verdict']} of {answers} answers got no verdict and were left "
            "out; rollouts.jsonl has each cause. Leaving them out is unbiased only if it doesn't depend on the answer"
        )
    if metrics["step"] <= 5 and metrics["completions/clipped_ratio"] > 0.9 and metrics["frac_reward_zero_std"] == 1.0:
        display.warn(
            f"step {metrics['step']}: {metrics['completions/clipped_ratio']:.0%} of the answers were cut at "
            f"rollout.max_new_tokens = {recipe.rollout.max_new_tokens} and no group has any reward spread, so "
            "nothing is learned; raise the limit"
        )


def _save(run: Path, recipe: Recipe, session: Session, state: dict[str, Any], records: track.Records) -> None:
    state = state | {
        "sizes": records.sizes(),
        "optimizer": session.optimizer.state_dict(),
        "random": checkpoint.random_states(),
    }
    checkpoint.save(
        run,
        state["step"],
        model=session.policy.model,
        tokenizer=session.tokenizer,
        masters=session.optimizer.masters,
        state=state,
    )
    best = {state["best"]["step"]} if state["best"] else set()
    checkpoint.prune(run, keep_last=recipe.train.keep_last, keep=best)


def _open_run(
    recipe: Recipe | None, resume: str | Path | None
) -> tuple[Path | None, Recipe, dict[str, Any] | None, Path | None, list[str]]:
    """The run folder, recipe and saved state to go on from; a new run has neither folder nor state yet."""
    if resume is None:
        return None, recipe or load_recipe(), None, None, []
    run = Path(resume)
    if not (run / "config.json").is_file():
        raise ValueError(f"{run} is not a run folder: it has no config.json")
    if recipe is None:
        recipe = load_recipe(run / "config.json")
    folder, warnings = checkpoint.newest(run)
    if folder is None:
        raise ValueError(
            f"{run} has no complete checkpoint to continue from; {'; '.join(warnings) or 'none was saved'}"
        )
    state = torch.load(folder / "trainer.pt", weights_only=False)
    if state["step"] >= recipe.train.steps:
        raise ValueError(f"{run} has done all of its {recipe.train.steps} steps; give a larger --train.steps to go on")
    return run, recipe, state, folder / "model", warnings


@contextmanager
def _interruptible(display: Display) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the step finish and be saved; a second one stops at once."""
    pressed = itertools.count()
    asked = False

    def on_signal(number: int, frame: Any) -> None:
        nonlocal asked
        if next(pressed):
            raise KeyboardInterrupt
        asked = True
        display.note("stopping: this step is finished and saved first; press Ctrl-C again to stop at once")

    try:
        before = signal.signal(signal.SIGINT, on_signal)
    except ValueError:  # not the main thread: signals are none of our business there
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _finish(run: Path, session: Session, state: dict[str, Any], records: track.Records, display: Display) -> None:
    """Write the model folder, the summary and the picture."""
    checkpoint.save_model(session.policy.model, session.tokenizer, run / "model", session.optimizer.masters)
    summary: dict[str, Any] = {"steps": state["step"], "model": str(run / "model"), "best": state["best"]}
    if state["first"] is not None:
        before = restore(state["first"])
        after = restore(track.last_row(run / "eval.jsonl"))
        summary["gain"] = {name: after.gain(name, before)._asdict() for name in before.scores}
        summary["before"] = {name: before.interval(name)._asdict() for name in before.scores}
        summary["after"] = {name: after.interval(name)._asdict() for name in after.scores}
        display.table(before, after)
    track.write_json(run / "summary.json", track.plain(summary))
    try:
        from treewise.plot import draw_run

        display.note(f"picture: {draw_run(run)}")
    except ImportError:
        display.note("no picture: matplotlib is not installed (pip install 'treewise[quickstart]')")
    except ValueError as error:  # nothing to draw must not spoil a finished run
        display.warn(f"no picture: {error}")
    display.note(f"model: {run / 'model'}  (transformers loads this folder)")
