"""The native session on a disk that fails: every fault ends the pass in the error of its cause, and what is
computed afterwards is right to the bit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.flash_files import ALIGN
from support.native_bundles import native_bundle
from support.native_generation import ON_EVENT, Statistics, function
from support.native_reading import EVERYTHING, OnRead, span
from support.native_sampler import INVALID_ARGUMENT
from support.native_testing import library

from edgekit.export.quantize import Scheme
from edgekit.flashload import _native, errors
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.sampling.types import Floats
from edgekit.runtime.session import Session, SessionOptions
from edgekit.runtime.session import session as core_session

CANVAS, PROMPT = np.arange(8), np.arange(30)
STREAMED = SessionOptions(resident_bytes=0)
#: What the system is made to refuse, so that runs are read in each of the ways.
WAYS = [
    pytest.param(refuse, id=name)
    for name, refuse in (("direct-uring", 0), ("direct-pool", 4), ("buffered-uring", 1), ("buffered-pool", 5))
]
REFUSED_DIRECT, REFUSED_PROBE = 1, 2


class Model(NamedTuple):
    bundle: Path
    expected: Floats  # logits after PROMPT

    @property
    def weights(self) -> Path:
        return self.bundle / "weights.safetensors"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Experts, prefix KV, self-conditioning; every kind of run, and rows of a table."""
    folder = tmp_path_factory.mktemp("gemma")
    bundle = native_bundle(folder, "diffusion_gemma", Scheme("mixed4"), num_hidden_layers=2)
    with Session(bundle) as session:
        session.prefill(PROMPT)
        return Model(bundle, logits(session))


@pytest.fixture
def copy(gemma: Model, tmp_path: Path) -> Model:
    """A bundle to damage."""
    return Model(Path(shutil.copytree(gemma.bundle, tmp_path / "bundle")), gemma.expected)


def logits(session: Session) -> Floats:
    found = session.denoise(CANVAS, HeadRequest(logits=True)).logits
    assert found is not None
    return found


class Disk:
    """What `on_read` of `native_reading.NativeFile` is for a file, for the sessions opened by `session`."""

    def __init__(self) -> None:
        self.on_read: OnRead | None = None
        self.hook = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64)(self._called)

    def _called(self, offset: int, nbytes: int) -> int:
        on_read = self.on_read  # once: the test may change it meanwhile
        answer = on_read(offset, nbytes) if on_read else None
        return EVERYTHING if answer is None else answer

    def answer_at(self, offset: int, answer: int) -> None:
        """Whatever is read from there on that begins at `offset`."""
        self.on_read = lambda at, nbytes: answer if at == offset else None


@contextmanager
def session(
    model: Model, disk: Disk, options: SessionOptions = STREAMED, refuse: int = 0, uring_enters: int = -1
) -> Iterator[Session]:
    """A session of the testing library that reads from `disk`."""

    def open_session(folder: bytes, wanted: Any, engine: None, handle: Any) -> int:
        fault = (disk.hook, ctypes.c_uint32(refuse), ctypes.c_int32(uring_enters))
        return int(core.ekt_session_open(folder, wanted, *fault, handle))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_native.LIBRARY_VARIABLE, library()._name)
        core = core_session._library()
        patch.setattr(core, "ek_session_open_engine", open_session)
        with Session(model.bundle, options) as opened:
            yield opened


def usable(session: Session, model: Model) -> None:
    """It computes what a session that never met a fault computes."""
    session.reset()
    session.prefill(PROMPT)
    np.testing.assert_array_equal(logits(session), model.expected)


RUNS = ("layers.0", "layers.1.experts.0", "final", "embedding.1", "self_conditioning")
FAULTS = {"an error": (-errno.EIO, errors.ReadFailed, "Input/output error"),
          "an early end": (0, errors.TruncatedFile, "bytes early")}  # fmt: skip


