"""Flash files through the C ABI: what a host outside of the library reads, and what it is told of damage."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char_p, c_uint64, c_void_p
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_flash_packed as packed_tests
import xxhash
from safetensors.numpy import load_file
from support.flash_files import Data, damage, random_data, write
from support.native_flash import Flash
from support.native_sampler import INVALID_ARGUMENT

from edgekit.flashload import _native
from edgekit.flashload import manifest as manifests
from edgekit.flashload.buffers import AlignedBuffer
from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.format import RunSpec, TensorSpec, layout
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.structs import FlashInfoStruct, PartStruct, RunStruct
from edgekit.runtime.process import resident_bytes
from edgekit.runtime.session import open_session

OPEN_FAILED, TRUNCATED_FILE, CHECKSUM_MISMATCH, MALFORMED_FILE = 4, 6, 8, 9
SPECS = [
    RunSpec("layers.0", (TensorSpec("layers.0.w", "U8", (99, 333)), TensorSpec("layers.0.s", "F16", (33,)))),
    RunSpec("final", (TensorSpec("final.norm.weight", "F32", (3,)),)),
    RunSpec("table", (TensorSpec("table.codes", "I8", (500, 40)), TensorSpec("other", "F32", (2, 3, 5)))),
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    data: Data = random_data(SPECS)
    write(tmp_path / "weights.safetensors", SPECS, data)
    return tmp_path / "weights.safetensors"


@pytest.fixture
def flash(path: Path) -> Iterator[Flash]:
    opened = Flash(path)
    assert opened.status == 0, opened.message()
    yield opened
    opened.close()


def address(buffer: AlignedBuffer, shift: int = 0) -> int:
    return np.frombuffer(buffer.view, np.uint8).ctypes.data + shift


@pytest.mark.parametrize("shift", [0, 64], ids=["page", "inside a page"])
def test_runs_hold_the_tensors_of_the_safetensors_library(path: Path, flash: Flash, shift: int) -> None:
    expected = load_file(path)
    seen = set()
    for spec in SPECS:
        status, size, tensors = flash.find(spec.name)
        assert (status, tensors) == (0, len(spec.tensors))
        buffer = AlignedBuffer(size + shift)
        assert flash.read(spec.name, address(buffer, shift), size) == 0, flash.message()
        for index in range(tensors):
            status, found = flash.tensor(spec.name, index)
            name = found.name.decode()
            full = f"{spec.name}.{name}" if f"{spec.name}.{name}" in expected else name
            array = expected[full]
            assert status == 0 and tuple(found.shape[: found.rank]) == array.shape
            assert found.dtype.decode() == {t.name: t.dtype for t in spec.tensors}[full]
            start = shift + found.offset
            assert bytes(buffer.view[start : start + found.bytes]) == array.tobytes()
            # A row, as tables are looked up.
            row = array.nbytes // array.shape[0]
            last = row * (array.shape[0] - 1)
            assert flash.part(spec.name, found.offset + last, row) == (0, array[-1].tobytes())
            seen.add(full)
    assert seen == {t.name for spec in SPECS for t in spec.tensors}


def test_packed_runs_hold_the_rows_that_were_packed(tmp_path: Path) -> None:
    path, tensors = tmp_path / "model.safetensors", packed_tests.values(packed_tests.RUNS)
    packed_tests.write(path, packed_tests.RUNS, packed_tests.STORED, tensors)
    flash = Flash(path)
    assert flash.status == 0, flash.message()
    for spec in packed_tests.RUNS:
        status, size, count = flash.find(spec.name)
        assert (status, count) == (0, len(spec.tensors))
        buffer = AlignedBuffer(size)
        assert flash.read(spec.name, address(buffer), size) == 0, flash.message()
        for index in range(count):
            _, found = flash.tensor(spec.name, index)
            array = tensors[f"{spec.name}.{found.name.decode()}"]
            assert tuple(found.shape[: found.rank]) == array.shape
            assert bytes(buffer.view[found.offset : found.offset + found.bytes]) == array.tobytes()
            row = array.nbytes // len(array)
            last = found.offset + row * (len(array) - 1)
            assert flash.part(spec.name, last, row) == (0, array[-1].tobytes())
    assert flash.part("tile1", size - 1, 1)[0] == INVALID_ARGUMENT  # between and behind the tensors
    flash.close()


def test_the_native_engine_refuses_packed_weights(native_bundle: Path, tmp_path: Path) -> None:
    """Its kernels take tensors where they lie, at multiples of a vector's size."""
    bundle = Path(shutil.copytree(native_bundle, tmp_path / "bundle"))
    manifest = manifests.load(bundle)
    weights = bundle / manifest.weights.file
    tensors = packed_tests.values(packed_tests.RUNS)
    packed_tests.write(weights, packed_tests.RUNS, packed_tests.STORED, tensors)
    entry, header = manifests.file_entry(weights), FlashFile(weights).layout.data_start
    described = manifests.WeightsEntry(
        manifest.weights.file, entry.size, entry.sha256, header,
        xxhash.xxh3_64_hexdigest(weights.read_bytes()[:header]),
    )  # fmt: skip
    manifests.save(replace(manifest, weights=described), bundle)
    with pytest.raises(EdgekitError, match="is packed, where the native engine needs aligned tensors"):
        open_session(bundle)


