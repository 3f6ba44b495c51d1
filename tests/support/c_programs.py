"""Compiling programs in C against the core's header."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HEADER = Path(__file__).parents[2] / "flashload" / "native" / "include" / "edgekit.h"


def compiler(*names: str) -> str:
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise AssertionError(f"no compiler among {names} on PATH; the tests need one")


def run(*command: str | Path) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
