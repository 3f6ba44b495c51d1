"""edgekit.json: what is saved is loaded, and what is wrong is named."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import string
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import native_parsing as native
from support import sealing

from edgekit.flashload import manifest as manifest_module
from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.errors import (
    BundleError,
    ChecksumMismatch,
    InvalidRequest,
    LayoutError,
    MalformedFile,
    OpenFailed,
    TruncatedFile,
    UnsupportedBundle,
    UnsupportedVersion,
    WriteFailed,
)
from edgekit.flashload.manifest import (
    FileEntry,
    Manifest,
    WeightsEntry,
    dumps,
    file_entry,
    load,
    loads,
    save,
    seal,
)
from edgekit.flashload.portable_names import clashing, portable_fault

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TABLE = st.dictionaries(st.text(), JSON, max_size=3)
DIGEST = st.text("0123456789abcdef", min_size=64, max_size=64)
SHORT_DIGEST = st.text("0123456789abcdef", min_size=16, max_size=16)
ENTRY = st.builds(FileEntry, st.integers(0, 2**63 - 1), DIGEST, SHORT_DIGEST)
WEIGHTS = st.builds(
    WeightsEntry,
    st.just("weights.safetensors"),
    st.integers(1 << 25, 2**63 - 1),
    DIGEST,
    st.integers(8, 1 << 25),
    SHORT_DIGEST,
)
PATHS = st.lists(st.text(string.ascii_letters, min_size=1), min_size=1, max_size=3)
PATHS = PATHS.map("/".join).filter(lambda path: not portable_fault(path))
FILES = st.dictionaries(PATHS, ENTRY, max_size=3).filter(lambda files: clashing(files) is None)


WEIGHT_BYTES = b"12345678abc"


def example() -> Manifest:
    return Manifest(
        model={"family": "llada", "layers": 2},
        programs={"layer": {"file": "programs/layer.json"}},
        layers=[{"program": "layer", "runs": ["layer.0"]}],
        sampler={"steps": 64},
        quantization={"preset": "mixed4"},
        weights=WeightsEntry(
            "weights.safetensors",
            len(WEIGHT_BYTES),
            hashlib.sha256(WEIGHT_BYTES).hexdigest(),
            8,
            xxhash.xxh3_64_hexdigest(WEIGHT_BYTES[:8]),
        ),
        files={
            "programs/layer.json": FileEntry(
                2, hashlib.sha256(b"{}").hexdigest(), xxhash.xxh3_64_hexdigest(b"{}")
            )
        },
        provenance={"source": "somewhere"},
    )


@given(TABLE, TABLE, st.lists(JSON, max_size=3), FILES, WEIGHTS)
def test_what_is_saved_is_loaded(
    model: dict[str, Any],
    programs: dict[str, Any],
    layers: list[Any],
    files: dict[str, FileEntry],
    weights: WeightsEntry,
) -> None:
    manifest = Manifest(model, programs, layers, {}, {}, weights, files, {})
    data = dumps(manifest)
    assert loads(data, "m") == manifest
    assert dumps(loads(data, "m")) == data
    zeros = data[:15] + b"0" * 64 + data[79:]
    assert data[:15] == b'{\n  "sha256": "' and data[15:79].decode() == hashlib.sha256(zeros).hexdigest()


@pytest.mark.parametrize(
    ("programs", "named"),
    [({"format": "onnx"}, "onnx"), ({}, ""), ({"format": None}, ""), ({"format": [1]}, "")],
)
def test_the_format_of_the_programs_is_text(programs: dict[str, Any], named: str) -> None:
    assert replace(example(), programs=programs).format == named


def test_saving_replaces_the_old_manifest_in_one_step(tmp_path: Path) -> None:
    first = example()
    assert save(first, tmp_path) == tmp_path / "edgekit.json"
    assert load(tmp_path) == first
    second = replace(first, sampler={"steps": 32})
    save(second, tmp_path)
    assert load(tmp_path) == second
    assert os.listdir(tmp_path) == ["edgekit.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"a": float("nan")}}, "no form for"),
        ({"model": {"a": {1, 2}}}, "no form for"),
        ({"model": {1: 2}}, "does not survive JSON"),
        ({"model": {"a": (1, 2)}}, "does not survive JSON"),
        ({"files": {"../x": FileEntry(0, "0" * 64, "0" * 16)}}, "not a plain relative path"),
        ({"files": {"com1": FileEntry(0, "0" * 64, "0" * 16)}}, "Windows takes it for a device"),
        ({"files": {name: FileEntry(0, "0" * 64, "0" * 16) for name in ("a/b", "A/c")}}, "cannot both lie"),
        ({"schema_version": 3}, "schema version 3"),
        ({"model": {"a": [0] * (1 << 20)}}, "has more values than any"),
        ({"model": {"a": "x" * (16 << 20)}}, "more than the 16777216 that readers take"),
    ],
)
def test_a_manifest_that_could_not_be_read_is_not_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        save(replace(example(), **changes), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="cannot write"):
        save(example(), tmp_path / "no" / "edgekit.json")
    with pytest.raises(OpenFailed, match=r"has no edgekit.json: not a bundle, or an unfinished export"):
        load(tmp_path)
    with pytest.raises(OpenFailed, match="give the path of an exported bundle"):
        load(tmp_path / "no")


ANY_ENTRY = {"size": 1, "sha256": "0" * 64, "xxh3": "0" * 16}


def change(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(table: dict[str, Any]) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return apply


@pytest.mark.parametrize(
    ("apply", "error", "message"),
    [
        (change("schema_version", value=3), UnsupportedVersion, "schema version 3, this edgekit reads 2"),
        (change("schema_version", value="2"), UnsupportedVersion, "schema version unknown"),
        (change("schema_version", value=True), UnsupportedVersion, "schema version unknown"),
        (lambda t: t.pop("schema_version"), MalformedFile, "has no schema_version"),
        (lambda t: t.pop("layers"), MalformedFile, "layers is missing"),
        (change("layers", value={}), MalformedFile, "layers must be a list"),
        (change("model", value=[]), MalformedFile, "model must be an object"),
        (change("extra", value=1), MalformedFile, "unknown section 'extra'"),
        (
            lambda t: t["weights"].pop("sha256"),
            MalformedFile,
            "weights must have exactly file, size, sha256, header_size and header_xxh3",
        ),
        (
            change("weights", "file", value="/etc/passwd"),
            MalformedFile,
            "'/etc/passwd' is not a plain relative path",
        ),
        (change("weights", "file", value="a/../../b"), MalformedFile, "not a plain relative path"),
        (change("weights", "file", value="a//b"), MalformedFile, "not a plain relative path"),
        (change("weights", "file", value="."), MalformedFile, "not a plain relative path"),
        (change("weights", "file", value="C:\\x"), MalformedFile, "not a plain relative path"),
        (change("weights", "file", value=""), MalformedFile, "not a plain relative path"),
        (change("weights", "file", value=3), MalformedFile, "not a path inside the bundle"),
        (change("weights", "file", value="nul.bin"), MalformedFile, "Windows takes it for a device"),
        (
            change("files", "Weights.safetensors", value=ANY_ENTRY),
            MalformedFile,
            "cannot both lie where capital",
        ),
        (change("weights", "size", value=-1), MalformedFile, "bad size"),
        (change("weights", "size", value=2**63), MalformedFile, "bad size"),
        (change("weights", "size", value=1.0), MalformedFile, "bad size"),
        (change("weights", "sha256", value="0" * 63), MalformedFile, "64 lower-case hex"),
        (change("weights", "sha256", value="G" * 64), MalformedFile, "64 lower-case hex"),
        (change("weights", "header_size", value=7), MalformedFile, "bad header_size"),
        (change("weights", "header_size", value=12), MalformedFile, "bad header_size"),
        (change("weights", "header_xxh3", value="0" * 15), MalformedFile, "16 lower-case hex"),
        (change("files", "x", value=5), MalformedFile, "'x' must have exactly size, sha256 and xxh3"),
        (change("files", "edgekit.json", value=ANY_ENTRY), MalformedFile, "neither"),
        (change("files", "weights.safetensors", value=ANY_ENTRY), MalformedFile, "neither"),
    ],
)
def test_a_wrong_manifest_is_refused(
    tmp_path: Path, apply: Callable[[dict[str, Any]], Any], error: type[BundleError], message: str
) -> None:
    table = copy.deepcopy(json.loads(dumps(example())))
    apply(table)
    sealing.write(tmp_path, table)
    with pytest.raises(BundleError, match=message) as caught:
        load(tmp_path)
    assert type(caught.value) is error
    assert str(tmp_path / "edgekit.json") in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1}', "\ud800", '{\n  "sha256": "'])
def test_text_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "edgekit.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(MalformedFile, match="it does not begin with its SHA-256"):
        load(tmp_path)


def test_a_manifest_of_an_older_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "edgekit.json").write_text('{\n  "schema_version": 1,\n  "model": {}\n}')
    with pytest.raises(UnsupportedVersion, match="schema version 1, this edgekit reads 2; export the bundle"):
        load(tmp_path)


# --- the seal and the files that it covers ----------------------------------------------------------------


def bundle(folder: Path) -> Manifest:
    (folder / "programs").mkdir()
    (folder / "programs" / "layer.json").write_bytes(b"{}")
    (folder / "weights.safetensors").write_bytes(WEIGHT_BYTES)
    save(example(), folder)
    return example()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_byte_that_changed_anywhere_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    """In the manifest, by the reader in Python, which is the core's, as by the core's own."""
    whole = bytearray(dumps(example()))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255).filter(lambda value: value != whole[place]))
    (tmp_path / "edgekit.json").write_bytes(whole)
    with pytest.raises((ChecksumMismatch, MalformedFile)) as caught:
        load(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(native.Refused):
        native.manifest(bytes(whole))
    (tmp_path / "edgekit.json").write_bytes(whole[:place])
    with pytest.raises((ChecksumMismatch, MalformedFile)):
        load(tmp_path)


def test_a_stranger_can_check_the_seal(tmp_path: Path) -> None:
    """By the line in the documentation of the module."""
    save(example(), tmp_path)
    line = next(x.strip() for x in str(manifest_module.__doc__).splitlines() if "sha256sum" in x)
    said = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout[:64] == json.loads((tmp_path / "edgekit.json").read_text())["sha256"]


def test_a_whole_bundle_passes_the_check(tmp_path: Path) -> None:
    manifest = bundle(tmp_path)
    assert file_entry(tmp_path / "programs" / "layer.json") == manifest.files["programs/layer.json"]
    folder = BundleFolder(tmp_path)
    assert folder.read("programs/layer.json") == b"{}"
    for name in ("programs/layer.json", "weights.safetensors"):
        folder.check(name)


@pytest.mark.parametrize("name", ["programs/layer.json", "weights.safetensors"])
def test_a_file_that_differs_from_the_manifest_is_named(tmp_path: Path, name: str) -> None:
    bundle(tmp_path)
    folder, path = BundleFolder(tmp_path), tmp_path / name
    content = path.read_bytes()

    def refused(error: type[BundleError], said: str) -> None:
        reads = [folder.check] if name.startswith("weights") else [folder.check, folder.read]
        for read in reads:
            with pytest.raises(error, match=said):
                read(name)

    path.write_bytes(content[:-1])
    refused(TruncatedFile, f"{name}: has {len(content) - 1} of {len(content)} bytes")
    path.write_bytes(content + b"x")
    refused(MalformedFile, f"{name}: has {len(content) + 1} bytes, the manifest says {len(content)}")
    path.write_bytes(b"?" * len(content))
    refused(ChecksumMismatch, name)
    path.unlink()
    refused(OpenFailed, f"{name}: is missing")
    path.mkdir()
    refused(OpenFailed, f"{name}: is a directory")


def test_a_file_that_is_not_listed_cannot_be_read(tmp_path: Path) -> None:
    bundle(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("planted")
    folder = BundleFolder(tmp_path)
    for name in ("chat_template.jinja", "edgekit.json", "../x", "", "programs", "x" * 5000):
        for read in (folder.check, folder.read):
            with pytest.raises(InvalidRequest, match="is not among the files of the bundle") as caught:
                read(name)
            assert len(str(caught.value)) < 400


def test_a_file_too_large_to_be_read_whole_is_refused(tmp_path: Path) -> None:
    """As a sparse one may be, at no cost to whoever made it."""
    bundle(tmp_path)
    os.truncate(tmp_path / "programs" / "layer.json", 1 << 40)
    sealing.edit(tmp_path, lambda t: t["files"]["programs/layer.json"].update(size=1 << 40))
    with pytest.raises(MalformedFile, match=f"has {1 << 40} bytes, more than any such file"):
        BundleFolder(tmp_path).read("programs/layer.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
@pytest.mark.parametrize("name", ["edgekit.json", "programs/layer.json", "weights.safetensors"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str) -> None:
    bundle(tmp_path)
    for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        (tmp_path / name).unlink()
        make(tmp_path / name)
        with pytest.raises(OpenFailed, match=f"{name}: is (not a regular file|a link that leaves)"):
            BundleFolder(tmp_path).check(name)


@pytest.mark.parametrize("name", ["edgekit.json", "programs/layer.json", "weights.safetensors"])
def test_links_that_leave_the_bundle_are_refused(tmp_path: Path, name: str) -> None:
    """Even to the very same bytes; links within the folder are followed."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    bundle(folder)
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(OpenFailed, match=f"{name}: is a link that leaves the bundle"):
        BundleFolder(folder).check(name)
    (folder / name).unlink()
    (tmp_path / "outside").rename(folder / "inside")
    (folder / name).symlink_to(folder / "inside")
    if name == "edgekit.json":
        assert load(folder) == example()
    else:
        BundleFolder(folder).check(name)


