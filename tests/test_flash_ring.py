"""The ring: runs come in order and whole, whatever their sizes and whatever the disk does."""

from __future__ import annotations

import errno
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flash_files import ALIGN, Data, Disk, byte_runs, random_data, write
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekit.flashload.errors import BudgetExceeded, Cancelled, InvalidRequest, ReadFailed, RingError
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.ring import Loaded, Ring

# Lengths in the file: 2, 1, 5, 1, 3, 1 pages of 16 KiB, one run of 40, and twenty small ones.
SIZES = [2 * ALIGN - 5, 700, 5 * ALIGN, 1, 3 * ALIGN - 64, 9000, 40 * ALIGN - 1, *range(100, 120)]
SPECS = byte_runs(SIZES)
DATA = random_data(SPECS)
WAIT_S = 60  # only ever waited for when a test is about to fail


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ring") / "weights"
    write(path, SPECS, DATA)
    return path


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def file(path: Path, disk: Disk) -> Iterator[FlashFile]:
    with FlashFile(path, preadv=disk, chunk_bytes=4 * ALIGN) as opened:
        yield opened


def whole(loaded: Loaded, data: Data = DATA) -> bool:
    return all(view.tobytes() == data[loaded.run.name][name].tobytes() for name, view in loaded.views.items())


def drain(ring: Ring, names: list[str]) -> None:
    for name in names:
        loaded = ring.take(name)
        ring.check_integrity()
        assert loaded.run.name == name and list(loaded.views) == ["t" + name[1:]]
        assert whole(loaded)
        ring.release(loaded)
        ring.check_integrity()


def stop_at(file: FlashFile, name: str, action: Callable[[], None]) -> Callable[[int, int], None]:
    """Do `action` whenever the first bytes of a run are read."""

    def on_read(offset: int, nbytes: int) -> None:
        if offset == file.runs[name].offset:
            action()

    return on_read


