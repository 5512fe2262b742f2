"""How a run begins, is saved, is interrupted, and goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from treewise import checkpoint, track
from treewise.config import Recipe
from treewise.recipe import load_recipe
from treewise.session import Session

CAUSES, CAUSE_LENGTH, OTHER_CAUSES = 20, 120, "other causes"


@dataclass(slots=True)
class Progress:
    """Where a run stands: all that the loop changes, besides weights and moments.

    Attributes:
        step, updates: steps of the loop and of the optimizer done.
        batches: batches of problems drawn; more than steps where dropped groups were replaced.
        skipped_in_a_row: optimizer steps with a gradient that was not finite, up to the last one.
        best: step and held-out reward of the best evaluation.
        first: the row of the evaluation before training.
        no_verdict: how many answers had none, by cause.
        sizes: bytes of the JSONL files, where a resumed run cuts them back to.
    """

    step: int = 0
    updates: int = 0
    batches: int = 0
    skipped_in_a_row: int = 0
    best: dict[str, Any] | None = None
    first: dict[str, Any] | None = None
    no_verdict: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def count(self, causes: Iterable[str | None]) -> None:
        """Note why answers had no verdict. Causes are free text: of many different ones the first are kept."""
        for cause in causes:
            name = (cause or "no cause").splitlines()[0][:CAUSE_LENGTH]
            name = name if name in self.no_verdict or len(self.no_verdict) < CAUSES else OTHER_CAUSES
            self.no_verdict[name] = self.no_verdict.get(name, 0) + 1


def _digest(problems: Any) -> str:
    # Tests, schemas and whatever else rewards go by; of an object that is no data its type alone.
    parts = [(p.id, p.prompt, p.answer, p.info) for p in problems]
    text = json.dumps(parts, default=lambda value: type(value).__name__, skipkeys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(recipe: Recipe, session: Session) -> dict[str, Any]:
    """What must not differ between a run and its continuation. The number of steps may."""
    return {
        "recipe": recipe.model_dump(mode="json", exclude={"train": {"steps"}}),
        "objective": str(session.objective),
        "rewards": [(reward.name, reward.weight) for reward in session.rewards],
        "problems": _digest(session.supply.problems),
        "held-out problems": _digest(session.held_out),
    }


def open_saved(resume: str | Path, recipe: Recipe | None) -> tuple[Path, Recipe, Path, dict[str, Any], list[str]]:
    """A run folder to go on with: its recipe, newest complete checkpoint, saved state, and warnings.

    Raises:
        ValueError: if it is no run folder, has no complete checkpoint, or has nothing left to do.
    """
    run = Path(resume)
    if not (run / "config.json").is_file():
        raise ValueError(f"{run} is not a run folder: it has no config.json")
    recipe = recipe or load_recipe(run / "config.json")
    folder, warnings = checkpoint.newest(run)
    if folder is None:
        why = "; ".join(warnings) or "it stopped before one was saved"
        raise ValueError(
            f"{run} has no complete checkpoint to go on from: {why}. Start it anew under another train.name"
        )
    # Trusted as much as the code of the run's own rewards; the states of generators are more than tensors.
    state = torch.load(folder / "trainer.pt", weights_only=False, map_location="cpu")
    if not {"progress", "fingerprint", "optimizer", "supply", "random"} <= state.keys():
        raise ValueError(f"{folder} was written by another version of treewise, and can't be continued by this one")
    if state["progress"]["step"] >= recipe.train.steps and (run / "summary.json").exists():
        raise ValueError(f"{run} has done all of its {recipe.train.steps} steps; give a larger --train.steps to go on")
    saved = _read_versions(run)
    for name, version in track.versions()["packages"].items():
        if saved.get(name, version) != version:
            warnings.append(f"the run was begun with {name} {saved[name]}, this is {version}: not bit for bit the same")
    return run, recipe, folder, state, warnings


def _read_versions(run: Path) -> Mapping[str, str]:
    try:
        return dict(json.loads((run / "versions.json").read_text(encoding="utf-8"))["packages"])
    except (OSError, ValueError, KeyError):
        return {}


def restore(session: Session, state: Mapping[str, Any], recipe: Recipe, run: Path) -> Progress:
    """Put optimizer, generators and sampler where they were.

    Raises:
        ValueError: if recipe, problems or rewards are not those of the run.
    """
    now = fingerprint(recipe, session)
    different = [name for name, value in state["fingerprint"].items() if now[name] != value]
    if different:
        raise ValueError(
            f"{run} was trained with other {' and '.join(different)}. Go on with the same ones; what was given in "
            "Python (problems=, held_out=, reward=, environment=) must be given again: train(resume=…, reward=…)"
        )
    session.optimizer.load_state_dict(state["optimizer"])
    checkpoint.restore_random_states(state["random"])
    if state.get("reference"):
        session.policy.load_reference_state(state["reference"])
    session.supply.load_state_dict(state["supply"])
    progress = Progress(**state["progress"])
    session.sampler.sync(session.policy.model, progress.step)
    return progress


def save(run: Path, recipe: Recipe, session: Session, progress: Progress, records: track.Records) -> None:
    """Write a checkpoint, and delete those that are no longer kept."""
    progress.sizes = records.sizes()
    state = {
        "progress": asdict(progress),
        "fingerprint": fingerprint(recipe, session),
        "optimizer": session.optimizer.state_dict(),
        "supply": session.supply.state_dict(),
        "random": checkpoint.random_states(),
        "reference": session.policy.reference_state() if session.objective.kl_refresh else None,
    }
    checkpoint.save(
        run,
        progress.step,
        model=session.policy.model,
        tokenizer=session.tokenizer,
        masters=session.optimizer.masters,
        state=state,
    )
    track.write_rows(run / "problems.jsonl", session.supply.curriculum.rows())
    best = {progress.best["step"]} if progress.best else set()
    checkpoint.prune(run, progress.step, keep_last=recipe.train.keep_last, keep=best)
