"""What other programs keep busy while nothing is measured yet."""

from __future__ import annotations

import os
import time
from contextlib import suppress

#: Cores that hardly disturb a measurement.
LITTLE = 0.25
#: Columns of /proc/stat in which a core computes nothing: idle, and waiting for a disk.
_IDLE = slice(3, 5)
#: Those that are in others already: guests.
_ONCE = slice(0, 8)


def busy_cores(seconds: float = 0.3) -> float | None:
    """How many cores others keep busy, looked at for so long, in which this thread sleeps; None where the
    system does not say.
    """
    before = _ticks()
    time.sleep(seconds)
    if before is None or (after := _ticks()) is None or after[1] <= before[1]:
        return None
    idle, every = after[0] - before[0], after[1] - before[1]
    return max(0.0, 1 - idle / every) * (os.cpu_count() or 1)


def _ticks() -> tuple[int, int] | None:
    """Idle ticks, and all, of all cores since the system began."""
    with suppress(OSError, ValueError), open("/proc/stat") as file:
        columns = [int(word) for word in file.readline().split()[1:]]
        return sum(columns[_IDLE]), sum(columns[_ONCE])
    return None
