"""Times as people read them."""

from __future__ import annotations

from edgekit.tools.digits import digits


def in_seconds(seconds: float) -> str:
    """A time with two or three digits: `0.35 s`, `12.5 s`, `21 ms`."""
    if seconds < 0.1:
        return f"{digits(1000 * seconds)} ms"
    return f"{digits(seconds)} s"
