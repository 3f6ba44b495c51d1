"""A terminal of 80 x 24 with a person at it, who waits for what is on it before pressing keys."""

from __future__ import annotations

import os
import pty
import select
import sys
import termios
import time
from pathlib import Path
from types import TracebackType

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"
#: What stands before the cursor once the chat's editor waits for a line.
PROMPT = "> \x1b[0m"


class Terminal:
    """`edgekit` with these words on a terminal of its own, which keys such as Ctrl-C belong to."""

    def __init__(self, *words: str | Path, **environment: str) -> None:
        variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **environment}
        self._process, self._master = pty.fork()
        if not self._process:
            command = [sys.executable, "-P", "-m", "edgekit", *(str(w) for w in words)]
            try:
                os.execve(command[0], command, variables)
            finally:
                os._exit(127)
        self.received = ""
        self._seen = 0

    @property
    def echoes(self) -> bool:
        """Whether it shows what is typed."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def kill(self, number: int) -> None:
        os.kill(self._process, number)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C at a prompt, pressed again after seconds without anything shown: one that comes between
        readline's showing of its prompt and its waiting for keys is noticed only with the next key.
        """
        for _ in range(10):
            before = len(self.received)
            self.press(CTRL_C)
            end = time.monotonic() + 5
            while (left := end - time.monotonic()) > 0:
                if not select.select([self._master], [], [], left)[0]:
                    break
                if not self._read():
                    return
                if self.received[before:].replace("^C", "").strip():
                    return

    def wait_for(self, text: str) -> None:
        """Until `text` stands behind what was waited for last; fails after a minute."""
        end = time.monotonic() + 60
        while text not in self.received[self._seen :]:
            assert time.monotonic() < end, f"no {text!r} in {self.received[self._seen :]!r}"
            assert self._read(), f"ended without {text!r}: {self.received[self._seen :]!r}"
        self._seen = self.received.index(text, self._seen) + len(text)

    def exit_code(self) -> int:
        """Waits for the end, whose output is in `received` too."""
        while self._read():
            pass
        _, status = os.waitpid(self._process, 0)
        self._process = 0
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 60)
        assert ready, f"nothing for a minute after {self.received!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self.received += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            os.kill(self._process, 9)
            os.waitpid(self._process, 0)
        os.close(self._master)
