"""Memory and processors of this process, as the operating system sees them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

#: Threads that an engine takes at most; the native core has the same limit.
MOST_THREADS = 1024


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
    """Processor cores that this process may keep busy: those that it may run on, or fewer where a Linux
    control group grants less time. At least 1.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = group_cores()
    return allowed if granted is None else min(allowed, granted)


def group_cores(root: Path = Path("/")) -> int | None:
    """Cores for which the control groups of this process grant time, rounded up; None for no limit.

    `root` stands in front of /proc and /sys, for tests.
    """

    def limit(folder: Path, unified: bool) -> int | None:
        if unified:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        return _cores(quota, period)

    return _group_limit(root, "cpu", limit)


def _group_limit(root: Path, controller: str, limit: Callable[[Path, bool], int | None]) -> int | None:
    """The least `limit` of the control groups of this process, by their folders and whether they are of the
    unified hierarchy; None for none.
    """
    found: list[int | None] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        # "hierarchy:controllers:path"; the unified hierarchy lists no controllers.
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        mounts = root / "sys/fs/cgroup"
        # A container sees its own group as the hierarchy's root, under a path that may be the host's: so
        # the groups around it are taken, which bound it in any case.
        names = [part for part in path.split("/") if part]
        groups = [Path(*names[:depth]) for depth in range(len(names) + 1)]
        if controller in controllers.split(","):
            # Hierarchies of old are mounted under the names of their controllers, all of them or the one.
            for name in {controller, controllers}:
                found += [limit(mounts / name / group, False) for group in groups]
        elif not controllers:
            found += [limit(mounts / group, True) for group in groups]
    return min((each for each in found if each is not None), default=None)


def _cores(quota: str, period: str) -> int | None:
    """Cores that microseconds per period amount to: half a core still runs one thread."""
    if quota.strip() in ("max", ""):  # for which `int` raises, and loses a signal that comes meanwhile
        return None
    try:
        microseconds, per = int(quota), int(period)
    except ValueError:
        return None
    return -(-microseconds // per) if microseconds > 0 and per > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