@pytest.mark.parametrize("run", [spec.name for spec in SPECS])
def test_damage_is_reported_and_the_other_runs_are_read(path: Path, run: str) -> None:
    found = next(each for each in layout(SPECS).runs if each.name == run)
    damage(path, found.offset + found.length - 1)
    flash, buffer = Flash(path), AlignedBuffer(max(each.length for each in layout(SPECS).runs))
    for call in (
        lambda: flash.read(run, address(buffer), found.length),
        lambda: flash.library.ek_flash_verify_run(flash.handle, run.encode()),
    ):
        assert call() == CHECKSUM_MISMATCH and f"{path}: run {run} has xxh3" in flash.message()
    # Single rows are only as verified as their run.
    assert flash.part(run, found.length - 1, 1) == (0, b"\x01")
    for other in {spec.name for spec in SPECS} - {run}:
        size = flash.find(other)[1]
        assert flash.read(other, address(buffer), size) == 0
        assert flash.library.ek_flash_verify_run(flash.handle, other.encode()) == 0
    flash.close()


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [(b"", TRUNCATED_FILE, "has 0 bytes"), (b"x" * 100, MALFORMED_FILE, "not a safetensors file"),
     (None, OPEN_FAILED, "cannot open")],
    ids=["empty", "another format", "missing"],
)  # fmt: skip
def test_what_cannot_be_opened_is_reported(
    tmp_path: Path, content: bytes | None, status: int, message: str
) -> None:
    path = tmp_path / "weights"
    if content is not None:
        path.write_bytes(content)
    flash = Flash(path)
    assert flash.status == status and not flash.handle
    assert f"{path}: " in flash.message() and message in flash.message()
    flash.close()


def test_a_file_that_was_cut_short_is_not_opened(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)
    flash = Flash(path)
    assert flash.status == TRUNCATED_FILE and "copy it again" in flash.message()


