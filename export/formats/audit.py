"""What an audit of a bundle reads back, for comparison with what the quantizer made."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix [N, K] under the quantizer's name: codes as in `edgekit.export.ops` and the scale of every
    group [N, K / G] in float32; or, with 16 bits, the weight itself and no scales.
    """

    name: str
    bits: int
    weight: Tensor
    scales: Tensor | None
