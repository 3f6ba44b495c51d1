"""Texts for a model to run on, noised as its own are while it denoises: over the whole schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgekit.export.errors import ExportError
from edgekit.export.models.base import Architecture

#: Positions of short passes, half of them a prompt's. Attention averages over fewer rows there, so that what
#: it gives reaches farther than in long ones.
_SHORT = (1, 2, 4, 8, 16, 32, 48)
#: Short passes of each length at least, and positions in all of them where families have no blocks: with few
#: others beside it, what a token gives is its own, and tokens differ.
_SHORT_COUNT, _SHORT_POSITIONS = 4, 128
#: The key of the token that stands for what is not yet known, among `Architecture.defaults`.
_MASK = "mask_token_id"


@dataclass(frozen=True)
class Canvas:
    """A text in the middle of its generation: committed tokens `prompt` [P], `noised` [T] as the model is
    given them, and the tokens `clean` [T] that they stand for. `first` tells that no step came before.
    """

    prompt: Tensor
    noised: Tensor
    clean: Tensor
    first: bool


@dataclass(frozen=True)
class Plan:
    """How many canvases to make, of how many tokens behind a prompt of how many; `seed` decides which. Behind
    them come some of `short` lengths, prompt and canvas together.
    """

    count: int = 16
    prompt: int = 32
    canvas: int = 64
    seed: int = 0
    short: tuple[int, ...] = _SHORT

    def __post_init__(self) -> None:
        if self.count < 2 or self.prompt < 1 or self.canvas < 1:
            raise ExportError(
                f"calibration on {self.count} canvases of {self.canvas} tokens behind {self.prompt} is not "
                "possible; it takes at least 2 canvases, and a token of each"
            )


def canvases(
    architecture: Architecture, plan: Plan, texts: Sequence[Tensor] | None = None
) -> Iterator[Canvas]:
    """Canvases whose share of noise goes from all of them to none in equal steps, those of each short length
    too. A token of noise is the model's mask, or any token where the model has none. `texts` [prompt +
    canvas] each are taken in turn, for short ones a later piece each time; without them tokens are random.

    Raises:
        ExportError: a text is too short.
    """
    generator = torch.Generator().manual_seed(plan.seed)
    mask = architecture.defaults.get(_MASK)
    mask = None if mask is None else int(str(mask))

    def random(count: int) -> Tensor:
        if mask is None:
            return torch.randint(architecture.vocab_size, (count,), generator=generator)
        others = torch.randint(architecture.vocab_size - 1, (count,), generator=generator)
        return others + (others >= mask)

    def made(i: int, count: int, prompt: int, canvas: int) -> Canvas:
        length = prompt + canvas
        text = random(length) if not texts else texts[i % len(texts)]
        if len(text) < length:
            raise ExportError(f"calibration: a text has {len(text)} tokens, prompt and canvas take {length}")
        if texts:
            start = i // len(texts) * length % (len(text) - length + 1)
            text = text[start : start + length]
        clean = text[prompt:]
        noisy = round(canvas * (1 - i / (count - 1)))
        order = torch.randperm(canvas, generator=generator)
        noised = clean.clone()
        own = random(noisy)
        noised[order[:noisy]] = own if mask is None else torch.full_like(own, mask)
        return Canvas(text[:prompt], noised, clean, first=i % 2 == 0)

    for i in range(plan.count):
        yield made(i, plan.count, plan.prompt, plan.canvas)
    for length in plan.short:
        if length == 1 and architecture.causal_prefix:
            continue  # a pass of two has a prompt of one
        # Families of blocks denoise whole blocks, and their short passes are computed one by one.
        positions = 0 if architecture.prefix_block > 1 else _SHORT_POSITIONS
        count = max(_SHORT_COUNT, positions // length)
        for i in range(count):
            yield made(i, count, length // 2, length - length // 2)
