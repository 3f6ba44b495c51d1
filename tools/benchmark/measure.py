"""Starts the process that measures a case, and follows it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.tools.benchmark.cases import Case
from edgekit.tools.console import Steps

#: Who interrupts at the terminal means this process, which ends that one.
_APART: dict[str, Any]
if sys.platform == "win32":
    _APART = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
else:
    _APART = {"process_group": 0}


def measure(
    case: Case,
    runs: int,
    warmups: int,
    steps: Steps,
    spans: int = 0,
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report of a case, see docs/bench.md; what the machine can do at most goes into it. Raises
    EdgekitError with what went wrong there.
    """
    wanted = {"case": case.as_dict(), "runs": runs, "warmups": warmups, "spans": spans, "limits": limits}
    command = [sys.executable, "-m", "edgekit.tools.benchmark.child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, **_APART) as process:
        try:
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            # One that ended at once says so by its exit code.
            with suppress(BrokenPipeError), process.stdin as given:
                given.write(json.dumps(wanted) + "\n")
            for text in process.stdout:
                line = json.loads(text)
                if "stage" in line:
                    steps.stage(line["stage"], line["total"])
                elif "done" in line:
                    steps.advance(line["done"], "")
                elif "error" in line:
                    needed = line["needed_bytes"]
                    raise (
                        EdgekitError(line["error"])
                        if needed is None
                        else BudgetExceeded(line["error"], needed)
                    )
                else:
                    report: dict[str, Any] = line["report"]
                    return report
        except BaseException:
            process.kill()
            raise
    raise EdgekitError(
        f"the process that measures {case.bundle} ended with exit code {process.returncode} and no result; "
        "what it printed before that is the reason"
    )
