"""The manifest's configuration of the denoising loop: the checkpoint's, and the token ids that its tokenizer
alone may name, so that running a bundle on token ids needs no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekit.export.models.base import Architecture
from edgekit.runtime.text import Tokenizer

#: What ends a turn in LLaDA's chat template, beside the end of the text.
END_OF_TURN = "<|eot_id|>"


def sampler_config(
    architecture: Architecture, generation_config: Mapping[str, Any], tokenizer: Path | None = None
) -> dict[str, Any]:
    """Sampler options by the names that generation configs use. `tokenizer` is a folder with its files.

    Raises TokenizerError when those are needed and cannot be read.
    """
    config = {**architecture.defaults, **generation_config}

    def lacks(*names: str) -> bool:
        return all(config.get(name) is None for name in names)

    mask = architecture.sampler in ("llada", "dream") and lacks("mask_token_id", "mask_id")
    end_of_turn = architecture.sampler == "llada" and lacks("eot_token_id", "eot_token_ids")
    if tokenizer is None or not (mask or end_of_turn):
        return config
    loaded = Tokenizer(tokenizer)
    if mask and loaded.mask_id is not None:
        config["mask_token_id"] = loaded.mask_id
    if end_of_turn and (token := loaded.token_id(END_OF_TURN)) is not None:
        config["eot_token_id"] = token
    return config
