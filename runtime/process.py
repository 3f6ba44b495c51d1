"""What this process uses, as the operating system sees it."""

from __future__ import annotations

import os
import sys


def resident_bytes() -> int:
    """Physical memory of the process now; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def peak_bytes() -> int:
    """The largest physical memory of the process so far; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    # ru_maxrss survives exec on Linux: a child of a large process would report its parent's peak.
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def usable_cores() -> int:
    """Processor cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
