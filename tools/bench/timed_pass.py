"""What a pass of a session takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from edgekit.runtime.session import Session

T = TypeVar("T")


def timed(session: Session, run: Callable[[], T]) -> tuple[dict[str, float], T]:
    """Seconds of a call that runs passes, with their parts and the bytes that were read, and what it gives.

    `wait_seconds` were spent without weights, `compute_seconds` are the rest of the passes, `other_seconds`
    lie around them; `io_seconds` of reading overlap the others.
    """
    before, began = session.statistics(), time.perf_counter()
    found = run()
    seconds, after = time.perf_counter() - began, session.statistics()
    names = ("bytes_read", "io_seconds", "io_wait_seconds", "pass_seconds")
    read, reading, waited, passed = (after[name] - before[name] for name in names)
    return {
        "seconds": seconds, "wait_seconds": waited, "compute_seconds": passed - waited,
        "other_seconds": seconds - passed, "bytes_read": read, "io_seconds": reading,
    }, found  # fmt: skip
