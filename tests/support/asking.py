"""A procedure that asks for what a test gives it."""

from __future__ import annotations

from typing import Any

from edgekit.runtime.sampling import Done, HeadOutput, Stats, Tell


class Asks:
    """Asks for one thing after another, of a function for what it returns, then ends."""

    def __init__(self, *asks: Any) -> None:
        self.asks = list(asks)

    def next(self, answer: HeadOutput | None = None) -> Any:
        ask = self.asks.pop(0) if self.asks else Tell(Done(Stats()))
        return ask() if callable(ask) else ask

    def copy(self) -> Asks:
        return Asks(*self.asks)
