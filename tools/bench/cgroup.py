"""A memory cgroup for one command, page cache included (Linux, as root; v1 and v2)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekit.flashload.errors import EdgekitError

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class CgroupUnavailable(EdgekitError):
    """Memory cgroups cannot be made here."""


@dataclass(frozen=True)
class Limited:
    """The end of a command under a limit. `peak_bytes` is the most that was charged to the group."""

    code: int
    output: str
    errors: str
    peak_bytes: int


def run_limited(command: Sequence[str], limit_bytes: int) -> Limited:
    """Run `command` in a memory cgroup of its own and wait. Raises CgroupUnavailable."""
    v1 = _V1.is_dir()
    group = (_V1 if v1 else _V2) / f"edgekit-bench-{os.getpid()}"
    limit, peak = (
        ("memory.limit_in_bytes", "memory.max_usage_in_bytes") if v1 else ("memory.max", "memory.peak")
    )
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
    except OSError as error:
        raise CgroupUnavailable(
            f"{group}: cannot make a memory cgroup ({error.strerror}); run as root on Linux"
        ) from error
    try:
        # The shell enters the group before it becomes the command: no page is charged elsewhere.
        entered = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]
        done = subprocess.run(entered, capture_output=True, text=True, check=False)
        return Limited(done.returncode, done.stdout, done.stderr, int((group / peak).read_text()))
    finally:
        group.rmdir()


def drop_caches() -> None:
    """Empty the page cache. Raises CgroupUnavailable without the right to."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        raise CgroupUnavailable(f"cannot drop the page cache ({error.strerror}); run as root") from error
