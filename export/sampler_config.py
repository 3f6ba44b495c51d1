"""The manifest's configuration of the denoising loop: the checkpoint's, and the token ids that its tokenizer
alone may name, so that running a bundle on token ids needs no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.export.models.base import Architecture
from edgekit.export.models.config import FILE, GENERATION_FILE, check_file, shown
from edgekit.runtime.sampling import InvalidOption, SamplerModel, settle
from edgekit.runtime.tokenizer import Tokenizer

#: Procedures that write over a mask token, which a tokenizer may name alone.
MASKED = ("llada", "dream", "block")
#: What ends a turn in LLaDA's chat template, beside the end of the text.
END_OF_TURN = "<|eot_id|>"


def sampler_config(
    architecture: Architecture, generation_config: Mapping[str, Any], tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """Sampler options by the names that generation configs use."""
    config = {**architecture.defaults, **generation_config}

    def lacks(*names: str) -> bool:
        return all(config.get(name) is None for name in names)

    mask = architecture.sampler in MASKED and lacks("mask_token_id", "mask_id")
    end_of_turn = architecture.sampler == "llada" and lacks("eot_token_id", "eot_token_ids")
    if tokenizer is None or not (mask or end_of_turn):
        return config
    if mask and tokenizer.mask_id is not None:
        config["mask_token_id"] = tokenizer.mask_id
    if end_of_turn and (token := tokenizer.token_id(END_OF_TURN)) is not None:
        config["eot_token_id"] = token
    return config


def check_generation_config(architecture: Architecture, generation_config: Mapping[str, Any]) -> None:
    """Refuse a generation_config.json that every run of the bundle would refuse.

    Raises:
        UnsupportedModel: a setting of the wrong type, out of range or not supported, and another mask token
            than that of config.json.
    """
    check_file(generation_config, GENERATION_FILE)
    trained = architecture.defaults.get("mask_token_id")
    for name in ("mask_token_id", "mask_id"):
        if trained is not None and generation_config.get(name) not in (None, trained):
            raise UnsupportedModel(
                f"{GENERATION_FILE}: {name} is {shown(generation_config[name])}, that of {FILE} is "
                f"{shown(trained)}; take the wrong one out"
            )
    config = sampler_config(architecture, generation_config)
    # Where the files name no mask, the tokenizer or the caller does.
    unnamed = config.get("mask_token_id") is None and config.get("mask_id") is None
    options = {"mask_token_id": 0} if unnamed and architecture.sampler in MASKED else {}
    model = SamplerModel(
        {"name": architecture.sampler, "config": config},
        architecture.vocab_size,
        architecture.hidden_size,
        canvas_length=architecture.canvas_length,
    )
    try:
        settle(model, options=options)
    except InvalidOption as error:
        text = str(error)
        raise UnsupportedModel(
            f"{GENERATION_FILE}: {text if len(text) <= 300 else text[:297] + '...'}"
        ) from None
