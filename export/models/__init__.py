"""Model families: one file each; `architecture(config)` picks the one that a config.json names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.config import check_file, shown
from edgekit.flashload.names import nearest

if TYPE_CHECKING:
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
    """The architecture that a checkpoint's config.json describes. What the file leaves out has the default of
    the model's own class.

    Raises:
        UnsupportedModel: an unknown model_type, or a key that is missing and needed, of the wrong type, out
            of range, or asks for something that the family does not implement.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        close = nearest(model_type, FAMILIES, 0.8)
        hint = f" (did you mean {close}?)" if close else ""
        raise UnsupportedModel(
            f"config.json: model_type {shown(model_type)} is not supported{hint}; "
            f"known: {', '.join(sorted(FAMILIES))}"
        )
    check_file(config)
    built: Architecture = importlib.import_module(
        f"edgekit.export.models.{FAMILIES[model_type]}"
    ).architecture(config, dtype)
    return built
