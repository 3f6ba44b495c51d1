"""Text that a terminal can show whatever a model or a file name holds, and sizes as people type them."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

#: Categories that hide, reorder, break lines or have no glyph: format, surrogate, private, unassigned,
#: separators.
_WITHOUT_GLYPH = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"(?P<whole>[0-9]+(?:_[0-9]+)*)(?P<part>\.[0-9]+)? ?(?P<unit>[A-Za-z]+)?")
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


def parse_size(text: str) -> int:
    """Bytes of `1GB`, `512 MB`, `1.5GiB` or `800_000_000`; KB is 1000 bytes, KiB 1024, and so on.

    Raises:
        ValueError: anything else; the message is one line.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match["unit"].upper() if match and match["unit"] else ""
    if match is None or (unit and unit not in _UNITS) or (match["part"] and unit in ("", "B")):
        raise ValueError(f"size {text!r} is not understood; write 1GB, 512MB, 1.5GiB or a number of bytes")
    number = Decimal(match["whole"].replace("_", "") + (match["part"] or ""))
    return int(number * _UNITS[unit or "B"])
