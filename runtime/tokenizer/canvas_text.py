"""An answer while it resolves, as text."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_int64
from enum import IntEnum
from typing import Any, Final, NamedTuple

from edgekit.flashload import _native
from edgekit.runtime.core_structs import (
    EVENT_COMMITTED,
    EVENT_DONE,
    EVENT_DRAFT,
    CanvasCellStruct,
    EventStruct,
)
from edgekit.runtime.tokenizer.core_text import CoreText, id_array
from edgekit.runtime.tokenizer.errors import of_files

#: Stands for a place that a masked family leaves open.
OPEN: Final = "·"
#: Stands for a token without a text: end of text, padding, roles.
SPECIAL: Final = "◦"

_SIGNATURES: dict[str, Sequence[Any]] = {
    "ek_canvas_fold": (
        *(POINTER(CanvasCellStruct), c_int64, POINTER(EventStruct), c_int64),
        *(POINTER(CanvasCellStruct), c_int64, POINTER(c_int64)),
    )
}
#: A cell in memory: place, token, state, and what is reserved.
_CELL: Final = struct.Struct("qqii")


class State(IntEnum):
    """How certain a token is, from the least: `EK_CELL_...` in edgekit.h."""

    OPEN = 0
    DRAFT = 1
    KEPT = 2
    ACCEPTED = 3
    COMMITTED = 4


_STATES: Final = tuple(State)


class Cell(NamedTuple):
    """A token at its place in the answer, from 0."""

    place: int
    token: int
    state: State


class Part(NamedTuple):
    """Text of neighbours in the same state."""

    text: str
    state: State


class CanvasText:
    """Final tokens, and behind them the canvas as the last step left it: see `ek_canvas_fold` and
    `ek_canvas_draw` in edgekit.h. It is told events in their order, by one thread at a time.
    """

    def __init__(self, core: CoreText, where: str, mask_id: int | None) -> None:
        """`where` names the place of the tokenizer's files in messages. `mask_id`: the token of open places,
        None for a family that guesses at every place.
        """
        self._core, self._where = core, where
        self._mask = -1 if mask_id is None else mask_id
        self._fold = _native.functions(_SIGNATURES).ek_canvas_fold
        self._cells: Any = (CanvasCellStruct * 0)()
        self._count = 0  # cells that there are
        self._committed = 0  # tokens that are final

    def draft(self, start: int, ids: Sequence[int], accepted: Sequence[bool]) -> None:
        """A denoising step is done; ids[0] stands at place `start` of the answer. `accepted`: the ids that
        this step accepted, as many as `ids`.
        """
        if len(accepted) != len(ids):
            raise ValueError(f"{len(ids)} ids, and {len(accepted)} that say which were accepted")
        self._tell(EVENT_DRAFT, start, ids, accepted)

    def commit(self, ids: Sequence[int]) -> None:
        """Tokens are final, behind those that are."""
        self._tell(EVENT_COMMITTED, self._committed, ids)
        self._committed += len(ids)

    def done(self) -> None:
        """No events follow."""
        self._tell(EVENT_DONE, 0, ())

    def cells(self) -> list[Cell]:
        """The tokens, in order of their places."""
        cells = bytes(self._cells)[: self._count * _CELL.size]
        return [Cell(place, token, _STATES[state]) for place, token, state, _ in _CELL.iter_unpack(cells)]

    def parts(self) -> list[Part]:
        """The answer in pieces that are drawn alike. Raises TokenizerError."""
        with of_files(self._where):
            drawn = self._core.draw(self._cells, self._count)
        return [Part(text, _STATES[state]) for text, state in drawn]

    def _tell(self, kind: int, start: int, ids: Sequence[int], accepted: Sequence[bool] = ()) -> None:
        given, flags = id_array(ids), array("B", accepted)
        event = EventStruct(
            kind=kind,
            start=start,
            ids=ctypes.addressof(given),
            count=len(ids),
            accepted=flags.buffer_info()[0],
        )
        room, count = self._count + len(ids), c_int64()
        cells = (CanvasCellStruct * room)()
        _native.check(
            self._fold(
                self._cells, self._count, ctypes.byref(event), self._mask, cells, room, ctypes.byref(count)
            )
        )
        self._cells, self._count = cells, count.value
