"""What a screen draws of an answer while it resolves, as plain loops over all events so far, and random
events: what `CanvasText` of Java and Swift is compared with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

#: Bytes of tokens, by their ids: characters, words, parts of characters, and special tokens without a text.
TEXTS = tuple(
    text if isinstance(text, bytes) else text.encode()
    for text in ("", "a", " b", "Ada", "é", "\n", "🦊", b"\xf0\x9f", b"\xa6", b"\x8a", b"\xc3", b"\xa9", "")
)
#: Token of places that a masked family leaves open.
MASK = 0
#: Stand for a place that is open, and for a token without a text.
OPEN, SPECIAL = "·", "◦"
DRAFT, ACCEPTED, COMMITTED = STATES = ("DRAFT", "ACCEPTED", "COMMITTED")

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


def decode(tokens: Sequence[int]) -> str:
    """Their text; bytes that are none are U+FFFD."""
    return b"".join(TEXTS[token] for token in tokens).decode(errors="replace")


def cells(events: Sequence[Event]) -> list[Cell]:
    """The final tokens, and the canvas behind them."""
    answer = [token for event in events if event.kind == "committed" for token in event.tokens]
    found = [(place, token, COMMITTED) for place, token in enumerate(answer)]
    drafts = [event for event in events if event.kind == "draft"]
    if events[-1].kind == "done" or not drafts:
        return found
    last = drafts[-1]
    for offset, token in enumerate(last.tokens):
        if (place := last.start + offset) >= len(answer):
            found.append((place, token, ACCEPTED if _is_accepted(drafts, place) else DRAFT))
    return found


def _is_accepted(drafts: Sequence[Event], place: int) -> bool:
    """Whether the last step accepted it, or an earlier one of its canvas, and it has had that token since."""
    last = drafts[-1]
    if last.accepted[place - last.start]:
        return True
    if last.step == 1 or len(drafts) == 1:
        return False
    before = drafts[-2]
    offset = place - before.start
    same = 0 <= offset < len(before.tokens) and before.tokens[offset] == last.tokens[place - last.start]
    return same and _is_accepted(drafts[:-1], place)


def parts(drawn: Sequence[Cell]) -> list[Part]:
    """Text of neighbours in the same state. Tokens that make a character together have the least certain."""
    pieces = [(decode([token for _, token, state in drawn if state == COMMITTED]), COMMITTED)]
    open_cells = [(token, state) for _, token, state in drawn if state != COMMITTED]
    for partial, group in groupby(open_cells, lambda cell: "\ufffd" in decode([cell[0]])):
        own = list(group)
        if partial:
            pieces.append((decode([token for token, _ in own]), min((s for _, s in own), key=STATES.index)))
        else:
            pieces += [(OPEN if token == MASK else decode([token]) or SPECIAL, state) for token, state in own]
    merged = groupby(pieces, lambda piece: piece[1])
    joined = [("".join(text for text, _ in group), state) for state, group in merged]
    return [(text, state) for text, state in joined if text]


def random_events(seed: int) -> list[Event]:
    """A generation that makes no sense: canvases or blocks, tokens that change after they were accepted,
    drafts of a block alone or of all that is open.
    """

    def any_token() -> int:
        return rng.randrange(len(TEXTS))

    rng = random.Random(seed)
    masked, whole = rng.random() < 0.5, rng.random() < 0.5
    size, count = rng.randint(1, 9), rng.randint(1, 4)
    events, shown = [], [MASK if masked else any_token() for _ in range(size * count)]
    for canvas in range(count):
        start = canvas * size
        end = len(shown) if whole else start + size
        for step in range(1, rng.randint(1, 5) + 1):
            accepted = []
            for place in range(start, end):
                accepts = place < start + size and rng.random() < 0.3
                if accepts or not masked or rng.random() < 0.1:
                    shown[place] = shown[place] if rng.random() < 0.5 else any_token()
                accepted.append(accepts)
            events.append(Event("draft", canvas, step, start, tuple(shown[start:end]), tuple(accepted)))
        final = tuple(any_token() if rng.random() < 0.2 else t for t in shown[start : start + size])
        events.append(Event("committed", canvas, 0, start, final))
    return [*events, Event("done")] if rng.random() < 0.8 else events[: rng.randint(1, len(events))]
