"""Text that a terminal can show whatever a model or a file name holds."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

#: Categories that hide, reorder, break lines or have no glyph: format, surrogate, private, unassigned,
#: separators.
_WITHOUT_GLYPH = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINER = "\u200d"


def visible(text: str, keep: str = "") -> str:
    """`text` with what a terminal would obey instead of showing replaced, except the characters in `keep`.

    Control characters become their pictures (ESC is U+241B), other invisible ones `<U+202E>`.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else _picture(c) for c in text)


def shortened(line: str, most: int) -> str:
    """`line`, or if it has more than `most` characters its beginning and its end, where the advice is."""
    if len(line) <= most:
        return line
    end = most // 3
    return f"{line[: most - end - 5]} ... {line[-end:]}"


def counted(number: int, what: str) -> str:
    """`1 token`, `2 tokens`, `3 passes`."""
    ending = "es" if what.endswith(("s", "ch")) else "s"
    return f"{number} {what}{'' if number == 1 else ending}"


def enumerated(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    category = unicodedata.category(character)
    if category == "Zs" or character == _JOINER:  # wide spaces; the joiner that builds emoji
        return character
    return f"<U+{code:04X}>" if category in _WITHOUT_GLYPH or category == "Cc" else character
