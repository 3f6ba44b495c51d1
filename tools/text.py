"""Text that a terminal can show whatever a model or a file name holds, and sizes as people type them."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

from edgekit.flashload.names import nearest

#: Categories that hide, reorder, break lines or have no glyph: format, surrogate, private, unassigned,
#: separators.
_WITHOUT_GLYPH = frozenset({"Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"(?P<whole>[0-9]+(?:_[0-9]+)*)(?P<part>\.[0-9]+)? ?(?P<unit>[A-Za-z]+)?")
#: Numbers below it are not taken for bytes: nothing that edgekit asks for is as small.
_LEAST_WITHOUT_UNIT = 1_000_000
_JOINER = "\u200d"


def visible(text: str, keep: str = "") -> str:
    """`text` with what a terminal would obey instead of showing replaced, except the characters in `keep`.

    Control characters become their pictures (ESC is U+241B), other invisible ones `<U+202E>`.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else _picture(c) for c in text)


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
    if match is None:
        raise ValueError(f"size {text!r} is not understood; write 1GB, 512MB, 1.5GiB or a number of bytes")
    given, unit = match["whole"] + (match["part"] or ""), (match["unit"] or "").upper()
    if unit and unit not in _UNITS:
        meant = nearest(unit, _UNITS)
        hint = f"did you mean {given}{_written(meant)}?" if meant in _UNITS else "write 1GB, 512MB or 1.5GiB"
        raise ValueError(f"size {text!r} is not understood; {hint}")
    number = Decimal(given.replace("_", ""))
    if not unit and 0 < number < _LEAST_WITHOUT_UNIT:
        raise ValueError(f"size {text!r} has no unit: {given} bytes? write {given}GB or {given}MB")
    if match["part"] and unit == "B":
        raise ValueError(f"size {text!r} is not understood; there are only whole bytes")
    return int(number * _UNITS[unit or "B"])


def _written(unit: str) -> str:
    return unit.replace("IB", "iB").replace("KB", "kB")
