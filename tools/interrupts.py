"""Ctrl-C that no library can swallow. Imported before everything else: it imports next to nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

#: What the user is told, and the exit code, as shells count it.
SAID, INTERRUPTED = "interrupted", 130


def said(hint: str) -> str:
    """What the user is told, with what can be done with what was made so far."""
    return SAID + (f"; {hint}" if hint else "")


#: How many times Ctrl-C has reached Python in the main thread.
noticed = 0


def notice() -> None:
    """For handlers of Ctrl-C: they run."""
    global noticed
    noticed += 1


def is_ours(handler: Any) -> bool:
    """Whether a handler of Ctrl-C calls `notice`."""
    return isinstance(getattr(handler, "__self__", None), Interrupts)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside the block Ctrl-C ends the process with one line: libraries that are being imported make other
    errors of KeyboardInterrupt. A process that is to ignore Ctrl-C still does.
    """
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end)
    if hasattr(signal, "pthread_sigmask"):  # what came while `held_back` is delivered here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"edgekit: {SAID}\n".encode())
    os._exit(INTERRUPTED)


@contextmanager
def held_back() -> Iterator[None]:
    """Inside the block Ctrl-C waits, and in a process that is started there until it is `ending_at_once`: the
    start of Python would answer with a traceback. Windows knows no such thing.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ending_by_exceptions() -> Iterator[None]:
    """Inside the block a process that is asked to end (SIGTERM, SIGHUP) does so by an exception, so that what
    it has on the disk for a moment is removed; outside of the main thread the block changes nothing.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        names = []
    numbers = [getattr(signal, name) for name in names]
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


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
        notice()
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