def test_a_folder_of_the_bundle_that_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    bundle(folder)
    (folder / "programs").rename(tmp_path / "programs")
    (folder / "programs").symlink_to("../programs")
    with pytest.raises(OpenFailed, match="is a link that leaves the bundle"):
        BundleFolder(folder).read("programs/layer.json")


@pytest.mark.parametrize("below", ["", "coreml"])
def test_snapshots_of_hugging_face_are_read(tmp_path: Path, below: str) -> None:
    """Their files are links to ../../blobs, and one folder deeper where a repository has several bundles."""
    blobs, folder = (
        tmp_path / "models--a--b" / "blobs",
        tmp_path / "models--a--b" / "snapshots" / "1f" / below,
    )
    folder.mkdir(parents=True)
    blobs.mkdir()
    bundle(folder)
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        blob = blobs / hashlib.sha1(path.read_bytes()).hexdigest()
        path.rename(blob)
        path.symlink_to(os.path.relpath(blob, path.parent))
    assert load(folder) == example()
    assert BundleFolder(folder).read("programs/layer.json") == b"{}"
    other = tmp_path / "models--c--d" / "blobs" / ("0" * 40)
    other.parent.mkdir(parents=True)
    other.write_bytes(b"{}")
    (folder / "programs" / "layer.json").unlink()
    (folder / "programs" / "layer.json").symlink_to(other)
    with pytest.raises(OpenFailed, match="is a link that leaves the bundle"):
        BundleFolder(folder).read("programs/layer.json")


def test_a_folder_of_several_bundles_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "bundles.json").write_text("{}")
    with pytest.raises(UnsupportedBundle, match="has bundles for several formats"):
        load(tmp_path)


@pytest.mark.parametrize(
    "value",
    [b"[" + b"[]," * (1 << 20) + b"[]]", b"[" * 2000 + b"]" * 2000, b"{" + b'"":' * (1 << 20) + b"1}"],
    ids=["many values", "deep", "many names"],
)
def test_manifests_that_take_much_memory_are_refused(tmp_path: Path, value: bytes) -> None:
    data = dumps(example())
    where = data.index(b'"quantization": ') + len(b'"quantization": ')
    (tmp_path / "edgekit.json").write_bytes(seal(data[:where] + value + b"," + data[where:]))
    with pytest.raises(MalformedFile, match="has more values than any|nested too deeply"):
        load(tmp_path)
    with open(tmp_path / "edgekit.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(MalformedFile, match="more than any such file"):
        load(tmp_path)


def test_paths_with_null_bytes_are_refused() -> None:
    with pytest.raises(OpenFailed, match="null byte"):
        BundleFolder("a\0b")
