"""Mixtures of experts for engines that run one expert at a time."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit.runtime.engines.mixture import Mixture
from edgekit.runtime.errors import EngineFailed


def test_rows_are_mixed_whatever_the_order_of_the_experts() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 3)).astype(np.float32)
    index = np.array([rng.permutation(4)[:2] for _ in range(5)])
    weight = rng.random((5, 2)).astype(np.float32)
    matrices = rng.standard_normal((4, 3, 3)).astype(np.float32)
    expected = sum(weight[:, j, None] * np.einsum("ti,tij->tj", x, matrices[index[:, j]]) for j in range(2))
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        mixture = Mixture(x, index, weight, 4)
        assert mixture.counts.tolist() == [int((index == e).sum()) for e in range(4)]
        for e in order:
            mixture.add(e, lambda rows, e=e: rows @ matrices[e])  # type: ignore[misc]
        np.testing.assert_allclose(mixture.total(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chosen", [4, -1, 1 << 40])
def test_an_expert_that_is_not_there_is_an_error(chosen: int) -> None:
    """Programs of a stranger's bundle choose: what they leave out would be whatever lay in memory."""
    index = np.array([[0, 1], [chosen, 2]])
    with pytest.raises(EngineFailed, match="the router chose experts from .* to .*, the layer has 4"):
        Mixture(np.ones((2, 3), np.float32), index, np.ones((2, 2), np.float32), 4)
