"""The native session on wrong arguments, damaged bundles and files that fail: the error of each cause, and
a session that goes on.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import sealing
from support.native_bundles import native_bundle
from support.session_functions import session_functions

from edgekit.export.quantize import Scheme
from edgekit.flashload import errors
from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.runtime.core_structs import HeadOutputStruct as _Output
from edgekit.runtime.core_structs import HeadRequestStruct as _Request
from edgekit.runtime.errors import UnsupportedBundle
from edgekit.runtime.process import MOST_THREADS
from edgekit.runtime.sampling import HeadRequest, InvalidOption
from edgekit.runtime.session.session import Session, SessionOptions, _library
from edgekit.runtime.session.structs import InfoStruct, OptionsStruct


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts, prefix KV, self-conditioning."""
    return native_bundle(
        tmp_path_factory.mktemp("gemma"), "diffusion_gemma", Scheme("mixed4"), num_hidden_layers=2
    )


# --- errors of use ------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_and_harm_nothing(gemma: Path) -> None:
    canvas = np.arange(8)
    with Session(gemma) as session:
        with pytest.raises(errors.InvalidRequest, match="project needs a denoise"):
            session.project(HeadRequest())
        session.prefill(np.arange(20))
        expected = session.denoise(canvas, HeadRequest(logits=True))
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: session.denoise(np.array([1, session.vocab_size]), HeadRequest()), "outside the model"),
            (lambda: session.denoise(np.array([-1]), HeadRequest()), "token -1 at position 0"),
            (lambda: session.denoise(np.array([], np.int64), HeadRequest()), "at least one"),
            (lambda: session.prefill(np.array([1, 10**9])), "token 1000000000 at position 1"),
            (lambda: session.denoise(canvas, HeadRequest(temperature=0.0)), "temperature 0"),
            (lambda: session.denoise(canvas, HeadRequest(temperature=float("nan"))), "temperature"),
            (lambda: session.denoise(canvas, HeadRequest(rows=np.array([8]))), "row 8"),
            (lambda: session.project(HeadRequest(rows=np.array([-1]))), "row -1"),
            (lambda: session.project(HeadRequest(top_k=-1)), "top_k"),
            (lambda: session.denoise(canvas, HeadRequest(), np.zeros((8, 3), np.float32)), "soft embeddings"),
        ]
        for call, words in wrong:
            with pytest.raises(errors.InvalidRequest, match=words):
                call()
        assert session.prefix_length == 20
        most = session.vocab_size
        again = session.denoise(canvas, HeadRequest(logits=True, top_k=most, rows=np.array([], np.int64)))
        assert again.top_ids is not None and again.top_ids.shape == (0, session.vocab_size)
        np.testing.assert_array_equal(session.project(HeadRequest(logits=True)).logits, expected.logits)
    session.close()
    with pytest.raises(errors.InvalidRequest, match="closed"):
        session.denoise(canvas, HeadRequest())
    for wrong in ({"canvas": 0}, {"positions": -1}):
        with pytest.raises(InvalidOption, match="use an integer from"):
            SessionOptions(**wrong)


def test_a_model_without_prefix_says_so(tmp_path: Path) -> None:
    bundle = native_bundle(tmp_path, "llada", Scheme("int8"), n_layers=1)
    with Session(bundle) as session, pytest.raises(errors.InvalidRequest, match="encodes no prefix"):
        session.prefill(np.arange(3))


