"""Sequences in files: what is loaded is what was saved, to the bit, and nothing else is taken for it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budgets import tight
from support.far_engine import FAR, NEAR, OWN_MEMORY, opened
from support.native_bundles import native_bundle

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import (
    BudgetExceeded,
    ChecksumMismatch,
    EdgekitError,
    InvalidRequest,
    MalformedFile,
    OpenFailed,
    TruncatedFile,
    UnsupportedVersion,
    WriteFailed,
)
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Segment, Sequence, Session, SessionOptions, read_saved

LOGITS = HeadRequest(logits=True)
CANVAS = np.arange(8) * 5 % 50
START = 64  # bytes before the description


def logits(text: Sequence | Session) -> np.ndarray:
    scores = text.denoise(CANVAS, LOGITS).logits
    assert scores is not None
    return scores


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, count)


@pytest.fixture(scope="module")
def saved(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, np.ndarray]:
    """A file as bytes, and what its text says of the canvas."""
    path = tmp_path_factory.mktemp("saved") / "text.kv"
    with Session(bundle) as session:
        session.prefill(ids(21))
        session.prefill(ids(6, 1))
        session.sequence.save(path, note=b"a note")
        return path.read_bytes(), logits(session)


@given(
    st.lists(st.integers(1, 70), max_size=4),
    st.integers(0, 5),
    st.integers(0, 60),
    st.booleans(),
    st.binary(max_size=9),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_loaded_is_what_was_saved(
    bundle: Path, tmp_path: Path, lengths: list[int], waiting: int, cropped: int, copied: bool, note: bytes
) -> None:
    """Also where chunks are shared, where a text was cropped within a piece, and in a session of other
    lengths, whose layers with a window keep more or less.
    """
    path = tmp_path / "text.kv"
    with Session(bundle, SessionOptions(sequences=3, canvas=8)) as session:
        text = session.sequence
        for seed, count in enumerate(lengths):
            text.prefill(ids(count, seed))
            if copied:
                text = text.copy() if seed == 0 else text
        if 0 < cropped < text.prefix_length:
            with suppress(InvalidRequest):  # too far back for the layers with a window
                text.crop(cropped)
        text.uncached = ids(waiting, 9)
        text.save(path, note=note)
        expected, pieces, prefix = logits(text), text.pieces, text.prefix
        following = ids(11, 7)
        text.prefill(np.concatenate([ids(waiting, 9), following]))
        later = logits(text)
    found = read_saved(path)
    assert (found.note, found.engine, found.bits) == (note, "native", 32)
    for options in (
        SessionOptions(sequences=2, canvas=64),
        SessionOptions(resident_bytes=0, canvas=8, threads=1),
    ):
        with Session(bundle, options) as other:
            loaded = other.load_sequence(path) if options.sequences > 1 else other.sequence
            if loaded is other.sequence:
                loaded.prefill(ids(33, 8))  # what was there is gone
                loaded.load(path)
            assert loaded.prefix == prefix and np.array_equal(loaded.uncached, ids(waiting, 9))
            assert [piece.tolist() for piece in loaded.pieces] == [piece.tolist() for piece in pieces]
            assert np.array_equal(logits(loaded), expected)
            again = tmp_path / "again.kv"
            loaded.save(again, note=note)
            assert [p.tolist() for p in read_saved(again).pieces] == [p.tolist() for p in found.pieces]
            loaded.prefill(np.concatenate([ids(waiting, 9), following]))
            assert np.array_equal(logits(loaded), later)


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("mode", [OWN_MEMORY, FAR], ids=["own-memory", "far"])
def test_engines_with_memory_of_their_own(bundle: Path, tmp_path: Path, mode: int, bits: int) -> None:
    path, near = tmp_path / "far.kv", tmp_path / "near.kv"
    options = SessionOptions(sequences=2)
    with opened(bundle, lambda: options, NEAR) as (session, _):
        session.prefill(ids(300))
        session.sequence.save(near, bits=bits)
    with opened(bundle, lambda: options, mode) as (session, _):
        session.prefill(ids(300))
        session.sequence.save(path, bits=bits)
        expected = logits(session)
        with session.load_sequence(path) as loaded:
            found = logits(loaded)
        assert np.array_equal(found, expected) == (bits == 32)
    assert path.read_bytes() == near.read_bytes()


def test_eight_bits_take_a_quarter_and_stay_near(session: Session, tmp_path: Path) -> None:
    session.prefill(ids(200))
    session.sequence.save(tmp_path / "32", bits=32)
    session.sequence.save(tmp_path / "8", bits=8)
    whole, quarter = (tmp_path / "32").read_bytes(), (tmp_path / "8").read_bytes()
    described = START + struct.unpack_from("<Q", whole, 32)[0]
    with session.load_sequence(tmp_path / "8") as loaded:
        loaded.save(tmp_path / "of8")
    exact = np.frombuffer(whole[described:], np.float32)
    rounded = np.frombuffer((tmp_path / "of8").read_bytes()[described:], np.float32)
    sliding, full = session.bundle.model.layers
    behind = (
        2 * full.kv_heads * full.head_dim * 200
    )  # numbers of the second layer, which keeps every position
    size = 0
    for layer, part in ((sliding, slice(0, -behind)), (full, slice(-behind, None))):
        rows, near = exact[part].reshape(-1, layer.head_dim), rounded[part].reshape(-1, layer.head_dim)
        size += len(rows) * (layer.head_dim + 4)  # codes and a scale
        step = np.abs(rows).max(1, keepdims=True) / 127
        assert (np.abs(rows - near) <= 0.5001 * step).all() and (rows != near).any()
    assert len(quarter) - described == size
    for wrong, said in ((16, "16"), ("8", "'8'"), (8.0, "8.0"), (True, "True"), (None, "None")):
        with pytest.raises(InvalidRequest, match=f"bits is {said}; keys and values are saved with 32 or 8"):
            session.sequence.save(tmp_path / "16", bits=wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_file_does_not_take_the_place_of_what_is_none(session: Session, tmp_path: Path) -> None:
    session.prefill(ids(10))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(WriteFailed, match="fifo: is there, and is no regular file"):
        session.sequence.save(tmp_path / "fifo")
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_what_is_no_text_is_not_saved(session: Session, tmp_path: Path) -> None:
    session.prefill(ids(10))
    session.run_pass([Segment(session.sequence, CANVAS, keep_at=10)])
    with pytest.raises(
        InvalidRequest, match="of the 18 kept positions only the first 10 can be encoded again"
    ):
        session.sequence.save(tmp_path / "text.kv")
    assert not list(tmp_path.iterdir())
    session.sequence.crop(10)
    session.sequence.save(tmp_path / "text.kv")
    assert read_saved(tmp_path / "text.kv").pieces[0].size == 10


def test_text_in_blocks_is_saved_in_whole_blocks(tmp_path: Path) -> None:
    bundle = native_bundle(tmp_path, "sdar", Scheme("mixed4", 16), num_hidden_layers=2)
    path = tmp_path / "text.kv"
    with Session(bundle) as session:
        text = session.sequence
        text.prefill(ids(10))
        text.prefill(ids(9, 1))
        session.run_pass([Segment(text, ids(4, 2), causal=True, block=4, keep_at=19)])
        text.crop(21)
        with pytest.raises(InvalidRequest, match="of the 21 kept positions only the first 19 can"):
            text.save(path)
        text.crop(18)
        text.uncached = ids(3, 3)
        text.save(path)
        expected, prefix = logits(text), text.prefix
    assert [len(piece) for piece in read_saved(path).pieces] == [10, 8]
    with Session(bundle, SessionOptions(canvas=8, threads=1)) as other:
        other.sequence.load(path)
        assert other.prefix == prefix and other.uncached.tolist() == ids(3, 3).tolist()
        np.testing.assert_array_equal(logits(other), expected)
        other.crop(9)
        with pytest.raises(InvalidRequest, match="of the 9 kept positions only the first 8 can"):
            _ = other.pieces


def test_a_file_is_there_whole_or_not_at_all(session: Session, tmp_path: Path) -> None:
    session.prefill(ids(10))
    with pytest.raises(WriteFailed, match="cannot write in its folder"):
        session.sequence.save(tmp_path / "nowhere" / "text.kv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteFailed, match="cannot be given its name"):
        session.sequence.save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]
    path = tmp_path / "text.kv"
    session.sequence.save(path)
    before = path.read_bytes()
    session.prefill(ids(5))
    session.sequence.save(path)
    assert len(path.read_bytes()) > len(before) and sorted(os.listdir(tmp_path)) == ["folder", "text.kv"]
    if os.path.exists("/dev/full"):
        with pytest.raises(EdgekitError):
            session.sequence.save("/dev/full/text.kv")


def test_other_bundles_and_engines_refuse_it(
    bundle: Path, tmp_path: Path, saved: tuple[bytes, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path / "text.kv"
    path.write_bytes(saved[0])
    other = native_bundle(
        tmp_path_factory.mktemp("other"), "diffusion_gemma", Scheme("int8"), num_hidden_layers=2
    )
    with Session(other) as session:
        session.prefill(ids(4))
        with pytest.raises(
            InvalidRequest, match=r"text\.kv: belongs to another bundle, whose manifest has sha256 "
        ):
            session.sequence.load(path)
        assert session.prefix_length == 4, "what is refused changes nothing"
    with (
        opened(bundle, lambda: SessionOptions(), NEAR) as (session, _),
        pytest.raises(
            InvalidRequest, match="holds keys and values of the native engine, and this session runs"
        ),
    ):
        session.sequence.load(path)


def test_a_budget_holds(bundle: Path, tmp_path: Path, saved: tuple[bytes, np.ndarray]) -> None:
    path = tmp_path / "text.kv"
    path.write_bytes(saved[0])
    with Session(bundle, tight(bundle, positions=26, canvas=8)) as session:
        session.prefill(ids(4))
        with pytest.raises(BudgetExceeded, match="positions = 27"):
            session.sequence.load(path)
        assert session.prefix_length == 4
    with Session(bundle, tight(bundle, positions=27, canvas=8)) as session:
        for _ in range(3):
            session.sequence.load(path)
            assert np.array_equal(logits(session), saved[1])
            session.reset()
            session.prefill(ids(25))


# --- files from elsewhere -----------------------------------------------------------------------------------


def sealed(data: bytes) -> bytes:
    """With checksums that are right again, but for those of the runs."""
    described = struct.unpack_from("<Q", data, 32)[0]
    text = data[START : START + described]
    start = data[:16] + struct.pack(
        "<4Q", *struct.unpack_from("<3Q", data, 16), xxhash.xxh3_64_intdigest(text)
    )
    start += data[48:56]
    return start + struct.pack("<Q", xxhash.xxh3_64_intdigest(start)) + data[START:]


@pytest.fixture
def loads(bundle: Path, tmp_path: Path) -> Iterator[Callable[[bytes], Session]]:
    with Session(bundle) as session:

        def load(data: bytes) -> Session:
            (tmp_path / "text.kv").write_bytes(data)
            session.sequence.load(tmp_path / "text.kv")
            return session

        yield load


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_found(
    saved: tuple[bytes, np.ndarray], loads: Callable[[bytes], Session], data: st.DataObject
) -> None:
    whole = saved[0]
    kind = data.draw(st.sampled_from(["cut", "changed", "longer", "moved"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        damaged = whole[:at]
    elif kind == "longer":
        damaged = whole + data.draw(st.binary(min_size=1, max_size=99))
    elif kind == "moved":
        damaged = whole[:at] + whole[at + 1 :] + whole[at : at + 1]
    else:
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    if damaged == whole:
        return
    with pytest.raises((MalformedFile, TruncatedFile, ChecksumMismatch)):
        loads(damaged)
    assert np.array_equal(logits(loads(whole)), saved[1]), "and the session goes on"


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_somebody_seals_on_purpose_is_held_to_its_limits(
    saved: tuple[bytes, np.ndarray], loads: Callable[[bytes], Session], data: st.DataObject
) -> None:
    """Refused in one line, or loaded as it says."""
    whole = bytearray(saved[0])
    described = struct.unpack_from("<Q", whole, 32)[0]
    values = st.sampled_from(
        [0, 1, 2, 7, 8, 27, 28, 255, 2**22, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.sampled_from([16, 24, 32]), st.integers(START, START + described - 8)))
        struct.pack_into("<Q", whole, at, data.draw(st.one_of(values, st.integers(0, 2**64 - 1))))
    try:
        session = loads(sealed(bytes(whole)))
    except EdgekitError as error:
        assert "\n" not in str(error) and not isinstance(error, (BudgetExceeded,))
    else:
        assert session.prefix_length == sum(map(len, session.pieces))
        logits(session)


def test_sizes_are_believed_when_they_are_there(tmp_path: Path, saved: tuple[bytes, np.ndarray]) -> None:
    """A sparse file of a terabyte takes neither time nor memory."""
    path, whole = tmp_path / "text.kv", bytearray(saved[0])
    struct.pack_into("<Q", whole, 24, 1 << 40)
    struct.pack_into("<Q", whole, 32, 1 << 39)
    path.write_bytes(sealed(bytes(whole)))
    with pytest.raises(TruncatedFile):
        read_saved(path)
    os.truncate(path, 1 << 40)
    with pytest.raises(MalformedFile, match="the size of its description"):
        read_saved(path)


def test_versions_and_other_files(tmp_path: Path, saved: tuple[bytes, np.ndarray]) -> None:
    path, whole = tmp_path / "text.kv", bytearray(saved[0])
    struct.pack_into("<Q", whole, 16, 2)
    path.write_bytes(sealed(bytes(whole)))
    with pytest.raises(UnsupportedVersion, match="has version 2 of saved sequences, this library reads 1"):
        read_saved(path)
    for other in (b"", b"{}", b"edgekit kv", os.urandom(200)):
        path.write_bytes(other)
        with pytest.raises(MalformedFile, match="is no saved sequence"):
            read_saved(path)
    with pytest.raises(OpenFailed):
        read_saved(tmp_path)
    with pytest.raises(OpenFailed):
        read_saved(tmp_path / "nothing")
    for wrong in (None, 3, "", b"x"):
        with pytest.raises(InvalidRequest, match="give the name of a file"):
            read_saved(wrong)  # type: ignore[arg-type]


# --- long texts ---------------------------------------------------------------------------------------------


def test_long_texts_are_encoded_and_saved_within_a_budget(tmp_path: Path) -> None:
    """Chunk by chunk, to the bit as without a budget."""
    bundle = native_bundle(
        tmp_path, "diffusion_gemma", Scheme("mixed4", 16), num_hidden_layers=2, max_position_embeddings=4096
    )
    text, path = ids(3000, 5), tmp_path / "text.kv"
    with Session(bundle, SessionOptions(positions=3000, canvas=8)) as session:
        session.prefill(text)
        expected = logits(session)
    with Session(bundle, tight(bundle, positions=3000, canvas=8)) as session:
        session.prefill(text)
        assert np.array_equal(logits(session), expected)
        session.sequence.save(path)
        session.sequence.load(path)
        assert np.array_equal(logits(session), expected)
