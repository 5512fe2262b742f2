"""The command line: `treewise train | inspect | explain | verify | reproduce`."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treewise import __version__
from treewise.axes.conflicts import remarks
from treewise.recipe import QUICK_START, bundled_recipes, load_recipe, make_recipe, options, parse_overrides

Overrides = dict[str, Any]

# Which extra a package that is imported on use belongs to.
EXTRAS = {
    "datasets": "data", "pyarrow": "data", "reasoning_gym": "gym", "math_verify": "math", "peft": "lora",
    "gguf": "quickstart", "matplotlib": "quickstart", "scipy": "reproduce",
}  # fmt: skip
# Everything else that begins with two dashes is an option of the recipe, or of an experiment.
FLAGS = ("--help", "--version", "--resume", "--dry-run", "--json", "--preset")
REPRODUCE_FLAGS = ("--output", "--jobs")


def _train(arguments: argparse.Namespace, overrides: Overrides) -> int:
    if arguments.resume:
        if arguments.recipe:
            raise ValueError(f"--resume continues with the run's own recipe; leave out {arguments.recipe}")
        unexpected = sorted(set(overrides) - {"train.steps"})
        if unexpected:
            raise ValueError(f"--resume continues with the run's own recipe; --{unexpected[0]} can't change it")
        if not Path(arguments.resume, "config.json").is_file():
            raise ValueError(f"{arguments.resume} is not a run folder: it has no config.json")
        recipe = load_recipe(f"{arguments.resume}/config.json", overrides)
    else:
        recipe = load_recipe(arguments.recipe or QUICK_START, overrides)
    if arguments.dry_run:
        print(recipe.model_dump_json(indent=2))
        resolved = recipe.objective.resolve(max_new_tokens=recipe.rollout.max_new_tokens)
        print(f"objective: {resolved}", file=sys.stderr)
        for remark in remarks(resolved, updates=recipe.train.updates_per_batch * recipe.train.minibatches):
            print(remark, file=sys.stderr)
        return 0
    from treewise.loop import train

    train(recipe, resume=arguments.resume)
    return 0


def _inspect(arguments: argparse.Namespace, overrides: Overrides) -> int:
    if overrides:
        raise ValueError(f"inspect takes no recipe options; leave out --{next(iter(overrides))}")
    from treewise.tables import inspect_command

    inspect_command(arguments.file, as_json=arguments.json)
    return 0


def _explain(arguments: argparse.Namespace, overrides: Overrides) -> int:
    foreign = [name for name in overrides if not name.startswith("objective.")]
    if foreign:
        raise ValueError(f"explain takes --objective.… options only, not --{foreign[0]}")
    if "objective.preset" in overrides:
        raise ValueError("give the preset with --preset")
    for name in ("group_filter", "max_refills", "overlong_penalty", "kl_refresh", "preference_rate"):
        if f"objective.{name}" in overrides:
            raise ValueError(f"--objective.{name} has no effect on answers that are recorded already; leave it out")
    # Recorded rollouts may come from an older policy, so here the clip has an effect.
    off_policy = {"train": {"updates_per_batch": 2}}
    recipe = make_recipe(off_policy, {"objective.preset": arguments.preset, **overrides})
    from treewise.records import run_recipe
    from treewise.tables import explain_command

    run = run_recipe(arguments.file)
    limit = None if run is None else run.rollout.max_new_tokens
    explain_command(arguments.file, recipe.objective.resolve(max_new_tokens=limit), as_json=arguments.json)
    return 0


def _verify(arguments: argparse.Namespace, overrides: Overrides) -> int:
    if overrides:
        raise ValueError(f"verify takes no recipe options; leave out --{next(iter(overrides))}")
    from treewise.verify import verify_command

    return verify_command(arguments.file, as_json=arguments.json)


def _reproduce(arguments: argparse.Namespace, overrides: Overrides) -> int:
    from treewise.reproduce.engine import run
    from treewise.reproduce.options import make_options

    if arguments.jobs < 1:
        raise ValueError(f"--jobs is {arguments.jobs}: at least one cell must be measured at a time")
    options = make_options(arguments.name, overrides, arguments.runs)
    folder = Path(arguments.output or f"runs/{arguments.name}")
    run(arguments.name, options, folder=folder, jobs=arguments.jobs, command=arguments.command_line)
    return 0


def _experiment_help(words: Sequence[str]) -> str:
    """Of the experiment that is named, or of all."""
    from treewise.reproduce.options import EXPERIMENTS

    named = {name: kind for name, kind in EXPERIMENTS.items() if name in words}
    lines = ["options of the experiments (a list is written with commas):"]
    for name, kind in (named or EXPERIMENTS).items():
        lines.append(f"\n{name}: {str(kind.__doc__).splitlines()[0]}")
        for field, entry in kind.model_fields.items():
            if field not in ("changes", "runs"):
                default = ",".join(map(str, entry.default)) if isinstance(entry.default, tuple) else entry.default
                shown = "" if default in (None, "") else f" (default {default})"
                lines.append(f"  --{field.replace('_', '-')}  {entry.description}{shown}")
        if "changes" in kind.model_fields:
            lines.append("  --section.field value  any option of `treewise train`")
    return "\n".join([*lines, *(["\nall experiments: treewise reproduce --help"] if named else [])])


def _option_help() -> str:
    lines = [
        "options of a recipe, as TOML sections or --section.field value. Lists and tables are written as in TOML:",
        """  --reward '[{function = "exact"}]' --data.template_options '{enable_thinking = false}'""",
        "The defaults are those of an empty recipe; the quick start sets its own.",
    ]
    for name, default, text in options():
        shown = "" if default in (None, (), {}) or name == "reward" else f" (default {default})".replace("\n", "\\n")
        lines.append(f"  --{name}  {text}{shown}")
    return "\n".join(lines)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="treewise", description="Post-train language models with GRPO and λ-GRPO on the prefix tree."
    )
    parser.add_argument("--version", action="version", version=f"treewise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    train = commands.add_parser(
        "train",
        help="train a model",
        description="Train a model; without a recipe this is the quick start.",
        epilog=_option_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    train.add_argument(
        "recipe", nargs="?", help=f"a TOML file, a run's config.json, or one of: {', '.join(bundled_recipes())}"
    )
    train.add_argument("--resume", metavar="RUN", help="continue a run folder from its newest complete checkpoint")
    train.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    train.set_defaults(run=_train)

    inspect = commands.add_parser(
        "inspect", help="process sets, rewards and advantages of recorded groups", allow_abbrev=False
    )
    inspect.add_argument("file", help='JSONL, one trajectory a line: {"group", "tokens", "reward", …}')
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)

    explain = commands.add_parser(
        "explain",
        help="the loss of recorded groups, token by token",
        description="Takes --objective.… options on top of the preset.",
        allow_abbrev=False,
    )
    explain.add_argument("file", help="as for inspect; lines may carry logprobs, old_logprobs, ref_logprobs")
    explain.add_argument("--preset", required=True, help="the objective, such as grpo or lambda_grpo")
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.set_defaults(run=_explain)

    verify = commands.add_parser(
        "verify",
        help="score recorded answers to mathematical problems, without a model",
        description="The exit code is 1 if a row could not be read; the others are judged all the same.",
        allow_abbrev=False,
    )
    verify.add_argument("file", help='JSONL, one answer a line: {"gold", "answer", …}; answer is the whole reply')
    verify.add_argument("--json", action="store_true", help="print each row with its verdict and cause")
    verify.set_defaults(run=_verify)

    from treewise.reproduce.options import EXPERIMENTS

    reproduce = commands.add_parser(
        "reproduce",
        help="the claims of the paper, measured",
        description="Measure what arXiv 2509.21154 claims. A command that was stopped goes on where it was.",
        epilog=_experiment_help(words),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    reproduce.add_argument("name", choices=EXPERIMENTS, help="the experiment")
    reproduce.add_argument("runs", nargs="*", help="recorded runs to read in place of training (process-trees)")
    reproduce.add_argument("--output", metavar="FOLDER", help="where everything is written (default runs/NAME)")
    reproduce.add_argument("--jobs", type=int, default=1, metavar="N", help="cells measured at a time (default 1)")
    reproduce.set_defaults(run=_reproduce)
    return parser


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own words, and the `--section.field value` options in between."""
    words, own, recipe = list(arguments), [], []
    flags = FLAGS + (REPRODUCE_FLAGS if words[:1] == ["reproduce"] else ())
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word.partition("=")[0] in flags:
            own.append(word)
            continue
        recipe.append(word)
        if "=" not in word and words and not words[0].startswith("--"):
            recipe.append(words.pop(0))
    return own, recipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors that the person can mend are one line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    own, recipe = _split(arguments)
    parsed = _parser(own).parse_args(own)
    parsed.command_line = shlex.join(["treewise", *arguments])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # λ in a terminal that doesn't know it
    try:
        return int(parsed.run(parsed, parse_overrides(recipe)))
    except (ValueError, FloatingPointError) as error:
        print(f"treewise: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(
            f"treewise: this needs the package {error.name}: pip install 'treewise[{EXTRAS[error.name]}]'",
            file=sys.stderr,
        )
        return 2
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 0
    except KeyboardInterrupt as stopped:
        print(f"treewise: {str(stopped) or 'stopped'}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
