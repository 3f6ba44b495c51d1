"""The denoising procedures, by model family.

SAMPLERS["llada"].generate(denoiser, prompt_ids, options, seed) runs one; its options come from
SAMPLERS["llada"].options_type(). A family's module is imported when it is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekit.runtime.sampling.core import CoreSampler, SamplerModel
from edgekit.runtime.sampling.drive import drive
from edgekit.runtime.sampling.errors import (
    InvalidOption,
    InvalidPrompt,
    NonFiniteLogits,
    SamplingError,
    UnknownSampler,
)
from edgekit.runtime.sampling.events import CancelCheck, Committed, Done, Draft, Event, Stats
from edgekit.runtime.sampling.noise import Noise, PhiloxGumbel, PhiloxNoise
from edgekit.runtime.sampling.options import settled
from edgekit.runtime.sampling.passes import check_prompt
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
    """A family's procedure and its options, imported on first use."""

    family: str
    module: str
    options_name: str
    least_prompt: int  # tokens that a prompt needs

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
        self, denoiser: Denoiser, prompt_ids: Ids | Sequence[int], options: Any, seed: int = 0
    ) -> Generator[Event, None, None]:
        """Denoising events; the last is Done. Equal seeds give equal events. Closing it ends the generation
        where it is: the denoiser then holds what was encoded and committed until then.

        Raises InvalidPrompt and InvalidOption at the first event, later NonFiniteLogits and what the denoiser
        raises.
        """
        prompt = check_prompt(prompt_ids, denoiser.vocab_size, least=self.least_prompt)
        goes_on = getattr(options, "continue_prefix", False)
        model = SamplerModel(
            {"name": self.family, "config": {}},
            denoiser.vocab_size,
            denoiser.hidden_size,
            projects=isinstance(denoiser, Projector),
            encoded=denoiser.pieces if goes_on else (),
            uncached=denoiser.uncached,
        )
        yield from drive(CoreSampler(model, prompt, seed=seed, options=settled(options)), denoiser)


SAMPLERS: dict[str, Sampler] = {
    family: Sampler(family, f"{__name__}.{family}", options_name, least_prompt)
    for family, options_name, least_prompt in (
        ("diffusion_gemma", "DiffusionGemmaOptions", 1),
        ("llada", "LladaOptions", 0),
        ("dream", "DreamOptions", 0),
    )
}


def sampler(family: str) -> Sampler:
    """The sampler of a model family. Raises UnknownSampler, which lists the known ones."""
    if family not in SAMPLERS:
        raise UnknownSampler(f"no sampler for model family '{family}'; supported: {', '.join(SAMPLERS)}")
    return SAMPLERS[family]
