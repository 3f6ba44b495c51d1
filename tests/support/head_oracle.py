"""Statistics of a head's scores, from the scores in float64: nothing rounds to a probability of 1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from edgekit.runtime.sampling.types import Floats, HeadOutput

Doubles = NDArray[np.float64]


def others(z: Floats | torch.Tensor) -> Doubles:
    """Sum of exp(z - max z) over all tokens but the argmax, of scores [R, V]: [R]."""
    e, _ = _weights(z)
    return np.asarray(e.sum(-1).numpy())


def entropy(z: Floats | torch.Tensor) -> Doubles:
    """Of softmax(z) in nats, of scores [R, V]: [R]."""
    e, distance = _weights(z)
    total = e.sum(-1)
    return np.asarray((torch.log1p(total) + (e * distance).sum(-1) / (1 + total)).numpy())


def _weights(z: Floats | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """exp(z - max z), 0 at the argmax, and max z - z."""
    wide = torch.as_tensor(z).double()
    top, argmax = wide.max(-1, keepdim=True)
    return torch.exp(wide - top).scatter(-1, argmax, 0), top - wide


def check_saturated(denoise: Callable[[float], HeadOutput], near: float = 1e-5) -> None:
    """`denoise(temperature)` gives statistics and scores. At a temperature at which the other tokens of a row
    have 1e-12 together in the middle, more and less in other rows, the sums are those of the scores within
    `near`, which float32 sums around 1 are not: of 1 + 1e-12 nothing is left."""
    leads = np.diff(np.sort(_logits(denoise(1.0)), 1)[:, -2:])
    temperature = float(np.median(leads)) / 27.6
    out = denoise(temperature)
    z = _logits(out)
    expected = others(z)
    assert ((expected > 1e-30) & (expected < 6e-8)).any(), f"{expected} at temperature {temperature}"
    np.testing.assert_allclose(out.others, expected, rtol=near, atol=1e-37)
    np.testing.assert_allclose(out.entropy, entropy(z), rtol=30 * near, atol=1e-36)
    np.testing.assert_allclose(out.log_z, torch.logsumexp(torch.from_numpy(z).double(), -1), rtol=1e-6)


def _logits(out: HeadOutput) -> Floats:
    assert out.logits is not None
    return out.logits
