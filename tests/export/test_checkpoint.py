from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from support.checkpoints import (
    FAMILIES,
    SPECIAL_TOKENS,
    expected_shapes,
    load_oracle,
    write_checkpoint,
    write_tokenizer,
)

from edgekit.export.checkpoint import Checkpoint, read_tokenizer, safetensors_dir, safetensors_file
from edgekit.export.checkpoint.errors import (
    CheckpointError,
    DuplicateTensor,
    InvalidConfig,
    InvalidIndex,
    LfsPointer,
    LinkLeavesFolder,
    MalformedWeights,
    MissingShard,
    MissingTensor,
    MissingWeights,
    NotACheckpoint,
    PickleWeights,
    SurplusTensor,
    TokenizerFilesMissing,
    TruncatedWeights,
    UnsupportedDtype,
    WeightsChanged,
    WeightsUnreadable,
    WrongShape,
)

VISION = ["model.encoder.vision_tower.*", "model.encoder.embed_vision.*"]


def make(path: Path, tensors: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    """A checkpoint of these tensors, written by the safetensors library."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or {"model_type": "test"}))
    if any(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        save_torch(tensors, path / "model.safetensors")
    else:
        save_file(tensors, path / "model.safetensors")
    return path


def write_raw(file: Path, header: Any, data: bytes = b"") -> None:
    """A weight file with an arbitrary header: an object to be dumped as JSON, or bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> dict[str, Any]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Two float tensors: a.weight [2, 3] and b.weight [4]."""
    values = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b.weight": np.ones(4, np.float32)}
    return make(tmp_path / "plain", values)


def one_line(error: pytest.ExceptionInfo[BaseException], *parts: object) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message


# --- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_read_as_the_safetensors_library_reads_them(
    tmp_path: Path, family: str, dtype: str, shards: int
) -> None:
    config = write_checkpoint(tmp_path, family, seed=5, dtype=dtype, shards=shards)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.config == config
    assert "eos_token_id" in checkpoint.generation_config
    seen = set()
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, "pt") as reference:
            for name in reference.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = reference.get_tensor(name)
                seen.add(name)
                assert checkpoint.shape(name) == tuple(tensor.shape)
                assert checkpoint.dtype(name) == {"float32": "F32", "bfloat16": "BF16"}[dtype]
                assert checkpoint.nbytes(name) == tensor.nbytes
                assert checkpoint.file(name) == file
                value = checkpoint.read(name)
                assert value.dtype == np.float32
                np.testing.assert_array_equal(value, tensor.float().numpy())
    assert set(checkpoint.names) == seen


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float16", np.float16), ("float64", np.float64), ("float32", np.float32)]
)
def test_float_types_convert_like_numpy(tmp_path: Path, dtype: str, bits: type) -> None:
    stored = np.array([[0.1, -2.5, 65504.0], [1e-7, -0.0, np.inf]], dtype)
    checkpoint = Checkpoint.open(make(tmp_path, {"x": stored}))
    np.testing.assert_array_equal(checkpoint.read("x"), stored.astype(np.float32))
    raw = checkpoint.read_raw("x")
    assert raw.dtype == bits
    np.testing.assert_array_equal(raw, stored)


def test_every_bfloat16_converts_exactly(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    checkpoint = Checkpoint.open(make(tmp_path, {"x": bits.view(ml_dtypes.bfloat16)}))
    value, expected = checkpoint.read("x"), bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(value.view(np.uint32), bits.astype(np.uint32) << 16)
    np.testing.assert_array_equal(value, expected)
    raw = checkpoint.read_raw("x")
    assert raw.dtype == np.uint16
    np.testing.assert_array_equal(raw, bits)


def test_slice_reads_rows_and_only_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = np.arange(5 * 3 * 2, dtype=np.float32).reshape(5, 3, 2)
    checkpoint = Checkpoint.open(make(tmp_path, {"experts": stack.astype(ml_dtypes.bfloat16)}))
    read: list[int] = []
    original = safetensors_file._pread_into

    def counting(fd: int, part: memoryview, offset: int) -> int:
        count = original(fd, part, offset)
        read.append(count)
        return count

    monkeypatch.setattr(safetensors_file, "_pread_into", counting)
    np.testing.assert_array_equal(checkpoint.read_slice("experts", 2, 3), stack[2:3])
    assert sum(read) == 3 * 2 * 2
    np.testing.assert_array_equal(checkpoint.read_slice("experts", 1, 5), stack[1:5])
    assert checkpoint.read_slice("experts", 4, 4).shape == (0, 3, 2)
    np.testing.assert_array_equal(
        checkpoint.read_raw("experts", 3, 5), stack[3:5].astype(ml_dtypes.bfloat16).view(np.uint16)
    )
    np.testing.assert_array_equal(
        checkpoint.read_raw("experts", start=4), stack[4:].astype(ml_dtypes.bfloat16).view(np.uint16)
    )
    for start, stop in [(-1, 2), (0, 6), (3, 2)]:
        with pytest.raises(IndexError, match="experts"):
            checkpoint.read_slice("experts", start, stop)
        with pytest.raises(IndexError, match="experts"):
            checkpoint.read_raw("experts", start, stop)


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    values = {"scalar": np.float32(3.5), "empty": np.zeros((0, 4), np.float32), "x": np.ones(2, np.float32)}
    checkpoint = Checkpoint.open(make(tmp_path, {name: np.asarray(value) for name, value in values.items()}))
    assert checkpoint.shape("scalar") == ()
    assert checkpoint.read("scalar") == np.float32(3.5)
    assert checkpoint.read("empty").shape == checkpoint.read_raw("empty").shape == (0, 4)
    assert checkpoint.read_slice("empty", 0, 0).shape == (0, 4)
    with pytest.raises(IndexError, match="scalar"):
        checkpoint.read_slice("scalar", 0, 1)


def test_conversion_in_small_pieces_and_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = np.random.default_rng(0).standard_normal((37, 11)).astype(ml_dtypes.bfloat16)
    checkpoint = Checkpoint.open(make(tmp_path, {"x": value, "y": value.astype(np.float32)}))
    monkeypatch.setattr(safetensors_dir, "CONVERT_CHUNK_BYTES", 50)
    original = safetensors_file._pread_into
    monkeypatch.setattr(safetensors_file, "_pread_into", lambda fd, part, at: original(fd, part[:7], at))
    for name in ("x", "y"):
        np.testing.assert_array_equal(checkpoint.read(name), value.astype(np.float32))


def test_without_preadv_the_result_is_the_same(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Checkpoint.open(plain).read("a.weight")
    monkeypatch.setattr(safetensors_file, "_HAS_PREADV", False)
    np.testing.assert_array_equal(Checkpoint.open(plain).read("a.weight"), expected)


def test_reading_needs_the_result_and_a_bounded_scratch(tmp_path: Path) -> None:
    rows, columns = 24, 1 << 20
    value = np.zeros((rows, columns), ml_dtypes.bfloat16)
    value[:, 0] = np.arange(rows)
    checkpoint = Checkpoint.open(make(tmp_path, {"big": value}))
    del value
    for dtype_bytes, read in [
        (4 * rows, lambda: checkpoint.read("big")),
        (4 * 2, lambda: checkpoint.read_slice("big", 7, 9)),
        (2 * rows, lambda: checkpoint.read_raw("big")),
    ]:
        tracemalloc.start()
        result = read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result.nbytes == dtype_bytes * columns
        assert peak <= result.nbytes + safetensors_dir.CONVERT_CHUNK_BYTES + (1 << 20)
        mapped = Path("/proc/self/maps")
        assert not mapped.exists() or str(tmp_path) not in mapped.read_text()
        del result


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.lists(st.integers(0, 5), max_size=3),
            st.sampled_from(["float32", "float16", "float64", "bfloat16"]),
        ),
        max_size=6,
    ),
    st.integers(0, 2**32),
)
def test_any_file_of_the_library_reads_back(
    tmp_path: Path, specs: dict[str, tuple[list[int], str]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, None) or dtype)
        for name, (shape, dtype) in specs.items()
    }
    (tmp_path / "config.json").write_text("{}")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "np"})
    checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint.names) == set(tensors)
    for name, value in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), value.astype(np.float32))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_give_our_errors_where_the_library_errs(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "model.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), np.float16)}, file)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        likely = st.sampled_from(b'\x00\xff{}[]",:0123456789-. aF')
        content[position] = data.draw(likely | st.integers(0, 255))
    cut = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    file.write_bytes(bytes(content[:cut]) + data.draw(st.just(b"") | st.binary(max_size=3)))
    try:
        with safe_open(file, "np") as reference:
            names: set[str] | None = set(reference.keys())
    except (SafetensorError, OSError):
        names = None
    try:
        checkpoint = Checkpoint.open(tmp_path)
    except CheckpointError as error:
        assert names is None
        assert str(file) in str(error)
        return
    assert names is None or set(checkpoint.names) == names
    for name in checkpoint.names:
        try:
            assert checkpoint.read(name).shape == checkpoint.shape(name)
        except UnsupportedDtype:
            assert checkpoint.dtype(name) not in ("F32", "F16", "BF16", "F64")


# --- the directory ----------------------------------------------------------------------------------------


def test_missing_directory_and_missing_config(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint) as error:
        Checkpoint.open(tmp_path / "nowhere")
    one_line(error, tmp_path / "nowhere", "does not exist")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotACheckpoint) as error:
        Checkpoint.open(tmp_path / "file")
    one_line(error, tmp_path / "file", "is a file")
    with pytest.raises(NotACheckpoint) as error:
        Checkpoint.open(tmp_path)
    one_line(error, tmp_path, "config.json")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "\udce4\udcff"])
def test_config_that_is_no_json_object(plain: Path, name: str, text: str) -> None:
    (plain / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidConfig) as error:
        Checkpoint.open(plain)
    one_line(error, plain / name)


def test_generation_config_is_optional_and_other_files_do_not_matter(plain: Path) -> None:
    (plain / "README.md").write_text("# model")
    (plain / "pytorch_model.bin").write_bytes(b"\x80\x02")
    (plain / "adapter.safetensors").write_bytes(b"garbage")
    (plain / "original").mkdir()
    (plain / "original" / "model.safetensors").write_bytes(b"garbage")
    checkpoint = Checkpoint.open(plain)
    assert checkpoint.generation_config == {}
    assert checkpoint.names == ("a.weight", "b.weight")
    assert "a.weight" in checkpoint and "c.weight" not in checkpoint
    assert checkpoint.path == plain


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"])
def test_pickle_only(plain: Path, name: str) -> None:
    (plain / "model.safetensors").unlink()
    (plain / name).write_bytes(b"\x80\x02")
    with pytest.raises(PickleWeights) as error:
        Checkpoint.open(plain)
    one_line(error, plain, name, "convert")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (None, "model.safetensors.index.json"),
        ("model-00001-of-00002.safetensors", "shards but no model.safetensors.index.json"),
        ("weights.safetensors", "weights.safetensors"),
    ],
)
def test_no_weights(plain: Path, name: str | None, says: str) -> None:
    weights = plain / "model.safetensors"
    if name is None:
        weights.unlink()
    else:
        weights.rename(plain / name)
    with pytest.raises(MissingWeights) as error:
        Checkpoint.open(plain)
    assert not isinstance(error.value, PickleWeights)
    one_line(error, plain, says)


# --- shards -----------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards: one.safetensors holds a, two.safetensors holds b."""
    path = make(tmp_path / "sharded", {"a": np.zeros(2, np.float32)})
    (path / "model.safetensors").rename(path / "one.safetensors")
    save_file({"b": np.ones(3, np.float32)}, path / "two.safetensors")
    write_index(path, {"a": "one.safetensors", "b": "two.safetensors"})
    return path


def write_index(path: Path, weight_map: Any, total_size: int = 20) -> None:
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_wrong_total_size_is_not_fatal(sharded: Path) -> None:
    write_index(sharded, {"a": "one.safetensors", "b": "two.safetensors"}, total_size=1)
    assert Checkpoint.open(sharded).read("b").tolist() == [1, 1, 1]


def test_symlinked_shards_as_in_the_hub_cache(sharded: Path) -> None:
    blob = sharded.parent / "blob"
    (sharded / "one.safetensors").rename(blob)
    (sharded / "one.safetensors").symlink_to(blob)
    assert Checkpoint.open(sharded).read("a").tolist() == [0, 0]
    blob.unlink()
    with pytest.raises(MissingShard) as error:
        Checkpoint.open(sharded)
    one_line(error, sharded, "1 of 2 shards", "one.safetensors")


def test_index_names_a_tensor_its_shard_lacks(sharded: Path) -> None:
    write_index(sharded, {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"})
    with pytest.raises(InvalidIndex) as error:
        Checkpoint.open(sharded)
    one_line(error, sharded / "model.safetensors.index.json", "two.safetensors", "(c)")


def test_tensor_in_two_shards(sharded: Path) -> None:
    save_file({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, sharded / "two.safetensors")
    with pytest.raises(DuplicateTensor) as error:
        Checkpoint.open(sharded)
    one_line(error, sharded, "tensor a", "one.safetensors", "two.safetensors")


@pytest.mark.parametrize(
    "weight_map", [None, {}, [], {"a": 3}, {"a": "../one.safetensors"}, {"a": "/etc/passwd"}, {"a": "x\\y"}]
)
def test_malformed_weight_map(sharded: Path, weight_map: Any) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(InvalidIndex) as error:
        Checkpoint.open(sharded)
    one_line(error, sharded / "model.safetensors.index.json")


def test_index_that_is_no_json(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("<html>")
    with pytest.raises(InvalidIndex) as error:
        Checkpoint.open(sharded)
    one_line(error, sharded / "model.safetensors.index.json")


# --- hostile weight files ---------------------------------------------------------------------------------


def with_header(header: Any, data: bytes = b"") -> Callable[[Path], None]:
    return lambda file: write_raw(file, header, data)


def with_bytes(data: bytes) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(data) and None


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4967000000\n"
EMPTY_TENSOR = b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
DUPLICATE = b"{" + EMPTY_TENSOR + b"," + EMPTY_TENSOR + b"}"


@pytest.mark.parametrize(
    ("write", "error_class", "says"),
    [
        (with_bytes(b""), TruncatedWeights, "0 bytes"),
        (with_bytes(b"\x10\x00"), TruncatedWeights, "2 bytes"),
        (with_bytes(LFS), LfsPointer, "git lfs pull"),
        (with_bytes(b"PK\x03\x04" + bytes(100)), MalformedWeights, "pickle"),
        (with_bytes(b"\x80\x02}q\x00(X" + bytes(100)), MalformedWeights, "pickle"),
        (with_bytes(b"<!DOCTYPE html><html>not found</html>"), MalformedWeights, "safetensors header"),
        (with_bytes(struct.pack("<Q", 1 << 40) + b"{}"), MalformedWeights, "safetensors header"),
        (with_bytes(struct.pack("<Q", 500) + b'{"a":'), TruncatedWeights, "header"),
        (with_bytes(struct.pack("<Q", 5) + b"[1,2]"), MalformedWeights, "safetensors header"),
        (with_header(b'{"a": nonsense}'), MalformedWeights, "JSON"),
        (with_header(b'{"\xff": 1}'), MalformedWeights, "JSON"),
        (with_header(b'{"a":' * 100_000), MalformedWeights, "JSON"),
        (with_header(DUPLICATE), MalformedWeights, "lists a twice"),
        (with_header({"__metadata__": [1]}), MalformedWeights, "__metadata__"),
        (with_header({"a": 3}), MalformedWeights, "tensor a"),
        (with_header({"a": {"dtype": "F32", "shape": [1]}}), MalformedWeights, "tensor a"),
        (with_header({"a": entry(0, 4) | {"dtype": 5}}, bytes(4)), MalformedWeights, "tensor a: dtype"),
        (with_header({"a": entry(0, 4, [-1])}, bytes(4)), MalformedWeights, "tensor a: shape"),
        (with_header({"a": entry(0, 4, [True])}, bytes(4)), MalformedWeights, "tensor a: shape"),
        (with_header({"a": entry(0, 4, [2])}, bytes(4)), MalformedWeights, "tensor a: 4 bytes"),
        (with_header({"a": entry(4, 0, [1])}, bytes(4)), MalformedWeights, "tensor a: data_offsets"),
        (with_header({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), MalformedWeights, "a and b overlap"),
        (with_header({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12)), MalformedWeights, "before tensor b"),
        (with_header({"a": entry(0, 4)}, bytes(9)), MalformedWeights, "5 bytes after"),
        (with_header({"a": entry(0, 4), "b": entry(4, 1 << 50)}, bytes(8)), TruncatedWeights, "tensor b"),
    ],
)
def test_hostile_file(
    plain: Path, write: Callable[[Path], None], error_class: type[CheckpointError], says: str
) -> None:
    file = plain / "model.safetensors"
    write(file)
    with pytest.raises(error_class) as error:
        Checkpoint.open(plain)
    assert type(error.value) is error_class
    one_line(error, file, says)


@pytest.mark.parametrize(
    "header",
    [
        b'{"__metadata__":{},"a":[' + b"[]," * 600_000 + b"1]}",
        b"{" + b",".join(b'"%d":1' % i for i in range(600_000)) + b"}",
    ],
    ids=["lists", "names"],
)
def test_headers_and_indexes_of_too_many_values_are_refused_unparsed(
    sharded: Path, header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes of JSON can take a hundred of memory."""
    real, parsed = json.loads, []
    monkeypatch.setattr(json, "loads", lambda text, **more: parsed.append(len(text)) or real(text, **more))
    write_raw(sharded / "one.safetensors", header)
    with pytest.raises(MalformedWeights, match=r"one\.safetensors: has more values than any such file"):
        Checkpoint.open(sharded)
    (sharded / "model.safetensors.index.json").write_bytes(header)
    with pytest.raises(InvalidIndex, match=r"index\.json: has more values than any such file"):
        Checkpoint.open(sharded)
    assert max(parsed) < 1000


def test_a_name_that_is_listed_twice_among_many_is_found_at_once(plain: Path) -> None:
    names = [b'"%d":1' % i for i in range(100_000)]
    write_raw(plain / "model.safetensors", b"{" + b",".join([*names, names[-1]]) + b"}")
    with pytest.raises(MalformedWeights, match="lists 99999 twice"):
        Checkpoint.open(plain)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda path: write_index(path, {"a": "a" * 5000}),
        lambda path: write_index(path, {"a" * 5000: "one.safetensors"}),
        lambda path: write_index(path, {"a" * 5000: "x/y" * 1000}),
        lambda path: write_raw(path / "one.safetensors", {"a": entry(0, 4, [1] * 999 + [2])}, bytes(4)),
        lambda path: write_raw(path / "one.safetensors", {"a" * 5000: entry(0, 4, [-1] * 999)}, bytes(4)),
        lambda path: write_raw(path / "one.safetensors", {"a" * 5000: entry(0, 4)}, bytes(9)),
        lambda path: write_raw(path / "one.safetensors", {"a\n" * 2000: {"dtype": "F32\n" * 900}}),
    ],
)  # fmt: skip
def test_messages_cut_long_names_and_shapes(sharded: Path, break_it: Callable[[Path], None]) -> None:
    break_it(sharded)
    with pytest.raises(CheckpointError) as error:
        Checkpoint.open(sharded)
    one_line(error, sharded)
    assert len(str(error.value)) < 300 + len(str(sharded))


def test_hostile_shard_is_named(sharded: Path) -> None:
    (sharded / "two.safetensors").write_bytes(LFS)
    with pytest.raises(LfsPointer) as error:
        Checkpoint.open(sharded)
    one_line(error, sharded / "two.safetensors")


def test_truncated_file(plain: Path) -> None:
    file = plain / "model.safetensors"
    os.truncate(file, file.stat().st_size - 5)
    with pytest.raises(TruncatedWeights) as error:
        Checkpoint.open(plain)
    one_line(error, file, "b.weight")


def test_unaligned_tensors_and_null_metadata(plain: Path) -> None:
    value = np.array([1.5, -2.0], np.float32)
    header = {"__metadata__": None, "odd": entry(0, 3, [3], "U8"), "x": entry(3, 11)}
    write_raw(plain / "model.safetensors", header, b"abc" + value.tobytes())
    checkpoint = Checkpoint.open(plain)
    np.testing.assert_array_equal(checkpoint.read("x"), value)
    assert checkpoint.read_raw("odd").tobytes() == b"abc"


def test_header_length_that_looks_like_a_pickle(plain: Path) -> None:
    header = json.dumps({"x": entry(0, 4)}).encode().ljust(640)
    write_raw(plain / "model.safetensors", header, np.float32(2).tobytes())
    assert (plain / "model.safetensors").read_bytes().startswith(b"\x80\x02")
    assert Checkpoint.open(plain).read("x").tolist() == [2]


def test_file_replaced_after_opening(plain: Path) -> None:
    checkpoint = Checkpoint.open(plain)
    copy = plain / "copy"
    copy.write_bytes((plain / "model.safetensors").read_bytes())
    copy.rename(plain / "model.safetensors")
    with pytest.raises(WeightsChanged) as error:
        checkpoint.read("a.weight")
    one_line(error, plain / "model.safetensors")


def test_file_deleted_after_opening(plain: Path) -> None:
    checkpoint = Checkpoint.open(plain)
    (plain / "model.safetensors").unlink()
    with pytest.raises(WeightsUnreadable) as error:
        checkpoint.read("a.weight")
    one_line(error, plain / "model.safetensors", "No such file")


def test_failing_and_ending_reads_name_file_and_tensor(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.open(plain)

    def fail(fd: int, part: memoryview, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(safetensors_file, "_pread_into", fail)
    with pytest.raises(WeightsUnreadable) as error:
        checkpoint.read("b.weight")
    one_line(error, plain / "model.safetensors", "b.weight", "Input/output error")
    monkeypatch.setattr(safetensors_file, "_pread_into", lambda fd, part, offset: 0)
    with pytest.raises(TruncatedWeights) as error:
        checkpoint.read("b.weight")
    one_line(error, plain / "model.safetensors", "b.weight", "16 bytes early")


# --- types ------------------------------------------------------------------------------------------------


def test_integers_are_not_weights_but_their_bits_can_be_read(tmp_path: Path) -> None:
    packed = np.arange(6, dtype=np.int8).reshape(2, 3)
    checkpoint = Checkpoint.open(make(tmp_path, {"q": packed, "flag": np.array([True, False])}))
    with pytest.raises(UnsupportedDtype) as error:
        checkpoint.read("q")
    one_line(error, tmp_path / "model.safetensors", "tensor q", "I8")
    with pytest.raises(UnsupportedDtype):
        checkpoint.read_slice("q", 0, 1)
    np.testing.assert_array_equal(checkpoint.read_raw("q"), packed)
    assert checkpoint.read_raw("flag").tolist() == [1, 0]


def test_float8_is_refused_and_named(tmp_path: Path) -> None:
    values = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    checkpoint = Checkpoint.open(make(tmp_path, {"w": values}))
    with pytest.raises(UnsupportedDtype) as error:
        checkpoint.read("w")
    one_line(error, tmp_path / "model.safetensors", "tensor w", "F8_E4M3", "bf16")
    np.testing.assert_array_equal(checkpoint.read_raw("w"), values.view(torch.uint8).numpy())
    with pytest.raises(UnsupportedDtype) as error:
        checkpoint.check({"w": (2,)})
    one_line(error, tmp_path / "model.safetensors", "(w)", "F8_E4M3")


@pytest.mark.parametrize("dtype", ["F4", "MX9"])
def test_types_without_numpy_counterpart(plain: Path, dtype: str) -> None:
    write_raw(plain / "model.safetensors", {"w": entry(0, 2, [4], dtype)}, bytes(2))
    checkpoint = Checkpoint.open(plain)
    assert checkpoint.dtype("w") == dtype
    for read in (checkpoint.read, checkpoint.read_raw):
        with pytest.raises(UnsupportedDtype) as error:
            read("w")
        one_line(error, plain / "model.safetensors", "tensor w", dtype)


# --- comparison with a model ------------------------------------------------------------------------------


def test_check_reports_what_is_used_and_skipped(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "diffusion_gemma", seed=1, dtype="bfloat16")
    checkpoint = Checkpoint.open(tmp_path)
    text = {name: checkpoint.shape(name) for name in checkpoint.names if "vision" not in name}
    coverage = checkpoint.check(text, VISION)
    assert coverage.tensors == len(text) == 6 * 22 - 1 + 6 + 6
    assert len(coverage.ignored) == 13 + 4 + 1
    assert all("vision" in name for name in coverage.ignored)
    total = sum(checkpoint.nbytes(name) for name in checkpoint.names)
    assert coverage.nbytes + coverage.ignored_nbytes == total
    assert coverage.ignored_nbytes == sum(2 * np.prod(checkpoint.shape(name)) for name in coverage.ignored)
    with pytest.raises(SurplusTensor) as error:
        checkpoint.check(text)
    one_line(error, tmp_path / "model.safetensors", "18 tensors", "model.encoder.embed_vision", "...")


def test_check_prefers_expected_over_ignored(plain: Path) -> None:
    coverage = Checkpoint.open(plain).check({"a.weight": (2, 3)}, ["*.weight"])
    assert (coverage.tensors, coverage.nbytes) == (1, 24)
    assert (coverage.ignored, coverage.ignored_nbytes) == (("b.weight",), 16)


def test_check_missing(plain: Path) -> None:
    expected = {"a.weight": (2, 3), "c.weight": (1,), "d.weight": (1,)}
    with pytest.raises(MissingTensor) as error:
        Checkpoint.open(plain).check(expected)
    one_line(error, plain, "2 tensors (c.weight, d.weight) of the 3", "1 tensor (b.weight)")
    with pytest.raises(MissingTensor) as error:
        Checkpoint.open(plain).read("c.weight")
    one_line(error, plain, "c.weight")


def test_check_wrong_shape(plain: Path) -> None:
    with pytest.raises(WrongShape) as error:
        Checkpoint.open(plain).check({"a.weight": (3, 2), "b.weight": (5,)})
    one_line(error, plain / "model.safetensors", "a.weight", "[2, 3]", "[3, 2]", "1 tensor (b.weight)")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "diffusion_gemma"])
def test_check_passes_on_the_families_tables(tmp_path: Path, family: str) -> None:
    config = write_checkpoint(tmp_path, family, shards=2)
    assert Checkpoint.open(tmp_path).check(expected_shapes(config)).ignored == ()


# --- the writer of test checkpoints -----------------------------------------------------------------------

SIZES: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_experts": 3,
                        "top_k_experts": 1, "sliding_window": 4, "vocab_size": 300, "canvas_length": 8},
    "llada": {"n_layers": 1, "d_model": 32, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 300},
    "llada_moe": {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_experts": 3,
                  "num_experts_per_tok": 3, "vocab_size": 300},
    "llada2_moe": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_experts": 4,
                   "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "vocab_size": 300},
    "dream": {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
              "vocab_size": 300, "tie_word_embeddings": True},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_written_checkpoints_run_in_transformers(tmp_path: Path, family: str) -> None:
    write_checkpoint(tmp_path, family, seed=2, **SIZES[family])
    model = load_oracle(tmp_path)
    ids = torch.arange(20, 32)[None]
    with torch.no_grad():
        if family == "diffusion_gemma":
            torch.manual_seed(0)
            out = model.generate(ids)
            assert out.sequences.shape == (1, 12 + 8)
        else:
            mask = torch.zeros(1, 1, 12, 12)
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            assert logits.shape == (1, 12, 300)
            assert 0.3 < logits.std() < 5


def test_written_values_depend_on_seed_and_name_only(tmp_path: Path) -> None:
    for folder, seed, sizes in [("a", 1, {}), ("b", 1, {"n_layers": 1}), ("c", 2, {})]:
        write_checkpoint(tmp_path / folder, "llada", seed, **sizes)
    a, b, c = (Checkpoint.open(tmp_path / folder) for folder in "abc")
    for name in b.names:
        np.testing.assert_array_equal(a.read(name), b.read(name))
        assert not np.array_equal(a.read(name), c.read(name))
        assert np.ptp(b.read(name)) > 0


def test_both_gemma_config_forms_load_alike(tmp_path: Path) -> None:
    hub = write_checkpoint(tmp_path / "hub", "diffusion_gemma", num_hidden_layers=2)
    resaved = write_checkpoint(
        tmp_path / "resaved", "diffusion_gemma", num_hidden_layers=2, resaved_config=True
    )
    assert hub["text_config"]["global_head_dim"] == 32 and "per_layer_config" not in hub["text_config"]
    assert resaved["text_config"]["per_layer_config"]["1"] == {"head_dim": 32, "num_key_value_heads": 1}
    a, b = (load_oracle(tmp_path / form).state_dict() for form in ("hub", "resaved"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_writer_refuses_unknown_settings(tmp_path: Path) -> None:
    for family in FAMILIES:
        with pytest.raises(ValueError, match="no_such_key"):
            write_checkpoint(tmp_path, family, no_such_key=1)
    with pytest.raises(ValueError, match="known: diffusion_gemma"):
        write_checkpoint(tmp_path, "gpt2")
    with pytest.raises(ValueError, match="vocab_size 100"):
        write_tokenizer(tmp_path, "llada", 100)


# --- tokenizer files --------------------------------------------------------------------------------------


def test_tokenizer_files_travel_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_checkpoint(source, "diffusion_gemma", num_hidden_layers=1)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    expected = {
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
        "generation_config.json", "additional_chat_templates/tool_use.jinja",
    }  # fmt: skip
    assert read_tokenizer(source) == {name: (source / name).read_bytes() for name in expected}


def qwen2_files(path: Path, tokenizer_class: str = "DreamTokenizer") -> None:
    """What Dream ships: vocab.json, merges.txt and tokenizer_config.json, no tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    corpus = ["the cat sat on the mat", "don't count 1234 things", "Ünïcödé naïve", "a  b   c\n\n\nd"]
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.model.save(str(path))
    size = tokenizer.get_vocab_size()
    special = SPECIAL_TOKENS["dream"]
    decoder = {
        str(size + i): {"content": token, "special": token != "<|mask|>", "normalized": False,
                        "lstrip": False, "rstrip": False, "single_word": False}
        for i, token in enumerate(special)
    }  # fmt: skip
    config = {"tokenizer_class": tokenizer_class, "added_tokens_decoder": decoder,
              "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
              "bos_token": "<|beginoftext|>", "unk_token": None}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config))


QWEN2_TEXTS = [
    "the cat sat on the mat", "Don't count 1234567 things, they'LL run...", "Ünïcödé nai\u0308ve  e\u0301",
    "a  b   c\n\n\n d \r\n e\t\tf   ", "<|im_start|>user\nhi<|im_end|>\n<|mask|><|mask|> <|endoftext|>",
    "你好，世界！🙂🚀 привет", " ", "", "def f(x):\n    return x**2  # why?",
]  # fmt: skip


def test_qwen2_vocabulary_becomes_the_tokenizer_that_transformers_builds(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import Qwen2Tokenizer

    source = tmp_path / "source"
    qwen2_files(source)
    files = read_tokenizer(source)
    assert set(files) == {"tokenizer.json", "tokenizer_config.json"}
    ours = Tokenizer.from_buffer(files["tokenizer.json"])
    reference = Qwen2Tokenizer.from_pretrained(source)
    assert ours.get_vocab() == reference.get_vocab()
    for text in QWEN2_TEXTS:
        ids = reference(text)["input_ids"]
        assert ours.encode(text).ids == ids
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == reference.decode(
                ids, skip_special_tokens=skip
            )


def test_added_tokens_of_the_older_form(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    qwen2_files(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    added = {token["content"]: int(key) for key, token in config.pop("added_tokens_decoder").items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    tokenizer = Tokenizer.from_buffer(read_tokenizer(tmp_path)["tokenizer.json"])
    assert {token: tokenizer.token_to_id(token) for token in added} == added


def test_tokenizers_that_cannot_be_converted(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFilesMissing) as error:
        read_tokenizer(tmp_path)
    one_line(error, tmp_path, "tokenizer.json")
    qwen2_files(tmp_path / "other", tokenizer_class="T5Tokenizer")
    with pytest.raises(TokenizerFilesMissing) as error:
        read_tokenizer(tmp_path / "other")
    one_line(error, tmp_path / "other", "T5Tokenizer")
    qwen2_files(tmp_path / "broken")
    (tmp_path / "broken" / "merges.txt").write_text("#version: 0.2\nonlyone\n")
    with pytest.raises(TokenizerFilesMissing) as error:
        read_tokenizer(tmp_path / "broken")
    one_line(error, tmp_path / "broken", "merges.txt")
    qwen2_files(tmp_path / "shifted")
    config = json.loads((tmp_path / "shifted" / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"999": {"content": "<|mask|>", "special": True}}
    (tmp_path / "shifted" / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerFilesMissing) as error:
        read_tokenizer(tmp_path / "shifted")
    one_line(error, tmp_path / "shifted" / "tokenizer_config.json", "<|mask|>", "999")
    (tmp_path / "shifted" / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerFilesMissing) as error:
        read_tokenizer(tmp_path / "shifted")
    one_line(error, tmp_path / "shifted" / "tokenizer_config.json")


@pytest.mark.parametrize(
    "declared",
    [
        [], "x", {"x": {"content": "a"}}, {"3": "a"}, {"3": {}}, {"3": {"content": 4}},
        {"-1": {"content": "a"}},
        {"3": {"content": "a", "lstrip": "yes"}}, {"9" * 5000: {"content": "a"}},
    ],
)  # fmt: skip
def test_added_tokens_of_wrong_types_are_refused(tmp_path: Path, declared: Any) -> None:
    qwen2_files(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = declared or [0]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerFilesMissing) as error:
        read_tokenizer(tmp_path)
    one_line(error, tmp_path / "tokenizer_config.json", "added_tokens_decoder")
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b'{"a": "b"}', b"[" * 100_000, b'{"a": 1e999}'])
def test_damaged_vocabularies_are_refused_or_harmless(tmp_path: Path, name: str, content: bytes) -> None:
    qwen2_files(tmp_path)
    if name == "added_tokens.json":
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        del config["added_tokens_decoder"]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerFilesMissing) as error:
        read_tokenizer(tmp_path)
    one_line(error)
    assert len(str(error.value)) < 600


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "special_tokens_map.json"]
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, "llada")
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        (tmp_path / name).unlink(missing_ok=True)
        make(tmp_path / name)
        with pytest.raises(WeightsUnreadable, match=f"{name}: is not a regular file"):
            Checkpoint.open(tmp_path)
            read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
        "additional_chat_templates/tool.jinja", "vocab.json", "merges.txt",
    ],
)  # fmt: skip
def test_links_to_files_outside_are_refused(tmp_path: Path, name: str) -> None:
    """What they lead to is the user's own, and bundles are published."""
    folder, private = tmp_path / "checkpoint", tmp_path / "private"
    qwen2_files(folder) if name in ("vocab.json", "merges.txt") else write_checkpoint(folder, "llada")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    content = path.read_bytes() if path.exists() else b"secret"
    private.write_bytes(content)
    path.unlink(missing_ok=True)
    path.symlink_to(private)
    with pytest.raises(LinkLeavesFolder, match=f"{name}: is a link to a file outside the checkpoint"):
        read_tokenizer(folder)
    path.unlink()
    (folder / "inside").write_bytes(content)
    path.symlink_to(os.path.relpath(folder / "inside", path.parent))
    assert read_tokenizer(folder).get(name, content) == content
    (tmp_path / "link").symlink_to(folder)
    assert read_tokenizer(tmp_path / "link") == read_tokenizer(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_lfs_pointers_are_told_from_damage(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, "llada")
    (tmp_path / name).write_bytes(LFS)
    with pytest.raises(LfsPointer, match=f"{name}: is a Git LFS pointer.*git lfs pull"):
        read_tokenizer(Checkpoint.open(tmp_path).path)


def test_files_larger_than_any_of_their_kind_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llada")
    for name in ("config.json", "tokenizer.json"):
        kept = (tmp_path / name).read_bytes()
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 40)  # no bytes on the disk
        with pytest.raises((InvalidConfig, TokenizerFilesMissing), match=f"{name}: has 1099511627776 bytes"):
            Checkpoint.open(tmp_path)
            read_tokenizer(tmp_path)
        (tmp_path / name).write_bytes(kept)
