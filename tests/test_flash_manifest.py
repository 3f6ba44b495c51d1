"""edgekit.json: what is saved is loaded, and what is wrong is named."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.flashload.errors import (
    BundleError,
    ChecksumMismatch,
    LayoutError,
    MalformedFile,
    OpenFailed,
    TruncatedFile,
    UnsupportedVersion,
    WriteFailed,
)
from edgekit.flashload.manifest import (
    FileEntry,
    Manifest,
    WeightsEntry,
    check_files,
    dumps,
    file_entry,
    load,
    loads,
    save,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TABLE = st.dictionaries(st.text(), JSON, max_size=3)
DIGEST = st.text("0123456789abcdef", min_size=64, max_size=64)
ENTRY = st.builds(FileEntry, st.integers(0, 2**63 - 1), DIGEST)
PATHS = st.lists(st.text(string.ascii_letters, min_size=1), min_size=1, max_size=3).map("/".join)


def example() -> Manifest:
    return Manifest(
        model={"family": "llada", "layers": 2},
        programs={"layer": {"file": "programs/layer.json"}},
        layers=[{"program": "layer", "runs": ["layer.0"]}],
        sampler={"steps": 64},
        quantization={"preset": "mixed4"},
        weights=WeightsEntry("weights.safetensors", 5, hashlib.sha256(b"12345").hexdigest()),
        files={"programs/layer.json": FileEntry(2, hashlib.sha256(b"{}").hexdigest())},
        provenance={"source": "somewhere"},
    )


@given(TABLE, TABLE, st.lists(JSON, max_size=3), st.dictionaries(PATHS, ENTRY, max_size=3), ENTRY)
def test_what_is_saved_is_loaded(
    model: dict[str, Any],
    programs: dict[str, Any],
    layers: list[Any],
    files: dict[str, FileEntry],
    entry: FileEntry,
) -> None:
    weights = WeightsEntry("weights.safetensors", entry.size, entry.sha256)
    manifest = Manifest(model, programs, layers, {}, {}, weights, files, {})
    data = dumps(manifest)
    assert loads(data, "m") == manifest
    assert dumps(loads(data, "m")) == data


def test_saving_replaces_the_old_manifest_in_one_step(tmp_path: Path) -> None:
    first = example()
    assert save(first, tmp_path) == tmp_path / "edgekit.json"
    assert load(tmp_path) == load(tmp_path / "edgekit.json") == first
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
        ({"files": {"../x": FileEntry(0, "0" * 64)}}, "not a plain relative path"),
        ({"schema_version": 2}, "schema version 2"),
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
    with pytest.raises(OpenFailed, match="give the path of an exported bundle"):
        load(tmp_path)


def change(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(table: dict[str, Any]) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return apply


@pytest.mark.parametrize(
    ("apply", "error", "message"),
    [
        (change("schema_version", value=2), UnsupportedVersion, "schema version 2, this edgekit reads 1"),
        (change("schema_version", value="1"), UnsupportedVersion, "schema version 1"),
        (change("schema_version", value=True), UnsupportedVersion, "schema version True"),
        (lambda t: t.pop("schema_version"), MalformedFile, "has no schema_version"),
        (lambda t: t.pop("layers"), MalformedFile, "layers is missing"),
        (change("layers", value={}), MalformedFile, "layers must be a list, not dict"),
        (change("model", value=[]), MalformedFile, "model must be a dict, not list"),
        (change("extra", value=1), MalformedFile, "unknown section 'extra'"),
        (lambda t: t["weights"].pop("sha256"), MalformedFile, "exactly file, size and sha256"),
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
        (change("weights", "file", value=3), MalformedFile, "not a plain relative path"),
        (change("weights", "size", value=-1), MalformedFile, "bad size -1"),
        (change("weights", "size", value=2**63), MalformedFile, "bad size"),
        (change("weights", "size", value=1.0), MalformedFile, "bad size"),
        (change("weights", "sha256", value="0" * 63), MalformedFile, "64 lower-case hex"),
        (change("weights", "sha256", value="G" * 64), MalformedFile, "64 lower-case hex"),
        (change("files", "x", value=5), MalformedFile, "x must have exactly size and sha256"),
        (change("files", "edgekit.json", value={"size": 1, "sha256": "0" * 64}), MalformedFile, "neither"),
        (
            change("files", "weights.safetensors", value={"size": 1, "sha256": "0" * 64}),
            MalformedFile,
            "neither",
        ),
    ],
)
def test_a_wrong_manifest_is_refused(
    tmp_path: Path, apply: Callable[[dict[str, Any]], Any], error: type[BundleError], message: str
) -> None:
    table = copy.deepcopy(json.loads(dumps(example())))
    apply(table)
    (tmp_path / "edgekit.json").write_text(json.dumps(table))
    with pytest.raises(BundleError, match=message) as caught:
        load(tmp_path)
    assert type(caught.value) is error
    assert str(tmp_path / "edgekit.json") in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": 1, "schema_version": 1}', "\ud800"])
def test_text_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "edgekit.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(MalformedFile):
        load(tmp_path)


def bundle(folder: Path) -> Manifest:
    (folder / "programs").mkdir()
    (folder / "programs" / "layer.json").write_bytes(b"{}")
    (folder / "weights.safetensors").write_bytes(b"12345")
    return example()


def test_a_whole_bundle_passes_the_check(tmp_path: Path) -> None:
    manifest = bundle(tmp_path)
    check_files(manifest, tmp_path, digests=True)
    assert file_entry(tmp_path / "programs" / "layer.json") == manifest.files["programs/layer.json"]


@pytest.mark.parametrize("name", ["programs/layer.json", "weights.safetensors"])
def test_a_file_that_differs_from_the_manifest_is_named(tmp_path: Path, name: str) -> None:
    manifest = bundle(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(TruncatedFile, match=f"{name}: has {len(content) - 1} of {len(content)} bytes"):
        check_files(manifest, tmp_path)
    path.write_bytes(content + b"x")
    with pytest.raises(MalformedFile, match=name):
        check_files(manifest, tmp_path)
    path.write_bytes(b"?" * len(content))
    check_files(manifest, tmp_path)
    with pytest.raises(ChecksumMismatch, match=name):
        check_files(manifest, tmp_path, digests=True)
    path.unlink()
    with pytest.raises(OpenFailed, match=f"{name}: is missing"):
        check_files(manifest, tmp_path)
