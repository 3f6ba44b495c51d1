"""Remarks that a library writes to the streams of its process, and has no switch for."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def _nobody() -> None: ...


#: Called before a library is loaded that may write to stdout at any time: for programs whose answers go
#: there.
on_talkative: Callable[[], None] = _nobody
#: Held by who has a stream replaced: there is one of each for all threads.
_streams = threading.Lock()


@contextmanager
def unsaid(stream: int, remark: re.Pattern[bytes]) -> Iterator[None]:
    """Inside the block what a library writes to `stream` (1: stdout, 2: stderr) does not reach it where it
    matches; all else that is written there does when the block ends.
    """
    with _streams, tempfile.TemporaryFile() as caught:
        _flush()
        try:
            real = os.dup(stream)
        except OSError:  # the process has none
            yield
            return
        try:
            os.dup2(caught.fileno(), stream)
            yield
        finally:
            _flush()
            os.dup2(real, stream)
            os.close(real)
            caught.seek(0)
            os.write(stream, remark.sub(b"", caught.read()))


def _flush() -> None:
    """Have the C library write what it holds back, where it is found this way."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)
