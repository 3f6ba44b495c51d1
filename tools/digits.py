"""Numbers as people read them."""

from __future__ import annotations

from decimal import Decimal


def digits(value: float) -> str:
    """A number in three digits, `0.00012`, `12.5`; from a thousand on all of them before the point, `1,008`.
    Never with an exponent.
    """
    return f"{value:,.0f}" if abs(value) >= 999.5 else format(Decimal(f"{value:.3g}"), "f")
