"""Work in a process of its own, which ends when the one that waits for it is gone.

What it is given is one line of JSON on its stdin. It answers in lines of JSON on stdout: {"stage": ...,
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
from typing import Any, Protocol

from edgekit.flashload.errors import BudgetExceeded, EdgekitError

#: Who interrupts at the terminal means this process, which ends that one.
_APART: dict[str, Any]
if sys.platform == "win32":
    _APART = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
else:
    _APART = {"process_group": 0}


class Tell(Protocol):
    """Tells the process that waits: `stage` and `total`, `done`, `note`, or `report`."""

    def __call__(self, **line: Any) -> None: ...


class Shown(Protocol):
    """Shows progress, as `console.Steps` does."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...
    def note(self, line: str) -> None: ...


def answer_of(module: str, given: Any, steps: Shown, title: str, advice: str) -> Any:
    """What the work of `module`, which calls `serve`, makes of `given`; its progress is shown by `steps`.
    `title` names the work, `advice` says what to do about one that runs out of memory. Raises EdgekitError
    with what went wrong there.
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
            for text in process.stdout:
                if (line := _followed(text, steps)) is not None:
                    return line["report"]
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(OSError):
                process.stdin.close()
    raise EdgekitError(f"{title}: its process {_ending(process.returncode, advice)}")


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
    sys.stdin.read()
    os._exit(1)
