"""How a layer's queries and keys are turned by position, as the manifest says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Rope:
    """Angles p * inverse_frequency[j] at position p, and a factor for the rotated queries: 1 + beta *
    log1p(floor(p / period)); beta 0: none.
    """

    inverse_frequency: tuple[float, ...]
    beta: float = 0.0
    period: int = 1

    @property
    def widths(self) -> dict[str, int]:
        """The last sizes of the inputs of layers that come of it, by name."""
        half = len(self.inverse_frequency)
        return {"cos": half, "sin": half} | ({"query_scale": 1} if self.beta else {})

    def tables(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Those inputs, float32 [T, width], for integer positions [T]."""
        angle = positions[:, None].astype(np.float32) * np.array(self.inverse_frequency, np.float32)
        found = {"cos": np.cos(angle), "sin": np.sin(angle)}
        if self.beta:
            factors = 1 + self.beta * np.log1p(positions // self.period)
            found["query_scale"] = factors[:, None].astype(np.float32)
        return found


def ropes(model: Mapping[str, Any]) -> dict[str, Rope]:
    """The ropes of a manifest's `model` section, which has been checked, by name."""
    scales = model.get("query_scales") or {}
    return {
        name: Rope(tuple(frequencies), *((own["beta"], own["positions"]) if own else ()))
        for name, frequencies, own in ((n, f, scales.get(n)) for n, f in model["ropes"].items())
    }
