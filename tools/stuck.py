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

from edgekit.tools import interrupts
from edgekit.tools.interrupts import INTERRUPTED, SAID

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
def ending_if_stuck() -> Iterator[None]:
    """Inside the block a Ctrl-C that the main thread does not notice in time ends the process, with the
    terminal as it was, one line and the exit code of an interrupt. Where somebody else handles signals
    nothing changes.

    A library that holds the interpreter lock meanwhile cannot be ended so.
    """
    global _active
    handler = signal.getsignal(signal.SIGINT)
    known = handler is signal.default_int_handler or interrupts.is_ours(handler)
    if _active or not known or threading.current_thread() is not threading.main_thread():
        yield
        return
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    others = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
        woken.close()
        waking.close()
        yield
        return

    def noticing(number: int, frame: FrameType | None) -> None:
        interrupts.notice()
        signal.default_int_handler(number, frame)

    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, noticing)
    watcher = threading.Thread(target=_watch, args=(woken,), name="edgekit Ctrl-C", daemon=True)
    watcher.start()
    _active = True
    try:
        yield
    finally:
        _active = False
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(-1)
        waking.close()  # the end for the watcher


def _watch(woken: socket.socket) -> None:
    """Reads the number of every signal that comes, until the other end is closed."""
    noticed = interrupts.noticed
    with woken:
        while numbers := woken.recv(4096):
            if signal.SIGINT not in numbers:
                continue
            end = time.monotonic() + PATIENCE_S
            while interrupts.noticed == noticed and not _closed(woken):
                if time.monotonic() > end:
                    _end()
                time.sleep(_POLL_S)
            # Several that come at once may be noticed as one.
            while select.select([woken], [], [], 0)[0] and woken.recv(4096):
                pass
            noticed = interrupts.noticed


def _closed(woken: socket.socket) -> bool:
    """Whether the block has been left."""
    if not select.select([woken], [], [], 0)[0]:
        return False
    return not woken.recv(4096, socket.MSG_PEEK)


def _end() -> None:
    for restore in reversed(_restorers):
        with suppress(Exception):
            restore()
    with suppress(OSError, ValueError):
        from edgekit.tools.console import on_terminal

        text = (_TERMINAL_AS_BEFORE if on_terminal(sys.stderr) else "") + f"edgekit: {SAID}\n"
        # A terminal that takes nothing must not hold the process any longer.
        if os.name == "nt" or select.select([], [2], [], 0)[1]:
            os.write(2, text.encode())
    os._exit(INTERRUPTED)
