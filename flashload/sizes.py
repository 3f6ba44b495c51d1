"""Numbers of bytes as people read and write them."""

from __future__ import annotations

import re
from decimal import Decimal

from edgekit.flashload.names import nearest

_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(
    r"(?P<whole>[0-9]+(?:_[0-9]+)*)(?P<part>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]{1,3})? ?(?P<unit>[A-Za-z]+)?"
)
#: What a system can count.
MOST_BYTES = 2**63 - 1
#: Numbers below it are not taken for bytes: nothing that edgekit asks for is as small.
_LEAST_WITHOUT_UNIT = 1_000_000


def size(count: int | float) -> str:
    """Bytes in decimal units, as storage is sold: `1.23 GB`."""
    value, prefixes = float(count), ["", "k", "M", "G", "T"]
    if value < 1000:
        return f"{value:.0f} B"
    while value >= 999.5 and len(prefixes) > 1:
        value /= 1000
        del prefixes[0]
    return f"{value:.0f} {prefixes[0]}B" if value >= 999.5 else f"{value:.3g} {prefixes[0]}B"


def exact_size(count: int) -> str:
    """Bytes as somebody gave them, `500 kB` or `1.25 GB`: nine digits, none of them rounded away for show."""
    for unit, prefix in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (1000, "k")):
        if count >= unit:
            return f"{count / unit:.9g} {prefix}B"
    return f"{count} B"


def size_up(count: int) -> str:
    """The size of a need, in three digits that are never less than it: `1.24 GB` for 1,230,000,001 bytes."""
    step = 10 ** max(0, len(str(count)) - 3)
    return size(-(-count // step) * step)


def parse_size(text: str) -> int:
    """Bytes of `1GB`, `512 MB`, `1.5GiB`, `800_000_000` or `8e8`; KB is 1000 bytes, KiB 1024, and so on.

    Raises:
        ValueError: anything else; the message is one line.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"size {text!r} is not understood; write 1GB, 512MB, 1.5GiB or a number of bytes")
    given = "".join(match[part] or "" for part in ("whole", "part", "power"))
    unit = (match["unit"] or "").upper()
    if unit and unit not in _UNITS:
        # Of two letters one may be wrong. Nobody means single bytes.
        meant = nearest(unit, [name for name in _UNITS if name != "B"], 0.5)
        hint = f"did you mean {given}{_written(meant)}?" if meant in _UNITS else "write 1GB, 512MB or 1.5GiB"
        raise ValueError(f"size {text!r} is not understood; {hint}")
    number = Decimal(given.replace("_", ""))
    if not unit and 0 < number < _LEAST_WITHOUT_UNIT:
        raise ValueError(f"size {text!r} has no unit: {given} bytes? write {given}GB or {given}MB")
    if unit in ("", "B") and number != number.to_integral_value():
        raise ValueError(f"size {text!r} is not understood; there are only whole bytes")
    count = number * _UNITS[unit or "B"]
    if count > MOST_BYTES:
        raise ValueError(f"size {text!r} is beyond what any computer has; write 1GB, 512MB or 1.5GiB")
    return int(count)


def _written(unit: str) -> str:
    return unit.replace("IB", "iB").replace("KB", "kB")
