"""Work in a process of its own, which ends when the one that waits for it is gone.

What it is given is one line of JSON on its stdin, and "end" behind it where it is to end early, with what it
has. It answers in lines of JSON on stdout: {"stage": ...,
"total": n}, {"done": n, "what": ...} and {"note": ...} while it works, then {"report": ...}, or
{"error": ..., "needed_bytes": n}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Protocol

from edgekit.flashload.errors import BudgetExceeded, EdgekitError

#: Who interrupts at the terminal means this process, which ends that one.
_APART: dict[str, Any]
if sys.platform == "win32":
    _APART = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
else:
    _APART = {"process_group": 0}


_END = b"end\n"
#: In the process: set when it is to end early.
ending = threading.Event()


class Tell(Protocol):
    """Tells the process that waits: `stage` and `total`, `done`, `note`, or `report`."""

    def __call__(self, **line: Any) -> None: ...


class Shown(Protocol):
    """Shows progress, as `console.Steps` does."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...
    def note(self, line: str) -> None: ...


class EndedEarly(Exception):
    """Somebody has interrupted work that then came to an end with a `report` of what it had."""

    def __init__(self, report: Any) -> None:
        super().__init__("interrupted")
        self.report = report


def answer_of(
    module: str, given: Any, steps: Shown, title: str, advice: str, *, may_end_early: bool = False
) -> Any:
    """What the work of `module`, which calls `serve`, makes of `given`; its progress is shown by `steps`.
    `title` names the work, `advice` says what to do about one that runs out of memory. Work that
    `may_end_early`, as it looks at `ending`, does so after Ctrl-C, and at once after another one.

    Raises EdgekitError with what went wrong there, and EndedEarly.
    """
    command = [sys.executable, "-P", "-m", module]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, **_APART) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        try:
            with suppress(OSError):  # one that ended at once says so by its exit code
                process.stdin.write(json.dumps(given).encode() + b"\n")
                process.stdin.flush()
            # It stays open: the process ends itself when this one is gone.
            try:
                for text in process.stdout:
                    if (line := _followed(text, steps)) is not None:
                        return line["report"]
            except KeyboardInterrupt:
                if not may_end_early:
                    raise
                steps.note("ending after this pass; Ctrl-C once more ends at once")
                raise EndedEarly(_ended(process.stdin, process.stdout)) from None
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(OSError):
                process.stdin.close()
    raise EdgekitError(f"{title}: its process {_ending(process.returncode, advice)}")


def _ended(to: IO[bytes], answers: IO[bytes]) -> Any:
    """What work has that is told to end. Raises KeyboardInterrupt where it has nothing."""
    with suppress(OSError):
        to.write(_END)
        to.flush()
    for text in answers:  # progress is not shown any more
        with suppress(ValueError):
            if "report" in (line := json.loads(text)):
                return line["report"]
    raise KeyboardInterrupt


def _followed(text: bytes, steps: Shown) -> dict[str, Any] | None:
    """A line of the process, when it is the last one. Raises what the process could not do."""
    try:
        line: dict[str, Any] = json.loads(text)
    except ValueError:  # it was ended in the middle of the line
        return None
    if "stage" in line:
        steps.stage(line["stage"], line["total"])
    elif "done" in line:
        steps.advance(line["done"], line.get("what", ""))
    elif "note" in line:
        steps.note(line["note"])
    elif "error" in line:
        needed = line["needed_bytes"]
        raise EdgekitError(line["error"]) if needed is None else BudgetExceeded(line["error"], needed)
    else:
        return line
    return None


def _ending(code: int, advice: str) -> str:
    """How a process ended that has told nothing."""
    if code == -9:
        return f"was killed, as systems do that run out of memory; {advice}"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with exit code {code} and no result; what it printed before that is the reason"


def serve(work: Callable[[Any, Tell], Any]) -> None:
    """In the process: have the work done that is asked for on stdin."""
    text = sys.stdin.readline()
    if not text.endswith("\n"):  # who asks was interrupted before it had asked
        return
    given = json.loads(text)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # What a library prints is none of these lines.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(**line: Any) -> None:
        print(json.dumps(line), file=out, flush=True)

    try:
        tell(report=work(given, tell))
    except BudgetExceeded as error:
        tell(error=str(error), needed_bytes=error.needed_bytes)
    except EdgekitError as error:
        tell(error=str(error), needed_bytes=None)


def _end_with_parent() -> None:
    """Nobody waits for a result any more when the other end of stdin is closed."""
    for line in sys.stdin:
        if line.encode() == _END:
            ending.set()
    os._exit(1)
