"""Packages that are opened ahead of their use: order, memory, and what opening and closing may do wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from edgekit.flashload.errors import RingError
from edgekit.runtime.package_cache import OpenAhead

#: Nothing here takes a tenth of it; a test that hangs is to fail.
PATIENCE_S = 20.0
SIZES = {"a": 50, "b": 30, "c": 20, "d": 100}


class Refused(Exception):
    """A package that will not open or close."""


@dataclass
class Opened:
    """A package; closing it counts."""

    name: str
    folder: Folder

    def close(self) -> None:
        self.folder.open.remove(self.name)
        if self.name in self.folder.stuck:
            raise Refused(f"{self.name} will not close")


@dataclass
class Folder:
    """Packages that can be opened, as fast as the gates allow: `open` are those that are."""

    missing: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    most: int = 0

    def __call__(self, name: str) -> Opened:
        self.begun.append(name)
        if name in self.gates:
            assert self.gates[name].wait(PATIENCE_S)
        if name in self.missing:
            raise Refused(f"{name} will not open")
        self.open.append(name)
        self.most = max(self.most, sum(SIZES[n] for n in self.open))
        return Opened(name, self)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.001)


@pytest.fixture
def folder() -> Folder:
    return Folder()


@pytest.fixture
def ahead(folder: Folder) -> Iterator[OpenAhead]:
    made = OpenAhead(folder, SIZES, 100)
    yield made
    folder.stuck.clear()
    for gate in folder.gates.values():
        gate.set()
    made.close()
    assert folder.open == []


def use(ahead: OpenAhead, name: str) -> None:
    """Take and release the next package; a hang becomes a failure."""
    found: list[object] = []

    def work() -> None:
        try:
            found.append(ahead.take(name))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert found, f"waits for {name} for ever"
    if isinstance(found[0], Exception):
        raise found[0]
    assert isinstance(found[0], Opened) and found[0].name == name
    ahead.release(name, found[0])


@pytest.mark.parametrize("seed", range(3))
def test_packages_come_in_order_within_the_budget(ahead: OpenAhead, folder: Folder, seed: int) -> None:
    schedule = np.random.default_rng(seed).choice(sorted(SIZES), 60).tolist()
    ahead.schedule(schedule)
    for name in schedule:
        use(ahead, name)
    assert folder.begun == schedule and folder.most <= 100
    assert ahead.statistics()["bytes_read"] == sum(SIZES[n] for n in schedule)
    with pytest.raises(RingError, match="package a was asked for, the schedule has nothing next"):
        ahead.take("a")


def test_what_fits_is_opened_ahead_and_nothing_more(ahead: OpenAhead, folder: Folder) -> None:
    ahead.schedule(["a", "b", "c", "d", "a"])
    until(lambda: folder.open == ["a", "b", "c"])
    with pytest.raises(RingError, match="package b was asked for, the schedule has a next"):
        ahead.take("b")
    use(ahead, "a")
    use(ahead, "b")
    assert folder.begun == ["a", "b", "c"]  # d is as large as the budget: not beside c
    use(ahead, "c")
    use(ahead, "d")
    use(ahead, "a")


def test_a_slow_one_is_waited_for(ahead: OpenAhead, folder: Folder) -> None:
    folder.gates["a"] = threading.Event()
    timer = threading.Timer(0.05, folder.gates["a"].set)
    timer.start()
    ahead.schedule(["a", "b"])
    use(ahead, "a")
    use(ahead, "b")
    found = ahead.statistics()
    assert found["io_wait_seconds"] > 0.02 and found["io_seconds"] > 0.02


def test_one_that_fails_to_open_raises_where_it_is_taken(ahead: OpenAhead, folder: Folder) -> None:
    folder.missing.add("b")
    ahead.schedule(["a", "b", "c", "d"])
    use(ahead, "a")
    with pytest.raises(Refused, match="b will not open"):
        use(ahead, "b")
    use(ahead, "c")
    use(ahead, "d")  # as large as the budget: nothing of b counts


@pytest.mark.parametrize("missing", [False, True])
def test_what_is_being_opened_while_cancelled_is_closed(
    ahead: OpenAhead, folder: Folder, missing: bool
) -> None:
    folder.gates["a"] = threading.Event()
    folder.missing |= {"a"} if missing else set()
    ahead.schedule(["a", "b"])
    until(lambda: folder.begun == ["a"])
    ahead.cancel()
    ahead.schedule(["d", "c"])
    assert folder.begun == ["a"]
    folder.gates["a"].set()
    use(ahead, "d")
    use(ahead, "c")
    assert folder.begun == ["a", "d", "c"]


def test_cancelling_closes_what_was_opened_ahead(ahead: OpenAhead, folder: Folder) -> None:
    ahead.schedule(["a", "b", "c"])
    until(lambda: len(folder.open) == 3)
    ahead.cancel()
    assert folder.open == []
    ahead.schedule(["d"])
    use(ahead, "d")


def test_packages_that_will_not_close_do_not_keep_the_others_open(ahead: OpenAhead, folder: Folder) -> None:
    folder.stuck |= {"a", "b"}
    ahead.schedule(["a", "b", "c"])
    until(lambda: len(folder.open) == 3)
    with pytest.raises(Refused, match="a will not close"):
        ahead.cancel()
    assert folder.open == []
    ahead.schedule(["d", "c"])  # d needs the whole budget
    use(ahead, "d")
    use(ahead, "c")


def test_one_that_will_not_close_after_use_frees_its_memory(ahead: OpenAhead, folder: Folder) -> None:
    folder.stuck.add("a")
    ahead.schedule(["a", "d"])
    with pytest.raises(Refused, match="a will not close"):
        use(ahead, "a")
    use(ahead, "d")


def test_the_thread_ends_whatever_will_not_close() -> None:
    folder = Folder(stuck={"a"})
    ahead = OpenAhead(folder, SIZES, 100)
    ahead.schedule(["a", "b"])
    until(lambda: len(folder.open) == 2)
    with pytest.raises(Refused, match="a will not close"):
        ahead.close()
    assert folder.open == [] and not ahead._thread.is_alive()
    with pytest.raises(RingError):
        ahead.take("a")
