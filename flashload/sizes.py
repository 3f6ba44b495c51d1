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
