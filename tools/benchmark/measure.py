"""Starts the process that measures a case, and follows it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.tools.benchmark.wanted import Wanted
from edgekit.tools.console import Steps

#: Who interrupts at the terminal means this process, which ends that one.
_APART: dict[str, Any]
if sys.platform == "win32":
    _APART = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
else:
    _APART = {"process_group": 0}


def measure(wanted: Wanted, steps: Steps) -> dict[str, Any]:
    """The report of a case, see docs/bench.md. Raises EdgekitError with what went wrong there."""
    command = [sys.executable, "-P", "-m", "edgekit.tools.benchmark.child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, **_APART) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        try:
            with suppress(OSError):  # one that ended at once says so by its exit code
                process.stdin.write(json.dumps(wanted.as_dict()).encode() + b"\n")
                process.stdin.flush()
            # It stays open: the process ends itself when this one is gone.
            for text in process.stdout:
                report = _followed(text, steps)
                if report is not None:
                    return report
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(OSError):
                process.stdin.close()
    raise EdgekitError(f"{wanted.case.title}: the process that measures it {_ending(process.returncode)}")


def _followed(text: bytes, steps: Steps) -> dict[str, Any] | None:
    """A line of the process: the report, when it is one. Raises what the process could not do."""
    try:
        line = json.loads(text)
    except ValueError:  # it was ended in the middle of the line
        return None
    if "stage" in line:
        steps.stage(line["stage"], line["total"])
    elif "done" in line:
        steps.advance(line["done"], "")
    elif "error" in line:
        needed = line["needed_bytes"]
        raise EdgekitError(line["error"]) if needed is None else BudgetExceeded(line["error"], needed)
    else:
        report: dict[str, Any] = line["report"]
        return report
    return None


def _ending(code: int) -> str:
    """How a process ended that has told nothing."""
    if code == -9:
        return "was killed, as systems do that run out of memory; give a smaller --memory"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with exit code {code} and no result; what it printed before that is the reason"
