"""What a person sees while a run goes on: notes, a progress bar with the reward, sampled answers.

On a terminal the bar is live; elsewhere (a file, a notebook, CI) every step is one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from treewise.evaluate import Evaluation
from treewise.text import inert
from treewise.types import Group, Trajectory


class _Console(Console):
    """A console whose reader may go away (`| head`, a lost connection) without ending a run of hours."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """Used as a context manager around the loop."""

    def __init__(self, *, total: int, done: int, console: Console | None = None) -> None:
        self.console = console or _Console(highlight=False)
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("[bold]{task.fields[status]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._said: set[str] = set()
        self._task = self._progress.add_task("train", total=total, completed=done, status="")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """A line for the person."""
        self.console.print(escape(text), soft_wrap=True)

    def once(self, text: str) -> None:
        """A line that is worth saying, but not twice."""
        if text not in self._said:
            self._said.add(text)
            self.note(text)

    def warn(self, text: str) -> None:
        """A line that asks for attention."""
        self.console.print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True)

    def step(self, metrics: Mapping[str, Any]) -> None:
        """The figures of a finished step."""
        reward = metrics["reward"]
        status = f"reward {reward:.3f}" if reward is not None else "no verdict"
        status += f"  length {metrics['completions/mean_length']:.0f}  {metrics['step_time']:.1f} s"
        self._progress.update(self._task, advance=1, status=status)
        if not self.console.is_terminal:
            self.console.print(f"step {metrics['step']}  {status}", soft_wrap=True)

    def answers(self, group: Group) -> None:
        """One problem of the step with its best and its worst answer."""
        scored = sorted(
            (t for t in group.trajectories if t.reward is not None),
            key=lambda t: t.reward or 0.0,
            reverse=True,
        )
        prompt = group.problem.prompt
        question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        self.console.print(Text(f"  {inert(question, limit=100)}", style="dim"))
        shown: list[Trajectory] = scored[:1] + (scored[-1:] if len(scored) > 1 else [])
        for trajectory in shown:
            self.console.print(Text(f"    {trajectory.reward:5.2f}  {inert(trajectory.text, limit=100)}"))

    def table(self, before: Evaluation, after: Evaluation) -> None:
        """Held-out scores before and after training, and the paired gain with its 95 % interval."""
        table = Table("held out", "before", "after", "gain [95 %]", box=None, header_style="bold")
        for name in before.scores:
            gain = after.gain(name, before)
            table.add_row(
                name,
                f"{before.interval(name).mean:.3f}",
                f"{after.interval(name).mean:.3f}",
                f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]",
            )
        self.console.print(table)
