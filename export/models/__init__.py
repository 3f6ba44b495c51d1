"""Model families: one file each; `architecture(config)` picks the one that a config.json names."""

from __future__ import annotations

import importlib
from collections.abc import Container
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
    "llada2_moe": "llada2_moe",
    "Dream": "dream",
    "nemotron_labs_diffusion": "nemotron_labs_diffusion",
    "sdar": "sdar",
    "sdar_moe": "sdar",
    "Fast_dLLM_Qwen": "fast_dllm",
    "a2d-qwen2": "a2d",
    "a2d-qwen3": "a2d",
    "CoDA": "coda",
    "coda": "coda",
}


#: Modules of families whose checkpoints hold their own head whatever tie_word_embeddings says, and of those
#: whose name tells how they were trained.
_HEAD_BY_PRESENCE = {"fast_dllm", "a2d"}
_DECODING_BY_NAME = {"a2d"}
HEAD = "lm_head.weight"


def complete(
    config: dict[str, Any], stored: Container[str], name: str = "", decoding: str | None = None
) -> dict[str, Any]:
    """config.json with what else is known of the checkpoint: the names of its tensors, its own name, and
    which procedure it is for (`decoding`: mdlm or bd3lm), where the user says so.

    Raises:
        UnsupportedModel: `decoding` for a family that has one procedure.
    """
    module = FAMILIES.get(str(config.get("model_type")), "")
    more: dict[str, Any] = {}
    if module in _HEAD_BY_PRESENCE:
        more["tie_word_embeddings"] = HEAD not in stored
    if module in _DECODING_BY_NAME:
        called = " ".join(str(each) for each in (config.get("_name_or_path"), name)).lower()
        named = [each for each in ("mdlm", "bd3lm") if each in called]
        if decoding is not None or (len(named) == 1 and config.get("decoding") is None):
            more["decoding"] = decoding or named[0]
    elif decoding is not None:
        raise UnsupportedModel(f"--decoding {decoding}: {shown(config.get('model_type'))} has one procedure")
    return config | more


def architecture(config: dict[str, Any], dtype: str = "float32") -> Architecture:
    """The architecture that a checkpoint's config.json (see `complete`) describes. What the file leaves out
    has the default of the model's own class.

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
