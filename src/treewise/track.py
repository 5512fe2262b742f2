"""The run folder: what was run, every metric, every rollout, as files that any tool reads.

RUN/config.json      the resolved recipe              RUN/rollouts.jsonl   one trajectory a line
RUN/versions.json    packages, commit, machine        RUN/eval.jsonl       one evaluation a line
RUN/metrics.jsonl    one training step a line         RUN/problems.jsonl   one problem that was asked a line
RUN/checkpoints/     see treewise.checkpoint
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from treewise.types import FloatArray, Group, IntArray

PACKAGES = (
    "treewise",
    "torch",
    "transformers",
    "numpy",
    "peft",
    "datasets",
    "math-verify",
    "reasoning-gym",
    "jsonschema",
    "openai",
)
RECORDS = ("metrics.jsonl", "rollouts.jsonl", "eval.jsonl", "eval_rollouts.jsonl")


def create_run_folder(output: str, name: str | None) -> Path:
    """Make a new, empty run folder.

    Raises:
        ValueError: if a run of that name exists already.
    """
    run = Path(output).resolve() / (name or time.strftime("%Y%m%d-%H%M%S"))
    if name is None:  # two runs that start within a second
        number = 2
        while run.exists():
            run = run.with_name(f"{run.name.split('_')[0]}_{number}")
            number += 1
    try:
        run.mkdir(parents=True)
    except FileExistsError:
        raise ValueError(
            f"the run folder {run} exists; continue it with --resume {run}, or choose another train.name"
        ) from None
    except OSError as error:
        raise ValueError(f"can't make the run folder {run}: {error.strerror}") from error
    return run


def git_commit(folder: Path = Path(__file__).parent) -> str | None:
    """The commit that a folder is at, by default this package's own, with `-dirty` if files in it differ.

    `None` without a repository that keeps files of the folder: one may lie around an installed package by chance.
    """
    command = ["git", "--no-optional-locks", "-C", str(folder)]
    try:
        kept, status = (
            subprocess.run([*command, *words], capture_output=True, text=True, errors="replace", timeout=10).stdout
            for words in (
                ["ls-files", "--", "."],
                ["status", "--porcelain=v2", "--branch", "--untracked-files=no", "--", "."],
            )
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    commits = [line.split()[-1] for line in status.splitlines() if line.startswith("# branch.oid")]
    if not kept or commits in ([], ["(initial)"]):
        return None
    changed = any(not line.startswith("#") for line in status.splitlines())
    return commits[0] + ("-dirty" if changed else "")


def versions() -> dict[str, Any]:
    """What the numbers of a run depend on besides its recipe."""
    import torch

    packages = {}
    for package in PACKAGES:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": packages,
        "commit": git_commit(),
        "directory_commit": git_commit(Path()),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON in one step, so that no reader sees half a file."""
    partial = path.with_name(f".{path.name}.partial")
    # A lone surrogate, of a path that is no Unicode, has no UTF-8; its escape is valid JSON.
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a JSONL file anew, in one step."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(b"".join(map(_line, rows)))
    partial.replace(path)


def _line(row: Mapping[str, Any]) -> bytes:
    # A lone surrogate has no UTF-8; its escape is valid JSON.
    return json.dumps(plain(row), ensure_ascii=False, default=str).encode(errors="backslashreplace") + b"\n"


def plain(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _logprobs(values: FloatArray) -> dict[str, Any]:
    """The sampler's log-probs; where it could not tell one, they are not the policy's for all tokens."""
    if np.isfinite(values).all():
        return {"logprobs": [round(float(x), 6) for x in values]}
    return {"sampler_logprobs": [round(float(x), 6) if math.isfinite(x) else None for x in values]}


class Records:
    """Appends to a run's JSONL files. A checkpoint keeps their `sizes()`; continuing from it cuts them back
    there, so that a step which runs again is not counted twice."""

    def __init__(self, run: Path, sizes: Mapping[str, int]) -> None:
        self.warnings: list[str] = []
        self._files = {name: (run / name).open("ab") for name in RECORDS}
        for name, size in sizes.items():
            file = self._files[name]
            if file.tell() < size:
                self.warnings.append(f"{run / name} has lost {size - file.tell()} bytes since it was saved")
            file.truncate(min(size, file.tell()))
            file.seek(0, os.SEEK_END)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        file = self._files[name]
        file.write(_line(row))
        file.flush()

    def metrics(self, row: Mapping[str, Any]) -> None:
        """One training step."""
        self._append("metrics.jsonl", row)

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """One evaluation."""
        self._append("eval.jsonl", row)

    def rollouts(
        self,
        step: int,
        groups: Sequence[Group],
        pieces: Callable[[IntArray], list[str]],
        name: str = "rollouts.jsonl",
        *,
        kept: int | None = None,
    ) -> None:
        """Every trajectory of a step; `pieces` gives the text of each token. The step learns from the first `kept`
        groups, or from all."""
        times: Counter[str] = Counter()  # a problem may come twice, where dropped groups were replaced
        for number, group in enumerate(groups):
            again = f".{times[group.problem.id]}" if times[group.problem.id] else ""
            times[group.problem.id] += 1
            for index, t in enumerate(group.trajectories):
                start = int(t.sampled.argmax()) if t.sampled.any() else len(t.tokens)
                self._append(
                    name,
                    {
                        "group": f"{step}{again}:{group.problem.id}",
                        "step": step,
                        "problem": group.problem.id,
                        "index": index,
                        "prompt": group.problem.prompt,
                        "answer": group.problem.answer,
                        "prompt_ids": t.tokens[:start].tolist(),
                        "tokens": t.tokens[start:].tolist(),
                        "mask": t.sampled[start:].astype(int).tolist(),
                        **_logprobs(t.logprobs[start:]),
                        "pieces": pieces(t.tokens[start:]),
                        "text": t.text,
                        "reward": t.reward,
                        "scores": dict(t.scores),
                        "stop_reason": t.stop_reason,
                        "cause": t.cause,
                        "version": t.version,
                        **({} if kept is None or number < kept else {"kept": False}),
                        **({"steps": [[position - start, value] for position, value in t.steps]} if t.steps else {}),
                        **({"starts": [position - start for position in t.starts]} if t.starts else {}),
                    },
                )

    def sizes(self) -> dict[str, int]:
        """Bytes in each file, all of them on the disk."""
        for file in self._files.values():
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def last_row(path: Path) -> dict[str, Any]:
    """The last row of a JSONL file."""
    return dict(json.loads(path.read_bytes().rstrip(b"\n").rsplit(b"\n", 1)[-1]))


def read_lines(path: Path, *, tail: int | None = None) -> tuple[list[dict[str, Any]], int]:
    """The objects of a JSONL file (of its last `tail` bytes), and how many lines were unreadable."""
    if not path.is_file():
        return [], 0
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - tail) if tail is not None else 0
        if start:
            file.seek(start)
            file.readline()
        lines = [line for line in file if line.strip()]
    rows = list(_objects(lines))
    return rows, len(lines) - len(rows)


def _objects(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row
