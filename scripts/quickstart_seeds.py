"""The quick start over seeds, λ-GRPO beside GRPO: `python scripts/quickstart_seeds.py`.

Runs what is not there yet (about five minutes a run on two cores), then writes docs/quickstart_seeds.png and
docs/quickstart_seeds.md: held-out accuracy before and after by the training format and by the lenient rule, and
the paired gain on the same problems with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from treewise.plot import draw_curves

PRESETS = ("lambda_grpo", "grpo")
LABELS = {"lambda_grpo": "λ-GRPO", "grpo": "GRPO"}
DOCS = Path(__file__).parents[1] / "docs"


def row(label: str, seed: int, run: Path) -> str:
    """One line of the table."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    cells = [label, str(seed)]
    for name in ("numeric", "last_number"):
        gain = summary["gain"][name]
        cells.append(f"{summary['before'][name]['mean']:.3f} → {summary['after'][name]['mean']:.3f}")
        cells.append(f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Run, draw, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/seeds"))
    arguments = parser.parse_args()
    runs = [(p, seed, arguments.output / f"{p}_{seed}") for seed in arguments.seeds for p in PRESETS]
    for preset, seed, run in runs:
        if not (run / "summary.json").exists():
            options = {
                "objective.preset": preset,
                "train.seed": seed,
                "train.output": arguments.output,
                "train.name": run.name,
            }
            words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            subprocess.run([sys.executable, "-m", "treewise.cli", "train", *words], check=True)
    runs.sort(key=lambda entry: (PRESETS.index(entry[0]), entry[1]))
    draw_curves([run for _, _, run in runs], [LABELS[p] for p, _, _ in runs], DOCS / "quickstart_seeds.png")
    lines = [
        "| method | seed | numeric (the training format) | gain [95 %] | last number (lenient) | gain [95 %] |",
        "|---|---|---|---|---|---|",
        *(row(LABELS[preset], seed, run) for preset, seed, run in runs),
    ]
    (DOCS / "quickstart_seeds.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
