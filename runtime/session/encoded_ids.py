"""The token ids behind a sequence's prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling.types import Ids


class EncodedIds:
    """Token ids in the pieces in which they were encoded: another sequence that encodes the same pieces holds
    the same keys and values, to the bit.
    """

    def __init__(self) -> None:
        self._pieces: list[Ids] = []
        self._unknown = False  # what follows them

    def copy(self) -> EncodedIds:
        other = EncodedIds()
        other._pieces[:], other._unknown = self._pieces, self._unknown
        return other

    def pieces(self, prefix_length: int) -> list[Ids]:
        """The pieces of so many positions. Raises InvalidRequest where no encoding gives what is kept."""
        if not prefix_length:
            return []
        if not self._tell(prefix_length):
            known = sum(map(len, self._pieces))
            raise InvalidRequest(
                f"of the {prefix_length} kept positions only the first {known} can be encoded again: passes "
                "have kept a canvas, rows in the middle, or rows that see what `seen` names; crop the text "
                "to these, or reset it"
            )
        return list(self._pieces)

    def holds(self, pieces: Sequence[Ids], prefix_length: int) -> bool:
        """Whether these are what is kept."""
        if not self._tell(prefix_length):
            return False
        known = self.pieces(prefix_length)
        return len(known) == len(pieces) and all(map(np.array_equal, known, pieces))

    def _tell(self, prefix_length: int) -> bool:
        """Whether the pieces are the text of so many positions; of none every text is known."""
        return not prefix_length or (not self._unknown and prefix_length == sum(map(len, self._pieces)))

    def kept(self, ids: Ids, start: int, prefix_length: int, *, plain: bool) -> None:
        """To be told of ids [T] that are kept from a position on, with the prefix's length then; `plain`:
        nothing else has gone into their keys and values than encoding them behind what precedes them.
        """
        self.cropped(start)
        if plain and prefix_length == start + len(ids) and not self._unknown:
            self._pieces.append(np.array(ids, np.int64))
        else:
            self._unknown = True

    def forget(self, start: int) -> None:
        """To be told before what is kept from a position on is replaced."""
        self.cropped(start)
        self._unknown = True

    def cropped(self, length: int) -> None:
        """To be told when only so many positions are kept, if there were more."""
        kept: list[Ids] = []
        for ids in self._pieces:
            left = length - sum(map(len, kept))
            if left > 0:
                kept.append(ids[:left])
        self._pieces[:] = kept
        if length <= sum(map(len, kept)):
            self._unknown = False
