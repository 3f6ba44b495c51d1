"""Lists of token ids and of rows, counts, numbers and switches as callers give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from edgekit.flashload.errors import EdgekitError, InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.types import Ids


def flat_ids(
    given: Any,
    what: str,
    error: type[EdgekitError] = InvalidRequest,
    too_wide: Callable[[str, int], str] | None = None,
) -> Ids:
    """A flat list of integers as int64 [T]. Raises `error` for anything else; `what` names it there, and
    `too_wide` says what is wrong with an integer of more than 64 bits at a place.
    """
    if isinstance(given, np.ndarray):
        ids = given
    else:
        try:
            ids = np.asarray(given)
        except Exception:  # lists of different lengths, and whatever an object of a caller raises
            ids = np.empty((), object)
    if ids.ndim == 0:
        raise error(f"{what} is {shown(given)}; pass one flat list of integers")
    if ids.ndim != 1:
        raise error(f"{what} has shape {ids.shape}; pass one flat list of integers")
    if not ids.size:
        return np.empty(0, np.int64)
    if ids.dtype.kind == "i":
        return np.ascontiguousarray(ids, np.int64)
    if ids.dtype.kind != "u" and not all(type(each) is int for each in given):
        raise error(f"{what} holds {ids.dtype} values; pass integers")
    for place, each in enumerate(map(int, given)):
        if not -(2**63) <= each < 2**63:
            said = f"{what} holds {shown(each)} at place {place}, which has more than 64 bits"
            raise error(said if too_wide is None else too_wide(shown(each), place))
    return np.ascontiguousarray(ids, np.int64)


def check_tokens(ids: Ids, what: str, vocab_size: int, error: type[EdgekitError] = InvalidRequest) -> None:
    """Raises `error` for ids that are no token of a vocabulary."""
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        wrong = ids[(ids < 0) | (ids >= vocab_size)]
        raise error(f"{what} holds token {wrong[0]}; the model has {vocab_size} tokens")


def check_list(given: object, what: str, error: type[EdgekitError] = InvalidRequest) -> None:
    """Raises `error` for what is no list; `what` names it there, in the plural."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise error(f"{what} are {shown(given)}; pass a list of them")


def pieces_of(given: Any, what: str, error: type[EdgekitError] = InvalidRequest) -> list[Ids]:
    """Text in pieces of token ids, each int64 [T] with T > 0. Raises `error` for anything else."""
    check_list(given, f"the pieces of {what}", error)
    pieces = [flat_ids(piece, f"piece {number} of {what}", error) for number, piece in enumerate(given)]
    for number, piece in enumerate(pieces):
        if not piece.size:
            raise error(f"piece {number} of {what} is empty; leave it out")
    return pieces


def whole(given: Any, what: str, error: type[EdgekitError] = InvalidRequest, most: int = 2**63 - 1) -> int:
    """A number that counts something. Raises `error` unless it is an integer from 0 to `most`."""
    right = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not right or not 0 <= given <= most:
        raise error(f"{what} is {shown(given)}; use an integer from 0 to {most}")
    return int(given)


def real(given: Any, what: str) -> float:
    """A number, which may be infinite or NaN. Raises InvalidRequest for anything else."""
    right = isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)
    try:
        if right:
            return float(given)
    except OverflowError:  # an integer beyond all floats
        pass
    raise InvalidRequest(f"{what} is {shown(given)}; use a number")


def truth(given: Any, what: str, error: type[EdgekitError] = InvalidRequest) -> bool:
    """True or False. Raises `error` for anything else."""
    if not isinstance(given, bool | np.bool_):
        raise error(f"{what} is {shown(given)}; use True or False")
    return bool(given)
