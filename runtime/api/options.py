"""The settings of a bundle's sampler, as people read them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from edgekit.runtime.generation import Settings
from edgekit.runtime.sampling import InvalidOption, SamplerOptions, declared
from edgekit.runtime.sampling.options import MOST_SEED, OptionType, check_int, unknown_option

_FIRST = ("max_new_tokens", "steps", "seed")


@dataclass(frozen=True)
class Option:
    """A setting of a generation, by the name of its keyword argument.

    >>> {option.name: option.default for option in model.options()}["entropy_bound"]
    0.1
    """

    name: str
    #: "ids" stands for a list of token ids.
    type: OptionType
    #: What the bundle says, or what holds where it says nothing. None: switched off.
    default: Any
    #: The smallest and largest values; None: no limit. `above_minimum`: the smallest itself is too small.
    minimum: float | None
    maximum: float | None
    above_minimum: bool
    #: The words that are allowed; empty for any but "str".
    choices: tuple[str, ...]
    #: Whether it may be None, which switches it off.
    optional: bool
    help: str


def plain(value: Any) -> Any:
    """A value as Python's own number, truth value or list of these, where it is one of another library: what
    has `__index__` is an integer. Anything else is as it was given, and what no number can be made of.
    """
    try:
        if isinstance(value, np.ndarray | np.generic):
            return value.tolist()
        if type(value) in (list, tuple):
            return type(value)(map(plain, value))
        if isinstance(value, bool | str):
            return value
        if hasattr(value, "__index__"):
            return operator.index(value)
        return float(value) if isinstance(value, Real) else value
    # Some say that they can, whatever they hold; some fractions are too large; some lists have no end.
    except (TypeError, ValueError, ArithmeticError, RecursionError, RuntimeError):
        return value


def plain_settings(settings: Settings) -> Settings:
    """Settings whose values are Python's own."""
    options = {name: plain(value) for name, value in settings.options.items()}
    return Settings(
        plain(settings.max_new_tokens),
        plain(settings.steps),
        plain(settings.seed),
        options,
        plain(settings.deadline_seconds),
    )


def own_settings(family: str, settings: Settings, instead: str) -> Settings:
    """A caller's settings with values that are Python's own. Raises InvalidOption for one that the family's
    sampler does not have; `continue_prefix` is none of a caller's, and `instead` says what to do.
    """
    settings = plain_settings(settings)
    check_int("seed", settings.seed, 0, MOST_SEED)
    if "continue_prefix" in settings.options:
        raise InvalidOption(f"continue_prefix is not a setting here; {instead}")
    check_names(family, settings)
    return settings


def options_of(chosen: SamplerOptions) -> tuple[Option, ...]:
    """The options of a generation, with their values as defaults."""
    found = [Option("seed", "int", 0, 0, MOST_SEED, False, (), False, "Equal seeds give equal answers.")]
    found += [
        Option(
            option.name,
            option.type,
            option.value,
            option.minimum,
            option.maximum,
            option.above_minimum,
            option.choices,
            option.optional,
            option.help,
        )
        for option in chosen.declared
        if not option.internal
    ]
    return tuple(sorted(found, key=lambda option: _rank(option.name)))


def check_names(family: str, settings: Settings) -> None:
    """Raises InvalidOption for a setting that the sampler does not have."""
    options = [option for option in declared(family) if not option.internal]
    known = {name for option in options for name in (option.name, *option.aliases)}
    for name in settings.options:
        if name not in known:
            shown = sorted({"seed", *(option.name for option in options)}, key=lambda n: (_rank(n), n))
            raise unknown_option(name, shown)


def _rank(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)
