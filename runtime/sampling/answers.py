"""The arrays of an answer to a head request."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from edgekit.flashload.errors import InvalidRequest
from edgekit.flashload.names import shown
from edgekit.runtime.sampling.types import HeadOutput, HeadRequest

Arrays = dict[str, np.ndarray]
_IDS: Final = ("argmax", "sample", "top_ids")


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
    if request.logits:
        shapes["logits"] = (rows, vocab_size)
    return shapes


def empty_answer(shapes: dict[str, tuple[int, ...]]) -> HeadOutput:
    """An answer for the core to fill."""
    return HeadOutput(
        **{name: np.empty(shape, np.int64 if name in _IDS else np.float32) for name, shape in shapes.items()}
    )


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
        arrays[name] = np.ascontiguousarray(found, np.int64 if name in _IDS else np.float32)
    return arrays
