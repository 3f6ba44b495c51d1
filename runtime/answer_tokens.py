"""Which of the tokens that a sampler commits belong to the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def until_end(ids: Iterable[int], options: Any) -> list[int]:
    """The tokens up to and with the first end token of the sampler `options`, all of them without one.

    A canvas is committed whole: what stands behind its end token is padding, and no part of the answer. Where
    `stop_at_eos` is off, the caller has asked for everything.
    """
    found = [int(i) for i in ids]
    if not getattr(options, "stop_at_eos", True):
        return found
    ends = [i for i, token in enumerate(found) if token in options.eos_token_ids]
    return found[: ends[0] + 1] if ends else found
