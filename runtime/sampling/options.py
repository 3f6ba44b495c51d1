"""Reading and checking sampling options."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgekit.flashload.names import nearest
from edgekit.runtime.sampling.errors import InvalidOption, OptionNotSet

#: Options that are no matter of a single generation: callers set them, people do not.
INTERNAL = frozenset({"continue_prefix", "logits_budget_bytes"})

Kind = Literal["integer", "number", "flag", "choice", "token ids"]


@dataclass(frozen=True)
class Spec:
    """What an option may be, in the metadata of its field: `check_fields` goes by it, and lists for people.

    `exclusive` leaves the minimum itself out. An `optional` one may be None, which switches it off.
    """

    kind: Kind
    help: str
    minimum: float | None = None
    exclusive: bool = False
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False


_SPEC = "option"


def integer(help: str, minimum: int, *, optional: bool = False) -> dict[str, Spec]:
    """Metadata of a field that holds an integer, at least `minimum`."""
    return {_SPEC: Spec("integer", help, minimum, optional=optional)}


def number(
    help: str,
    minimum: float,
    *,
    exclusive: bool = False,
    maximum: float | None = None,
    optional: bool = False,
) -> dict[str, Spec]:
    """Metadata of a field that holds a finite number."""
    return {_SPEC: Spec("number", help, minimum, exclusive, maximum, optional=optional)}


def flag(help: str) -> dict[str, Spec]:
    """Metadata of a field that holds True or False."""
    return {_SPEC: Spec("flag", help)}


def choice(help: str, choices: Iterable[str]) -> dict[str, Spec]:
    """Metadata of a field that holds one of some words."""
    return {_SPEC: Spec("choice", help, choices=tuple(choices))}


def tokens(help: str) -> dict[str, Spec]:
    """Metadata of a field that holds token ids."""
    return {_SPEC: Spec("token ids", help)}


def specs(options: type[Any]) -> dict[str, Spec]:
    """The options of a family's dataclass by name, in its order."""
    return {f.name: f.metadata[_SPEC] for f in dataclasses.fields(options) if _SPEC in f.metadata}


def check_fields(options: Any, *names: str) -> None:
    """Raises InvalidOption unless these fields of a family's dataclass are what their metadata says. Token
    ids become tuples.
    """
    known = specs(type(options))
    for name in names:
        spec, value = known[name], getattr(options, name)
        if spec.optional and value is None:
            continue
        if spec.kind == "integer":
            check_int(name, value, int(spec.minimum or 0))
        elif spec.kind == "number":
            check_number(name, value, spec.minimum or 0, exclusive=spec.exclusive, maximum=spec.maximum)
        elif spec.kind == "flag":
            check_bool(name, value)
        elif spec.kind == "choice":
            check_choice(name, value, spec.choices)
        else:
            object.__setattr__(options, name, token_ids(name, value))


@dataclass(frozen=True)
class Lengths:
    """Positions of a generation, at most: how many it adds to its prompt, the longest prefix that it encodes,
    and the longest canvas that it denoises.
    """

    new_tokens: int
    prefix: int
    canvas: int


def from_config(
    options: type[Any], config: Mapping[str, Any], overrides: Mapping[str, Any], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """Keyword arguments for the dataclass `options` out of a generation config and explicit overrides.

    Keys are field names or `aliases` (key -> field). Config keys that say nothing to this family are
    collected in `ignored_keys`, and a None there means "not set". Overrides win over the config.
    Raises InvalidOption for an override that is no option, and when a field without default is not set.
    """
    fields = {f.name for f in dataclasses.fields(options)} - {"ignored_keys"}
    for override in overrides:
        if override not in fields and override not in aliases:
            raise unknown_option(override, sorted(fields - INTERNAL))
    found: dict[str, Any] = {}
    ignored: list[str] = []
    # A field's own name wins over an alias wherever both are in the config.
    for key in sorted(config, key=lambda k: k in fields):
        name: str | None = key if key in fields else aliases.get(key)
        if name is None:
            ignored.append(key)
        elif config[key] is not None:
            found[name] = config[key]
    for key in sorted(overrides, key=lambda k: k in fields):
        found[aliases.get(key, key)] = overrides[key]
    found["ignored_keys"] = tuple(sorted(ignored))
    required = {f.name for f in dataclasses.fields(options) if f.default is dataclasses.MISSING}
    missing = sorted(required - found.keys())
    if missing:
        raise OptionNotSet(f"{', '.join(missing)} is not set by the generation config; pass it explicitly")
    return found


def settled(options: Any) -> dict[str, Any]:
    """A family's dataclass as the options by name that the core takes."""
    fields = dataclasses.fields(options)
    return {f.name: getattr(options, f.name) for f in fields if f.name != "ignored_keys"}


def unknown_option(name: str, known: Sequence[str]) -> InvalidOption:
    """What to raise for a name that is none of those that are `known`."""
    close = nearest(name, known)
    hint = f"did you mean {close}?" if close else f"options are: {', '.join(known)}"
    return InvalidOption(f"{name} is not a sampling option of this model; {hint}")


def check_int(name: str, value: object, minimum: int, maximum: int | None = None) -> None:
    """Raises InvalidOption unless value is an integer within minimum..maximum."""
    in_range = isinstance(value, int) and value >= minimum and (maximum is None or value <= maximum)
    if isinstance(value, bool) or not in_range:
        limit = f"at least {minimum}" if maximum is None else f"{minimum}..{maximum}"
        raise InvalidOption(f"{name} is {value!r}; use an integer, {limit}")


def check_number(
    name: str, value: object, minimum: float, *, exclusive: bool = False, maximum: float | None = None
) -> None:
    """Raises InvalidOption unless value is a finite number above (or at) minimum and not above maximum."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if good and isinstance(value, int | float):
        good = (value > minimum if exclusive else value >= minimum) and (maximum is None or value <= maximum)
    if not good:
        limit = f"above {minimum:g}" if exclusive else f"at least {minimum:g}"
        limit += "" if maximum is None else f" and at most {maximum:g}"
        raise InvalidOption(f"{name} is {value!r}; use a number {limit}")


def check_bool(name: str, value: object) -> None:
    """Raises InvalidOption unless value is True or False."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} is {value!r}; use true or false")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raises InvalidOption unless value is one of the choices."""
    known = list(choices)
    if value not in known:
        raise InvalidOption(f"{name} is {value!r}; use one of: {', '.join(known)}")


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """An id or a list of ids as a tuple. Raises InvalidOption for anything else."""
    ids = tuple(value) if isinstance(value, list | tuple) else (value,)
    for token in ids:
        check_int(name, token, 0)
    return ids


def check_within_vocabulary(options: Any, vocab_size: int) -> None:
    """Raises InvalidOption when a token id in a family's dataclass is not a row of the vocabulary."""
    for field in dataclasses.fields(options):
        if not field.name.endswith(("token_id", "token_ids")):
            continue
        value = getattr(options, field.name)
        for token in value if isinstance(value, tuple) else (value,):
            if token is not None and token >= vocab_size:
                raise InvalidOption(
                    f"{field.name} {token} is outside the model's vocabulary of {vocab_size} tokens"
                )
