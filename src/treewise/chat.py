"""Prompts to token ids and ids back to text, for one tokenizer.

    messages ──chat template──▶ <|im_start|>user⏎ hi <|im_end|>⏎ <|im_start|>assistant⏎ [<think>⏎]
                                 control tokens │ data: always plain text                  prefill

Data never writes a control token: where a message holds the characters of one, they are encoded as
ordinary text, so that data can't forge a turn. All other prompts get exactly the ids that the
tokenizer's own `apply_chat_template` gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treewise.types import IntArray, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Chat:
    """A tokenizer's chat template, beginning- and end-of-turn rules.

    `model_eos` is the model's `generation_config.eos_token_id`; `template_options` go to the chat template
    (`{"enable_thinking": False}`).

    end_ids: every id that ends a reply: the tokenizer's, the model's and the template's end of turn.
    prefill: what the template writes after the assistant's header, such as "<think>\\n"; "" otherwise.
    vocab_size: ids at or above it are padding of the model's vocabulary and mean nothing.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        model_eos: int | Iterable[int] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.has_template = bool(tokenizer.chat_template)
        self._options = dict(template_options or {})
        self._latest: tuple[str | list[Message], IntArray] | None = None
        self.vocab_size: int = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values()))
        self._beginning = _beginning_ids(tokenizer)
        header, self.prefill, ending = self._probe() if self.has_template else ("", "", "")
        self._control_ids = _control_ids(tokenizer, header + ending)
        longest_first = sorted(self._control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        end_of_turn = self._control.search(ending)
        model_ids = [model_eos] if isinstance(model_eos, int) else list(model_eos or ())
        tokenizer_ids = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        template_ids = [self._control_ids[end_of_turn.group()]] if end_of_turn else []
        self.end_ids = frozenset(map(int, model_ids + tokenizer_ids + template_ids))

    def encode_prompt(self, prompt: str | Sequence[Message]) -> IntArray:
        """Ids[n] of plain text as it stands, or of messages with the header of the reply that follows.

        Raises ValueError for an empty prompt, and for messages without a chat template.
        """
        if self._latest is not None and self._latest[0] == prompt:  # a group shares its prompt
            return self._latest[1]
        ids = self._encode_text(prompt) if isinstance(prompt, str) else self._encode_messages(prompt)
        if ids[: len(self._beginning)] != self._beginning:
            ids = self._beginning + ids
        if not ids:
            raise ValueError(f"the prompt {prompt!r} has no tokens: a model needs at least one to continue")
        encoded = np.asarray(ids, dtype=np.int64)
        kept = prompt if isinstance(prompt, str) else [message.copy() for message in prompt]
        self._latest = (kept, encoded)
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` without special and end-of-turn tokens; vocabulary padding has no text."""
        known = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in self.end_ids]
        return str(self.tokenizer.decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def check_stop(self, stop: Iterable[str]) -> None:
        """Raises ValueError for a stop string with a control token in it, which no text of a reply has."""
        for string in stop:
            if match := self._control.search(string):
                ends = self._control_ids[match.group()] in self.end_ids
                why = "which ends replies anyway" if ends else "not text; eos_token_id of the model can have its id"
                raise ValueError(f"the stop string {string!r} has no effect: {match.group()} is a token, {why}")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token by itself, special ones included. It is for people: a character that is
        made of several tokens shows as replacement characters."""
        return [self._piece(int(i)) if 0 <= i < self.vocab_size else "" for i in ids]

    def _piece(self, number: int) -> str:
        text = str(self.tokenizer.decode([number], clean_up_tokenization_spaces=False))
        starts_word = str(self.tokenizer.convert_ids_to_tokens(number)).startswith("▁")
        return f" {text}" if starts_word and not text.startswith(" ") else text

    def _encode_text(self, text: str) -> list[int]:
        return self._encode_pieces(self._split(text))

    def _split(self, text: str) -> list[str]:
        """The text at control tokens' texts, which are every second piece."""
        return re.split(f"({self._control.pattern})", text)

    def _encode_messages(self, messages: Sequence[Message]) -> list[int]:
        if not self.has_template:
            raise ValueError(
                f"the prompt is chat messages, but the tokenizer {self.tokenizer.name_or_path!r} has no chat"
                " template: use an instruct model, or text prompts without a system message and examples"
            )
        mark = _unused_mark(messages)
        hidden, found = self._hide(messages, mark)
        pieces = _reveal(self._render(hidden, reply_follows=True), mark, found)
        return self._encode_pieces(pieces)

    def encode_between(self, prompt: str | Sequence[Message], reply: str, more: Sequence[Message]) -> IntArray | None:
        """What stands between a finished reply and the next one: the template's end of turn, the messages `more`,
        and the header of the next reply.

        Args:
            prompt: all that the model had seen when it replied.
            reply: its text.
            more: what comes now. Behind a text prompt its texts are appended as they stand.

        Returns:
            ids[n], or `None` if the template changes what stands before them. Some take the thinking out of past turns:
            then the model is not given a continuation of what it has seen.
        """
        if isinstance(prompt, str):
            text = "".join(message["content"] for message in more)
            return np.asarray(self._encode_pieces(["", "", *self._split(text)]), dtype=np.int64)
        answer: Message = {"role": "assistant", "content": self.prefill + reply}
        mark = _unused_mark([*prompt, answer, *more])
        hidden, found = self._hide(more, mark)
        marked = self._render([*prompt, {**answer, "content": f"{mark}reply"}, *hidden], reply_follows=True)
        _, there, after = marked.rpartition(f"{mark}reply")
        if not there:
            return None
        pieces = _reveal(after, mark, found)
        opened = self._render(prompt, reply_follows=True)
        whole = self._render([*prompt, answer, *more], reply_follows=True)
        ending = "".join(pieces)
        kept = whole.startswith(opened) and whole[len(opened) :].endswith(ending)
        # Templates may trim a reply, which changes nothing that the model would miss.
        kept = kept and whole[len(opened) : len(whole) - len(ending)].strip() == reply.strip()
        return np.asarray(self._encode_pieces(["", "", *pieces]), dtype=np.int64) if kept else None

    def _hide(self, messages: Sequence[Message], mark: str) -> tuple[list[Message], list[str]]:
        """The messages with a numbered mark for every control token's text in them, and these texts."""
        found: list[str] = []

        def hide(match: re.Match[str]) -> str:
            found.append(match.group())
            return f"{mark}{len(found) - 1}x"

        hidden: list[Message] = []
        for message in messages:
            if self._control.search(message["role"]):
                raise ValueError(f"the role {message['role']!r} of a message contains a control token")
            hidden.append({"role": message["role"], "content": self._control.sub(hide, message["content"])})
        return hidden, found

    def _render(self, messages: Sequence[Message], *, reply_follows: bool) -> str:
        # A list of fresh dictionaries: templates may change what they are given.
        rendered = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=reply_follows,
            **self._options,
        )
        return str(rendered)

    def _encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Pieces 0, 2, … are encoded with their control tokens, pieces 1, 3, … as plain text without any."""
        ids = self._encode(pieces[0])
        for number, piece in enumerate(pieces[1:], start=1):
            ids += self._encode_inside(piece) if number % 2 == 0 else self._encode_plain(piece)
        return ids

    def _encode(self, text: str, *, plain: bool = False) -> list[int]:
        # Without special tokens, because a tokenizer may also append an end of sequence.
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=plain))

    def _encode_inside(self, text: str, *, plain: bool = False) -> list[int]:
        """Encode what stands inside a longer text: SentencePiece puts a space before the first word of a
        string, so the string starts with a line break that is cut off again."""
        start = self._encode("\n")
        ids = self._encode("\n" + text, plain=plain)
        return ids[len(start) :] if ids[: len(start)] == start else self._encode(text, plain=plain)

    def _encode_plain(self, control: str) -> list[int]:
        forbidden = set(self._control_ids.values())
        ids = self._encode_inside(control, plain=True)
        if forbidden.intersection(ids):  # not marked special, or in the model's own vocabulary: break it up
            ids = self._encode_inside(control[:1], plain=True) + self._encode_inside(control[1:], plain=True)
        if forbidden.intersection(ids):
            raise ValueError(f"a prompt contains {control!r}, and this tokenizer can't encode that as plain text")
        return ids

    def _probe(self) -> tuple[str, str, str]:
        """What the template writes around a reply: (all of a first turn up to the reply, the prefill part
        of it, what follows a finished reply)."""
        from jinja2.exceptions import TemplateError

        ask: Message = {"role": "user", "content": "qqaskqq"}
        reply: Message = {"role": "assistant", "content": "qqreplyqq"}
        opened = self._render([ask], reply_follows=True)
        try:
            past = self._render([ask, reply, ask], reply_follows=False)
            finished = self._render([ask, reply], reply_follows=False)
        except TemplateError:  # a template may refuse conversations with several turns
            past = finished = ""
        # Templates that write an empty thinking block into past turns share "<think>" with the opened one.
        shared = len(opened)
        if "qqreplyqq" in past:
            shared = next((i for i, (a, b) in enumerate(zip(opened, past, strict=False)) if a != b), shared)
        open_tag = re.search(r"<[a-zA-Z_]+>\s*$", opened[opened.rfind("qqaskqq") + 7 :])
        prefill = max(opened[shared:], open_tag.group() if open_tag else "", key=len)
        return opened[: len(opened) - len(prefill)], prefill, finished.partition("qqreplyqq")[2]


def _beginning_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that the tokenizer puts before any plain text: [BOS], or nothing."""
    bare = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a")
    starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
    return list(full[: starts[0]]) if starts else []


def _control_ids(tokenizer: PreTrainedTokenizerBase, around: str) -> dict[str, int]:
    """Text → id of the tokens that data must not write: all special ones, and others that stand around turns
    (DeepSeek's <｜User｜> isn't marked special). Tags like <think> stay usable in data."""
    added = tokenizer.added_tokens_decoder.items()
    return {
        token.content: int(number)
        for number, token in added
        if token.content.strip() and (token.special or token.content in around)
    }


def _reveal(rendered: str, mark: str, found: Sequence[str]) -> list[str]:
    """The rendered text in pieces: every second one is what had been hidden behind a mark."""
    pieces = re.split(f"{mark}([0-9]+)x", rendered)
    pieces[1::2] = [found[int(number)] for number in pieces[1::2]]
    return pieces


def _unused_mark(messages: Iterable[Message]) -> str:
    """A word that no message contains; plain letters, which no template trims, escapes or splits."""
    joined = "\0".join(message["content"] for message in messages)
    number = 0
    while f"qqtext{number}qq" in joined:
        number += 1
    return f"qqtext{number}qq"
