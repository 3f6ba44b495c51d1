"""A generation's options: the checkpoint's configuration, the caller's wishes, and what neither says.

The native core has the same rule (`runtime/native/src/sampling/generation_options.cpp`); tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgekit.runtime.sampling import sampler
from edgekit.runtime.sampling.options import check_int

#: Tokens asked for when neither the caller nor the checkpoint says how many.
DEFAULT_NEW_TOKENS = 128
#: Block length of semi-autoregressive decoding where the checkpoint names none.
DEFAULT_BLOCK = 32
#: Bounds lengths and steps: far beyond any model, so that what is computed from them stays a length.
MOST = 1 << 22


def generation_options(
    family: str,
    config: Mapping[str, Any],
    canvas_length: int | None = None,
    *,
    max_new_tokens: int | None = None,
    steps: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """The options of the sampler `family` for one generation.

    `config` is the checkpoint's, `canvas_length` the model's (None: any). `options` are the caller's by name
    and win over `config`; `max_new_tokens` and `steps` win over both. None is "not set" everywhere.

    LLaDA is given whole blocks and as many steps for each: lengths and steps are rounded up. An answer of a
    masked family ends at its first end token unless `stop_at_eos` says otherwise, because what is filled in
    behind it helps nobody; it has as many steps as tokens without `steps`. Dream goes by entropy unless `alg`
    is set.

    Raises InvalidOption, and UnknownSampler.
    """
    loop = sampler(family)
    sources = _Sources(config, options or {})
    _RULES[family](sources, canvas_length, max_new_tokens, steps)
    return loop.options(sources.config, **sources.overrides)


class _Sources:
    """The two mappings that options are read from; rules move what they decide into the overrides."""

    def __init__(self, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        self.config, self.overrides = dict(config), dict(overrides)

    def find(self, *names: str) -> tuple[str, Any]:
        """The first of `names` that the overrides set, else the config, with its value: None where neither
        sets any.
        """
        for source in (self.overrides, self.config):
            for name in names:
                if source.get(name) is not None:
                    return name, source[name]
        return names[0], None

    def check(self, *names: str) -> int | None:
        """The value that `find` gives, if any, which must be a length."""
        name, value = self.find(*names)
        if value is not None:
            check_int(name, value, 1, MOST)
        return value

    def decide(self, name: str, value: Any, *aliases: str) -> None:
        """Let the option be `value`, whatever was said under its name and aliases."""
        for key in (name, *aliases):
            self.config.pop(key, None)
            self.overrides.pop(key, None)
        self.overrides[name] = value


def _wish(name: str, value: int | None) -> int | None:
    if value is not None:
        check_int(name, value, 1, MOST)
    return value


def _rounded_up(value: int, of: int) -> int:
    return -(-value // of) * of


def _diffusion_gemma(
    sources: _Sources, canvas_length: int | None, max_new_tokens: int | None, steps: int | None
) -> None:
    if canvas_length is not None:
        sources.config["canvas_length"] = canvas_length
    for name, wish in (
        ("max_new_tokens", _wish("max_new_tokens", max_new_tokens)),
        ("max_denoising_steps", _wish("steps", steps)),
    ):
        if wish is not None:
            sources.decide(name, wish)
        sources.check(name)
    sources.check("canvas_length")
    sources.check("max_length")


def _llada(
    sources: _Sources, canvas_length: int | None, max_new_tokens: int | None, steps: int | None
) -> None:
    names = ("gen_length", "max_new_tokens")
    length = _wish("max_new_tokens", max_new_tokens) or sources.check(*names) or DEFAULT_NEW_TOKENS
    block = min(sources.check("block_length") or DEFAULT_BLOCK, length)
    length = _rounded_up(length, block)
    count = _wish("steps", steps) or sources.check("steps") or length
    sources.decide(names[0], length, names[1])
    sources.decide("block_length", block)
    sources.decide("steps", _rounded_up(count, length // block))
    _stop_at_eos(sources)


def _dream(
    sources: _Sources, canvas_length: int | None, max_new_tokens: int | None, steps: int | None
) -> None:
    names = ("max_new_tokens", "gen_length")
    length = _wish(names[0], max_new_tokens) or sources.check(*names) or DEFAULT_NEW_TOKENS
    count = _wish("steps", steps) or sources.check("steps") or length
    sources.decide(names[0], length, names[1])
    sources.decide("steps", count)
    if sources.find("alg")[1] is None:
        sources.decide("alg", "entropy")
    _stop_at_eos(sources)


def _stop_at_eos(sources: _Sources) -> None:
    _, ends = sources.find("eos_token_ids", "eos_token_id")
    none = ends is None or (isinstance(ends, list | tuple) and not ends)
    if not none and sources.find("stop_at_eos")[1] is None:
        sources.decide("stop_at_eos", True)


_RULES: dict[str, Callable[[_Sources, int | None, int | None, int | None], None]] = {
    "diffusion_gemma": _diffusion_gemma,
    "llada": _llada,
    "dream": _dream,
}
