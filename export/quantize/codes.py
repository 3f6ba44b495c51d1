"""Codes and scales of one matrix, by rounding to nearest with a search over each group's scale.

4-bit: w[n, k] ~ scales[n] * group_scales[n, k // G] * q[n, k], q in -8..7, group_scales an integer in
1..15. The product of both integers fits int8, so an int8 matrix product computes it exactly with one float
scale per output channel. 8-bit: one symmetric scale per output channel, q in -127..127. Layout of the
codes: see edgekit.export.ops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgekit.export.errors import QuantizationError
from edgekit.export.ops import dequantize

#: The largest integer group scale: 15 * -8 = -120 stays inside int8.
MAX_GROUP_SCALE = 15
#: Rows quantized at a time: bounds the float32 temporaries, whatever the matrix.
ROWS_AT_ONCE_ELEMENTS = 1 << 22
#: Group scales tried around the one that covers the group's largest value; smaller ones clip it in exchange
#: for finer steps.
SEARCH = (-2, -1, 0, 1)
#: What an empty row counts as reaching, so that its scales are not zero but below this.
EMPTY = 1e-30


@dataclass(frozen=True)
class Quantized:
    """One matrix [N, K] in stored form; `bits` 16 keeps the float weight."""

    bits: int
    weight: Tensor  # codes (uint8), or float32 for 16 bits
    group_scales: Tensor | None  # uint8 [N, K / group_size]
    scales: Tensor | None  # float32 [N]
    relative_error: float  # |w - w'| / |w|, Frobenius

    def dequantize(self) -> Tensor:
        """Float32 [N, K]."""
        return dequantize(self.weight, self.group_scales, self.scales)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The stored tensors under their names."""
        if self.bits == 16:
            return {name + ".weight": self.weight}
        assert self.scales is not None
        out = {name + ".codes": self.weight, name + ".scales": self.scales}
        return out if self.group_scales is None else out | {name + ".group_scales": self.group_scales}


def quantize_matrix(weight: Tensor, bits: int, group_size: int) -> Quantized:
    """Quantize a float32 matrix [N, K] to 4 or 8 bits (16 keeps it, rounded to bfloat16).

    Raises:
        QuantizationError: the group size does not divide K, or the weight holds NaN, infinity or values that
            no model has.
    """
    check_finite(weight)
    if bits == 16:
        kept = weight.to(torch.bfloat16).float()
        return Quantized(16, kept, None, None, _relative(kept, weight))
    rows = max(1, ROWS_AT_ONCE_ELEMENTS // weight.shape[1])
    pieces = [_quantize_rows(w, bits, group_size) for w in weight.split(rows)]
    codes, groups, scales, wrong, total = zip(*pieces, strict=True)
    _check_sums(*wrong, *total)
    error = (sum(wrong) / max(sum(total), 1e-30)) ** 0.5
    return Quantized(
        bits,
        torch.cat(codes),
        None if groups[0] is None else torch.cat([g for g in groups if g is not None]),
        torch.cat(scales),
        error,
    )


def check_finite(weight: Tensor) -> None:
    """Refuse a weight of any role that holds NaN or infinity. Raises QuantizationError."""
    if not bool(torch.isfinite(weight).all()):
        raise QuantizationError(
            "the weight holds NaN or infinity; the checkpoint is damaged or was saved in the wrong type"
        )


def _quantize_rows(
    w: Tensor, bits: int, group_size: int
) -> tuple[Tensor, Tensor | None, Tensor, float, float]:
    if bits == 8:
        codes, groups, scales = _int8(w)
    elif bits == 4:
        if w.shape[1] % group_size:
            raise QuantizationError(f"group size {group_size} does not divide {w.shape[1]} columns")
        codes, groups, scales = _int4(w, group_size)
    else:
        raise QuantizationError(f"{bits} bits are not supported; known: 4, 8, 16")
    wrong = (dequantize(codes, groups, scales) - w).square().sum()
    return codes, groups, scales, float(wrong), float(w.square().sum())


def _int8(w: Tensor) -> tuple[Tensor, None, Tensor]:
    scales = w.abs().amax(1).clamp_min(EMPTY) / 127
    q = (w / scales[:, None]).round_().clamp_(-127, 127)
    return (q + 128).to(torch.uint8), None, scales


def _int4(w: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    blocks = w.unflatten(1, (-1, group_size))
    # The value of larger magnitude takes code -8 or 7, whichever side it lies on: -8 reaches an eighth
    # further.
    reach = torch.maximum(blocks.amax(2) / 7, -blocks.amin(2) / 8)
    scales = reach.amax(1).clamp_min(EMPTY) / MAX_GROUP_SCALE
    start = (reach / scales[:, None]).ceil().clamp_(1, MAX_GROUP_SCALE)
    best_group, best_error = start, torch.full_like(start, torch.inf)
    for step in SEARCH:
        group = (start + step).clamp_(1, MAX_GROUP_SCALE)
        unit = (group * scales[:, None])[..., None]
        error = (blocks - (blocks / unit).round_().clamp_(-8, 7) * unit).square().sum(2)
        better = error < best_error
        best_group, best_error = (
            torch.where(better, group, best_group),
            torch.where(better, error, best_error),
        )
    unit = (best_group * scales[:, None])[..., None]
    codes = ((blocks / unit).round_().clamp_(-8, 7) + 8).to(torch.uint8).flatten(1)
    return codes[:, ::2] | (codes[:, 1::2] << 4), best_group.to(torch.uint8), scales


def _relative(a: Tensor, b: Tensor) -> float:
    wrong, whole = (a - b).norm(), b.norm()
    _check_sums(float(wrong), float(whole))
    return float(wrong / whole.clamp_min(1e-30))


def _check_sums(*sums: float) -> None:
    """Refuse sums of squares that have no end: the error that they tell would be no number."""
    if not all(map(math.isfinite, sums)):
        raise QuantizationError(
            "the weight holds values whose squares pass float32; the checkpoint is damaged"
        )
