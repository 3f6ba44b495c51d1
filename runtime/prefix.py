"""The prefix KV cache: keys and values of committed positions, per layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekit.runtime.sampling.types import Floats, Ids

#: Positions added to a layer's buffer at a time, so that a chunk rarely reallocates.
_GROW = 256


@dataclass
class _Layer:
    keys: Floats  # [1, KV, capacity, D]
    values: Floats
    start: int = 0
    length: int = 0


class PrefixKV:
    """Keys and values [1, KV, P, D] (float32) of every layer; a layer with a window keeps its last window -
    1 positions.
    """

    def __init__(self, geometry: list[tuple[int, int, int | None]]) -> None:
        """`geometry`: (kv_heads, head_dim, window) per layer."""
        self._geometry = geometry
        self._layers: list[_Layer] = []
        self.length = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.length = 0
        self._layers = [
            _Layer(np.zeros((1, kv, 0, dim), np.float32), np.zeros((1, kv, 0, dim), np.float32))
            for kv, dim, _ in self._geometry
        ]

    def view(self, layer: int) -> tuple[Floats, Floats, int]:
        """Keys, values [1, KV, P', D] of the kept positions, and the absolute position of the first one."""
        own = self._layers[layer]
        stop = own.start + own.length
        return own.keys[:, :, own.start : stop], own.values[:, :, own.start : stop], self.length - own.length

    def append(self, layer: int, keys: Floats, values: Floats) -> None:
        """Add the keys and values [1, KV, T, D] of a chunk to one layer; `advance` once all layers have
        it.
        """
        own, window = self._layers[layer], self._geometry[layer][2]
        added = keys.shape[2]
        keep = own.length + added if window is None else min(own.length + added, window - 1)
        drop = own.length + added - keep
        if own.start + own.length + added > own.keys.shape[2]:
            capacity = -(-(own.length + added) // _GROW) * _GROW
            if (
                window is not None
            ):  # room for a chunk behind a full window: moves happen once per several chunks
                capacity = max(capacity, window - 1 + 2 * added)
            for name in ("keys", "values"):
                old = getattr(own, name)
                grown = np.zeros((*old.shape[:2], capacity, old.shape[3]), np.float32)
                grown[:, :, : own.length] = old[:, :, own.start : own.start + own.length]
                setattr(own, name, grown)
            own.start = 0
        end = own.start + own.length
        own.keys[:, :, end : end + added] = keys
        own.values[:, :, end : end + added] = values
        own.start, own.length = own.start + drop, keep

    def advance(self, count: int) -> None:
        """Count `count` positions as committed."""
        self.length += count

    def bytes_at(self, length: int) -> int:
        """Memory of a prefix of `length` positions."""
        return sum(
            8 * kv * dim * (length if window is None else min(length, window - 1))
            for kv, dim, window in self._geometry
        )


class EncodedIds:
    """The token ids behind a session's prefix, call by call: another session that is given the same calls
    holds the same keys and values, to the bit.
    """

    def __init__(self) -> None:
        self.calls: list[Ids] = []

    def prefilled(self, ids: Ids, prefix_length: int) -> None:
        """To be told after every prefill, also one that failed, with the prefix's length then."""
        if prefix_length == 0:
            self.calls.clear()
        elif prefix_length > sum(map(len, self.calls)):
            self.calls.append(np.array(ids, np.int64))
