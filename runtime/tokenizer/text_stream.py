"""Text of ids that arrive in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

REPLACEMENT = "\ufffd"
#: Byte tokens in a row that are held back at most. A word in a script that a vocabulary lacks has 20 to 60.
MOST_HELD_BYTES = 64


class Decoder(Protocol):
    """The side of `edgekit.runtime.tokenizer.Tokenizer` that a stream needs."""

    @property
    def byte_ids(self) -> frozenset[int]: ...

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str: ...

    def has_text(self, token: int, skip_special: bool = True) -> bool: ...


class TextStream:
    """Turns ids that arrive piece by piece into text.

    A character may be spread over several tokens, and its bytes over two pieces: what ends in U+FFFD is held
    back until more ids arrive or `finish` is called. Byte tokens (Gemma's kind) are decoded by runs, of which
    one wrong byte makes every byte U+FFFD: the run at the end is held back whole. The pieces joined are the
    `decode` of all ids, with one exception: of a run of more than MOST_HELD_BYTES tokens, what is UTF-8 so
    far is given out, and stays if a later byte of the run is wrong.
    """

    def __init__(self, tokenizer: Decoder, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids: list[int] = []
        self._text = ""
        self._emitted = 0

    def push(self, ids: Iterable[int]) -> str:
        """Take more ids; returns the text that has become certain, perhaps none."""
        self._ids.extend(int(i) for i in ids)
        # All ids are decoded anew: decoders look at neighbours (leading spaces, runs of byte tokens), and a
        # whole answer decodes in milliseconds.
        self._text = self._tokenizer.decode(self._ids, self._skip_special)
        begin = self._open_run()
        if begin is None:
            return self._emit(len(self._text.rstrip(REPLACEMENT)))
        return self._emit(len(self._tokenizer.decode(self._ids[:begin], self._skip_special)))

    def finish(self) -> str:
        """The text still held back; what is incomplete stays U+FFFD."""
        return self._emit(len(self._text))

    def _open_run(self) -> int | None:
        """The index at which the byte tokens at the end begin; None if there are none or too many. Ids that
        have no text do not end a run.
        """
        byte_ids, begin, count = self._tokenizer.byte_ids, None, 0
        if not byte_ids:
            return None
        for index in range(len(self._ids) - 1, -1, -1):
            token = self._ids[index]
            if not self._tokenizer.has_text(token, self._skip_special):
                continue
            if token not in byte_ids:
                break
            begin, count = index, count + 1
            if count > MOST_HELD_BYTES:
                return None
        return begin

    def _emit(self, end: int) -> str:
        piece = self._text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return piece