class Gate:
    """Holds a read back until it is opened, and tells when the read has arrived."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


@pytest.mark.parametrize("pages", [40, 41, 45, 80, 300])
@pytest.mark.parametrize("direct", [True, False])
def test_many_small_runs_and_one_big_one_come_in_order(path: Path, pages: int, direct: bool) -> None:
    names = [run.name for run in SPECS]
    with FlashFile(path, direct=direct) as file, Ring(file, pages * ALIGN) as ring:
        ring.schedule(names)
        ring.schedule(names)
        drain(ring, names + names)
        assert ring.stats.bytes_read == 2 * sum(run.length for run in file.runs.values())
        assert ring.stats.runs_read == 2 * len(names)
        assert ring.stats.fallbacks == 0
        assert ring.stats.read_seconds > 0


@settings(max_examples=40)
@given(
    order=st.lists(st.sampled_from([f"r{i}" for i in range(6)]), min_size=1, max_size=30),
    pages=st.integers(5, 14),
    held=st.integers(1, 4),
    seed=st.randoms(use_true_random=False),
)
def test_any_schedule_any_size_and_any_order_of_release(
    module_file: FlashFile, order: list[str], pages: int, held: int, seed: object
) -> None:
    taken: list[Loaded] = []
    with Ring(module_file, pages * ALIGN) as ring:
        ring.schedule(order)
        for name in order:
            while True:
                try:
                    taken.append(ring.take(name))
                    break
                except RingError:  # full of taken runs, which is only ever so when some are taken
                    assert taken
                    ring.check_integrity()
                    ring.release(taken.pop(0))
            ring.check_integrity()
            assert all(whole(loaded) for loaded in taken)
            if len(taken) >= held:
                ring.release(taken.pop(seed.randrange(len(taken))))  # type: ignore[attr-defined]
                ring.check_integrity()
        assert ring.stats.bytes_read == sum(module_file.runs[name].length for name in order)


@pytest.fixture(scope="module")
def module_file(path: Path) -> Iterator[FlashFile]:
    with FlashFile(path, chunk_bytes=2 * ALIGN) as opened:
        yield opened


def test_reads_go_straight_into_the_arena(file: FlashFile, disk: Disk) -> None:
    names = ["r0", "r2", "r4", "r6"] * 3
    with Ring(file, 48 * ALIGN) as ring:
        arena = np.frombuffer(ring._arena.view, np.uint8)
        start = arena.__array_interface__["data"][0]
        ring.schedule(names[:1])
        ring.release(ring.take("r0"))  # warm-up: threads and pools exist from here on
        disk.addresses.clear()
        tracemalloc.start()
        try:
            ring.schedule(names)
            for name in names:
                loaded = ring.take(name)
                view = loaded.views["t" + name[1:]]
                assert np.shares_memory(view, arena) and not view.flags.writeable
                ring.release(loaded)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 10 * ALIGN  # a copy of the big run alone would take four times that
        assert all(start <= address < start + ring.capacity for address in disk.addresses)
        del arena, view, loaded


def test_reading_goes_on_while_a_run_is_in_use(file: FlashFile, disk: Disk) -> None:
    arrived = threading.Event()
    disk.on_read = stop_at(file, "r4", arrived.set)
    with Ring(file, 10 * ALIGN) as ring:
        ring.schedule(["r2", "r1", "r4"])
        held = ring.take("r2")
        assert arrived.wait(WAIT_S)
        assert whole(held)
        ring.release(held)
        drain(ring, ["r1", "r4"])


def test_a_taken_run_is_never_overwritten(file: FlashFile) -> None:
    with Ring(file, 8 * ALIGN) as ring:
        ring.schedule(["r2", "r1", "r3", "r5", "r2"])
        held = ring.take("r2")
        drain(ring, ["r1", "r3", "r5"])
        assert whole(held)
        with pytest.raises(RingError, match="r2 has no room while these are taken: r2; release them"):
            ring.take("r2")
        assert whole(held)
        ring.release(held)
        drain(ring, ["r2"])


def test_a_release_from_another_thread_makes_room(file: FlashFile) -> None:
    with Ring(file, 5 * ALIGN, concurrent_release=True) as ring:
        ring.schedule(["r2", "r4"])
        held = ring.take("r2")
        timer = threading.Timer(0.05, ring.release, [held])
        timer.start()
        drain(ring, ["r4"])
        timer.join()
        assert ring.stats.wait_seconds > 0


def test_a_run_larger_than_the_ring_is_refused(file: FlashFile) -> None:
    with Ring(file, 40 * ALIGN - 1) as ring:
        assert ring.capacity == 39 * ALIGN
        with pytest.raises(BudgetExceeded, match=f"at least {40 * ALIGN} bytes") as caught:
            ring.schedule(["r0", "r6"])
        assert caught.value.needed_bytes == 40 * ALIGN
        ring.check_integrity()
        ring.schedule(["r0"])
        drain(ring, ["r0"])


def test_wrong_use_is_refused(file: FlashFile) -> None:
    with pytest.raises(InvalidRequest, match="at least 16384"):
        Ring(file, ALIGN - 1)
    ring = Ring(file, 8 * ALIGN)
    with pytest.raises(InvalidRequest, match="no run named 'x'"):
        ring.schedule(["r0", "x"])
    with pytest.raises(RingError, match="nothing is scheduled"):
        ring.take("r0")
    ring.schedule(["r0", "r1"])
    with pytest.raises(RingError, match="r1 was taken but r0 is next"):
        ring.take("r1")
    loaded = ring.take("r0")
    ring.release(loaded)
    with pytest.raises(RingError, match="r0 is not taken"):
        ring.release(loaded)
    ring.check_integrity()
    ring.close()
    ring.close()
    for call in (lambda: ring.take("r1"), lambda: ring.schedule(["r1"])):
        with pytest.raises(RingError, match="closed"):
            call()


def refuse() -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("pages", [5, 12, 60])
def test_a_failed_read_surfaces_at_its_take_and_only_there(file: FlashFile, disk: Disk, pages: int) -> None:
    disk.on_read = stop_at(file, "r4", refuse)
    with Ring(file, pages * ALIGN) as ring:
        ring.schedule(["r0", "r1", "r4", "r2", "r3"])
        drain(ring, ["r0", "r1"])
        with pytest.raises(ReadFailed, match="Input/output error"):
            ring.take("r4")
        ring.check_integrity()
        drain(ring, ["r2", "r3"])
        disk.on_read = None
        ring.schedule(["r4"])
        drain(ring, ["r4"])
        assert ring.stats.runs_read == 5
        assert ring.stats.bytes_read == sum(file.runs[f"r{i}"].length for i in range(5))


def test_the_step_can_be_dropped_and_repeated_after_a_failure(file: FlashFile, disk: Disk) -> None:
    disk.on_read = stop_at(file, "r2", refuse)
    with Ring(file, 12 * ALIGN) as ring:
        ring.schedule(["r0", "r2", "r4", "r1"])
        held = ring.take("r0")
        with pytest.raises(ReadFailed):
            ring.take("r2")
        ring.cancel()
        ring.check_integrity()
        disk.on_read = None
        ring.schedule(["r2", "r4", "r1"])
        drain(ring, ["r2", "r4", "r1"])
        assert whole(held)
        ring.release(held)
        ring.check_integrity()


def test_cancel_waits_for_the_read_in_flight_and_frees_its_memory(file: FlashFile, disk: Disk) -> None:
    gate = Gate()
    disk.on_read = stop_at(file, "r4", gate)
    with Ring(file, 9 * ALIGN) as ring:
        ring.schedule(["r0", "r4", "r2", "r1"])
        held = ring.take("r0")
        assert gate.reached.wait(WAIT_S)
        cancelled = threading.Event()

        def cancel() -> None:
            ring.cancel()
            cancelled.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        while ring._order:  # cancel() has dropped the schedule once this is empty
            threading.Event().wait(0.001)
        assert not cancelled.is_set()
        ring.check_integrity()
        gate.opened.set()
        thread.join(WAIT_S)
        assert cancelled.is_set()
        ring.check_integrity()
        disk.on_read = None
        assert whole(held)
        ring.schedule(["r2"])  # needs the memory of the cancelled run
        drain(ring, ["r2"])
        ring.release(held)
        with pytest.raises(RingError, match="nothing is scheduled"):
            ring.take("r4")


def test_a_waiting_take_hears_of_the_cancel(file: FlashFile, disk: Disk) -> None:
    gate = Gate()
    disk.on_read = stop_at(file, "r0", gate)
    with Ring(file, 8 * ALIGN) as ring:
        ring.schedule(["r0"])
        assert gate.reached.wait(WAIT_S)
        outcome: list[BaseException] = []

        def take() -> None:
            try:
                ring.take("r0")
            except Cancelled as error:
                outcome.append(error)

        taker = threading.Thread(target=take)
        taker.start()
        while not ring._cond._waiters:  # type: ignore[attr-defined]
            threading.Event().wait(0.001)
        canceller = threading.Thread(target=ring.cancel)
        canceller.start()
        taker.join(WAIT_S)  # before the read ends: the taker need not wait for it
        assert not taker.is_alive()
        gate.opened.set()
        canceller.join(WAIT_S)
        assert [type(error) for error in outcome] == [Cancelled]


def test_closing_the_file_first_is_an_error_not_a_hang(path: Path) -> None:
    file = FlashFile(path)
    with Ring(file, 8 * ALIGN) as ring:
        ring.schedule(["r0"])
        drain(ring, ["r0"])
        file.close()
        ring.schedule(["r1"])
        with pytest.raises(InvalidRequest, match="closed"):
            ring.take("r1")
        ring.check_integrity()


def test_views_outlive_the_ring(file: FlashFile) -> None:
    ring = Ring(file, 8 * ALIGN)
    ring.schedule(["r0"])
    loaded = ring.take("r0")
    ring.close()
    assert whole(loaded)
