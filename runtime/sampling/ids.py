"""Lists of token ids and of rows as callers give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgekit.flashload.errors import EdgekitError, InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.types import Ids


def flat_ids(given: Any, what: str, error: type[EdgekitError] = InvalidRequest) -> Ids:
    """A flat list of integers as int64 [T]. Raises `error` for anything else; `what` names it there."""
    try:
        ids = np.asarray(given)
    except (TypeError, ValueError, OverflowError):
        raise error(f"{what} is {shown(given)}; pass one flat list of integers") from None
    if ids.ndim != 1:
        raise error(f"{what} has shape {ids.shape}; pass one flat list of integers")
    if not ids.size:
        return np.empty(0, np.int64)
    if ids.dtype.kind not in "iu" and not all(type(each) is int for each in given):
        raise error(f"{what} holds {ids.dtype} values; pass integers")
    for place, each in enumerate(map(int, given) if ids.dtype.kind in "uO" else ()):
        if not -(2**63) <= each < 2**63:
            raise error(f"{what} holds {each} at place {place}, which has more than 64 bits")
    return np.ascontiguousarray(ids, np.int64)


def whole(given: Any, what: str) -> int:
    """A number that counts something. Raises InvalidRequest unless it is an integer of at least 0."""
    right = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not right or not 0 <= given < 2**63:
        raise InvalidRequest(f"{what} is {shown(given)}; use an integer of at least 0")
    return int(given)
