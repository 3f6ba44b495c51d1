"""A command in a process of its own, watched from outside: its exit, what it printed, its work and memory.

The process is forked from this one, which has imported what the command needs, so that a trial costs what the
command does and not the start of an interpreter. Linux only.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: A trial is ended after this time on the clock, or with this much memory: both far beyond what is judged.
MOST_SECONDS = 60.0
MOST_BYTES = 3_000_000_000
_POLL_S = 0.004


@dataclass(frozen=True)
class Trial:
    """The end of a command. `code` is the exit code, negative for a signal; `seconds` are those of
    processors, which other work on the machine does not add to; `ended` says that it was ended here, because
    it took too long or too much.
    """

    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int
    ended: bool


def trial(command: Callable[[], None]) -> Trial:
    """Run `command` in a forked process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _become(command, out, err)
        code, seconds, peak, ended = _watch(child)
        return Trial(code, _text(out), _text(err), seconds, peak, ended)


def _become(command: Callable[[], None], out: IO[bytes], err: IO[bytes]) -> None:
    """The child's life; does not return."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (out.fileno(), 1), (err.fileno(), 2)):
            os.dup2(source, target)
        try:
            command()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _watch(child: int) -> tuple[int, float, int, bool]:
    started, peak, ended = time.monotonic(), 0, False
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            seconds = usage.ru_utime + usage.ru_stime
            return os.waitstatus_to_exitcode(status), seconds, max(peak, usage.ru_maxrss * 1024), ended
        peak = max(peak, _peak(child))
        if not ended and (peak > MOST_BYTES or time.monotonic() - started > MOST_SECONDS):
            ended = True
            os.killpg(child, signal.SIGKILL) if os.getpgid(child) == child else os.kill(child, signal.SIGKILL)
        time.sleep(_POLL_S)


def _peak(child: int) -> int:
    try:
        for line in Path(f"/proc/{child}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(10_000_000).decode("utf-8", "replace")
