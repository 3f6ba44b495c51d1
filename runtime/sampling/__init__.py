"""The denoising loops, by model family.

SAMPLERS["llada"].generate(denoiser, prompt_ids, options, noise) runs one; its options come from
SAMPLERS["llada"].options_type(). A family's module is imported when it is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.runtime.sampling.errors import (
    InvalidOption,
    InvalidPrompt,
    NonFiniteLogits,
    SamplingError,
    UnknownSampler,
)
from edgekit.runtime.sampling.events import CancelCheck, Committed, Done, Draft, Event, Stats
from edgekit.runtime.sampling.noise import Noise, PhiloxGumbel, PhiloxNoise
from edgekit.runtime.sampling.types import Denoiser, GumbelTile, HeadOutput, HeadRequest, Ids, Projector

__all__ = [
    "SAMPLERS",
    "CancelCheck",
    "Committed",
    "Denoiser",
    "Done",
    "Draft",
    "Event",
    "GumbelTile",
    "HeadOutput",
    "HeadRequest",
    "InvalidOption",
    "InvalidPrompt",
    "Noise",
    "NonFiniteLogits",
    "PhiloxGumbel",
    "PhiloxNoise",
    "Projector",
    "Sampler",
    "SamplingError",
    "Stats",
    "UnknownSampler",
    "sampler",
]


@dataclass(frozen=True)
class Sampler:
    """A family's loop and its options, imported on first use."""

    family: str
    module: str
    options_name: str

    def options_type(self) -> type[Any]:
        """The frozen dataclass of the family's options, with `from_generation_config(config,
        **overrides)`."""
        options: type[Any] = getattr(importlib.import_module(self.module), self.options_name)
        return options

    def aliases(self) -> Mapping[str, str]:
        """Other names of options, and the fields of the dataclass that they stand for."""
        names: Mapping[str, str] = importlib.import_module(self.module).ALIASES
        return names

    def options(self, config: Mapping[str, Any], /, **overrides: Any) -> Any:
        """Options of a generation config. Raises InvalidOption."""
        return self.options_type().from_generation_config(config, **overrides)

    def generate(
        self,
        denoiser: Denoiser,
        prompt_ids: Ids | Sequence[int],
        options: Any,
        noise: Noise,
        *,
        cancelled: CancelCheck | None = None,
    ) -> Generator[Event, None, None]:
        """Runs the loop; see `generate` of the family's module. Closing the generator ends it."""
        events: Generator[Event, None, None] = importlib.import_module(self.module).generate(
            denoiser, prompt_ids, options, noise, cancelled=cancelled
        )
        return events


SAMPLERS: dict[str, Sampler] = {
    family: Sampler(family, f"{__name__}.{family}", options_name)
    for family, options_name in (
        ("diffusion_gemma", "DiffusionGemmaOptions"),
        ("llada", "LladaOptions"),
        ("dream", "DreamOptions"),
    )
}


def sampler(family: str) -> Sampler:
    """The sampler of a model family. Raises UnknownSampler, which lists the known ones."""
    if family not in SAMPLERS:
        raise UnknownSampler(f"no sampler for model family '{family}'; supported: {', '.join(SAMPLERS)}")
    return SAMPLERS[family]
