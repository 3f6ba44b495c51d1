"""The settings of a bundle's sampler, as people read them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np

from edgekit.runtime.generation import Settings
from edgekit.runtime.sampling import Sampler
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.sampling.generation_options import MOST
from edgekit.runtime.sampling.options import INTERNAL, Kind, specs, unknown_option

OptionType: TypeAlias = Literal["int", "float", "bool", "str", "ids"]

_TYPES: dict[Kind, OptionType] = {
    "integer": "int", "number": "float", "flag": "bool", "choice": "str", "token ids": "ids",
}  # fmt: skip
#: Names that are the same for all families, by those of the families that have others.
_COMMON = {"gen_length": "max_new_tokens", "max_denoising_steps": "steps"}
#: Lengths and steps, in the families' own names: `generation_options` takes none beyond `MOST`.
_LENGTHS = {
    "max_new_tokens", "gen_length", "max_length", "canvas_length", "block_length", "steps",
    "max_denoising_steps",
}  # fmt: skip
MOST_SEED = 2**64 - 1
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
    has `__index__` is an integer. Anything else is as it was given.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, bool | str) or not hasattr(value, "__index__"):
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value
    try:
        return operator.index(value)
    except TypeError:  # some say that they can, whatever they hold
        return value


def plain_settings(settings: Settings) -> Settings:
    """Settings whose values are Python's own."""
    options = {name: plain(value) for name, value in settings.options.items()}
    return Settings(plain(settings.max_new_tokens), plain(settings.steps), plain(settings.seed), options)


def options_of(chosen: Any, vocab_size: int | None = None) -> tuple[Option, ...]:
    """The options of a family's dataclass, with the values in `chosen` as defaults; with `vocab_size` token
    ids have their bound.
    """
    found = [Option("seed", "int", 0, 0, MOST_SEED, False, (), False, "Equal seeds give equal answers.")]
    for name, spec in specs(type(chosen)).items():
        if name in INTERNAL:
            continue
        kind, value = _TYPES[spec.kind], getattr(chosen, name)
        low, high = spec.minimum, MOST if name in _LENGTHS else spec.maximum
        if vocab_size is not None and name.endswith("token_id"):
            high = vocab_size - 1
        if kind == "int":
            low, high = (None if limit is None else int(limit) for limit in (low, high))
        found.append(
            Option(
                _COMMON.get(name, name),
                kind,
                value,
                low,
                high,
                spec.exclusive,
                spec.choices,
                spec.optional,
                spec.help,
            )
        )
    return tuple(sorted(found, key=lambda option: _rank(option.name)))


def check_names(sampler: Sampler, settings: Settings) -> None:
    """Raises InvalidOption for a setting that the sampler does not have, and for one that is given by two of
    its names.
    """
    aliases, fields = sampler.aliases(), specs(sampler.options_type())
    known = {"seed"} | {_COMMON.get(name, name) for name in fields}
    given = [name for name in ("max_new_tokens", "steps") if getattr(settings, name) is not None]
    by_common: dict[str, str] = {}
    for name in (*given, *settings.options):
        field = aliases.get(name, name)
        common = _COMMON.get(field, field)
        if common not in known:
            raise unknown_option(name, sorted(known - INTERNAL, key=lambda known: (_rank(known), known)))
        if common in by_common:
            raise InvalidOption(
                f"{common} is given twice, as {by_common[common]} and as {name}; leave one out"
            )
        by_common[common] = name


def _rank(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)
