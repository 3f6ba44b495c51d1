"""What a screen draws of an answer while it resolves, as plain loops over all events so far, and random
events: what `ek_canvas_fold` and `ek_canvas_draw` are compared with, from Python, Java and Swift.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from tokenizers import Tokenizer

#: Stand for a place that is open, and for a token without a text.
OPEN_SIGN, SPECIAL_SIGN = "·", "◦"
OPEN, DRAFT, KEPT, ACCEPTED, COMMITTED = STATES = ("OPEN", "DRAFT", "KEPT", "ACCEPTED", "COMMITTED")
#: Words with and without a space, characters of several tokens, blanks.
SAMPLE = "Ada is 42, é🦊 नमस्ते\n\tthe cat  saß ꙮ"

Cell: TypeAlias = tuple[int, int, str]  # place, token, state
Part: TypeAlias = tuple[str, str]  # text, state


@dataclass(frozen=True)
class Event:
    """`kind`: "draft", "committed" or "done"."""

    kind: str
    canvas: int = 0
    step: int = 0
    start: int = 0
    tokens: tuple[int, ...] = ()
    accepted: tuple[bool, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As `generations.json` of the fixtures for Swift has events."""
        return {
            "kind": self.kind, "canvas": self.canvas, "step": self.step, "start": self.start,
            "ids": list(self.tokens), "accepted": [int(flag) for flag in self.accepted],
        }  # fmt: skip


class Drawing:
    """What is drawn with a tokenizer; `mask` is the token of open places, None for a family that guesses at
    every place.
    """

    def __init__(self, tokenizer: Tokenizer, mask: int | None) -> None:
        self.mask = mask
        self._tokenizer = tokenizer
        self._letter = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        sample = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
        special = [id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special]
        self.tokens = [*dict.fromkeys(sample), *special, 1_000_000]

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens))
        return text

    def read(self, tokens: Sequence[int]) -> str:
        """The text of tokens inside of a sentence: behind a letter."""
        before, text = self.decode(self._letter), self.decode([*self._letter, *tokens])
        return text[len(before) :] if text.startswith(before) else self.decode(tokens)

    def cells(self, events: Sequence[Event]) -> list[Cell]:
        """The final tokens, and the canvas behind them."""
        answer = [token for event in events if event.kind == "committed" for token in event.tokens]
        found = [(place, token, COMMITTED) for place, token in enumerate(answer)]
        told = [event for event in events if event.kind == "draft"]
        redrawn = self.mask is None and events[-1].kind == "committed"
        if not told or redrawn or events[-1].kind == "done":
            return found
        last = told[-1]
        behind = list(enumerate(zip(last.tokens, last.accepted, strict=True), last.start))
        return found + [(p, token, self._state(token, a)) for p, (token, a) in behind if p >= len(answer)]

    def _state(self, token: int, accepted: bool) -> str:
        if accepted:
            return ACCEPTED
        return DRAFT if self.mask is None else OPEN if token == self.mask else KEPT

    def parts(self, cells: Sequence[Cell]) -> list[Part]:
        """Text of neighbours in the same state."""
        made, last, last_special = list[Part](), "", False
        for text, special, state in self._pieces(cells):
            apart = made and special != last_special and not last[-1].isspace() and not text[0].isspace()
            made.append((f" {text}" if apart else text, state))
            last, last_special = text, special
        return [("".join(text for text, _ in group), state) for state, group in groupby(made, lambda p: p[1])]

    def _pieces(self, cells: Sequence[Cell]) -> Iterator[tuple[str, bool, str]]:
        """Texts, whether they stand for a special token, and states."""

        def partial(cell: Cell) -> bool:
            return cell[2] != OPEN and "\ufffd" in self.read([cell[1]])

        final = [cell for cell in cells if cell[2] == COMMITTED]
        rest = list(cells[len(final) :])
        text = self.decode([token for _, token, _ in final])
        if text.endswith("\ufffd") and rest and partial(rest[0]):
            while final and partial(final[-1]):
                rest.insert(0, final.pop())
            text = self.decode([token for _, token, _ in final])
        if text:
            yield text, False, COMMITTED
        # Partial ones in a row are one group, every other one is a group of its own.
        for _, group in groupby(enumerate(rest), lambda each: -1 if partial(each[1]) else each[0]):
            own = [cell for _, cell in group]
            state = min((state for _, _, state in own), key=STATES.index)
            tokens = [token for _, token, _ in own]
            if state == OPEN:
                yield OPEN_SIGN, False, state
            else:
                special = not self.read(tokens)
                text = self.decode(tokens) if own[0][0] == 0 else self.read(tokens)
                if special or text:  # a space at the beginning is neither
                    yield SPECIAL_SIGN if special else text, special, state


def random_events(seed: int, drawing: Drawing) -> list[Event]:
    """A generation that makes no sense: canvases or blocks, tokens that change after they were accepted,
    drafts of a block alone or of all that is open.
    """

    def any_token() -> int:
        return rng.choice(drawing.tokens)

    rng = random.Random(seed)
    mask, whole = drawing.mask, rng.random() < 0.5
    size, count = rng.randint(1, 9), rng.randint(1, 4)
    events, shown = [], [any_token() if mask is None else mask for _ in range(size * count)]
    for canvas in range(count):
        start = canvas * size
        end = len(shown) if whole else start + size
        for step in range(1, rng.randint(1, 5) + 1):
            accepted = []
            for place in range(start, end):
                accepts = place < start + size and rng.random() < 0.3
                if accepts or mask is None or rng.random() < 0.1:
                    shown[place] = shown[place] if rng.random() < 0.5 else any_token()
                accepted.append(accepts)
            events.append(Event("draft", canvas, step, start, tuple(shown[start:end]), tuple(accepted)))
        final = tuple(any_token() if rng.random() < 0.2 else t for t in shown[start : start + size])
        events.append(Event("committed", canvas, 0, start, final))
    return [*events, Event("done")] if rng.random() < 0.8 else events[: rng.randint(1, len(events))]
