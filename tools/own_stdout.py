"""Stdout for answers alone, where a library of an engine writes to it at any time."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from edgekit.runtime import remarks


def keep_to_ourselves() -> None:
    """From the moment that an engine announces such a library, what others than Python write to stdout goes
    to stderr. Not where readline is at work: it shows what is typed on the same stream as the library.
    """
    remarks.on_talkative = _part


def _part() -> None:
    python: TextIO = sys.stdout
    ours = python is not None and id(python) == id(sys.__stdout__)
    if "readline" in sys.modules or not ours:
        return
    try:
        if python.fileno() != 1:
            return
        python.flush()
        own = os.dup(1)
        os.dup2(2, 1)
    except (OSError, ValueError):  # closed, or of no process
        return
    lines = 1 if python.isatty() else -1
    sys.stdout = open(  # noqa: SIM115 - for the whole process
        own, "w", buffering=lines, encoding=python.encoding, errors=python.errors
    )
