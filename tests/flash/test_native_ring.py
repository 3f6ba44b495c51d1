"""The ring in C++: runs come in order and whole, whatever their sizes and whatever the disk does."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import native_reading as native
from support.flash_files import ALIGN, byte_runs, random_data, write
from support.native_reading import WAYS, NativeError, NativeFile, NativeRing, OnRead, Way, refused, span

# Lengths in the file: 2, 1, 5, 1, 3, 1 pages of 16 KiB, one run of 40, and twenty small ones.
SIZES = [2 * ALIGN - 5, 700, 5 * ALIGN, 1, 3 * ALIGN - 64, 9000, 40 * ALIGN - 1, *range(100, 120)]
RING_SPECS = byte_runs(SIZES)
RING_DATA = random_data(RING_SPECS)
WAIT_S = 60  # only ever waited for when a test is about to fail


@pytest.fixture(scope="module")
def ring_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ring") / "weights"
    write(path, RING_SPECS, RING_DATA)
    return path


@pytest.fixture(scope="module", params=WAYS)
def module_file(request: pytest.FixtureRequest, ring_path: Path) -> Iterator[NativeFile]:
    with NativeFile(ring_path, chunk_bytes=2 * ALIGN, **request.param) as opened:
        yield opened


@pytest.fixture
def file(ring_path: Path) -> Iterator[NativeFile]:
    """Through the pool: its reads wait for one another's hooks only when the threads run out."""
    with NativeFile(ring_path, chunk_bytes=4 * ALIGN, io_uring=False) as opened:
        yield opened


def size_of(run: str) -> int:
    return SIZES[int(run[1:])]


def whole(run: str, data: int) -> bool:
    return ctypes.string_at(data, size_of(run)) == RING_DATA[run]["t" + run[1:]].tobytes()


