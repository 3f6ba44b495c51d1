"""Engines: which of them open here, and what they compute on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from edgekit.runtime.child_process import run_tidily
from edgekit.runtime.engine_registry import ENGINES, EngineRow
from edgekit.tools.doctor.finding import Finding

#: A library that has not answered by then does not work here.
_SECONDS = 120
_INSTALL = re.compile(r"pip install '[^']+'")


def examine() -> Iterator[Finding]:
    for row in ENGINES.working():
        yield _opened(row)


def _opened(row: EngineRow) -> Finding:
    about, facts = f"engine {row.name}", {"engine": row.name, "format": row.format}
    command = [sys.executable, "-P", "-m", "edgekit.tools.doctor.opening", row.name]
    try:
        done = run_tidily(command, os.environ, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Finding(about, "broken", f"does not answer within {_SECONDS} s", facts=facts)
    try:
        ((state, said),) = json.loads(done.stdout.splitlines()[-1]).items()
    except (ValueError, IndexError, AttributeError):
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return Finding(
            about, "broken", f"its library ends its process ({done.returncode}): {last}", facts=facts
        )
    found = _INSTALL.search(said)
    mend = "" if state == "works" or found is None else found.group()
    return Finding(about, state, said, mend, facts)
