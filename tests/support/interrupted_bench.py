"""A command of edgekit that somebody interrupts while it measures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def interrupted(words: Sequence[str], report: Path) -> tuple[str, str]:
    """What it has printed, and told on stderr, where it was interrupted late enough to leave a report."""
    for seconds in (7, 25, 60):  # until it measures, which nothing outside tells
        with subprocess.Popen(
            [sys.executable, "-m", "edgekit", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            time.sleep(seconds)
            os.killpg(process.pid, signal.SIGINT)
            shown, said = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in said, said
        if report.exists():
            break
    return shown, said
