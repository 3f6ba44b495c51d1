"""A terminal that does not show what is typed, for as long as something is drawn on it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from edgekit.tools.stuck import restored


@contextmanager
def echo_off() -> Iterator[None]:
    """Inside the block the terminal that keys come from does not show them; what is typed waits for whoever
    reads next. The terminal is as before however the block ends. Nothing changes where stdin is no terminal,
    or is that of another job: systems stop a process in the background that changes it.
    """
    try:
        import termios
    except ImportError:  # Windows shows keys when they are read
        yield
        return
    if not sys.stdin.isatty() or not _in_foreground(terminal := sys.stdin.fileno()):
        yield
        return
    before = termios.tcgetattr(terminal)

    def restore() -> None:
        # Now: the other ways forget what has been typed, or wait for output.
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    ending = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ending = []
    try:
        for number in ending:
            signal.signal(number, end)
        silent = [*before]
        silent[3] &= ~(termios.ECHO | termios.ECHONL)
        with restored(restore):
            termios.tcsetattr(terminal, termios.TCSANOW, silent)
            yield
    finally:
        restore()
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _in_foreground(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the terminal that this process belongs to: nobody stops it
        return True
