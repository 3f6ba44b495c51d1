"""Memory and processors that the system lets this process use, as the native core reads it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.native_testing import library

from edgekit.runtime import process
from edgekit.runtime.one_user import OneUser

QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def native_cores(root: Path) -> int | None:
    return library().ekt_group_cores(os.fsencode(root)) or None


def native_memory(root: bytes) -> int:
    function = library().ekt_machine_memory
    function.restype = ctypes.c_uint64
    return int(function(root))


#: /proc/self/cgroup, files under /sys/fs/cgroup, and the cores that they amount to.
TREES: dict[str, tuple[str, Mapping[str, str], int | None]] = {
    "nothing": ("", {}, None),
    "unified, no limit": ("0::/a", {"cpu.max": "max 100000\n", "a/cpu.max": "max 100000\n"}, None),
    "unified": ("0::/user.slice/run", {"user.slice/run/cpu.max": "300000 100000\n"}, 3),
    "half a core": ("0::/a", {"a/cpu.max": "50000 100000\n"}, 1),
    "a core and a bit": ("0::/a", {"a/cpu.max": "100001 100000\n"}, 2),
    "another period": ("0::/a", {"a/cpu.max": "25000 10000\n"}, 3),
    "the group around it": (
        "0::/a/b/c",
        {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000", "a/b/c/cpu.max": "800000 100000"},
        2,
    ),
    "a container's own root": ("0::/", {"cpu.max": "150000 100000\n"}, 2),
    "a container with the host's path": ("0::/docker/0123", {"cpu.max": "400000 100000\n"}, 4),
    "not its group": ("0::/a", {"b/cpu.max": "100000 100000\n", "a/b/cpu.max": "100000 100000\n"}, None),
    "more than fits 32 bits": ("0::/a", {"a/cpu.max": "9000000000000000000 1000\n"}, 2**31 - 1),
    "one controller": (
        "5:memory:/m\n4:cpu:/a\n0::/", {f"cpu/a/{QUOTA}": "250000\n", f"cpu/a/{PERIOD}": "100000\n"}, 3,
    ),
    "two controllers": (
        "4:cpu,cpuacct:/a", {f"cpu,cpuacct/a/{QUOTA}": "100000\n", f"cpu,cpuacct/a/{PERIOD}": "100000\n"}, 1,
    ),
    "the old way, no limit": ("4:cpu:/a", {f"cpu/a/{QUOTA}": "-1\n", f"cpu/a/{PERIOD}": "100000\n"}, None),
    "the old way, in a container": (
        "4:cpu,cpuacct:/docker/01", {f"cpu/{QUOTA}": "200000\n", f"cpu/{PERIOD}": "100000\n"}, 2,
    ),
    "both ways": (
        "4:cpu:/a\n0::/b",
        {f"cpu/a/{QUOTA}": "500000", f"cpu/a/{PERIOD}": "100000", "b/cpu.max": "400000 100000"},
        4,
    ),
    "a controller of a similar name": (
        "4:cpuset,cpuacct:/a", {f"cpu/a/{QUOTA}": "100000", f"cpu/a/{PERIOD}": "100000"}, None,
    ),
    "no period": ("4:cpu:/a\n0::/a", {f"cpu/a/{QUOTA}": "100000", "a/cpu.max": "100000"}, None),
    "a period of nothing": ("0::/a", {"a/cpu.max": "100000 0"}, None),
    "something else": ("no groups\n0:\n::\n", {"cpu.max": "many few", f"cpu/{QUOTA}": ""}, None),
    "a colon in the name": ("0::/a:b", {"a:b/cpu.max": "200000 100000"}, 2),
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
def test_quotas_of_control_groups_are_found(tree: str, tmp_path: Path) -> None:
    groups, files, expected = TREES[tree]
    below = {tmp_path / "sys/fs/cgroup" / name: text for name, text in files.items()}
    for path, text in {tmp_path / "proc/self/cgroup": groups, **below}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert native_cores(tmp_path) == expected


LIMIT = "memory.limit_in_bytes"
#: /proc/self/cgroup, files under /sys/fs/cgroup, and the bytes that a machine of a gigabyte then has.
MEMORIES: dict[str, tuple[str, Mapping[str, str], int]] = {
    "no groups": ("", {}, 1 << 30),
    "unified, no limit": ("0::/a", {"a/memory.max": "max\n"}, 1 << 30),
    "unified": ("0::/a/b", {"a/memory.max": "max\n", "a/b/memory.max": "700000\n"}, 700_000),
    "the group around it": ("0::/a/b", {"a/memory.max": "600000\n", "a/b/memory.max": "max\n"}, 600_000),
    "a container's own root": ("0::/", {"memory.max": "500000\n"}, 500_000),
    "more than the machine has": ("0::/a", {"a/memory.max": f"{1 << 40}\n"}, 1 << 30),
    "the old way": ("4:memory:/a\n3:cpu:/b", {f"memory/a/{LIMIT}": "400000\n"}, 400_000),
    "the old way, no limit": ("4:memory:/a", {f"memory/a/{LIMIT}": "9223372036854771712\n"}, 1 << 30),
    "another controller": ("4:cpu:/a", {f"memory/a/{LIMIT}": "400000\n"}, 1 << 30),
    "nonsense": ("0::/a", {"a/memory.max": "-3\n"}, 1 << 30),
}


@pytest.mark.parametrize("tree", MEMORIES)
def test_the_memory_of_the_machine_is_that_of_its_control_groups(tree: str, tmp_path: Path) -> None:
    groups, files, expected = MEMORIES[tree]
    below = {tmp_path / "sys/fs/cgroup" / name: text for name, text in files.items()}
    below[tmp_path / "proc/meminfo"] = "MemTotal:        1048576 kB\nMemFree:  1 kB\n"
    for path, text in {tmp_path / "proc/self/cgroup": groups, **below}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert native_memory(os.fsencode(tmp_path)) == expected


def test_this_machine_has_memory() -> None:
    assert (native_memory(b"") or 0) > 1 << 28


@pytest.mark.skipif(sys.platform != "linux", reason="compares with what Linux says")
def test_cores_are_those_that_the_process_may_run_on() -> None:
    allowed, granted = len(os.sched_getaffinity(0)), native_cores(Path("/"))
    assert process.usable_cores() == (allowed if granted is None else min(allowed, granted)) >= 1
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from edgekit.runtime.process import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_the_peak_is_told_where_proc_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    resident, peak = process.resident_bytes(), process.peak_bytes()
    assert 1 << 20 < resident <= peak
    none = process.ProcessMemoryStruct()
    monkeypatch.setattr(process, "_memory", lambda: none)
    assert process.resident_bytes() == 0
    if sys.platform == "linux":
        assert process.peak_bytes() >= peak


def test_a_signal_leaves_nobody_inside() -> None:
    """A lock that is tried would stay taken after some of them."""
    user, armed, stopped = OneUser(), [False], 0

    def refusal() -> RuntimeError:
        return RuntimeError("in use")

    def stop(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for seed in range(3000):
            armed[0] = True
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + seed % 60))
                while armed[0]:
                    user.call(lambda: None, refusal)
            except KeyboardInterrupt:
                stopped += 1
                user.call(lambda: None, refusal)  # also while the signal's traceback is there
            armed[0] = False
            with pytest.raises(RuntimeError, match="in use"):
                user.call(lambda: user.call(lambda: None, refusal), refusal)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped > 100
