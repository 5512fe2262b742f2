"""From the recipe to its problems: read, made, without what is too long or there already, and put into decks.

    [data]      ─▶ rows ─▶ problems ─▶ short enough? ─▶ new? ─▶ deck ─┐
    [[data.mix]] …                                              deck ─┴─▶ Supply
    [eval]      ─▶ rows ─▶ problems ─▶ short enough? ─▶ held out

Problems that were given in Python stand in place of a section.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treewise.chat import Chat
from treewise.config import Recipe
from treewise.curriculum import Curriculum
from treewise.data import filter_long, find_columns, load_problems, make_problems, question
from treewise.sections import EvalSection, SourceItem
from treewise.sources import Rows, Stream, has_splits
from treewise.supply import Block, Deck, Supply, too_few
from treewise.types import Problem

Given = Sequence[Problem] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Maker:
    """What rows become problems with.

    Attributes:
        prompt: arguments of `make_problems` for what stands around a problem.
        longest: tokens of a prompt.
        played: whether problems are played in an environment.
        check: raises ValueError for a problem that can't be.
        drop: whether what is there already is left out.
    """

    chat: Chat
    prompt: Mapping[str, Any]
    longest: int
    played: bool
    check: Callable[[Problem], object]
    drop: bool


def maker(recipe: Recipe, chat: Chat, *, room: int | None, played: bool, check: Callable[[Problem], object]) -> Maker:
    """As the recipe says. `room` is the longest sequence of the model, which prompt and answer must fit into."""
    data = recipe.data
    prompt = {
        "chat": chat.has_template,
        "system": data.system,
        "template": data.template,
        "examples": data.examples,
    }
    limits = [data.max_prompt_tokens, None if room is None else room - recipe.rollout.max_new_tokens]
    longest = min((limit for limit in limits if limit is not None), default=10**9)
    return Maker(chat, prompt, longest, played, check, data.duplicates == "drop")


def held_out_problems(
    given: Given | None, section: EvalSection, recipe: Recipe, make: Maker
) -> tuple[list[Problem], str]:
    """The problems to evaluate on, and a line about them."""
    if given is not None:
        problems, note = _given(given, "held_out", make)
    else:
        assert section.source is not None, "the caller asks"
        split = section.split or ("test" if has_splits(section.source) else None)
        known = next((item.subset for item in recipe.data.sources if item.source == section.source), None)
        subset = section.subset or known
        how: dict[str, Any] = {"split": split, "subset": subset, "options": section.options, "limit": section.limit}
        problems, note = load_problems(section.source, **how, **make.prompt)
    problems, long = _short(problems, section.source or "held_out", make)
    if section.name is not None:
        if all("data_source" in problem.info for problem in problems):
            raise ValueError(
                f"eval.name = {section.name!r} has no effect: the held-out problems have a column data_source already"
            )
        problems = [_of(section.name, problem) for problem in problems]
    for problem in problems:
        make.check(problem)
    return problems, note + long


def open_supply(
    given: Given | None, recipe: Recipe, make: Maker, held_out: Sequence[Problem]
) -> tuple[Supply, list[str]]:
    """The decks of the run, and a line about each.

    Raises ValueError for bad rows, a source without problems or with fewer than its share of a step, and options
    without effect.
    """
    held_out_too = {question(problem, played=make.played) for problem in held_out}
    earlier: set[str] = set()
    items = recipe.data.sources if given is None else (SourceItem(source="problems"),)
    decks, notes = [], []
    for number, item in enumerate(items):
        mixed = bool(recipe.data.mix) and given is None
        reader = _Reader(item, make, held_out_too, frozenset(earlier), given=given, mixed=mixed)
        deck = Deck(item.label, reader.read, seed=recipe.train.seed, number=number)
        decks.append(deck)
        if deck.whole:
            earlier |= {question(problem, played=make.played) for problem in deck.first.problems}
        notes.append(reader.note)
    sizes = [item.weight or len(deck.first.problems) for item, deck in zip(items, decks, strict=True)]
    shares = [size / sum(sizes) for size in sizes]
    for deck, share in zip(decks, shares, strict=True):
        wanted = math.ceil(share * recipe.rollout.problems_per_step)
        if deck.whole and wanted > len(deck.first.problems):
            raise ValueError(too_few(wanted, len(deck.first.problems), deck.name))
    section = recipe.curriculum
    if section.bounded and not any(deck.whole for deck in decks):
        raise ValueError(
            "curriculum.low and curriculum.high have no effect on streams, whose problems don't come back soon; leave "
            "out data.stream"
        )
    curriculum = Curriculum(low=section.low, high=section.high, rest=section.rest, score=section.score)
    if len(decks) > 1:
        notes = [f"{share:.0%} of the problems from {note}" for share, note in zip(shares, notes, strict=True)]
    return Supply(decks, curriculum, shares=shares), notes


class _Reader:
    """Blocks of one source's problems."""

    def __init__(
        self,
        item: SourceItem,
        make: Maker,
        held_out: Collection[str],
        earlier: Collection[str],
        *,
        given: Given | None,
        mixed: bool,
    ) -> None:
        """
        Args:
            held_out, earlier: questions of problems to evaluate on, and of the sources before this one.
            mixed: whether its problems need names that tell them from those of other sources.
        """
        self._item, self._make, self._mixed = item, make, mixed
        self._held_out, self._earlier = held_out, earlier
        self.note = ""
        self._columns: tuple[str, str | None] | None = None
        self._others: dict[str, None] = {}  # names of the first block's columns
        self._blocks: dict[str, int] = {}  # ids that the data has, and where their blocks begin
        how: dict[str, Any] = item.model_dump(include={"split", "subset", "options", "limit"})
        self._stream = Stream(item.source, item.stream, **how) if item.stream else None
        if self._stream is None:
            if given is None:
                problems, note = load_problems(item.source, **how, **make.prompt)
            else:
                problems, note = _given(given, "problems", make)
            self._whole = Block(self._first(problems, note), 0)

    def read(self, start: int) -> Block:
        """The block that begins at a row."""
        if self._stream is None:
            return self._whole
        rows, following = self._stream.read(start)
        if not rows and start:  # the source ended with the block before
            return Block((), following)
        if self._columns is None:
            self._columns = find_columns(rows, self._item.source)
            self._others = dict.fromkeys(name for _, row in rows for name in row)
        self._check_ids(rows, start)
        how: dict[str, Any] = {"first": start, "columns": self._columns, "others": self._others, **self._make.prompt}
        problems, note = make_problems(rows, self._item.source, **how)
        if start == 0:
            return Block(self._first(problems, f"{note}; a stream, of which these are the first"), following)
        return Block(self._kept(filter_long(problems, self._make.chat.encode_prompt, self._make.longest)[0]), following)

    def _check_ids(self, rows: Rows, start: int) -> None:
        """Raises ValueError for an id that an earlier block has: what is known of problems is kept by their ids."""
        for where, row in rows:
            identity = row.get("id")
            if identity is not None and self._blocks.setdefault(str(identity), start) != start:
                raise ValueError(f"{where}: the id {identity!r} is that of an earlier row; ids must be different")

    def _first(self, problems: Sequence[Problem], note: str) -> list[Problem]:
        """The first block, with a remark about what is long or there already. Raises ValueError if nothing is left."""
        make = self._make
        short, long = _short(problems, self._item.label, make)
        questions = [question(problem, played=make.played) for problem in short]
        held_out = sum(text in self._held_out for text in questions)
        twice = len(questions) - held_out - len(set(questions) - {*self._held_out, *self._earlier})
        done = "left out" if make.drop else 'data.duplicates = "drop" leaves them out'
        self.note = note + long
        if twice:
            self.note += f"; {twice} ask what an earlier one asks: {done}"
        if held_out:
            self.note += f"; {held_out} are held out, too: {done}"
        kept = self._kept(short)
        if not kept:
            raise ValueError(
                f"all problems of {self._item.label} are held out, too, or stand in earlier sources, so "
                'data.duplicates = "drop" leaves nothing to learn from'
            )
        return kept

    def _kept(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems, without what is there already if that is to be dropped; all of them can be played."""
        make = self._make
        if make.drop:
            first: dict[str, Problem] = {}
            for problem in problems:
                first.setdefault(question(problem, played=make.played), problem)
            known = (self._held_out, self._earlier)
            problems = [problem for text, problem in first.items() if not any(text in texts for texts in known)]
        if self._mixed:
            label = self._item.label
            problems = [_of(label, replace(problem, id=f"{label}/{problem.id}")) for problem in problems]
        for problem in problems:
            make.check(problem)
        return list(problems)


def _given(given: Given, name: str, make: Maker) -> tuple[list[Problem], str]:
    """Problems as they are, or rows of columns."""
    items: list[Any] = list(given)
    problems = [item for item in items if isinstance(item, Problem)]
    if len(problems) < len(items):
        rows: Rows = [(f"{name}[{number}]", dict(item)) for number, item in enumerate(items)]
        return make_problems(rows, name, **make.prompt)
    if not items:
        raise ValueError(f"{name} has no rows")
    twice = [problem for problem, count in Counter(p.id for p in problems).items() if count > 1]
    if twice:
        raise ValueError(f"{name}: {len(twice)} ids are there several times: {', '.join(map(repr, twice[:5]))}")
    return problems, f"{name}: {len(problems)} problems"


def _short(problems: Sequence[Problem], name: str, make: Maker) -> tuple[list[Problem], str]:
    """The problems whose prompts are short enough, and a remark about the others."""
    kept, dropped = filter_long(problems, make.chat.encode_prompt, make.longest)
    if problems and not kept:
        shortest = min(len(make.chat.encode_prompt(problem.prompt)) for problem in problems)
        raise ValueError(
            f"all {len(problems)} prompts of {name} are longer than the {make.longest} tokens that "
            f"data.max_prompt_tokens or the model leaves them: the shortest has {shortest}"
        )
    return kept, f"; {dropped} left out with more than {make.longest} prompt tokens" if dropped else ""


def _of(source: str, problem: Problem) -> Problem:
    """The problem with the name of its source in the column `data_source`, unless it has one."""
    return replace(problem, info={"data_source": source, **problem.info})
