"""Sessions over the testing library's far engine: the native one on another thread, in memory of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgekit.flashload import _native
from edgekit.runtime.core_structs import EngineStruct
from edgekit.runtime.session import Session, SessionOptions
from edgekit.runtime.session import session as core_session
from support.native_testing import library

#: What the engine does: all at once in the session's memory, in its own, late, and late without saying so.
NEAR, OWN_MEMORY, FAR, LYING = 0, 1, 3, 5
_DELAY = 400  # microseconds at most


class FarEngine:
    def __init__(self, bundle: Path, mode: int, seed: int = 0, room: int = 0, most_kept: int = 0) -> None:
        """`room` for weights is what it says to have; it has it for `most_kept` units."""
        self._core, self._handle, self.forgiven = library(), ctypes.c_void_p(), 0
        self._core.ekt_far_count.restype = ctypes.c_int64
        self.table = EngineStruct()
        late = ctypes.c_int32(_DELAY if mode in (FAR, LYING) else 0)
        made = self._core.ekt_far_open(
            str(bundle).encode(), ctypes.c_int32(2), ctypes.c_uint32(mode), ctypes.c_uint64(seed), late,
            ctypes.byref(self._handle),
        )  # fmt: skip
        assert made == 0
        self._core.ekt_far_have_room(self._handle, ctypes.c_uint64(room), ctypes.c_int64(most_kept))
        self._core.ekt_far_table(self._handle, ctypes.byref(self.table))

    def fail_at(self, function: str, nth: int, later: bool) -> None:
        """The `nth` call from now on fails, when it is made or when it is done; 0: none does."""
        name, when = function.encode(), ctypes.c_int32(later)
        self._core.ekt_far_fail_at(self._handle, name, ctypes.c_int64(nth), when)

    def forgive(self) -> None:
        """What was done against the protocol until now was so by intention."""
        self.forgiven = self.count("violations")

    def count(self, what: str) -> int:
        return int(self._core.ekt_far_count(self._handle, what.encode()))

    def close(self) -> None:
        self._core.ekt_far_close(self._handle)


@contextmanager
def opened(
    bundle: Path, options: Callable[[], SessionOptions], mode: int, seed: int = 0, **room: int
) -> Iterator[tuple[Session, FarEngine]]:
    """A session whose weights are filled with 0xFF when they are released. The engine's memory is back
    afterwards, and nothing was done against the protocol. `room`: see `FarEngine`.
    """
    with far_sessions(bundle, mode, seed, **room) as engine:
        with Session(bundle, options()) as session:
            yield session, engine
        assert engine.count("blocks") == 0
        assert engine.count("violations") == engine.forgiven
        assert engine.count("lent") == 0 and engine.count("loans") > 0
        assert (engine.count("allocated") > 0) == (mode != NEAR)
        assert (engine.count("submitted") > 0) == (mode == FAR)


@contextmanager
def far_sessions(bundle: Path, mode: int, seed: int = 0, **room: int) -> Iterator[FarEngine]:
    """Sessions that are opened meanwhile, one at a time, run this engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_native.LIBRARY_VARIABLE, library()._name)
        core: Any = core_session._library()
        engine = FarEngine(bundle, mode, seed, **room)
        open_engine, plan = core.ek_session_open_engine, core.ek_plan_session
        patch.setattr(
            core, "ek_session_open_engine",
            lambda folder, wanted, _, place: open_engine(folder, wanted, ctypes.byref(engine.table), place),
        )  # fmt: skip
        patch.setattr(
            core, "ek_plan_session",
            lambda folder, wanted, _, held, place: plan(
                folder, wanted, ctypes.byref(engine.table), held, place
            ),
        )  # fmt: skip
        library().ekt_poison_released_runs(1)
        try:
            yield engine
        finally:
            library().ekt_poison_released_runs(0)
            engine.close()