@pytest.mark.parametrize("refuse", WAYS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda name: name.replace(" ", "-"))
def test_a_failed_read_ends_the_pass_and_the_next_one_is_right(gemma: Model, refuse: int, fault: str) -> None:
    answer, error, words = FAULTS[fault]
    disk = Disk()
    with session(gemma, disk, refuse=refuse) as opened:
        for run in RUNS:
            opened.reset()
            opened.prefill(PROMPT)
            opened.idle()  # else the run may be in memory already
            disk.answer_at(span(gemma.weights, run)[0], answer)
            for _ in range(2):
                with pytest.raises(error, match=words):
                    opened.denoise(CANVAS, HeadRequest())
            disk.on_read = None
            assert opened.prefix_length == PROMPT.size
            np.testing.assert_array_equal(logits(opened), gemma.expected)


@pytest.mark.parametrize("refuse", WAYS)
def test_a_prefix_that_was_not_encoded_whole_is_forgotten(gemma: Model, refuse: int) -> None:
    disk = Disk()
    with session(gemma, disk, refuse=refuse) as opened:
        opened.prefill(PROMPT)
        opened.idle()
        disk.answer_at(span(gemma.weights, "layers.1.experts.0")[0], -errno.EIO)
        with pytest.raises(errors.ReadFailed):
            opened.prefill(PROMPT)
        assert opened.prefix_length == 0
        disk.on_read = None
        usable(opened, gemma)


@pytest.mark.parametrize("refuse", WAYS)
def test_a_failed_read_ahead_is_told_by_the_pass_that_needs_it(gemma: Model, refuse: int) -> None:
    """Or by none, when another pass follows: what was read for the expected one is dropped.

    A fault begins where the one read of the run that is to meet it has not begun, and none other can: what is
    asked for together comes in any order.
    """
    first = span(gemma.weights, "self_conditioning")[0]
    disk = Disk()

    def told(answer: int | None) -> threading.Event:
        """Reads of the run get `answer` from now on; set when one has."""
        met = threading.Event()

        def on_read(offset: int, nbytes: int) -> int | None:
            if offset != first:
                return None
            met.set()
            return answer

        disk.on_read = on_read
        return met

    with session(gemma, disk, refuse=refuse) as opened:
        failed = told(-errno.EIO)
        opened.prefill(PROMPT)  # reads no self-conditioning, but expects a denoise
        assert failed.wait(60)
        disk.on_read = None
        opened.prefill(PROMPT)
        assert opened.prefix_length == 2 * PROMPT.size
        opened.idle()
        opened.reset()
        good = told(None)
        opened.prefill(PROMPT)
        assert good.wait(60)
        failed = told(-errno.EIO)
        np.testing.assert_array_equal(logits(opened), gemma.expected)  # with the good one
        assert failed.wait(60)
        disk.on_read = None
        with pytest.raises(errors.ReadFailed):
            opened.denoise(CANVAS, HeadRequest())
        np.testing.assert_array_equal(logits(opened), gemma.expected)


def test_a_denoise_that_failed_leaves_nothing_to_project(gemma: Model) -> None:
    """Not even hidden states that were whole before the head failed: more rows than a caller may expect."""
    disk = Disk()
    with session(gemma, disk) as opened:
        opened.prefill(PROMPT)
        for run in ("layers.0", "embedding.1"):
            np.testing.assert_array_equal(logits(opened), gemma.expected)
            opened.idle()
            disk.answer_at(span(gemma.weights, run)[0], -errno.EIO)
            with pytest.raises(errors.ReadFailed):
                opened.denoise(np.arange(3 * CANVAS.size), HeadRequest())
            disk.on_read = None
            with pytest.raises(errors.InvalidRequest, match="project needs a denoise before it that did not"):
                opened.project(HeadRequest(logits=True))


