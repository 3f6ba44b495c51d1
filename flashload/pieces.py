"""Turning the tensors of a run into its bytes: order, types, shapes and padding, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from edgekit.flashload.errors import LayoutError
from edgekit.flashload.format import STORAGE_DTYPES, Run, TensorSlot

Tensors = Mapping[str, np.ndarray] | Iterable[tuple[str, np.ndarray]]
_ZEROS = bytes(16 * 1024)


def run_bytes(run: Run, tensors: Tensors) -> Iterator[memoryview]:
    """The bytes of the run's parts in order, padding included."""
    end = 0
    for slot, arrays in _by_slot(run, tensors):
        if not run.segments:
            yield from _zeros(slot.offset_in_run - end)
        rows = 0
        for array in arrays:
            _check_piece(slot, array, rows)
            rows += array.shape[0] if slot.shape else 1
            yield _bytes_of(array)
        if rows != (slot.shape[0] if slot.shape else 1):
            raise LayoutError(f"tensor {slot.name}: {rows} of {slot.shape[0]} rows given")
        end = slot.offset_in_run + slot.nbytes
    if not run.segments:
        yield from _zeros(run.length - end)


def _by_slot(run: Run, tensors: Tensors) -> Iterator[tuple[TensorSlot, Iterator[np.ndarray]]]:
    """Pair every slot with its pieces; the pieces of one slot must be consumed before the next slot."""
    if isinstance(tensors, Mapping):
        surplus = sorted(set(tensors) - {slot.name for slot in run.tensors})
        if surplus:
            raise LayoutError(f"run {run.name}: tensor {surplus[0]} is not part of it")
        for slot in run.tensors:
            if slot.name not in tensors:
                raise LayoutError(f"run {run.name}: tensor {slot.name} is missing")
            yield slot, iter([tensors[slot.name]])
        return
    stream = iter(tensors)
    pending: list[tuple[str, np.ndarray]] = []

    def pieces(name: str) -> Iterator[np.ndarray]:
        while True:
            item = pending.pop() if pending else next(stream, None)
            if item is None:
                return
            if item[0] != name:
                pending.append(item)
                return
            yield item[1]

    for slot in run.tensors:
        if not pending:
            item = next(stream, None)
            if item is None:
                raise LayoutError(f"run {run.name}: tensor {slot.name} is missing")
            pending.append(item)
        if pending[0][0] != slot.name:
            raise LayoutError(f"run {run.name}: expected tensor {slot.name}, got {pending[0][0]}")
        yield slot, pieces(slot.name)
    extra = pending[0] if pending else next(stream, None)
    if extra is not None:
        raise LayoutError(f"run {run.name}: tensor {extra[0]} comes after the last one of the run")


def _check_piece(slot: TensorSlot, array: np.ndarray, rows_before: int) -> None:
    if not isinstance(array, np.ndarray):
        raise LayoutError(f"tensor {slot.name}: expected a numpy array, got {type(array).__name__}")
    expected = STORAGE_DTYPES[slot.dtype]
    # ml_dtypes registers bfloat16 and float8 as numpy dtypes; the names differ from ours only in spelling.
    alias = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}.get(array.dtype.name)
    if array.dtype != expected and alias != slot.dtype:
        raise LayoutError(f"tensor {slot.name}: dtype {array.dtype} does not match {slot.dtype}")
    if not slot.shape:
        if array.shape != () or rows_before:
            raise LayoutError(f"tensor {slot.name}: expected one scalar, got shape {list(array.shape)}")
        return
    fits = array.ndim == len(slot.shape) and array.shape[1:] == slot.shape[1:]
    if not fits or rows_before + array.shape[0] > slot.shape[0]:
        raise LayoutError(
            f"tensor {slot.name}: shape {list(array.shape)} at row {rows_before} does not fit "
            f"{list(slot.shape)}"
        )


def _bytes_of(array: np.ndarray) -> memoryview:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.data


def _zeros(count: int) -> Iterator[memoryview]:
    while count > 0:
        size = min(count, len(_ZEROS))
        yield memoryview(_ZEROS)[:size]
        count -= size
