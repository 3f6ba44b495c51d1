"""The denoising procedures, by model family: DiffusionGemma, LLaDA and Dream.

A sampler is a state machine of the native core (`CoreSampler`), or a `Procedure` written in Python; `drive`
runs one over a model, and `generate` does both. `settle` says what options a generation has.
"""

from __future__ import annotations

from edgekit.runtime.sampling.asks import (
    Ask,
    Crop,
    Denoise,
    Encode,
    Forget,
    Pass,
    PassRows,
    Prefix,
    Procedure,
    Project,
    SeenRows,
    Tell,
)
from edgekit.runtime.sampling.core import CoreSampler
from edgekit.runtime.sampling.core_abi import SamplerModel
from edgekit.runtime.sampling.drive import drive, generate
from edgekit.runtime.sampling.errors import InvalidOption, InvalidPrompt, NonFiniteLogits, SamplingError
from edgekit.runtime.sampling.events import Committed, Done, Draft, Event, Stats
from edgekit.runtime.sampling.noise import PhiloxGumbel, PhiloxNoise
from edgekit.runtime.sampling.options import DeclaredOption, Lengths, SamplerOptions, declared, settle
from edgekit.runtime.sampling.types import (
    ROLES,
    Denoiser,
    GumbelTile,
    HeadOutput,
    HeadRequest,
    Ids,
    Projector,
)

__all__ = [
    "Ask",
    "Committed",
    "CoreSampler",
    "Crop",
    "DeclaredOption",
    "Denoise",
    "Denoiser",
    "Done",
    "Draft",
    "Encode",
    "Event",
    "Forget",
    "GumbelTile",
    "HeadOutput",
    "HeadRequest",
    "Ids",
    "InvalidOption",
    "InvalidPrompt",
    "Lengths",
    "NonFiniteLogits",
    "Pass",
    "PassRows",
    "PhiloxGumbel",
    "PhiloxNoise",
    "Prefix",
    "Procedure",
    "Project",
    "Projector",
    "ROLES",
    "SamplerModel",
    "SamplerOptions",
    "SamplingError",
    "SeenRows",
    "Stats",
    "Tell",
    "declared",
    "drive",
    "generate",
    "settle",
]