def test_the_session_is_idle_after_a_generation_that_was_refused(gemma: Model) -> None:
    """What was read ahead is dropped and has to be read again."""
    first = span(gemma.weights, "self_conditioning")[0]
    ids, arrived, disk = np.arange(3), threading.Event(), Disk()
    wrong = [Statistics(), Statistics()]
    wrong[0].struct_size = 3
    with session(gemma, disk) as opened:
        for statistics, prompt in zip(wrong, (ids.ctypes.data, None), strict=True):
            arrived.clear()
            disk.on_read = lambda offset, nbytes: arrived.set() if offset == first else None
            opened.prefill(PROMPT)
            assert arrived.wait(60)
            rest = None, ON_EVENT(0), None, ctypes.byref(statistics)
            assert function(opened)(opened._handle, prompt, 3, *rest) == INVALID_ARGUMENT
            disk.answer_at(first, -errno.EIO)
            with pytest.raises(errors.ReadFailed):
                opened.denoise(CANVAS, HeadRequest())
            disk.on_read = None
            usable(opened, gemma)


def test_a_row_of_the_table_that_cannot_be_read_ends_the_pass(gemma: Model) -> None:
    disk = Disk()
    with session(gemma, disk) as opened:
        opened.prefill(PROMPT)
        for answer, error, _ in FAULTS.values():
            disk.on_read = lambda offset, nbytes, answer=answer: answer if nbytes < ALIGN else None
            with pytest.raises(error):
                opened.denoise(CANVAS, HeadRequest())
            with pytest.raises(error):
                opened.prefill(PROMPT)
            disk.on_read = None
            usable(opened, gemma)


@pytest.mark.parametrize("resident", [0, None], ids=["streamed", "resident"])
def test_weights_that_cannot_be_read_open_no_session(gemma: Model, resident: int | None) -> None:
    with FlashFile(gemma.weights) as file:
        header = file.layout.data_start
    for answer, error, _ in FAULTS.values():
        disk = Disk()
        disk.on_read = lambda offset, nbytes, answer=answer: (
            answer if (offset < header) == (resident == 0) else None
        )
        with (
            pytest.raises(error, match="weights"),
            session(gemma, disk, SessionOptions(resident_bytes=resident)),
        ):
            pass


@pytest.mark.parametrize("refuse", WAYS)
@pytest.mark.parametrize("step", [8192, 5000, 100])
def test_short_reads_change_nothing(gemma: Model, refuse: int, step: int) -> None:
    disk = Disk()
    disk.on_read = lambda offset, nbytes: step
    with session(gemma, disk, refuse=refuse) as opened:
        usable(opened, gemma)


@pytest.mark.parametrize("refuse", WAYS)
def test_a_slow_disk_costs_time_alone(gemma: Model, refuse: int) -> None:
    held = span(gemma.weights, "layers.1")[0]
    reached, opened_gate = threading.Event(), threading.Event()

    def slow(offset: int, nbytes: int) -> None:
        if offset == held:
            reached.set()
            assert opened_gate.wait(60)

    disk = Disk()
    with session(gemma, disk, refuse=refuse) as opened:
        opened.prefill(PROMPT)
        opened.idle()
        before = opened.statistics()["io_wait_seconds"]
        disk.on_read = slow
        found: list[Floats] = []
        step = threading.Thread(target=lambda: found.append(logits(opened)))
        step.start()
        assert reached.wait(60)
        step.join(0.1)
        assert step.is_alive() and not found
        opened_gate.set()
        step.join()
        np.testing.assert_array_equal(found[0], gemma.expected)
        assert opened.statistics()["io_wait_seconds"] > before
        usable(opened, gemma)


def test_the_statistics_say_what_the_system_refuses(gemma: Model) -> None:
    with FlashFile(gemma.weights) as file:
        direct = file.io_mode.startswith("direct")
    for refuse, said in (
        (REFUSED_DIRECT, "buffered pread: the file system refuses O_DIRECT (a test); no io_uring"),
        (REFUSED_PROBE, "buffered pread: a direct read failed (Invalid argument); no io_uring"),
    ):
        with session(gemma, Disk(), refuse=refuse | 4) as opened:
            usable(opened, gemma)
            if direct or refuse == REFUSED_DIRECT:
                assert opened.statistics()["io_mode"].startswith(said)
    with session(gemma, Disk()) as opened:
        assert opened.statistics()["io_mode"].startswith("direct" if direct else "buffered")


