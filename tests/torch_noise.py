"""Random numbers as transformers' DiffusionGemma draws them."""

from __future__ import annotations

from typing import Any

import torch

from edgekit.runtime.sampling.types import Ids


class TorchNoise:
    """The draws of torch's global generator in the order and form in which `generate` makes them."""

    def integers(self, high: int, count: int) -> Ids:
        return torch.randint(0, high, (1, count))[0].numpy()

    def uniform(self, count: int) -> Any:
        raise AssertionError("this loop draws no uniform numbers")

    def gumbel(self, positions: int, vocab_size: int) -> Any:
        # multinomial of one sample is argmax(p / q) with q ~ Exponential(1).
        noise = -torch.empty(positions, vocab_size).exponential_().log().numpy()
        return lambda start, stop: noise[:, start:stop]
