"""Rotation by YaRN (arXiv 2309.00071), as transformers computes it from `rope_parameters`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from edgekit.export.models.base import rope_default


@dataclass(frozen=True)
class Yarn:
    """A model trained on `original` positions, stretched to `factor` times as many. Dimensions that turn more
    than `beta_fast` times within `original` positions keep their frequency, those that turn less than
    `beta_slow` times have it divided by `factor`, and the others lie between. `truncate` rounds the two
    borders to whole dimensions.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def inverse_frequency(self, theta: float, dims: int) -> tuple[float, ...]:
        """Frequencies [dims / 2] of a head of `dims` dimensions."""
        low, high = (self._dimension(turns, theta, dims) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dims - 1)
        width = high - low if high != low else 0.001
        slow = ((torch.arange(dims // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
        plain = torch.tensor(rope_default(theta, dims).inverse_frequency)
        return tuple((plain / self.factor * slow + plain * (1 - slow)).tolist())

    def _dimension(self, turns: float, theta: float, dims: int) -> float:
        """The dimension that turns `turns` times within `original` positions."""
        return dims * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    def attention_factor(self, mscale: float | None, mscale_all_dim: float | None) -> float:
        """The factor of rotated queries and of rotated keys, hence with its square of their products."""

        def of(scale: float) -> float:
            return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1.0

        return of(mscale) / of(mscale_all_dim) if mscale and mscale_all_dim else of(1.0)
