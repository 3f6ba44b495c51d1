"""The distance of two arrays, in decibels."""

from __future__ import annotations

import numpy as np


def decibels(got: np.ndarray, expected: np.ndarray) -> float:
    """Peak signal to noise ratio."""
    error = np.sqrt(np.mean((got.astype(np.float64) - expected) ** 2))
    return float(20 * np.log10(np.abs(expected).max() / max(error, 1e-30)))
