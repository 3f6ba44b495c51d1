"""Numbers of bytes as people read them."""

from __future__ import annotations


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
    """What is needed, in three digits that are never less than it: `1.24 GB` for 1,230,000,001 bytes."""
    step = 10 ** max(0, len(str(count)) - 3)
    return size(-(-count // step) * step)
