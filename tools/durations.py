"""Times as people read them."""

from __future__ import annotations


def in_seconds(seconds: float) -> str:
    """A time with two or three digits: `0.35 s`, `12.5 s`, `21 ms`."""
    if seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s"
