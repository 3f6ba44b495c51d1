"""Errors of a sampler's options and prompts. Every message is one line."""

from __future__ import annotations

from edgekit.flashload.errors import EdgekitError


class SamplingError(EdgekitError):
    """Base of the errors of the samplers."""


class InvalidOption(SamplingError):
    """A sampling option has a value that the family's procedure cannot run with, or is not an option."""


class InvalidPrompt(SamplingError):
    """The prompt is empty, or is neither text, messages, nor a flat list of token ids of the model."""


class NonFiniteLogits(SamplingError):
    """The model's scores are NaN or infinite, so no token can be chosen from them."""
