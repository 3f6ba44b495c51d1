"""Arrays over memory of the core: the tensors of a run, and what goes in and out of a call."""

from __future__ import annotations

import numpy as np

from edgekit.flashload.core_memory import array, read_only
from edgekit.flashload.format import STORAGE_DTYPES
from edgekit.runtime.core_structs import WeightsStruct


def heads(address: int | None, count: int, stride: int, shape: tuple[int, int]) -> np.ndarray:
    """[1, count, *shape], whose heads begin `stride` floats behind each other."""
    if address is None or count * shape[0] * shape[1] == 0:
        return np.empty((1, count, *shape), np.float32)
    flat = array(address, ((count - 1) * stride + shape[0] * shape[1],))
    strides = (0, 4 * stride, 4 * shape[1], 4)
    return np.lib.stride_tricks.as_strided(flat, (1, count, *shape), strides)


class StoredWeights:
    """Makes the arrays of units. A unit comes as one object, whose arrays are those of where it lies."""

    def __init__(self) -> None:
        self._made: dict[bytes, tuple[int, dict[str, np.ndarray]]] = {}

    def views(self, weights: WeightsStruct) -> dict[str, np.ndarray]:
        """Read-only arrays of a run by the names of its tensors. BF16 comes as uint16, F8 as uint8."""
        unit, data = weights.unit, weights.data
        place, views = self._made.get(unit, (0, dict[str, np.ndarray]()))
        if place == data:
            return views
        # Of no place until all are made: a signal may come between two of them.
        self._made[unit] = 0, views
        for tensor in weights.tensors[: weights.tensor_count]:
            shape = tuple(tensor.shape[: tensor.rank])
            view = array(data + tensor.offset, shape, STORAGE_DTYPES[tensor.dtype.decode()])
            views[tensor.name.decode()] = read_only(view)
        self._made[unit] = (data, views)
        return views
