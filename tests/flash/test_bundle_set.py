"""bundles.json: what it says, what is refused, and which bundle a system takes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
import xxhash

from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.errors import (
    BundleError,
    ChecksumMismatch,
    MalformedFile,
    OpenFailed,
    UnsupportedVersion,
)
from edgekit.flashload.manifest import FileEntry, file_entry
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.choice import choose
from edgekit.runtime.errors import UnsupportedBundle

NEW = Member("coreai", "coreai", {"ios": "27", "macos": "27"})
OLD = Member("coreml", "coreml", {"ios": "18", "macos": "15.4"}, ("a17",))
MEMBERS = {f"{name}/edgekit.json": f"manifest of {name}".encode() for name in ("coreai", "coreml")}
SET = BundleSet(
    (NEW, OLD),
    {"README.md": FileEntry(3, "ab" * 32, "cd" * 8)}
    | {
        name: FileEntry(len(text), hashlib.sha256(text).hexdigest(), xxhash.xxh3_64_hexdigest(text))
        for name, text in MEMBERS.items()
    },
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundle_set.save(SET, tmp_path)
    for name, text in MEMBERS.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(text)
    return tmp_path


def test_what_is_written_is_read(folder: Path) -> None:
    assert bundle_set.load(folder) == SET and bundle_set.is_set(folder)
    # A reader of another language relies on these names.
    assert json.loads((folder / "bundles.json").read_text()) == {
        "schema_version": 4,
        "bundles": [
            {"path": "coreai", "format": "coreai", "minimum_os": {"ios": "27", "macos": "27"}, "chips": []},
            {
                "path": "coreml",
                "format": "coreml",
                "minimum_os": {"ios": "18", "macos": "15.4"},
                "chips": ["a17"],
            },
        ],
        "files": {name: vars(entry) for name, entry in SET.files.items()},
    }


def test_a_folder_with_a_manifest_is_one_bundle(folder: Path) -> None:
    (folder / "edgekit.json").write_text("{}")
    assert not bundle_set.is_set(folder) and choose(folder) == folder


def changed(*keys: Any, to: Any) -> bytes:
    table: Any = json.loads(
        json.dumps(
            {
                "schema_version": 4,
                "bundles": [vars(NEW), vars(OLD)],
                "files": {name: vars(entry) for name, entry in SET.files.items()},
            }
        )
    )
    at = table
    for key in keys[:-1]:
        at = at[key]
    if to is None:
        del at[keys[-1]]
    else:
        at[keys[-1]] = to
    return json.dumps(table).encode()


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (b"", MalformedFile, "not valid JSON"),
        (b"[]", MalformedFile, "has no schema_version"),
        (b'{"schema_version": 1, "schema_version": 1}', MalformedFile, "appears twice"),
        (changed("schema_version", to=1), UnsupportedVersion, "schema version 1, this edgekit reads 4"),
        (changed("schema_version", to=True), UnsupportedVersion, "schema version unknown"),
        (changed("bundles", to=[]), MalformedFile, "lists no bundles"),
        (changed("bundles", to={}), MalformedFile, "bundles must be a list"),
        (changed("bundles", to=["coreml"]), MalformedFile, "a bundle is not an object"),
        (changed("bundles", 1, to=vars(NEW)), MalformedFile, "two bundles have the same path"),
        (changed("bundles", 1, "format", to="coreai"), MalformedFile, "the same format"),
        (changed("bundles", to=[vars(OLD), vars(NEW)]), MalformedFile, "newer systems must come before"),
        (
            changed("bundles", 0, "minimum_os", to={"ios": "27"}),
            MalformedFile,
            "newer systems must come before",
        ),
        (changed("bundles", 0, "path", to=None), MalformedFile, "a bundle has no path"),
        (changed("bundles", 0, "path", to="../other"), MalformedFile, "'../other' is not a plain"),
        (changed("bundles", 0, "path", to="/tmp"), MalformedFile, "'/tmp' is not a plain relative path"),
        (changed("bundles", 0, "size", to=5), MalformedFile, "members that this edgekit does not know"),
        (changed("bundles", 0, "format", to=7), MalformedFile, "format of a bundle is no text"),
        (changed("bundles", 0, "minimum_os", "tvos", to="27"), MalformedFile, "minimum_os names 'tvos'"),
        (changed("bundles", 0, "minimum_os", "macos", to="27.x"), MalformedFile, "'27.x' is no version"),
        (
            changed("bundles", 0, "minimum_os", "ios", to=27),
            MalformedFile,
            "minimum_os of a bundle is no text",
        ),
        (changed("bundles", 0, "minimum_os", "ios", to=""), MalformedFile, "'' is no version"),
        (changed("bundles", 0, "chips", to="a17"), MalformedFile, "chips is not a list"),
        (changed("bundles", 0, "chips", to=[17]), MalformedFile, "a chip of a bundle is no text"),
        (changed("files", "README.md", "size", to=-1), MalformedFile, "size"),
        (changed("files", "../x", to=vars(SET.files["README.md"])), MalformedFile, "inside the bundle"),
    ],
)
def test_a_damaged_file_is_one_line(folder: Path, data: bytes, kind: type[BundleError], said: str) -> None:
    (folder / "bundles.json").write_bytes(data)
    for read in (bundle_set.load, choose, Bundle.open):
        with pytest.raises(kind) as caught:
            read(folder)
        (line,) = str(caught.value).splitlines()
        assert line.startswith(str(folder / "bundles.json")) and said in line


@pytest.mark.parametrize(
    ("system", "engine", "taken"),
    [
        ("", None, "coreai"),  # not macOS
        ("27", None, "coreai"),
        ("27.1", None, "coreai"),
        ("26.4", None, "coreml"),
        ("15.10", None, "coreml"),
        ("", "coreml", "coreml"),
        ("27.1", "coreml", "coreml"),
        ("26.4", "coreai", "coreai"),  # who insists may know better
    ],
)
def test_the_newest_bundle_that_runs_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, system: str, engine: str | None, taken: str
) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: (system, ("", "", ""), ""))
    monkeypatch.setattr(platform, "system", lambda: "Darwin" if system else "Linux")
    assert choose(folder, engine) == folder / taken


def test_a_system_or_engine_without_a_bundle_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.3", ("", "", ""), ""))
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(UnsupportedBundle) as caught:
        choose(folder)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{folder}/bundles.json: none of its bundles runs here: ")
    assert "'coreai' is for macos 27 and later and 'coreml' is for macos 15.4 and later; " in line
    assert line.endswith("; this is macos 15.3; export one for that")
    said = "has bundles for 'coreai' and 'coreml', not for native; export one for that with --format native$"
    with pytest.raises(UnsupportedBundle, match=said):
        choose(folder, "native")


def two_bundles(folder: Path, *members: Member) -> Path:
    files = {}
    for member in members:
        (folder / member.path).mkdir(parents=True)
        (folder / member.path / "edgekit.json").write_text(member.format)
        name = f"{member.path}/edgekit.json"
        files[name] = file_entry(folder / name)
    bundle_set.save(BundleSet(members, files), folder)
    return folder


@pytest.mark.parametrize(
    ("machine", "engine", "taken"),
    [
        ("aarch64", None, "npu"),
        ("x86_64", None, "cpu"),
        ("x86_64", "qnn", "npu"),
        ("aarch64", "native", "cpu"),
    ],
)
def test_what_an_engine_emulates_is_taken_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, engine: str | None, taken: str
) -> None:
    folder = two_bundles(tmp_path / "set", Member("npu", "qnn", {}), Member("cpu", "native", {}))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert choose(folder, engine) == folder / taken


@pytest.mark.parametrize(
    ("system", "machine", "taken", "others"),
    [
        ("Linux", "x86_64", "native", "native, onnx, onnx-gpu, mlx or coreai"),
        ("Linux", "aarch64", "native", "native, onnx, onnx-gpu, mlx, coreai or qnn"),
        ("Windows", "AMD64", "native", "native, onnx or onnx-gpu"),
        ("Darwin", "x86_64", "coreml", "native, onnx, onnx-gpu, mlx, coreml or coreai"),
    ],
)
def test_formats_of_other_systems_are_neither_taken_nor_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, taken: str, others: str
) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.4" if system == "Darwin" else "", ("", "", ""), ""))
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    both = two_bundles(tmp_path / "both", Member("coreml", "coreml", {}), Member("native", "native", {}))
    assert choose(both) == both / taken
    for_none = two_bundles(tmp_path / "none", Member("code", "tvm", {}))
    with pytest.raises(UnsupportedBundle, match=f"has bundles for 'tvm', not for {others}; "):
        choose(for_none)


def test_machine_code_is_taken_by_name(tmp_path: Path) -> None:
    folder = two_bundles(tmp_path / "set", Member("code", "tvm", {}), Member("cpu", "native", {}))
    assert (choose(folder), choose(folder, "tvm")) == (folder / "cpu", folder / "code")


def test_bundles_that_are_listed_need_not_be_there(folder: Path) -> None:
    shutil.rmtree(folder / "coreml")
    assert choose(folder, "coreml", listed=True) == folder / "coreml"
    with pytest.raises(OpenFailed, match="coreml/edgekit.json: is missing"):
        choose(folder, "coreml")


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "none", ""])
def test_no_name_of_a_folder_is_refused(name: str) -> None:
    assert not bundle_set.is_set(name)


def test_a_bundle_that_is_not_there_is_told(folder: Path) -> None:
    (folder / "coreai" / "edgekit.json").unlink()
    with pytest.raises(OpenFailed, match="coreai/edgekit.json: is missing; copy or export the bundle again"):
        Bundle.open(folder)


def test_a_bundle_that_is_not_the_listed_one_is_refused(folder: Path, tmp_path: Path) -> None:
    """One of another export, one that lies elsewhere, and one that is not listed."""
    (folder / "coreml" / "edgekit.json").write_bytes(b"manifest of corexx")
    with pytest.raises(ChecksumMismatch, match=r"coreml/edgekit.json: has xxh3"):
        choose(folder, "coreml")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    (folder / "coreai").rename(elsewhere)
    (folder / "coreai").symlink_to(elsewhere)
    with pytest.raises(OpenFailed, match="is a link that leaves the bundle"):
        choose(folder, "coreai")
    bundle_set.save(BundleSet((OLD,), {}), folder)
    with pytest.raises(MalformedFile, match="does not list 'coreml/edgekit.json'"):
        choose(folder, "coreml")


def test_a_list_that_is_no_plain_file_is_refused(folder: Path) -> None:
    path = folder / "bundles.json"
    content = path.read_bytes()
    path.write_bytes(content + b" " * (1 << 20))
    with pytest.raises(MalformedFile, match=r"bundles.json: has \d+ bytes, more than any such file"):
        bundle_set.load(folder)
    path.unlink()
    (folder.parent / "outside.json").write_bytes(content)
    path.symlink_to(folder.parent / "outside.json")
    with pytest.raises(OpenFailed, match="is a link that leaves the bundle"):
        bundle_set.load(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OpenFailed, match="is not a regular file"):
        bundle_set.load(folder)
