"""Ctrl-C that no library can swallow."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Inside the block Ctrl-C raises KeyboardInterrupt as always; `check` raises it again if it got lost.

    Exporters and C callbacks catch everything now and then, or are interrupted where Python can only ignore
    an exception. Outside of the main thread, where Python delivers no signals, the block changes nothing.
    """

    def __init__(self) -> None:
        self._pending = False
        self._before: Any = None

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed since the block began."""
        if self._pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
