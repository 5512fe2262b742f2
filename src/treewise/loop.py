"""The loop.

    problems → rollout → groups → (filter, refill) → trees → credit → pack → log-probs on the tree
        → objective in trajectory space → backward (sum) → clip → step → sampler sync → record

It runs in this order below, one line each. What is left out: several processes and a sampler that runs
ahead of the trainer. Run it with `treewise train`, or from Python with `train(load_recipe())`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treewise import checkpoint, track
from treewise.assess import assess
from treewise.batch import gather
from treewise.config import Recipe
from treewise.display import Display
from treewise.evaluate import Evaluation, sampling_of, summarise
from treewise.evaluate import restore as restore_evaluation
from treewise.lifecycle import Progress, open_saved, restore, save
from treewise.metrics import step_metrics
from treewise.problems import Given
from treewise.recipe import load_recipe
from treewise.rollout import collect
from treewise.session import Session, open_session
from treewise.signals import interruptible
from treewise.types import Group, Sampling
from treewise.update import update
from treewise.watch import watch

# The first number of every sampling seed says what the answers are for.
TRAINING, EVALUATION = 0, 1
SHOW_ANSWERS_EVERY = 10
STOPPING = "stopping: this step is finished and saved first; press Ctrl-C again to stop at once"


def train(
    recipe: Recipe | None = None,
    *,
    problems: Given | None = None,
    held_out: Given | None = None,
    reward: Callable[..., Any] | None = None,
    environment: Callable[..., Any] | None = None,
    resume: str | Path | None = None,
) -> Path:
    """Train a model as `recipe` says, and return the run folder.

    Args:
        recipe: what to do; `None` is the quick start (or, with `resume`, that run's own recipe).
        problems: in place of `data.source`: dicts with the columns of a data file, or `Problem`s.
        held_out: the same, in place of `eval.source`.
        reward: one function in place of the recipe's rewards.
        environment: a class in place of `env.name`, and of the recipe's rewards; `reward` is added to its scores.
        resume: a run folder to continue from its newest complete checkpoint.

    Raises:
        ValueError: for bad options, data or models, before anything is trained.
        FloatingPointError: after `train.max_skipped_steps` non-finite steps in a row; the last checkpoint is intact.
    """
    given: dict[str, Any] = {"problems": problems, "held_out": held_out, "reward": reward, "environment": environment}
    if resume is None:
        recipe = recipe or load_recipe()
        session = open_session(recipe, **given)
        run = track.create_run_folder(recipe.train.output, recipe.train.name)
        progress, warnings = Progress(), list[str]()
        track.write_json(run / "versions.json", track.versions())
    else:
        run, recipe, folder, saved, warnings = open_saved(resume, recipe)
        session = open_session(recipe, source=folder / "model", **given)
        progress = restore(session, saved, recipe, run)
    track.write_json(run / "config.json", recipe.model_dump(mode="json"))
    records = track.Records(run, progress.sizes)
    display = Display(total=recipe.train.steps, done=progress.step)
    for line in (f"run folder: {run}", *session.notes):
        display.note(line)
    for line in [*warnings, *records.warnings]:
        display.warn(line)
    try:
        with display, interruptible(lambda: display.note(STOPPING)) as interrupted:
            finished = _loop(run, recipe, session, progress, records, display, interrupted)
            if finished:
                _finish(run, session, progress, display)
            else:
                again = any(argument is not None for argument in given.values())
                how = f"train(resume={str(run)!r}, …)" if again else f"treewise train --resume {run}"
                display.note(f"stopped after step {progress.step}; go on with: {how}")
    finally:
        records.close()
    return run


def _loop(
    run: Path,
    recipe: Recipe,
    session: Session,
    progress: Progress,
    records: track.Records,
    display: Display,
    interrupted: Callable[[], bool],
) -> bool:
    """Steps until done, or interrupted (then the result is false)."""
    rollout, loop = recipe.rollout, recipe.train
    sampling = Sampling(rollout.max_new_tokens, temperature=rollout.temperature, stop=rollout.stop)
    objective = session.objective
    if progress.step == 0:
        progress.first = _evaluate(recipe, session, progress, records, display)

    def draw(refill: int) -> list[Group]:
        return collect(
            session.supply.draw(rollout.problems_per_step),
            group_size=rollout.group_size,
            sampler=session.sampler,
            sampling=sampling,
            chat=session.chat,
            rewards=session.rewards,
            seed=(loop.seed, TRAINING, progress.batches + refill),
            step_separator=rollout.step_separator,
            make=session.make,
            env=session.env,
        )

    for step in range(progress.step, loop.steps):
        started = time.perf_counter()
        try:
            batch = gather(
                draw,
                objective,
                wanted=rollout.problems_per_step,
                max_new_tokens=rollout.max_new_tokens,
                weights=session.weights,
            )
        except Exception:  # a row of a stream, a reward that fits no reply, somebody's code: what was learned is kept
            if progress.step not in (0, *checkpoint.steps(run)):
                save(run, recipe, session, progress, records)
            raise
        sampled = time.perf_counter()
        credited, seen = assess(
            batch.kept, session.policy, objective, weights=session.weights, budget=loop.token_budget
        )
        learned, progress.skipped_in_a_row = update(
            credited,
            session.policy,
            session.optimizer,
            objective,
            budget=loop.token_budget,
            passes=loop.updates_per_batch,
            minibatches=loop.minibatches,
            first_update=progress.updates,
            skipped_in_a_row=progress.skipped_in_a_row,
        )
        if objective.kl_refresh and (step + 1) % objective.kl_refresh == 0:
            session.policy.refresh_reference()
        updated = time.perf_counter()
        session.sampler.sync(session.policy.model, step + 1)

        session.supply.observe(batch.sampled, step=step + 1)
        progress.step = step + 1
        progress.updates += loop.updates_per_batch * loop.minibatches
        progress.batches += batch.draws
        metrics = {"step": step + 1, **step_metrics(batch.sampled, credited), **learned, **seen}
        metrics |= {"groups/kept": len(batch.kept), "groups/dropped": len(batch.dropped), "groups/draws": batch.draws}
        if recipe.curriculum.bounded:
            metrics["problems/resting"] = session.supply.resting()
        metrics |= {"time/rollout": sampled - started, "time/update": updated - sampled}
        metrics["step_time"] = time.perf_counter() - started
        records.metrics(metrics)
        records.rollouts(step + 1, batch.sampled, session.chat.pieces, kept=len(batch.kept))
        display.step(metrics)
        watch(metrics, batch, credited, progress, recipe, session, display)
        if step % SHOW_ANSWERS_EVERY == 0 and credited:
            display.answers(max(credited, key=lambda group: float(abs(group.advantages).max(initial=0.0))).group)

        last, best, stop = progress.step == loop.steps, False, interrupted()
        if last or (recipe.eval.every and progress.step % recipe.eval.every == 0):
            _evaluate(recipe, session, progress, records, display)
            best = progress.best is not None and progress.best["step"] == progress.step
        if last or best or stop or (loop.save_every and progress.step % loop.save_every == 0):
            save(run, recipe, session, progress, records)
        if stop and not last:
            return False
    return True


def _evaluate(
    recipe: Recipe, session: Session, progress: Progress, records: track.Records, display: Display
) -> dict[str, Any] | None:
    """Answer the held-out problems once each; remembers the best step so far."""
    if not session.held_out:
        return None
    groups = collect(
        session.held_out,
        group_size=1,
        sampler=session.sampler,
        sampling=sampling_of(recipe, recipe.rollout.max_new_tokens),
        chat=session.chat,
        rewards=session.rewards,
        # The same seed each time: two evaluations differ by the weights only.
        seed=(recipe.train.seed, EVALUATION),
        step_separator=recipe.rollout.step_separator,
        make=session.make,
        env=session.env,
    )
    evaluation = summarise(groups)
    row = evaluation.row(progress.step)
    records.evaluation(row)
    records.rollouts(progress.step, groups, session.chat.pieces, "eval_rollouts.jsonl")
    parts = [f"{name} {_percent(evaluation, name)}" for name in evaluation.scores]
    display.note(f"held out after step {progress.step}: {', '.join(parts)} (n = {len(groups)})")
    mean = evaluation.interval("reward").mean
    if math.isfinite(mean) and (progress.best is None or mean > progress.best["reward"]):
        progress.best = {"step": progress.step, "reward": mean}
    return row


def _percent(evaluation: Evaluation, name: str) -> str:
    mean, low, high, _ = evaluation.interval(name)
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def _finish(run: Path, session: Session, progress: Progress, display: Display) -> None:
    """Write the model folder, the summary and the picture."""
    checkpoint.save_model(session.policy.model, session.tokenizer, run / "model", session.optimizer.masters)
    summary: dict[str, Any] = {"steps": progress.step, "model": str(run / "model"), "best": progress.best}
    summary["objective"] = str(session.objective)
    summary["no_verdict"] = {"answers": sum(progress.no_verdict.values()), "causes": progress.no_verdict}
    if progress.first is not None:
        before = restore_evaluation(progress.first)
        after = restore_evaluation(track.last_row(run / "eval.jsonl"))
        summary["gain"] = {name: after.gain(name, before)._asdict() for name in before.scores}
        summary["before"] = {name: before.interval(name)._asdict() for name in before.scores}
        summary["after"] = {name: after.interval(name)._asdict() for name in after.scores}
        display.table(before, after)
    for cause, count in sorted(progress.no_verdict.items(), key=lambda item: -item[1]):
        display.warn(f"{count} answers had no verdict and were left out: {cause}")
    track.write_json(run / "summary.json", track.plain(summary))
    try:
        from treewise.plot import draw_run

        display.note(f"picture: {draw_run(run)}")
    except ImportError:
        display.note("no picture: matplotlib is not installed (pip install 'treewise[quickstart]')")
    except ValueError as error:  # nothing to draw must not spoil a finished run
        display.warn(f"no picture: {error}")
    display.note(f"model: {run / 'model'}  (transformers loads this folder)")
