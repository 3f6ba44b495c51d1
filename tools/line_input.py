"""Lines from a person at a terminal, with editing and history, or from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from edgekit.tools.console import on_terminal
from edgekit.tools.prompts import MOST_PROMPT_BYTES, decoded

#: Lines that the history keeps.
_MOST_LINES = 1000


def history_file() -> Path:
    """The file with the lines of earlier conversations. Raises RuntimeError for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "edgekit" / "chat_history"


class Editor:
    """Lines typed at the terminal; where Python has no readline, without editing and history."""

    def __init__(self, completions: Callable[[str], list[str]]) -> None:
        """`completions` gives the lines that a line may have been begun for."""
        self._completions = completions
        self._readline: ModuleType | None = None
        self._file: Path | None = None
        with suppress(ImportError):
            import readline

            self._readline = readline
            self._set_up(readline)

    def _set_up(self, readline: ModuleType) -> None:
        readline.set_completer(self._complete)
        readline.set_completer_delims("")  # whole lines are completed
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
        readline.set_history_length(_MOST_LINES)
        # A home that cannot be written to costs the history, not the conversation.
        with suppress(OSError, RuntimeError):
            file = history_file()
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
            readline.read_history_file(file)
            self._file = file

    def _complete(self, line: str, number: int) -> str | None:
        found = self._completions(line)
        return found[number] if number < len(found) else None

    def read(self) -> str:
        """The next line. Raises EOFError, KeyboardInterrupt, and Failure for one that is not text."""
        readline = self._readline
        if readline is None:
            return _text(lambda: input("> "))
        before = readline.get_current_history_length()
        coloured = on_terminal(sys.stdout) and "NO_COLOR" not in os.environ
        # \\x01 and \\x02 enclose what takes no place on the line.
        line = _text(lambda: input("\x01\x1b[36m\x02> \x01\x1b[0m\x02" if coloured else "> "))
        if self._file is not None and readline.get_current_history_length() > before:
            # At once: a terminal that is closed gives no time for it.
            with suppress(OSError):
                if hasattr(readline, "append_history_file"):
                    readline.append_history_file(1, self._file)
                else:
                    readline.write_history_file(self._file)
        return line


def _text(read: Callable[[], str]) -> str:
    try:
        return read()
    except UnicodeDecodeError as error:
        return decoded(error.object, "this line")


def piped_lines() -> Iterator[bytes]:
    """The lines of stdin as they come, up to one that is longer than a prompt may be: it may have no end."""
    while line := sys.stdin.buffer.readline(MOST_PROMPT_BYTES + 1):
        yield line
        if len(line) > MOST_PROMPT_BYTES:
            return