def test_arguments_that_do_not_fit_are_refused(flash: Flash, path: Path) -> None:
    size = flash.find("table")[1]
    buffer = AlignedBuffer(size)
    library, where, name = flash.library, address(buffer), c_char_p()
    for call, words in (
        (lambda: flash.find("layers.7")[0], "layers.7"),
        (lambda: flash.tensor("table", 2)[0], "run table has 2 tensors, number 2"),
        (lambda: flash.tensor("table", -1)[0], "number -1"),
        (lambda: flash.read("table", where, size - 1), f"needs a buffer of {size} bytes, got {size - 1}"),
        (lambda: flash.read("table", None, size), "got 0"),
        (lambda: flash.part("table", size, 1)[0], f"1 at {size} were asked for"),
        (lambda: library.ek_flash_read_part(flash.handle, b"table", 2**64 - 1, 2, where), "2 at 18446744073"),
        (lambda: flash.read("layers.7", where, size), "layers.7"),
        (lambda: library.ek_flash_read_run(flash.handle, None, where, size), "without a name"),
        (lambda: library.ek_flash_read_part(flash.handle, b"table", 0, 1, None), "without a place"),
        (lambda: library.ek_flash_get_tensor(flash.handle, b"table", 0, None), "tensor is null"),
        (lambda: library.ek_flash_get_tensor_name(flash.handle, b"table", 2, name), "2 tensors, number 2"),
        (lambda: library.ek_flash_get_tensor_name(flash.handle, b"table", 0, None), "no place"),
        (lambda: library.ek_flash_get_part(flash.handle, b"table", 1, PartStruct()), "1 parts, number 1"),
        (lambda: library.ek_flash_get_part(flash.handle, b"table", 0, None), "part is null"),
        (lambda: library.ek_flash_get_run(flash.handle, 3, RunStruct()), "has 3 runs, number 3"),
        (lambda: library.ek_flash_get_run(flash.handle, -1, RunStruct()), "number -1"),
        (lambda: library.ek_flash_get_run(flash.handle, 0, None), "run is null"),
        (lambda: library.ek_flash_get_info(flash.handle, None), "info is null"),
        (lambda: library.ek_flash_get_info(None, FlashInfoStruct()), "is null"),
        (lambda: library.ek_flash_verify_run(flash.handle, b"layers.7"), "layers.7"),
        (lambda: library.ek_flash_verify_run(flash.handle, None), "without a name"),
        (lambda: library.ek_flash_find_run(None, b"table", None, None), "is null"),
        (lambda: library.ek_flash_open(None, byref(c_void_p())), "path"),
        (lambda: library.ek_flash_open(os.fsencode(path), None), "address"),
    ):
        assert call() == INVALID_ARGUMENT and words in flash.message(), flash.message()
    assert library.ek_flash_find_run(flash.handle, b"table", None, None) == 0
    assert library.ek_flash_read_part(flash.handle, b"table", size, 0, None) == 0
    library.ek_flash_close(None)


def test_threads_share_an_open_file(flash: Flash, path: Path) -> None:
    sizes = {spec.name: flash.find(spec.name)[1] for spec in SPECS}

    def read(name: str) -> bytes:
        buffer = AlignedBuffer(sizes[name])
        assert flash.read(name, address(buffer), sizes[name]) == 0
        return bytes(buffer.view)

    raw = path.read_bytes()
    expected = {r.name: raw[r.offset : r.offset + r.length] for r in layout(SPECS).runs}
    with ThreadPoolExecutor(4) as pool:
        for name, found in zip(list(sizes) * 8, pool.map(read, list(sizes) * 8), strict=True):
            assert found == expected[name]


def test_physical_memory_is_that_of_this_process() -> None:
    library = ctypes.CDLL(str(_native.library_path()))
    library.ek_process_bytes.restype = c_uint64
    before = library.ek_process_bytes()
    block = np.ones(256 << 20, np.uint8)
    found = library.ek_process_bytes()
    # What other tests have left behind may be given back meanwhile.
    assert abs(found - resident_bytes()) < 16 << 20 and found - before > 128 << 20
    del block


def test_threads_that_load_the_library_at_once_get_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else types would be declared on one object, and calls made on another that knows none."""
    copied = shutil.copy(_native.library_path(), tmp_path)
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, str(copied))
    together, real, opened = threading.Barrier(4, timeout=20), ctypes.CDLL, []

    def slow(name: str) -> ctypes.CDLL:
        opened.append(name)
        time.sleep(0.2)
        return real(name)

    def load() -> ctypes.CDLL:
        together.wait()
        return _native.load().library

    monkeypatch.setattr(_native.ctypes, "CDLL", slow)
    with ThreadPoolExecutor(4) as pool:
        found = [f.result() for f in [pool.submit(load) for _ in range(4)]]
    assert len(opened) == 1 and all(library is found[0] for library in found)
