"""A pass with its seconds and bytes, as the session counts them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from edgekit.runtime.session import Session

T = TypeVar("T")


def timed(session: Session, work: Callable[[], T]) -> tuple[dict[str, float], T]:
    """Do `work`, a pass of the session or a step. Returns its row, and what it gives. The row has seconds, of
    which within the pass computing and waiting for reads, and outside of it others; seconds that reads took,
    and their bytes.
    """
    before, began = session.statistics(), time.perf_counter()
    result = work()
    seconds, after = time.perf_counter() - began, session.statistics()
    grown = {
        name: after[name] - before[name]
        for name in ("bytes_read", "io_seconds", "io_wait_seconds", "pass_seconds")
    }
    return {
        "seconds": seconds,
        "compute_seconds": grown["pass_seconds"] - grown["io_wait_seconds"],
        "wait_seconds": grown["io_wait_seconds"],
        "other_seconds": seconds - grown["pass_seconds"],
        "io_seconds": grown["io_seconds"],
        "bytes_read": grown["bytes_read"],
    }, result
