"""Closing sessions and sequences of the C ABI while a call of theirs is under way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native_bundles import native_bundle
from support.native_generation import ON_EVENT, Options
from support.native_generation import function as generate

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session, SessionOptions

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closing")
    return native_bundle(folder, "diffusion_gemma", Scheme("mixed4"), num_hidden_layers=2)


@pytest.fixture
def session(bundle: Path) -> Iterator[Session]:
    """One whose handle the tests close."""
    with Session(bundle, SessionOptions(resident_bytes=0, sequences=4)) as opened:
        yield opened


def open_files(bundle: Path) -> int:
    """Of the bundle, by this process."""
    links = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return sum(link.startswith(str(bundle.resolve())) for link in links)


def opened_sequence(session: Session) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    assert session._library.ek_sequence_open(session._handle, ctypes.byref(made)) == 0
    ids = np.arange(40)
    assert session._library.ek_sequence_prefill(session._handle, made, ids.ctypes.data, ids.size) == 0
    return made


def run(session: Session, on_event: Any) -> int:
    """The status of a generation with so many calls back."""
    prompt, given = np.arange(5), Options(max_new_tokens=8, steps=3)
    rest = ctypes.byref(given), ON_EVENT(on_event), None, None
    status: int = generate(session)(session._handle, prompt.ctypes.data, prompt.size, *rest)
    return status


def test_what_is_closed_within_a_call_goes_when_the_call_is_over(session: Session, bundle: Path) -> None:
    library, handle, told = session._library, session._handle, 0
    sequences = [opened_sequence(session) for _ in range(3)]

    def on_event(_event: Any, _user: int | None) -> int:
        nonlocal told
        if told == 0:
            for sequence in sequences:
                library.ek_sequence_close(sequence)
            library.ek_session_close(handle)
        assert open_files(bundle) > 0
        told += 1
        return 0

    status = run(session, on_event)
    session._handle = None
    assert status == 0 and told > 2 and open_files(bundle) == 0


def test_sequences_that_are_closed_within_a_call_make_room(bundle: Path) -> None:
    """A budget is planned for four, the session's own among them."""
    lengths: dict[str, int] = {"positions": 64, "canvas": 64, "sequences": 4}
    with Session(bundle, SessionOptions(**lengths)) as session:
        budget = session.plan.least_memory_bytes + (16 << 20)
    with Session(bundle, SessionOptions(budget, **lengths)) as session:
        sequences: list[ctypes.c_void_p] = []

        def on_event(_event: Any, _user: int | None) -> int:
            while sequences:
                session._library.ek_sequence_close(sequences.pop())
            return 0

        for _ in range(3):
            sequences += [opened_sequence(session) for _ in range(3)]
            assert run(session, on_event) == 0


def test_another_thread_may_close_sequences_during_passes(session: Session) -> None:
    """Closed at once or after the pass, never within it: the passes go on to the same scores."""
    sequences = [opened_sequence(session) for _ in range(3)]
    copies = []
    for _ in range(60):
        copies.append(ctypes.c_void_p())
        place = ctypes.byref(copies[-1])
        assert session._library.ek_sequence_copy(session._handle, sequences[0], place) == 0

    def close() -> None:
        while copies:
            session._library.ek_sequence_close(copies.pop())

    ids, scores = np.arange(30), set()
    worker = threading.Thread(target=close)
    worker.start()
    while worker.is_alive():
        # The other thread's closing counts as a call while it lasts.
        with contextlib.suppress(InvalidRequest):
            scores.add(float(session.denoise(ids, HeadRequest()).log_z.sum()))
    worker.join()
    for sequence in sequences:
        session._library.ek_sequence_close(sequence)
    assert scores <= {float(session.denoise(ids, HeadRequest()).log_z.sum())}
