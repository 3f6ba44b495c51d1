"""Options of the families' samplers, as the native core declares them: names, types, ranges, help, values."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from edgekit.flashload import _native
from edgekit.flashload.names import nearest, shown
from edgekit.flashload.sizes import MOST_BYTES
from edgekit.runtime.sampling.core_abi import ERRORS, Given, SamplerModel, library, wishes
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.sampling.ids import whole

OptionType = Literal["int", "float", "bool", "str", "ids"]
MOST_SEED: Final = 2**64 - 1
#: The core's procedures by name.
PROCEDURES: Final = ("diffusion_gemma", "llada", "dream", "block")
#: EK_BUFFER_TOO_SMALL, and room for the options of any family with lists of ordinary length.
_BUFFER_TOO_SMALL: Final = 2
_USUAL_BYTES: Final = 1 << 14


@dataclass(frozen=True)
class Lengths:
    """The most that a generation takes: positions that it adds to its prompt, the longest prefix that it
    encodes, the longest canvas that it denoises; canvases (of LLaDA blocks), and denoising steps of each.
    `text` says in words how many tokens the prompt gets; `segments` are those of a pass.
    """

    new_tokens: int
    prefix: int
    canvas: int
    canvases: int
    steps: int
    text: str = ""
    segments: int = 1


@dataclass(frozen=True)
class DeclaredOption:
    """An option of a family, with its value in a generation; None: switched off.

    `aliases` are the names that checkpoints and published scripts have for it. `above_minimum`: the minimum
    itself is too small. `internal`: callers set it, people do not. "ids" are token ids.
    """

    name: str
    aliases: tuple[str, ...]
    type: OptionType
    value: Any
    minimum: float | None
    maximum: float | None
    above_minimum: bool
    choices: tuple[str, ...]
    optional: bool
    internal: bool
    help: str


@dataclass(frozen=True)
class SamplerOptions:
    """The options of one generation, settled. `draws`: whether anything is drawn, so that seeds make a
    difference. `lengths` are those of the prompt that was asked about.
    """

    family: str
    declared: tuple[DeclaredOption, ...]
    draws: bool
    lengths: Lengths | None = None

    def __getitem__(self, name: str) -> Any:
        """The value of an option by its own name. Raises KeyError."""
        return self.values()[name]

    def values(self) -> dict[str, Any]:
        """All values by name."""
        return {option.name: option.value for option in self.declared}


def settle(
    model: SamplerModel,
    *,
    max_new_tokens: int | None = None,
    steps: int | None = None,
    options: Mapping[str, Any] | None = None,
    prompt_length: int | None = None,
) -> SamplerOptions:
    """The options of a generation: the checkpoint's configuration, which is the section's `config`, then the
    caller's wishes, then what neither says.

    `options` are the caller's by name, an alias too. None is "not set" everywhere, but in `options` for an
    optional one, which it switches off. With a `prompt_length`, earlier text counted with it, the result has
    `lengths`.

    Lengths and steps are rounded up to what the family needs: LLaDA is given whole blocks and as many steps
    for each. An answer of a masked family ends at its first end token unless `stop_at_eos` says otherwise,
    because what is filled in behind it helps nobody; it has as many steps as tokens without `steps`. Dream
    goes by entropy unless `alg` is set.

    Raises InvalidOption, PromptTooLong for what passes the model's positions, and UnsupportedBundle for an
    unknown family.
    """
    core, given, size = library(), Given(model), ctypes.c_uint64()
    wanted = wishes(0, max_new_tokens, steps, options)
    length = -1 if prompt_length is None else whole(prompt_length, "prompt_length", InvalidOption)

    def call(buffer: Any, capacity: int) -> int:
        status: int = core.ek_sampler_get_options(
            ctypes.byref(given.struct), ctypes.byref(wanted), length, buffer, capacity, ctypes.byref(size)
        )
        return status

    buffer = ctypes.create_string_buffer(_USUAL_BYTES)
    status = call(buffer, _USUAL_BYTES)
    if status == _BUFFER_TOO_SMALL:
        buffer = ctypes.create_string_buffer(size.value)
        status = call(buffer, size.value)
    _native.check(status, ERRORS)
    found = json.loads(buffer.raw[: size.value])
    lengths = found["lengths"]
    return SamplerOptions(
        found["family"],
        tuple(_declared(option) for option in found["options"]),
        found["draws"],
        None if lengths is None else Lengths(**lengths),
    )


@cache
def declared(family: str) -> tuple[DeclaredOption, ...]:
    """The options of a family, with their defaults. Raises UnsupportedBundle for an unknown family."""
    # Those that a checkpoint must name are given any value.
    section = {"name": family, "config": {"mask_token_id": 0}}
    return settle(SamplerModel(section, vocab_size=2**31 - 1, hidden_size=0)).declared


def _declared(option: dict[str, Any]) -> DeclaredOption:
    if option["type"] == "float" and option["value"] is not None:
        option["value"] = float(option["value"])
    if option["type"] == "ids":
        option["value"] = tuple(option["value"])
    for name in ("aliases", "choices"):
        option[name] = tuple(option[name])
    return DeclaredOption(**option)


def unknown_option(name: str, known: Sequence[str]) -> InvalidOption:
    """The error for a name that is none of those that are `known`."""
    all_known = f"options are: {', '.join(known)}"
    if others := [each for each in PROCEDURES if name in _for_people(each)]:
        return InvalidOption(
            f"{name} is a sampling option of {' and '.join(others)}, not of this model; {all_known}"
        )
    close = nearest(name, known)
    hint = f"did you mean {close}?" if close else all_known
    return InvalidOption(f"{_spelled(name)} is not a sampling option of this model; {hint}")


def check_known(name: str) -> None:
    """Raises InvalidOption for a name that no procedure has, before it is known which one is meant."""
    options = [option for each in PROCEDURES for option in declared(each)]
    known = {spelled for option in options for spelled in (option.name, *option.aliases)}
    if name not in known:
        close = nearest(name, sorted(known))
        hint = f"did you mean {close}?" if close else "edgekit options BUNDLE lists those of a model"
        raise InvalidOption(f"{_spelled(name)} is not a sampling option of any model; {hint}")


def _spelled(name: str) -> str:
    return name if name.isidentifier() and len(name) <= 60 else shown(name)


def _for_people(family: str) -> set[str]:
    return {option.name for option in declared(family) if not option.internal}


def check_bytes(name: str, value: object, minimum: int) -> None:
    """Raises InvalidOption unless value is None, or a number of bytes from `minimum` on."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{name} is {shown(value)}; use a number of bytes")
    if value < minimum:
        raise InvalidOption(f"{name} is {shown(value)}; use at least {minimum}")
    if value > MOST_BYTES:
        raise InvalidOption(f"{name} is beyond what any computer has; use fewer than 2**63 bytes")


def check_int(name: str, value: object, minimum: int, maximum: int) -> None:
    """Raises InvalidOption unless value is an integer from minimum to maximum."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise InvalidOption(f"{name} is {shown(value)}; use an integer from {minimum} to {maximum}")