def test_the_abi_checks_what_it_is_given(gemma: Path) -> None:
    """Structs of other sizes, null pointers, arrays that were not asked for."""
    _library()
    library, handle = session_functions(), ctypes.c_void_p()
    options = OptionsStruct(threads=1, resident_bytes=2**64 - 1, positions=8, canvas=8)
    opened = (str(gemma).encode(), ctypes.byref(options), ctypes.byref(handle))
    invalid, state = 1, 15

    def message() -> str:
        text: bytes = library.ek_last_error()
        return text.decode()

    options.struct_size += 8
    assert library.ek_session_open(*opened) == invalid and "struct_size" in message() and not handle
    options.struct_size = 0
    assert library.ek_session_open(*opened) == invalid
    options.struct_size = 8  # a caller that knows of threads alone
    options.positions = options.canvas = -1
    for threads in (-1, MOST_THREADS + 1):
        options.threads = threads
        assert library.ek_session_open(*opened) == invalid
        with pytest.raises(InvalidOption) as refused:
            SessionOptions(threads=threads)
        assert message() == f"{refused.value}, or 0 for every core"
    assert str(refused.value) == "threads is 1025; use an integer from 1 to 1024"
    options.threads = 1
    assert library.ek_session_open(*opened) == 0 and handle
    assert library.ek_session_open(None, None, ctypes.byref(ctypes.c_void_p())) == invalid
    assert library.ek_session_open(str(gemma).encode(), None, None) == invalid
    assert library.ek_session_open(b"/nowhere", None, ctypes.byref(ctypes.c_void_p())) == 4
    assert "/nowhere" in message() and library.ek_last_error_bytes() == 0

    info = InfoStruct()
    info.struct_size = InfoStruct.vocabulary.offset + 8
    info.hidden_size = -7
    assert library.ek_session_get_info(handle, ctypes.byref(info)) == 0
    assert info.threads == 1 and info.vocabulary > 0 and info.hidden_size == -7, "written beyond its size"
    assert library.ek_session_get_info(handle, None) == invalid
    assert library.ek_session_get_info(None, ctypes.byref(info)) == invalid and "null" in message()

    ids = np.zeros(2, np.int64)
    out = np.zeros(2, np.int64)
    output = _Output(sample=out.ctypes.data)
    call = (handle, ids.ctypes.data, 2, None)
    assert library.ek_session_project(handle, None, ctypes.byref(output)) == invalid
    assert library.ek_session_project(handle, None, None) == state
    assert library.ek_session_denoise(*call, None, ctypes.byref(output)) == invalid and "gumbel" in message()
    assert library.ek_session_denoise(handle, None, 2, None, None, None) == invalid
    request = _Request(temperature=1.0)
    request.struct_size = 8
    assert library.ek_session_denoise(*call, ctypes.byref(request), None) == 0, "outputs may be left out"
    library.ek_session_close(handle)
    library.ek_session_close(None)


# --- damaged bundles ----------------------------------------------------------------------------------------


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    sealing.edit(bundle, change)


