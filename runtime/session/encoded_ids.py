"""The token ids behind a session's prefix."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.sampling.types import Ids


class EncodedIds:
    """Token ids call by call: another session that is given the same calls holds the same keys and values, to
    the bit.
    """

    def __init__(self) -> None:
        self.calls: list[Ids] = []

    def prefilled(self, ids: Ids, prefix_length: int) -> None:
        """To be told after every prefill, also one that failed, with the prefix's length then."""
        if prefix_length == 0:
            self.calls.clear()
        elif prefix_length > sum(map(len, self.calls)):
            self.calls.append(np.array(ids, np.int64))

    def cropped(self, length: int) -> None:
        """To be told when only so many positions are kept."""
        kept: list[Ids] = []
        for ids in self.calls:
            left = length - sum(map(len, kept))
            if left > 0:
                kept.append(ids[:left])
        self.calls[:] = kept
