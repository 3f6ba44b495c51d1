"""Bundles from the hub and to it: verified downloads, uploads byte for byte, one line for mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import sealing
from support.fake_hub import TOKEN, FakeHub
from support.hub_bundles import folder_like_a_bundle

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.errors import (
    ChecksumMismatch,
    EdgekitError,
    MalformedFile,
    OpenFailed,
    UnsupportedVersion,
)
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engine_registry import ENGINES
from edgekit.runtime.errors import EngineUnavailable, UnsupportedBundle
from edgekit.runtime.hub import Silent, repository, verification
from edgekit.runtime.hub.bundles import local_folder
from edgekit.runtime.hub.errors import HubUnavailable, ModelNotFound, NotABundle, NotLoggedIn, UploadFailed
from edgekit.runtime.hub.upload import check, upload
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.tools.cli import main


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def push(folder: Path, name: str, revision: str | None = None, private: bool = False) -> str:
    return upload(check(folder, name, revision, private, Silent()))


def edgekit(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


# --- round trip ---------------------------------------------------------------------------------------------


def test_push_then_run(hub: FakeHub, login: None, native_bundle: Path) -> None:
    result = edgekit("push", str(native_bundle), "owner/tiny")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{hub.url}/owner/tiny\n"
    assert "edgekit chat hf:owner/tiny" in result.stderr
    there = hub.files("owner/tiny")
    assert {n: d for n, d in there.items() if n != ".gitattributes"} == contents(native_bundle)

    options = ["-p", "Hello", "--raw", "--max-new-tokens", "8", "--json"]
    plain = edgekit("run", str(native_bundle), *options)
    assert plain.exit_code == 0, plain.output
    here = json.loads(plain.stdout)
    del hub.log[:]
    first = edgekit("run", "hf:owner/tiny", *options)
    assert first.exit_code == 0, first.output
    from_hub = json.loads(first.stdout)
    assert from_hub["token_ids"] == here["token_ids"]
    sent = {r.path.rpartition("/")[2] for r in hub.log if r.method == "GET" and r.sent}
    assert {"edgekit.json", "weights.safetensors"} <= sent and ".gitattributes" not in sent
    sealing.check_all(Path(from_hub["bundle"]))
    inspected = edgekit("inspect", "hf:owner/tiny", "--json")
    assert inspected.exit_code == 0, inspected.output
    assert json.loads(inspected.stdout)["bundle"] == from_hub["bundle"]
    verified = edgekit("verify", "hf:owner/tiny")
    assert verified.exit_code == 0 and "all is as it was written" in verified.output, verified.output


def test_a_second_run_asks_only_whether_there_is_a_newer_commit(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    hub.add("owner/it", contents(folder))
    first = local_folder("hf:owner/it")
    del hub.log[:]

    def hashed(path: Path) -> str:
        raise AssertionError(f"{path} was hashed again")

    with monkeypatch.context() as patch:
        patch.setattr(verification, "file_digests", hashed)
        assert local_folder("hf:owner/it") == first
    assert {r.path.split("/")[1] for r in hub.log} == {"api"}
    # A newer commit is another folder.
    hub.add("owner/it", contents(folder_like_a_bundle(tmp_path / "next", **{"more.json": b"{}"})))
    newer = local_folder("hf:owner/it")
    assert newer != first and (newer / "more.json").is_file()


def test_offline_a_downloaded_bundle_opens(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.add("owner/it", contents(folder_like_a_bundle(tmp_path / "bundle")))
    first = local_folder("hf:owner/it")
    asked = len(hub.log)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_folder("hf:owner/it") == first
    with pytest.raises(HubUnavailable, match="owner/other"):
        local_folder("hf:owner/other")
    (first / "weights.safetensors").unlink()
    with pytest.raises(HubUnavailable, match=r"lacks weights\.safetensors"):
        local_folder("hf:owner/it")
    assert len(hub.log) == asked


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_file_that_is_not_the_manifests_is_refused_before_the_download(
    hub: FakeHub, tmp_path: Path
) -> None:
    files = contents(folder_like_a_bundle(tmp_path / "bundle"))
    changed = files["weights.safetensors"][:-1] + b"!"
    for name, damage in {
        "owner/changed": {"weights.safetensors": changed},
        "owner/short": {"weights.safetensors": files["weights.safetensors"][:-1]},
    }.items():
        hub.add(name, files | damage)
        with pytest.raises(NotABundle, match=r"weights\.safetensors is not the file"):
            local_folder(f"hf:{name}")
    hub.add("owner/lacking", {n: d for n, d in files.items() if n != "tokenizer.json"})
    with pytest.raises(NotABundle, match=r"lacks tokenizer\.json"):
        local_folder("hf:owner/lacking")
    assert not [r for r in hub.log if r.path.endswith(".safetensors")]


@pytest.mark.parametrize("name", ["tokenizer.json", "weights.safetensors"])
def test_a_file_damaged_on_the_way_is_refused_every_time(hub: FakeHub, tmp_path: Path, name: str) -> None:
    """Small files have no SHA-256 on the hub, and the library compares sizes alone."""
    folder = folder_like_a_bundle(tmp_path / "bundle")
    hub.add("owner/it", contents(folder))
    data = (folder / name).read_bytes()
    hub.served_as[name] = bytes([data[0] ^ 1]) + data[1:]
    for _ in range(2):
        result = edgekit("run", "hf:owner/it", "-p", "Hello")
        assert result.exit_code == 2 and "SHA-256 differs" in result.stderr, result.output
        assert name in result.stderr and "delete" in result.stderr
    assert not list(tmp_path.rglob("verified/*"))


def test_what_is_no_bundle_is_called_by_its_name(hub: FakeHub) -> None:
    hub.add("owner/checkpoint", {"config.json": b"{}", "model.safetensors": b"x" * 5000})
    hub.add("owner/gguf", {"model.gguf": b"x" * 5000})
    with pytest.raises(NotABundle, match="is a checkpoint.*edgekit export owner/checkpoint"):
        local_folder("hf:owner/checkpoint")
    with pytest.raises(NotABundle, match="no edgekit bundle"):
        local_folder("hf:owner/gguf")
    with pytest.raises(ModelNotFound, match="check the spelling"):
        local_folder("hf:owner/nothing")
    for name in ("hf:", "hf:owner", "hf:owner/", "hf:../x", "hf:a/b/c"):
        with pytest.raises(ModelNotFound, match="owner/name"):
            local_folder(name)
    assert not [r for r in hub.log if "/resolve/" in r.path]


def test_a_name_without_the_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OpenFailed, match="say hf:owner/name"):
        local_folder("owner/name")
    assert local_folder("folder") == Path("folder")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert local_folder("owner/name") == Path("owner/name")


def test_a_bundle_that_cannot_run_here_is_refused_before_its_weights(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("owner/toaster", contents(folder_like_a_bundle(tmp_path / "toaster", "toaster")))
    hub.add("owner/tvm", contents(folder_like_a_bundle(tmp_path / "tvm", "tvm")))
    files = contents(folder_like_a_bundle(tmp_path / "onnx"))
    hub.add("owner/onnx", files)
    newer = sealing.sealed(json.loads(files["edgekit.json"]) | {"schema_version": 99})
    hub.add("owner/newer", files | {"edgekit.json": newer})
    hub.add("owner/broken", files | {"edgekit.json": b"{"})
    with pytest.raises(UnsupportedBundle, match="'toaster'"):
        local_folder("hf:owner/toaster")
    with pytest.raises(UnsupportedBundle, match="hf:owner/tvm: its programs are machine code"):
        local_folder("hf:owner/tvm")
    with pytest.raises(UnsupportedVersion):
        local_folder("hf:owner/newer")
    with pytest.raises(MalformedFile):
        local_folder("hf:owner/broken")
    asked = len(hub.log)
    with pytest.raises(InvalidOption, match="unknown engine 'onyx'; did you mean onnx"):
        local_folder("hf:owner/onnx", "onyx")
    assert len(hub.log) == asked
    with pytest.raises(UnsupportedBundle, match="hf:owner/onnx: was exported for the onnx engine, not mlx"):
        local_folder("hf:owner/onnx", "mlx")
    row = ENGINES.find("onnx")
    assert row is not None
    monkeypatch.setitem(ENGINES.own, "onnx", replace(row, needs="not_installed_here"))
    with pytest.raises(EngineUnavailable, match=r"edgekit\[onnx\]"):
        local_folder("hf:owner/onnx")
    assert not [r for r in hub.log if r.path.endswith(".safetensors")]
    assert local_folder("hf:owner/onnx", to_run=False).is_dir()


def test_an_interrupted_download_goes_on(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "RESUMED_FROM_BYTES", 1 << 12)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 12)
    hub.add("owner/it", contents(folder_like_a_bundle(tmp_path / "bundle")))

    class Stops(Silent):
        def advance(self, done: int, what: str) -> None:
            if (
                what == "weights.safetensors"
                and next((tmp_path / "hub-cache").rglob("*.incomplete")).stat().st_size
            ):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local_folder("hf:owner/it", progress=Stops())
    del hub.log[:]
    folder = local_folder("hf:owner/it")
    sealing.check_all(folder)
    [rest] = [r for r in hub.log if r.path.startswith("/content/") and r.path.endswith("weights.safetensors")]
    assert rest.range is not None and 0 < rest.sent < 50_000


def test_progress_of_files_that_come_by_xet() -> None:
    """What has been received and what has been written of it count once."""
    from types import SimpleNamespace

    from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

    class Counts(Silent):
        done = 0

        def advance(self, done: int, what: str) -> None:
            self.done += done

    counts, rates = (
        Counts(),
        {"total_bytes_completion_rate": 1.0, "total_transfer_bytes_completion_rate": 1.0},
    )
    bar = repository._bar(counts, "file")
    with XetDownloadProgressReporter(
        reconstruction_desc="", total=100, log_level=0, name="x", tqdm_class=bar
    ) as reporter:
        for written, received in ((0, 40), (60, 80), (100, 80)):
            facts = {"total_bytes_completed": written, "total_transfer_bytes_completed": received}
            reporter.update_progress(SimpleNamespace(**facts, **rates, total_bytes=100))
    assert counts.done == 100


# --- sets ---------------------------------------------------------------------------------------------------


def set_of_bundles(folder: Path) -> Path:
    members = [
        Member("new", "coreai", {"ios": "27", "macos": "27"}),
        Member("old", "coreml", {"ios": "18", "macos": "15"}),
    ]
    for member in members:
        folder_like_a_bundle(folder / member.path, member.format)
    (folder / "README.md").write_text("---\nlibrary_name: edgekit\n---\n")
    names = ["README.md", *(f"{m.path}/edgekit.json" for m in members)]
    bundle_set.save(BundleSet(tuple(members), {n: manifests.file_entry(folder / n) for n in names}), folder)
    return folder


def test_of_a_set_one_bundle_is_downloaded(hub: FakeHub, login: None, tmp_path: Path) -> None:
    folder = set_of_bundles(tmp_path / "set")
    push(folder, "owner/set")
    there = hub.files("owner/set")
    assert {n: d for n, d in there.items() if n != ".gitattributes"} == contents(folder)
    del hub.log[:]
    found = local_folder("hf:owner/set", "coreml", to_run=False)
    assert found.name == "old" and manifests.load(found).programs["format"] == "coreml"
    sent = {r.path.partition("/resolve/")[2].partition("/")[2] for r in hub.requests("HEAD", "")}
    assert sent == {"bundles.json", *(f"old/{n}" for n in contents(folder / "old"))}


def test_a_bundle_in_place_of_a_set_and_back(hub: FakeHub, login: None, tmp_path: Path) -> None:
    several, one = set_of_bundles(tmp_path / "set"), folder_like_a_bundle(tmp_path / "one")
    push(several, "owner/it")
    push(one, "owner/it")
    assert "bundles.json" not in hub.files("owner/it")
    assert local_folder("hf:owner/it", to_run=False).name != "old"
    push(several, "owner/it")
    assert "edgekit.json" not in hub.files("owner/it")
    assert local_folder("hf:owner/it", "coreml", to_run=False).name == "old"


# --- push ---------------------------------------------------------------------------------------------------


def test_push_again_sends_nothing_twice(hub: FakeHub, login: None, tmp_path: Path) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    push(folder, "owner/it", private=True)
    assert hub.repos["owner/it"].private
    first = hub.files("owner/it")
    # The manifest came last: without it what is there does not look like a bundle.
    commits = list(hub.repos["owner/it"].commits.values())
    assert [("edgekit.json" in c) for c in commits][-2:] == [False, True]
    del hub.log[:]
    push(folder, "owner/it")
    assert hub.files("owner/it") == first and not hub.requests("PUT", "")


def test_a_public_repository_is_not_pushed_to_as_a_private_one(
    hub: FakeHub, login: None, tmp_path: Path
) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    before = hub.add("owner/open", contents(folder_like_a_bundle(tmp_path / "other", **{"old.json": b"{}"})))
    for more in ([], ["--revision", "main"], ["--revision", "another"]):
        result = edgekit("push", str(folder), "owner/open", "--private", *more)
        assert result.exit_code == 2, result.output
        assert "exists and is public" in result.stderr and "--private only makes new ones" in result.stderr
        assert len(result.stderr.splitlines()) <= 3
    assert hub.repos["owner/open"].branches == {"main": before}
    assert not [r for r in hub.log if r.method in ("POST", "PUT")]
    hub.add("owner/closed", {".gitattributes": b""}, private=True)
    push(folder, "owner/closed", private=True)
    assert "edgekit.json" in hub.files("owner/closed")


def test_a_repository_that_is_made_public_meanwhile(hub: FakeHub, login: None, tmp_path: Path) -> None:
    checked = check(folder_like_a_bundle(tmp_path / "bundle"), "owner/it", None, True, Silent())
    hub.add("owner/it", {".gitattributes": b""})
    with pytest.raises(UploadFailed, match="exists and is public"):
        upload(checked)
    assert set(hub.files("owner/it")) == {".gitattributes"}


@pytest.mark.parametrize("with_card", [False, True])
def test_a_bundle_that_is_there_is_not_announced(
    hub: FakeHub,
    login: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    with_card: bool,
) -> None:
    card = {"README.md": b"---\nlibrary_name: edgekit\n---\n"} if with_card else {}
    folder = folder_like_a_bundle(tmp_path / "bundle", **card)
    first = edgekit("push", str(folder), "owner/it")
    assert "uploading" in first.stderr and first.exit_code == 0, first.output
    commit = hub.repos["owner/it"].branches["main"]
    del hub.log[:]
    again = edgekit("push", str(folder), "owner/it")
    assert again.exit_code == 0 and again.stdout == first.stdout, again.output
    assert "owner/it has this bundle already" in again.stderr and "uploading" not in again.stderr
    assert hub.repos["owner/it"].branches["main"] == commit
    assert not [r for r in hub.log if r.method in ("POST", "PUT")]
    as_json = json.loads(edgekit("push", str(folder), "owner/it", "--json").stdout)
    assert as_json["uploaded"] is False
    # What differs in any file is sent, without the library's remarks on commits that would be empty.
    there = hub.files("owner/it")
    for name in ("edgekit.json", "README.md", "weights.safetensors"):
        hub.add("owner/it", there | {name: there[name][:-1] + b"?"})
        changed = edgekit("push", str(folder), "owner/it")
        assert changed.exit_code == 0 and "uploading" in changed.stderr, changed.output
        assert hub.files("owner/it") == there
    assert not [r for r in caplog.records if r.name.startswith("huggingface_hub")]


def test_what_is_no_folder_cannot_be_pushed(
    hub: FakeHub, login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name, said in {
        "nope": "nope: no such folder",
        "file": "is no folder",
        "hf:owner/it": "push takes the folder of a bundle on this machine",
    }.items():
        result = edgekit("push", name, "owner/x")
        assert result.exit_code == 2 and said in result.stderr, result.output
        assert "edgekit.json" not in result.stderr and len(result.stderr.splitlines()) <= 2
    assert hub.log == []


def test_push_to_a_branch(hub: FakeHub, login: None, tmp_path: Path) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    result = edgekit("push", str(folder), "owner/it", "--revision", "int8", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["url"] == f"{hub.url}/owner/it/tree/int8"
    assert "edgekit.json" in hub.files("owner/it", "int8") and "edgekit.json" not in hub.files("owner/it")
    assert local_folder("hf:owner/it@int8", to_run=False).is_dir()


def test_a_bundle_without_a_card_gets_one_on_the_hub(hub: FakeHub, login: None, tmp_path: Path) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    push(folder, "owner/it")
    assert b'library_name: "edgekit"' in hub.files("owner/it")["README.md"]
    assert not (folder / "README.md").exists()
    assert local_folder("hf:owner/it", to_run=False)


def test_nobody_is_logged_in(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    result = edgekit("push", str(folder), "owner/it")
    assert result.exit_code == 2 and "hf auth login" in result.stderr, result.output
    assert len(result.stderr.splitlines()) == 1 and hub.log == []
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(NotLoggedIn, match="hf auth login"):
        push(folder, "owner/it")
    assert hub.repos == {}


def test_a_damaged_bundle_is_not_pushed(hub: FakeHub, login: None, tmp_path: Path) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    data = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(data[:-1] + b"!")
    with pytest.raises(ChecksumMismatch):
        push(folder, "owner/it")
    several = set_of_bundles(tmp_path / "set")
    (several / "old" / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(ChecksumMismatch):
        push(several, "owner/it")
    assert hub.repos == {}


def test_what_cannot_be_pushed(hub: FakeHub, login: None, tmp_path: Path) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle")
    hub.add("owner/model", {"config.json": b"{}", "model.safetensors": b"x", "README.md": b"Mine."})
    with pytest.raises(UploadFailed, match="holds something else than a bundle"):
        push(folder, "owner/model")
    assert hub.files("owner/model")["README.md"] == b"Mine."
    with pytest.raises(ModelNotFound, match="owner/name"):
        push(folder, "just-a-name")
    with pytest.raises(EdgekitError, match="not a bundle"):
        push(tmp_path, "owner/it")


def test_only_listed_files_are_pushed(hub: FakeHub, login: None, tmp_path: Path) -> None:
    folder = folder_like_a_bundle(tmp_path / "bundle", **{"odd [1].json": b"{}"})
    (folder / "private notes.txt").write_text("mine")
    push(folder, "owner/it")
    assert "private notes.txt" not in hub.files("owner/it") and "odd [1].json" in hub.files("owner/it")


def test_the_marker_is_of_one_manifest_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "cache"))
    manifest = tmp_path / "edgekit.json"
    manifest.write_text("a")
    verification.remember("1" * 40, manifest)
    assert verification.is_verified("1" * 40, manifest)
    assert not verification.is_verified("2" * 40, manifest)
    manifest.write_text("b")
    assert not verification.is_verified("1" * 40, manifest)


def test_bundles_from_the_cache_open(hub: FakeHub, native_bundle: Path) -> None:
    """Its files are links to blobs outside of the folder."""
    hub.add("owner/native", contents(native_bundle))
    folder = local_folder("hf:owner/native")
    assert (folder / "weights.safetensors").is_symlink()
    with Bundle.open(folder).open_weights() as file:
        assert file.layout.runs
        assert file.path == folder / "weights.safetensors"  # what messages call it, not the blob
