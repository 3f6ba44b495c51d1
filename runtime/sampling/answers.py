"""The arrays of an answer to a head request."""

from __future__ import annotations

import functools
import math
from dataclasses import fields
from typing import Any, Final

import numpy as np

from edgekit.flashload.core_memory import address
from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.core_structs import HeadOutputStruct
from edgekit.runtime.sampling.types import ROLES, HeadOutput, HeadRequest

Arrays = dict[str, np.ndarray]
_IDS: Final = ("argmax", "sample", "top_ids")
#: Memory of their own: who keeps another array shall not keep them.
_LARGE: Final = ("soft", "logits")


def answer_shapes(
    request: HeadRequest, rows: int, vocab_size: int, hidden_size: int
) -> dict[str, tuple[int, ...]]:
    """Shapes of what a request for so many rows asks for, by the names of `HeadOutput`."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("argmax", "others", "entropy", "log_z"), (rows,))
    if request.gumbel is not None:
        shapes |= dict.fromkeys(("sample", "sample_prob"), (rows,))
    if request.soft:
        shapes["soft"] = (rows, hidden_size)
    if request.top_k:
        shapes |= dict.fromkeys(("top_ids", "top_z"), (rows, request.top_k))
    if request.roles:
        shapes["roles"] = (rows, len(ROLES))
    if request.logits:
        shapes["logits"] = (rows, vocab_size)
    return shapes


class FilledOutput(HeadOutput):
    """An answer that the core fills, and takes as it is: `struct` points at its arrays."""

    __slots__ = ("_arrays", "_shapes", "struct")
    _arrays: Arrays
    _shapes: dict[str, tuple[int, ...]]
    struct: HeadOutputStruct

    @classmethod
    def empty(cls, shapes: dict[str, tuple[int, ...]]) -> FilledOutput:
        """An answer to be filled. Small arrays share a block: there are few addresses to ask for."""
        places, count = _places(tuple(shapes.items()))
        block = np.empty(count, np.int64)
        start, struct = address(block), HeadOutputStruct()
        arrays: Arrays = {}
        for name, shape, kind, offset in places:
            if offset is None:
                arrays[name] = large = np.empty(shape, kind)
                setattr(struct, name, address(large))
            else:
                arrays[name] = np.ndarray(shape, kind, block, offset)
                setattr(struct, name, start + offset)
        made = cls(**arrays)
        made._arrays, made._shapes, made.struct = arrays, shapes, struct
        return made

    def is_of(self, shapes: dict[str, tuple[int, ...]]) -> bool:
        """Whether it has these shapes, and the arrays that were filled: callers may have replaced some."""
        arrays = getattr(self, "_arrays", None)  # one that was made by others has none
        if arrays is None or self._shapes != shapes:
            return False
        return all(getattr(self, name) is array for name, array in arrays.items())

    def __reduce__(self) -> tuple[Any, ...]:
        """As an answer like any other: addresses are of this process and these arrays."""
        return HeadOutput, tuple(getattr(self, field.name) for field in fields(HeadOutput))


@functools.lru_cache(16)
def _places(
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
) -> tuple[list[tuple[str, tuple[int, ...], type[np.generic], int | None]], int]:
    """Offsets in bytes of small arrays in their block, None for large ones; and its words of 8 bytes."""
    places, words = [], 0
    for name, shape in shapes:
        places.append((name, shape, _kind(name), None if name in _LARGE else 8 * words))
        words += 0 if name in _LARGE else math.prod(shape)
    return places, words


def _kind(name: str) -> type[np.generic]:
    return np.int64 if name in _IDS else np.float32


def answer_arrays(answer: Any, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """The arrays that were asked for, as the core takes them. Raises InvalidRequest for others."""
    if not isinstance(answer, HeadOutput):
        raise InvalidRequest(f"the answer is {shown(answer)}; pass a HeadOutput")
    arrays: Arrays = {}
    for name, shape in shapes.items():
        given = getattr(answer, name)
        if given is None:
            raise InvalidRequest(f"HeadOutput.{name} is None, but the pass was asked for it")
        found, kinds = np.asarray(given), "iu" if name in _IDS else "fiu"
        if found.shape != shape or found.dtype.kind not in kinds:
            raise InvalidRequest(
                f"HeadOutput.{name} is {found.dtype}{list(found.shape)}; the pass was asked for "
                f"{'integers' if name in _IDS else 'numbers'} {list(shape)}"
            )
        arrays[name] = np.ascontiguousarray(found, _kind(name))
    return arrays
