"""Checkpoints that are complete or don't exist, and model folders that transformers loads.

    RUN/checkpoints/step_000040/
        model/           master weights in float32, config, tokenizer (or the adapter)
        trainer.pt       optimizer moments, counters, random states
        manifest.json    size and SHA-256 of every file; written last

A checkpoint is written under a temporary name, flushed to the disk, and renamed. Whatever a kill at
any moment leaves behind, the newest folder whose manifest holds is the one that loads.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treewise.policy import causal_lm

PREFIX = "step_"


def save_model(model: nn.Module, tokenizer: Any, folder: Path, masters: dict[str, Tensor]) -> None:
    """Write a folder that transformers (or, with adapters, peft) loads, with master weights where there are any."""
    # Names that share a storage in the model share their master too.
    by_storage = {p.data_ptr(): masters[name] for name, p in model.named_parameters() if name in masters}
    adapted = hasattr(model, "peft_config")
    lm: Any = model if adapted else causal_lm(model)
    weights = {name: by_storage.get(t.data_ptr(), t).detach() for name, t in lm.state_dict().items()}
    if not adapted:
        # Whether weights are tied is decided by storage. A config that says otherwise would tie them on loading.
        head, embedding = lm.get_output_embeddings(), lm.get_input_embeddings()
        if head.weight.data_ptr() != embedding.weight.data_ptr():
            lm.config.get_text_config().tie_word_embeddings = lm.config.tie_word_embeddings = False
    lm.save_pretrained(folder, state_dict=weights)
    if not adapted:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["dtype"] = str(next(iter(masters.values())).dtype).removeprefix("torch.")
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tokenizer.save_pretrained(folder)


def random_states() -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's generators (a user's reward may draw from them)."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}


def restore_random_states(states: dict[str, Any]) -> None:
    """Put the generators back to `random_states()`."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(
    run: Path,
    step: int,
    *,
    model: nn.Module,
    tokenizer: Any,
    masters: dict[str, Tensor],
    state: dict[str, Any],
) -> Path:
    """Write the checkpoint of `step` and return its folder.

    Args:
        masters: float32 weights by parameter name, written in the place of the model's own.
        state: what `trainer.pt` holds.
    """
    final = run / "checkpoints" / f"{PREFIX}{step:06d}"
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_model(model, tokenizer, partial / "model", masters)
    torch.save(state, partial / "trainer.pt")
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    manifest = {str(p.relative_to(partial)): {"size": p.stat().st_size, "sha256": _digest(p)} for p in files}
    (partial / "manifest.json").write_text(json.dumps({"step": step, "files": manifest}, indent=1))
    for path in (*files, partial / "manifest.json", partial / "model", partial):
        _flush(path)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    _flush(final.parent)
    return final


def fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder, or `None`."""
    try:
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        files = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its manifest is missing or damaged"
    if "trainer.pt" not in files or not any(name.startswith("model/") for name in files):
        return "its manifest names no model or no trainer.pt"
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if _digest(path) != digest:
            return f"{name} is damaged"
    return None


def steps(run: Path) -> list[int]:
    """Steps that have a checkpoint folder, ascending, complete or not."""
    names = [path.name.removeprefix(PREFIX) for path in (run / "checkpoints").glob(f"{PREFIX}*")]
    return sorted(int(name) for name in names if name.isdigit())


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies."""
    return run / "checkpoints" / f"{PREFIX}{step:06d}"


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, and one warning for every newer one that is damaged."""
    warnings: list[str] = []
    for step in reversed(steps(run)):
        folder = folder_of(run, step)
        wrong = fault(folder)
        if wrong is None:
            return folder, warnings
        warnings.append(f"skipping checkpoint {folder.name}: {wrong}")
    return None, warnings


def prune(run: Path, step: int, *, keep_last: int, keep: set[int]) -> None:
    """Delete checkpoints before `step`, except the last ones and those in `keep`. A newer one is left over from
    before the run was continued; it counts for nothing here."""
    for old in [other for other in steps(run) if other <= step][:-keep_last]:
        if old not in keep:
            shutil.rmtree(folder_of(run, old))
