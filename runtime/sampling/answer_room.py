"""How long an answer may be that the programs of packages have room for.

Lengths of programs are pairs (positions of a pass, positions of prefix), as `Packages.lengths` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.sampling.core_abi import SamplerModel
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.sampling.options import Lengths, settle

#: Tokens of a short prompt, with what a chat template puts around it.
SHORT_PROMPT = 32


def takes(offered: Sequence[tuple[int, int]], lengths: Lengths) -> bool:
    """Whether there are programs for a generation of these lengths."""
    return any(t >= lengths.canvas and p >= lengths.prefix for t, p in offered)


def shortfall(
    model: SamplerModel,
    offered: Sequence[tuple[int, int]],
    prompt: int,
    max_new_tokens: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[int, int] | None:
    """The new tokens of an answer that no programs have room for behind a prompt of so many tokens, and how
    many they have room for, 0 if for none. None where there is room for the answer.

    Raises InvalidOption, and PromptTooLong for what passes the model's own positions.
    """

    def lengths(count: int | None) -> Lengths:
        found = settle(model, max_new_tokens=count, options=options, prompt_length=prompt).lengths
        assert found is not None, "they were asked for"
        return found

    def fits(count: int) -> bool:
        try:
            return takes(offered, lengths(count))
        except (InvalidOption, PromptTooLong):  # options may ask for a length of their own
            return False

    asked = lengths(max_new_tokens)
    if takes(offered, asked):
        return None
    # A longer answer never takes shorter passes, so the range is halved.
    low, high = 0, asked.new_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return asked.new_tokens, low


def short_of(model: SamplerModel, offered: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """`shortfall` of a default answer behind a short prompt; None also for a model whose own positions have
    no room for these.
    """
    try:
        return shortfall(model, offered, SHORT_PROMPT)
    except PromptTooLong:
        return None
