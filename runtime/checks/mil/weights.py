"""Constants and compressed weights of a function, read when they are used; some are remembered."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgekit.runtime.checks.mil.rows import ArrayRows, Rows, narrowed
from edgekit.runtime.checks.mil.types import Array


class Weights:
    """Values by name. Up to `cache_bytes` of them are kept as arrays, those first asked for first.

    `rounds` says whether float16 values are float16 arrays, or float32 ones.
    """

    def __init__(self, values: Mapping[str, Rows], rounds: bool, cache_bytes: int) -> None:
        self._values, self._rounds, self._free_bytes = values, rounds, cache_bytes
        self._kept: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Rows:
        return self._values[name]

    def array(self, name: str) -> Array:
        """The whole value."""
        if name in self._kept:
            return self._kept[name]
        value = self._values[name]
        array = narrowed(value.all(), value.dtype, self._rounds)
        if array.nbytes <= self._free_bytes:
            self._kept[name] = array
            self._free_bytes -= array.nbytes
        return array

    def rows(self, name: str) -> Rows:
        """The value for somebody who takes it a few rows at a time; as a whole where it can be kept."""
        value = self._values[name]
        nbytes = int(np.prod(value.shape)) * (4 if value.dtype.is_float else value.dtype.numpy.itemsize)
        if name in self._kept or nbytes <= self._free_bytes:
            return ArrayRows(self.array(name), value.dtype)
        return value