def pages(run: str) -> int:
    return -(-size_of(run) // ALIGN)


def drain(ring: NativeRing, runs: list[str]) -> None:
    for run in runs:
        data = ring.take(run)
        ring.check_integrity()
        assert whole(run, data)
        ring.release(data)
        ring.check_integrity()


def stop_at(path: Path, run: str, action: OnRead) -> OnRead:
    """Do `action` whenever the first bytes of a run are read."""
    start, _ = span(path, run)
    return lambda offset, nbytes: action(offset, nbytes) if offset == start else None


class Gate:
    """Holds a read back until it is opened, and tells when the read has arrived."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, offset: int, nbytes: int) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


@pytest.mark.parametrize("size", [40, 41, 45, 80, 300])
def test_many_small_runs_and_one_big_one_come_in_order(module_file: NativeFile, size: int) -> None:
    names = [run.name for run in RING_SPECS]
    with NativeRing(module_file, size * ALIGN) as ring:
        ring.schedule(names)
        ring.schedule(names)
        drain(ring, names + names)
        found = ring.statistics
        assert found.bytes_read == 2 * ALIGN * sum(pages(name) for name in names)
        assert found.runs_read == 2 * len(names)
        assert found.fallbacks == 0
        assert found.read_seconds > 0


RUNS = st.sampled_from([f"r{i}" for i in range(6)])
ACTIONS = st.one_of(
    st.tuples(st.just("schedule"), st.lists(RUNS, max_size=8)),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("release"), st.integers(0, 10)),
    st.tuples(st.just("skip"), st.lists(RUNS, max_size=3)),
    st.tuples(st.just("cancel"), st.none()),
)


def without(scheduled: list[str], skipped: list[str]) -> list[str] | None:
    """The schedule after each of `skipped` in turn left where it comes next; None where one does not come."""
    left, rest = [], list(scheduled)
    for run in skipped:
        if run not in rest:
            return None
        place = rest.index(run)
        left += rest[:place]
        rest = rest[place + 1 :]
    return left + rest


@settings(max_examples=40)
@given(actions=st.lists(ACTIONS, max_size=50), size=st.integers(5, 14))
def test_any_order_of_schedules_takes_skips_releases_and_cancels(
    module_file: NativeFile, actions: list[tuple[str, object]], size: int
) -> None:
    """Against a model: what is scheduled comes in order and whole until it is dropped, nothing else comes."""
    scheduled: list[str] = []
    taken: list[tuple[str, int]] = []
    with NativeRing(module_file, size * ALIGN) as ring:
        for action, argument in actions:
            if action == "schedule":
                assert isinstance(argument, list)
                ring.schedule(argument)
                scheduled += argument
            elif action == "cancel":
                ring.cancel()
                scheduled.clear()
            elif action == "release":
                assert isinstance(argument, int)
                if taken:
                    ring.release(taken.pop(argument % len(taken))[1])
            elif action == "skip":
                assert isinstance(argument, list)
                left = without(scheduled, argument)
                if left is None:
                    with refused(native.INTERNAL, "was skipped but is not scheduled"):
                        ring.skip(argument)
                else:
                    ring.skip(argument)
                    scheduled = left
            elif not scheduled:
                with refused(native.INTERNAL, "nothing is scheduled"):
                    ring.take("r0")
            else:
                try:
                    taken.append((scheduled[0], ring.take(scheduled[0])))
                except NativeError as error:
                    # Full of taken runs, which is only ever so when some are taken.
                    assert taken and error.status == native.INTERNAL and "has no room" in str(error)
                else:
                    del scheduled[0]
            ring.check_integrity()
            assert ring.next(3) == scheduled[:3]
            assert all(whole(run, data) for run, data in taken)
        while taken:
            ring.release(taken.pop()[1])
        drain(ring, scheduled)
        assert not ring.ready("r0")


def test_ready_tells_whether_a_take_would_wait(file: NativeFile, ring_path: Path) -> None:
    gate = Gate()
    file.on_read = stop_at(ring_path, "r0", gate)
    with NativeRing(file, 8 * ALIGN) as ring:
        assert not ring.ready("r0")
        ring.schedule(["r0", "r1"])
        assert gate.reached.wait(WAIT_S)
        assert not ring.ready("r0") and not ring.ready("r1")
        gate.opened.set()
        first = ring.take("r0")
        while not ring.ready("r1"):  # never true: the test hangs
            threading.Event().wait(0.001)
        assert not ring.ready("r0")
        ring.release(first)
        drain(ring, ["r1"])
        file.on_read = stop_at(ring_path, "r0", lambda offset, nbytes: -errno.EIO)
        ring.schedule(["r0"])
        while not ring.ready("r0"):
            threading.Event().wait(0.001)
        with refused(native.READ_FAILED, "Input/output error"):
            ring.take("r0")


def test_reading_goes_on_while_a_run_is_in_use(file: NativeFile, ring_path: Path) -> None:
    gate = Gate()
    gate.opened.set()
    file.on_read = stop_at(ring_path, "r4", gate)
    with NativeRing(file, 10 * ALIGN) as ring:
        ring.schedule(["r2", "r1", "r4"])
        held = ring.take("r2")
        assert gate.reached.wait(WAIT_S)
        assert whole("r2", held)
        ring.release(held)
        drain(ring, ["r1", "r4"])


def test_a_taken_run_is_never_overwritten(file: NativeFile) -> None:
    with NativeRing(file, 8 * ALIGN) as ring:
        ring.schedule(["r2", "r1", "r3", "r5", "r2"])
        held = ring.take("r2")
        drain(ring, ["r1", "r3", "r5"])
        assert whole("r2", held)
        with refused(native.INTERNAL, "r2 has no room while these are taken: r2; release them"):
            ring.take("r2")
        assert whole("r2", held)
        ring.release(held)
        drain(ring, ["r2"])


def test_reading_goes_on_beside_a_run_that_is_held(ring_path: Path, file: NativeFile) -> None:
    again = threading.Event()
    reads: list[int] = []

    def read(offset: int, nbytes: int) -> None:
        reads.append(offset)
        if len(reads) == 2:
            again.set()

    file.on_read = stop_at(ring_path, "r1", read)
    with NativeRing(file, 8 * ALIGN) as ring:
        ring.schedule(["r2", "r1", "r3", "r5", "r1"])
        held = ring.take("r2")
        drain(ring, ["r1"])
        assert again.wait(WAIT_S)  # where the first r1 was, before anything else has been taken
        drain(ring, ["r3", "r5", "r1"])
        assert whole("r2", held)


def test_wrong_use_is_refused(file: NativeFile) -> None:
    with refused(native.INVALID_ARGUMENT, "at least 16384"):
        NativeRing(file, ALIGN - 1)
    with NativeRing(file, 40 * ALIGN - 1) as ring:
        assert ring.capacity == 39 * ALIGN
        with refused(native.BUDGET_EXCEEDED, f"at least {40 * ALIGN} bytes"):
            ring.schedule(["r0", "r6"])
        ring.check_integrity()
        with refused(native.INVALID_ARGUMENT, "x"):
            ring.schedule(["r0", "x"])
        with refused(native.INTERNAL, "nothing is scheduled"):
            ring.take("r0")
        ring.schedule(["r0", "r1"])
        with refused(native.INTERNAL, "r1 was taken but r0 is next"):
            ring.take("r1")
        data = ring.take("r0")
        for wrong in (data + 1, 0):
            with refused(native.INTERNAL, "not that of a taken run"):
                ring.release(wrong)
        ring.release(data)
        with refused(native.INTERNAL, "not that of a taken run"):
            ring.release(data)
        drain(ring, ["r1"])


@pytest.mark.parametrize("size", [5, 12, 60])
@pytest.mark.parametrize("io_uring", [True, False])
def test_a_failed_read_surfaces_at_its_take_and_only_there(
    ring_path: Path, size: int, io_uring: bool
) -> None:
    with (
        NativeFile(ring_path, chunk_bytes=4 * ALIGN, io_uring=io_uring) as file,
        NativeRing(file, size * ALIGN) as ring,
    ):
        file.on_read = stop_at(ring_path, "r4", lambda offset, nbytes: -errno.EIO)
        ring.schedule(["r0", "r1", "r4", "r2", "r3"])
        drain(ring, ["r0", "r1"])
        with refused(native.READ_FAILED, "Input/output error"):
            ring.take("r4")
        ring.check_integrity()
        drain(ring, ["r2", "r3"])
        file.on_read = None
        ring.schedule(["r4"])
        drain(ring, ["r4"])
        assert ring.statistics.runs_read == 5
        assert ring.statistics.bytes_read == ALIGN * sum(pages(f"r{i}") for i in range(5))


def test_the_step_can_be_dropped_and_repeated_after_a_failure(file: NativeFile, ring_path: Path) -> None:
    file.on_read = stop_at(ring_path, "r2", lambda offset, nbytes: -errno.EIO)
    with NativeRing(file, 12 * ALIGN) as ring:
        ring.schedule(["r0", "r2", "r4", "r1"])
        held = ring.take("r0")
        with refused(native.READ_FAILED, "Input/output error"):
            ring.take("r2")
        ring.cancel()
        ring.check_integrity()
        file.on_read = None
        ring.schedule(["r2", "r4", "r1"])
        drain(ring, ["r2", "r4", "r1"])
        assert whole("r0", held)
        ring.release(held)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_cut_while_it_streams_ends_the_step(tmp_path: Path, way: Way) -> None:
    path = tmp_path / "weights"
    write(path, RING_SPECS, RING_DATA)
    names = [f"r{i}" for i in range(6)]
    with NativeFile(path, **way) as file, NativeRing(file, 8 * ALIGN) as ring:
        ring.schedule(names * 2)
        drain(ring, names)
        os.truncate(path, 2 * ALIGN)
        with refused(native.FILE_CHANGED, "its size changed"):
            drain(ring, names)  # what is in the ring already may still come
            ring.schedule(["r0"])
            drain(ring, ["r0"])
        ring.cancel()
        ring.check_integrity()


def test_cancel_waits_for_the_read_in_flight_and_frees_its_memory(file: NativeFile, ring_path: Path) -> None:
    gate = Gate()
    file.on_read = stop_at(ring_path, "r4", gate)
    with NativeRing(file, 9 * ALIGN) as ring:
        ring.schedule(["r0", "r4", "r2", "r1"])
        held = ring.take("r0")
        assert gate.reached.wait(WAIT_S)
        cancelled = threading.Event()

        def cancel() -> None:
            ring.cancel()
            cancelled.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        assert not cancelled.wait(0.05)  # time in which to make the mistake
        ring.check_integrity()
        gate.opened.set()
        thread.join(WAIT_S)
        assert cancelled.is_set()
        ring.check_integrity()
        file.on_read = None
        assert whole("r0", held)
        ring.schedule(["r2"])  # needs the memory of the cancelled run
        drain(ring, ["r2"])
        ring.release(held)
        with refused(native.INTERNAL, "nothing is scheduled"):
            ring.take("r4")


def test_waiting_is_counted(file: NativeFile, ring_path: Path) -> None:
    gate = Gate()
    file.on_read = stop_at(ring_path, "r0", gate)
    with NativeRing(file, 8 * ALIGN) as ring:
        ring.schedule(["r0"])
        assert gate.reached.wait(WAIT_S)
        opener = threading.Timer(0.05, gate.opened.set)
        opener.start()
        drain(ring, ["r0"])
        opener.join()
        assert ring.statistics.wait_seconds > 0
        before = ring.statistics
        ring.schedule(["r1"])
        while not ring.ready("r1"):
            threading.Event().wait(0.001)
        drain(ring, ["r1"])
        assert ring.statistics.wait_seconds == before.wait_seconds  # it was there already
        assert ring.statistics.read_seconds > before.read_seconds
