"""Numbers of bytes as people read and write them."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"(?P<whole>[0-9]+(?:_[0-9]+)*)(?P<part>\.[0-9]+)? ?(?P<unit>[A-Za-z]+)?")


def size(count: int | float) -> str:
    """Bytes in decimal units, as storage is sold: `1.23 GB`."""
    value, prefixes = float(count), ["", "k", "M", "G", "T"]
    if value < 1000:
        return f"{value:.0f} B"
    while value >= 999.5 and len(prefixes) > 1:
        value /= 1000
        del prefixes[0]
    return f"{value:.0f} {prefixes[0]}B" if value >= 999.5 else f"{value:.3g} {prefixes[0]}B"


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
