"""Text of ids that arrive in pieces."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from edgekit.runtime.tokenizer.core_text import CoreText
from edgekit.runtime.tokenizer.errors import of_files


class TextStream:
    """Turns ids that arrive piece by piece into text: the core's stream, see `ek_text_stream` in edgekit.h.

    A character may be spread over several tokens, and its bytes over two pieces: what is not certain yet is
    held back until more ids arrive or `finish` is called.
    """

    def __init__(self, core: CoreText, where: str, skip_special: bool) -> None:
        """`where` names the place of the tokenizer's files in messages."""
        self._stream = core.stream(skip_special)
        self._where = where
        # The core's stream is for one thread at a time.
        self._gate = threading.Lock()

    def push(self, ids: Iterable[int]) -> str:
        """Take more ids; returns the text that has become certain, perhaps none. Raises TokenizerError."""
        numbers = [int(i) for i in ids]
        with self._gate, of_files(self._where):
            return self._stream.push(numbers)

    def finish(self) -> str:
        """The text still held back; what is incomplete stays U+FFFD."""
        with self._gate, of_files(self._where):
            return self._stream.finish()
