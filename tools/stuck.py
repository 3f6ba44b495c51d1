"""Ctrl-C while the main thread is inside of a library: Python tells nobody of a signal before the call is
over, and one pass of a model may take minutes, that of a hostile bundle for ever.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from edgekit.tools import interrupts
from edgekit.tools.interrupts import INTERRUPTED, said

#: Seconds that the main thread has to notice Ctrl-C.
PATIENCE_S = 2.0
_POLL_S = 0.05
#: Colours off, lines wrap, the cursor is shown, and what is said begins a line.
_TERMINAL_AS_BEFORE = "\x1b[0m\x1b[?7h\x1b[?25h\r\n"
_restorers: list[Callable[[], None]] = []
_active = False


@contextmanager
def restored(restore: Callable[[], None]) -> Iterator[None]:
    """Inside the block `restore` is called where the process ends without leaving it."""
    _restorers.append(restore)
    try:
        yield
    finally:
        _restorers.remove(restore)


@contextmanager
def ending_if_stuck(hint: str = "", first: Callable[[], None] | None = None) -> Iterator[None]:
    """Inside the block a Ctrl-C that the main thread does not notice in time ends the process, with the
    terminal as it was, one line and the exit code of an interrupt. The line ends in `hint`, what can be done
    with what was made so far. With `first`, which says so, the first such Ctrl-C waits until the main thread
    notices it, and the next one ends the process. Where somebody else handles signals nothing changes.

    A library that holds the interpreter lock meanwhile cannot be ended so.
    """
    global _active
    handler = signal.getsignal(signal.SIGINT)
    known = handler is signal.default_int_handler or interrupts.is_ours(handler)
    if _active or not known or threading.current_thread() is not threading.main_thread():
        yield
        return
    channel = _Channel()
    others = signal.set_wakeup_fd(channel.waking, warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
        channel.leave()
        channel.close()
        yield
        return

    def noticing(number: int, frame: FrameType | None) -> None:
        interrupts.notice()
        signal.default_int_handler(number, frame)

    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, noticing)
    watcher = threading.Thread(target=_watch, args=(channel, hint, first), name="edgekit Ctrl-C", daemon=True)
    watcher.start()
    _active = True
    try:
        yield
    finally:
        _active = False
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(-1)
        channel.leave()


class _Channel:
    """A channel that Python writes the numbers of signals to: a pipe, and on Windows, which has no other,
    sockets.
    """

    def __init__(self) -> None:
        self._left = threading.Event()
        if os.name == "nt":
            woken, waking = socket.socketpair()
            waking.setblocking(False)
            self.woken, self.waking = woken.fileno(), waking.fileno()
            self._read: Callable[[int], bytes] = woken.recv
            self._end, self.close = waking.close, woken.close
        else:
            self.woken, self.waking = os.pipe()
            os.set_blocking(self.waking, False)
            self._read = lambda count: os.read(self.woken, count)
            self._end, self.close = lambda: os.close(self.waking), lambda: os.close(self.woken)

    def numbers(self) -> bytes:
        """Numbers of signals, at least one; none once the block has been left."""
        return self._read(4096)

    def is_ready(self) -> bool:
        """Whether `numbers` would not wait."""
        return bool(select.select([self.woken], [], [], 0)[0])

    def leave(self) -> None:
        """The block is left."""
        self._left.set()
        self._end()

    def is_left(self) -> bool:
        """Whether it has been."""
        return self._left.is_set()


def _watch(channel: _Channel, hint: str, first: Callable[[], None] | None) -> None:
    """Reads the number of every signal that comes, until the block has been left."""
    noticed = interrupts.noticed
    while numbers := channel.numbers():
        if signal.SIGINT not in numbers:
            continue
        in_time = _noticed_in_time(channel, noticed)
        # Several that come at once may be noticed as one; those that answer `first` are none of them.
        while channel.is_ready() and channel.numbers():
            pass
        if not in_time:
            if first is None:
                _end(hint)
            with suppress(Exception):
                first()
            first = None
        noticed = interrupts.noticed
    channel.close()


def _noticed_in_time(channel: _Channel, before: int) -> bool:
    """Waits until the main thread has noticed more than `before` or has left the block, not for ever."""
    end = time.monotonic() + PATIENCE_S
    while interrupts.noticed == before and not channel.is_left():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _end(hint: str) -> NoReturn:
    for restore in reversed(_restorers):
        with suppress(Exception):
            restore()
    with suppress(OSError, ValueError):
        from edgekit.tools.console import on_terminal

        text = (_TERMINAL_AS_BEFORE if on_terminal(sys.stderr) else "") + f"edgekit: {said(hint)}\n"
        # A terminal that takes nothing must not hold the process any longer.
        if os.name == "nt" or select.select([], [2], [], 0)[1]:
            os.write(2, text.encode())
    os._exit(INTERRUPTED)