def flip_byte(bundle: Path, run: str) -> Callable[[], None]:
    """Damages the middle of a run, modification time kept; the returned function repairs it."""
    path = bundle / "weights.safetensors"
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    offsets = {name: offset for name, offset, *_ in json.loads(header["__metadata__"]["edgekit.runs"])}
    before, place = path.stat(), offsets[run] + 64

    def flip() -> None:
        with open(path, "r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x10]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    flip()
    return flip


def remove(manifest: dict[str, Any], *keys: Any) -> None:
    for key in keys[:-1]:
        manifest = manifest[key]
    del manifest[keys[-1]]


def replace(manifest: dict[str, Any], value: Any, *keys: Any) -> None:
    for key in keys[:-1]:
        manifest = manifest[key]
    manifest[keys[-1]] = value


#: What happens to the manifest, and the error that it ends in. The Python reader of the same manifest refuses
#: some of it first.
DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], None], type[EdgekitError], str]] = {
    "another format": (
        lambda m: replace(m, "onnx", "programs", "format"), UnsupportedBundle, "native/native-1",
    ),
    "another layout": (lambda m: replace(m, "native-9", "programs", "layout"), UnsupportedBundle, "native-1"),
    "no programs": (lambda m: remove(m, "programs", "entries"), errors.MalformedFile, "entries"),
    "no program of a layer": (
        lambda m: remove(m, "programs", "entries", "full"), errors.MalformedFile, "full",
    ),
    "no head": (lambda m: remove(m, "programs", "entries", "head"), errors.MalformedFile, "head"),
    "unknown op": (
        lambda m: replace(m, "fft", "programs", "entries", "full", "ops", 0, "op"), UnsupportedBundle, "fft",
    ),
    "bad reference": (
        lambda m: replace(m, [99], "programs", "entries", "full", "ops", 0, "in"), errors.MalformedFile, "99",
    ),
    "weight of another shape": (
        lambda m: replace(m, [64, 1], "programs", "entries", "full", "weights", "self_attn.q_proj"),
        errors.MalformedFile, "self_attn.q_proj",
    ),
    "a name that breaks the line": (
        lambda m: replace(m, ["no\nsuch\ud800"], "programs", "entries", "full", "ops", 0, "w"),
        errors.MalformedFile, "no\\x0asuch\\ud800",
    ),
    "unknown run": (lambda m: replace(m, "layers.9", "layers", 0, "run"), errors.MalformedFile, "layers.9"),
    "a run twice": (lambda m: replace(m, "layers.0", "layers", 1, "run"), errors.MalformedFile, "twice"),
    "fewer experts": (lambda m: remove(m, "layers", 0, "experts", 0), errors.MalformedFile, "experts"),
    "unknown rope": (lambda m: replace(m, "spiral", "layers", 0, "rope"), errors.MalformedFile, "spiral"),
    "wide heads": (lambda m: replace(m, 4096, "layers", 0, "head_dim"), errors.MalformedFile, ""),
    "tiles out of order": (
        lambda m: m["model"]["tables"]["embedding"]["starts"].reverse(), errors.MalformedFile, "embedding",
    ),
    "tiles of another size": (
        lambda m: replace(m, 3, "model", "tables", "embedding", "starts", 1), errors.MalformedFile, "codes",
    ),
    "negative width": (
        lambda m: replace(m, -64, "model", "hidden_size"), errors.MalformedFile, "hidden_size",
    ),
    "size of the weights": (
        lambda m: replace(m, 2**40, "weights", "size"), errors.TruncatedFile, "of 1099511627776 bytes",
    ),
    "bad window": (lambda m: replace(m, 0, "layers", 0, "window"), errors.MalformedFile, "window"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda c: c.replace(" ", "-"))
def test_damaged_manifests_are_refused(gemma: Path, tmp_path: Path, damage: str) -> None:
    change, expected, words = DAMAGE[damage]
    bundle = shutil.copytree(gemma, tmp_path / "bundle")
    edit_manifest(bundle, change)
    # Straight through the ABI too: Python's own checks come first in a Session.
    with pytest.raises(expected):
        Session(bundle)
    library, handle = _library(), ctypes.c_void_p()
    status = library.ek_session_open(str(bundle).encode(), None, ctypes.byref(handle))
    assert status in (6, 9, 11) and not handle
    assert words in library.ek_last_error().decode()


def test_bundles_for_several_formats_are_none_for_the_core(tmp_path: Path) -> None:
    library, handle = _library(), ctypes.c_void_p()
    (tmp_path / "bundles.json").write_text("{}")
    unsupported = 11
    assert library.ek_session_open(str(tmp_path).encode(), None, ctypes.byref(handle)) == unsupported
    (line,) = library.ek_last_error().decode().splitlines()
    assert line.startswith(f"{tmp_path}: has bundles for several formats") and "--format native" in line


def test_damaged_files_are_refused(gemma: Path, tmp_path: Path) -> None:
    def fresh(name: str) -> Path:
        return Path(shutil.copytree(gemma, tmp_path / name))

    with pytest.raises(errors.OpenFailed, match="not a bundle"):
        Session(tmp_path)
    bundle = fresh("missing")
    (bundle / "weights.safetensors").unlink()
    with pytest.raises(errors.OpenFailed, match="weights"):
        Session(bundle)
    bundle = fresh("cut")
    os.truncate(bundle / "weights.safetensors", (bundle / "weights.safetensors").stat().st_size - 20_000)
    with pytest.raises(errors.TruncatedFile):
        Session(bundle)
    bundle = fresh("header")
    with open(bundle / "weights.safetensors", "r+b") as file:
        file.seek(8)
        file.write(b"[[[[")
    with pytest.raises(errors.MalformedFile):
        Session(bundle)
    for run in ("layers.1", "layers.0.experts.1", "embedding.0"):
        bundle = fresh(run)
        flip_byte(bundle, run)
        with pytest.raises(errors.ChecksumMismatch, match=run):
            Session(bundle)


@pytest.mark.parametrize("run", ["layers.1", "layers.1.experts.0", "final", "embedding.1"])
def test_a_failed_read_ends_the_pass_and_the_session_goes_on(gemma: Path, tmp_path: Path, run: str) -> None:
    """Damage that a streamed run shows when it is first read, repaired afterwards."""
    bundle = Path(shutil.copytree(gemma, tmp_path / "bundle"))
    canvas, prompt = np.arange(8), np.arange(30)
    with Session(gemma) as session:
        session.prefill(prompt)
        expected = session.denoise(canvas, HeadRequest(logits=True)).logits
    with Session(bundle, SessionOptions(resident_bytes=0)) as session:
        repair = flip_byte(bundle, run)
        if run.startswith("layers"):
            with pytest.raises(errors.ChecksumMismatch, match=run):
                session.prefill(prompt)
            assert session.prefix_length == 0
            repair()
            session.prefill(prompt)
        else:
            session.prefill(prompt)
            for _ in range(2):
                with pytest.raises(errors.ChecksumMismatch, match=run):
                    session.denoise(canvas, HeadRequest())
            assert session.prefix_length == 30
            repair()
        np.testing.assert_array_equal(session.denoise(canvas, HeadRequest(logits=True)).logits, expected)


def test_sessions_give_everything_back(gemma: Path) -> None:
    """Threads and file descriptors of sessions, closed, failed or forgotten."""

    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").exists():
        pytest.skip("threads and descriptors are counted in /proc")
    Session(gemma).close()
    before = held()
    for _ in range(3):
        with Session(gemma, SessionOptions(threads=3, resident_bytes=0)) as session:
            session.denoise(np.arange(4), HeadRequest())
        with pytest.raises(BudgetExceeded):
            Session(gemma, SessionOptions(memory_bytes=1))
        forgotten = Session(gemma, SessionOptions(resident_bytes=0))
        forgotten.denoise(np.arange(4), HeadRequest())
        del forgotten
    assert held() == before
