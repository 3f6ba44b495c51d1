"""The settings of a bundle's sampler as a table for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.runtime.api import Option

_WORDS = {"int": "integer", "float": "number", "bool": "true or false", "ids": "list of token ids"}


def allowed(option: Option) -> str:
    """The values that are allowed: `number above 0 to 1 or null`."""
    text = " or ".join(option.choices) or _WORDS[option.type]
    if option.minimum is not None:
        text += f" {'above' if option.above_minimum else 'from'} {_number(option.minimum)}"
    if option.maximum is not None:
        text += f" to {_number(option.maximum)}"
    return text + (" or null" if option.optional else "")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def rows(options: Iterable[Option]) -> list[list[str]]:
    """Name, value as `--set` takes it, what it may be, and what it means, for each."""
    return [[o.name, json.dumps(o.default), allowed(o), o.help] for o in options]
