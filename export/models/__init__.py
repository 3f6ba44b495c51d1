"""Model families: one file each; `architecture(config)` picks the one that a config.json names."""

from __future__ import annotations

import importlib
from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.base import Architecture

#: model_type in config.json -> module of this folder.
FAMILIES = {
    "diffusion_gemma": "diffusion_gemma",
    "llada": "llada",
    "lladamoe": "llada_moe",
    "llada_moe": "llada_moe",
    "Dream": "dream",
}


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """The architecture that a checkpoint's config.json describes.

    Raises:
        UnsupportedModel: an unknown model_type, or a setting that the family does not implement.
    """
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"config.json: model_type {model_type!r} is not supported; known: {', '.join(sorted(FAMILIES))}"
        )
    built: Architecture = importlib.import_module(
        f"edgekit.export.models.{FAMILIES[model_type]}"
    ).architecture(config, dtype)
    return built