@pytest.mark.parametrize("enters", [1, 2, 5, 20])
def test_a_kernel_that_stops_taking_reads_is_done_without(gemma: Model, enters: int) -> None:
    with session(gemma, Disk(), uring_enters=enters) as opened:
        if " io_uring" not in (mode := opened.statistics()["io_mode"]).split(":")[0]:
            pytest.skip(f"no io_uring here: {mode}")
        usable(opened, gemma)
        usable(opened, gemma)


# --- files that change while they are open ------------------------------------------------------------------


@pytest.mark.parametrize("refuse", WAYS)
@pytest.mark.parametrize("cut", ["layers.1", None])
def test_a_file_cut_between_two_steps_ends_the_next_one(copy: Model, refuse: int, cut: str | None) -> None:
    whole = copy.weights.read_bytes()
    with session(copy, Disk(), refuse=refuse) as opened:
        usable(opened, copy)
        os.truncate(copy.weights, span(copy.weights, cut)[0] if cut else 0)
        for _ in range(2):
            with pytest.raises(errors.FileChanged, match=f"its size changed from {len(whole)} to"):
                opened.denoise(CANVAS, HeadRequest())
        assert opened.prefix_length == PROMPT.size
        copy.weights.write_bytes(whole)
        np.testing.assert_array_equal(logits(opened), copy.expected)


def test_resident_weights_need_no_file(copy: Model) -> None:
    with session(copy, Disk(), SessionOptions()) as opened:
        os.truncate(copy.weights, 0)
        copy.weights.unlink()
        usable(opened, copy)


@pytest.mark.parametrize("refuse", WAYS)
def test_a_file_cut_while_a_session_opens_opens_none(copy: Model, refuse: int) -> None:
    """Between the check of the header and the first read of a run."""
    first, size = span(copy.weights, "layers.0")[0], copy.weights.stat().st_size

    def cut(offset: int, nbytes: int) -> None:
        if offset >= first:
            os.truncate(copy.weights, ALIGN)

    disk = Disk()
    disk.on_read = cut
    with (
        pytest.raises(errors.FileChanged, match=f"its size changed from {size} to {ALIGN}"),
        session(copy, disk, SessionOptions(), refuse),
    ):
        pass


@pytest.mark.parametrize("refuse", WAYS)
def test_a_file_that_another_one_replaces_is_read_to_the_end(copy: Model, refuse: int) -> None:
    disk = Disk()
    with session(copy, disk, refuse=refuse) as opened:
        other = copy.bundle / "other"
        other.write_bytes(bytes(copy.weights.stat().st_size))
        os.replace(other, copy.weights)
        usable(opened, copy)
        opened.idle()
        disk.on_read = lambda offset, nbytes: -errno.EIO
        with pytest.raises(errors.FileChanged, match="another file took its place"):
            opened.denoise(CANVAS, HeadRequest())


@pytest.mark.parametrize("refuse", WAYS)
def test_a_file_that_is_written_to_is_never_half_old_and_half_new(copy: Model, refuse: int) -> None:
    """Other weights of the same layout, written over those that a session streams."""
    whole = copy.weights.read_bytes()
    with session(copy, Disk(), refuse=refuse) as opened:
        usable(opened, copy)
        changed = bytearray(whole)
        start, length = span(copy.weights, "layers.1.experts.0")
        changed[start : start + length] = changed[start : start + length][::-1]
        write_over(copy.weights, bytes(changed))
        for _ in range(2):
            with pytest.raises(errors.FileChanged, match="it was written to while open; open it again"):
                opened.denoise(CANVAS, HeadRequest())
        write_over(copy.weights, whole)
        usable(opened, copy)


def write_over(path: Path, data: bytes) -> None:
    """In place, at a time that the file system can tell from the last one."""
    with open(path, "r+b") as file:
        file.write(data)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
