"""Texts on which tokenizers are compared: many scripts, words, blanks, emoji, control characters, tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

#: Ranges of characters; those that are drawn more often stand there twice.
BLOCKS = (
    (0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xF900, 0xFDFF), (0xFE00, 0xFE0F), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x10000, 0x10FFFF),
    (0, 0x1F),
)  # fmt: skip
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "don't",
    "I'LL",
    "we've",
    "THEY'RE",
    "123",
    "45678",
    "http://a.b/c?d=e#f",
    "return",
    "x\n\n\t\tif",
    "\r\n",
    "'ſ",
    "K's",
    "<b>",
]


def lines(seed: int, count: int, added: Sequence[str] = ()) -> Iterator[str]:
    """Texts of many scripts, of words, blanks and tokens."""
    found = random.Random(seed)
    for _ in range(count):
        parts = []
        for _ in range(found.randint(1, 12)):
            kind = found.random()
            if kind < 0.35:
                parts.append(found.choice(WORDS) + found.choice([" ", "", "  ", "\n"]))
            elif kind < 0.45 and added:
                parts.append(found.choice(["", " ", "\n "]) + found.choice(added) + found.choice(["", "  "]))
            elif kind < 0.55:
                parts.append(found.choice(" \n\t\r\u3000\u00a0") * found.randint(1, 9))
            else:
                codes = [found.randint(*found.choice(BLOCKS)) for _ in range(found.randint(1, 8))]
                parts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
        yield "".join(parts)
