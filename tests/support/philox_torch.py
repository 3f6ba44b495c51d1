"""transformers' DiffusionGemma with the random numbers of the samplers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edgekit.runtime.sampling import PhiloxNoise


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Inside the block its canvases and samples come from the numbers of `seed`, drawn in its own order."""
    noise = PhiloxNoise(seed)

    def randint(*, low: int, high: int, size: tuple[int, int], **more: Any) -> Tensor:
        assert low == 0 and size[0] == 1
        return torch.from_numpy(noise.integers(high, size[1]))[None]

    def multinomial(probabilities: Tensor, num_samples: int) -> Tensor:
        # One sample is the argmax of log p with Gumbel noise.
        assert num_samples == 1
        rows, vocab = probabilities.shape
        gumbel = noise.gumbel(rows, vocab)(0, vocab)
        return (probabilities.log() + torch.from_numpy(np.ascontiguousarray(gumbel))).argmax(-1, keepdim=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randint", randint)
        patch.setattr(torch, "multinomial", multinomial)
        yield
