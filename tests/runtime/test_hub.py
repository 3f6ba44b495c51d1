from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
import yaml
from click.testing import CliRunner
from huggingface_hub import errors
from support import sealing
from support.checkpoints import write_checkpoint
from support.fake_hub import TOKEN, FakeHub

from edgekit.export.checkpoint import Checkpoint, locate, read_tokenizer, resolve
from edgekit.export.checkpoint import hub as hub_module
from edgekit.export.checkpoint.errors import InvalidAdapter, LinkLeavesFolder, NotACheckpoint
from edgekit.export.checkpoint.provenance import legal_files
from edgekit.flashload import manifest as manifests
from edgekit.runtime.hub import Silent, repository
from edgekit.runtime.hub.errors import (
    DownloadFailed,
    GatedModel,
    HubError,
    HubNotInstalled,
    HubUnavailable,
    ModelNotFound,
    RevisionNotFound,
)
from edgekit.tools.cli import main

REPO = "GSAI-ML/LLaDA-8B-Instruct"
Call = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], list[Call]]:
    """Lets the first question to the hub end in an exception; returns the list of its calls."""

    def replace(outcome: Exception) -> list[Call]:
        calls: list[Call] = []

        def resolve_revision(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append((args, kwargs))
            raise outcome

        monkeypatch.setattr(huggingface_hub.HfApi, "resolve_revision", resolve_revision)
        return calls

    return replace


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    request = httpx2.Request("GET", f"https://huggingface.co/api/models/{REPO}")
    message = f"{status} Client Error. (Request ID: Root=1)\n\nSomething for url: {request.url}.\nMore text."
    return kind(message, response=httpx2.Response(status, request=request))


def test_directory_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    calls = answer(AssertionError("no download"))
    folder = tmp_path / "GSAI-ML" / "LLaDA-8B-Instruct"
    folder.mkdir(parents=True)
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve(REPO) == Path(REPO)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/GSAI-ML/LLaDA-8B-Instruct") == folder
    assert calls == []


def test_file_and_missing_path(tmp_path: Path, answer: Any) -> None:
    calls = answer(AssertionError("no download"))
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(NotACheckpoint, match="is a file; give the directory"):
        resolve(str(tmp_path / "model.safetensors"))
    nowhere = str(tmp_path / "nowhere")
    for name in (nowhere, "./nowhere", "~nobody/x", "../a/b", "tiny-gema", "a/b/c", "", "owner/", "o/na me"):
        with pytest.raises(ModelNotFound) as error:
            resolve(name)
        assert "\n" not in str(error.value)
        assert f"{name}: no such directory" in str(error.value)
    with pytest.raises(ModelNotFound, match=r"tiny-gemma, tiny-llada.*did you mean tiny-gemma\?"):
        resolve("tiny-gema")
    (tmp_path / "my-llada-checkpoint").mkdir()
    with pytest.raises(ModelNotFound, match=f"did you mean {tmp_path}/my-llada-checkpoint"):
        resolve(str(tmp_path / "my-lada-checkpoint"))
    assert calls == []


@pytest.mark.parametrize("name", hub_module.SHIPPED_MODELS)
def test_shipped_models_are_found_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    calls = answer(AssertionError("no download"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub_module.importlib.resources, "files", lambda package: tmp_path / package)
    with pytest.raises(ModelNotFound, match="reinstall edgekit") as error:
        resolve(name)
    shipped = tmp_path / "edgekit.tools" / "tiny" / name
    assert str(shipped) in str(error.value)
    shipped.mkdir(parents=True)
    assert resolve(name) == shipped
    assert calls == []


def test_revision_of_something_without_revisions(tmp_path: Path) -> None:
    with pytest.raises(RevisionNotFound, match="only hub models have revisions, main"):
        resolve(str(tmp_path), "main")


def test_what_is_downloaded(hub: FakeHub) -> None:
    small = [
        "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja", "vocab.json", "merges.txt", "LICENSE", "LICENSE.md",
        "NOTICE.txt", "USE_POLICY.md", "README.md",
    ]  # fmt: skip
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    unwanted = [
        ".gitattributes", "modeling_llada.py", "pytorch_model.bin", "model-Q4_K_M.gguf", "logo.png",
        "original/model.safetensors", "onnx/config.json", "consolidated.safetensors", "docs/LICENSE",
    ]  # fmt: skip
    config = {"model_type": "llada"}
    index = {"weight_map": {"a": shards[0], "b": shards[1]}}
    files = dict.fromkeys([*small, *shards, *unwanted], b"{}")
    files |= {"config.json": json.dumps(config).encode(), small[2]: json.dumps(index).encode()}
    old = hub.add(REPO, files)
    hub.add(REPO, files | {"config.json": b"[]"}, "v2")
    source = locate(REPO, "main")
    folder = source.path

    def there() -> set[str]:
        return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}

    assert there() == set(small)
    assert source.lacking() == dict.fromkeys(shards, 2)
    assert source.fetch() and not source.fetch()
    assert there() == {*small, *shards}
    assert source.repository is not None and source.repository.commit == old == folder.name
    assert json.loads((folder / "config.json").read_text()) == config
    for name in (f"hf:{REPO}", f"{REPO}@main", f"{REPO}@{old}"):
        assert resolve(name) == folder


def checkpoint_files(folder: Path, **more: bytes) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} | more


@pytest.fixture
def random_checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "random", "llada", n_layers=1)
    return tmp_path / "random"


def weights_sent(hub: FakeHub) -> int:
    return sum(r.sent for r in hub.log if r.path.endswith(".safetensors"))


def test_an_adapter_is_downloaded_alone(hub: FakeHub, tmp_path: Path) -> None:
    files = {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": b"x",
        "README.md": b"x",
        "a.bin": b"x",
    }
    hub.add("team/style", files)
    for named in ("team/style", "hf:team/style"):
        folder = hub_module.adapter_folder(named)
        assert {path.name for path in folder.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
    hub.add("team/model", {"config.json": b"{}"})
    with pytest.raises(InvalidAdapter, match="team/model: has no adapter_config.json"):
        hub_module.adapter_folder("team/model")
    with pytest.raises(InvalidAdapter, match="no such directory, nor owner/name"):
        hub_module.adapter_folder("nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidAdapter, match="is a file"):
        hub_module.adapter_folder(str(tmp_path / "file"))
    assert hub_module.adapter_folder(str(tmp_path)) == tmp_path


def test_headers_are_read_without_the_weights(hub: FakeHub, tmp_path: Path) -> None:
    """The oracle is the library's own reader of remote headers."""
    write_checkpoint(tmp_path / "one", "llada", n_layers=1)
    write_checkpoint(tmp_path / "many", "dream", shards=3)
    for name in ("one", "many"):
        here = Checkpoint.open(tmp_path / name)
        hub.add(f"owner/{name}", checkpoint_files(tmp_path / name))
        source = locate(f"owner/{name}")
        there = source.checkpoint()
        theirs = huggingface_hub.HfApi().get_safetensors_metadata(f"owner/{name}")
        assert set(there.names) == set(here.names) == set(theirs.weight_map)
        for tensor in here.names:
            info = theirs.files_metadata[theirs.weight_map[tensor]].tensors[tensor]
            assert there.shape(tensor) == here.shape(tensor) == tuple(info.shape)
            assert there.dtype(tensor) == here.dtype(tensor) == info.dtype
            assert there.file(tensor).name == here.file(tensor).name == theirs.weight_map[tensor]
        assert source.lacking()


@pytest.mark.parametrize("without_ranges", [False, True])
def test_a_header_longer_than_the_first_block(
    hub: FakeHub, random_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, without_ranges: bool
) -> None:
    monkeypatch.setattr("edgekit.export.checkpoint.hub._HEADER_BLOCK_BYTES", 100)
    hub.without_ranges = without_ranges
    files = checkpoint_files(random_checkpoint)
    hub.add("owner/model", files)
    assert locate("owner/model").checkpoint().names == Checkpoint.open(random_checkpoint).names
    if not without_ranges:
        assert weights_sent(hub) < 8000 < len(files["model.safetensors"]) / 4


def _export(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["export", *arguments])


BROKEN = {
    "config": ({"config.json": b'{"model_type": "llada", "d_model": -1}'}, "config.json"),
    "tokenizer": ({"tokenizer.json": b"{}"}, "tokenizer.json: has no model"),
    "no tokenizer": ({"tokenizer.json": None}, "has no tokenizer.json"),
    "sampler": (
        {"generation_config.json": b'{"temperature": "hot"}'},
        "generation_config.json: temperature is",
    ),
    "index": ({"model.safetensors": b"no header"}, "model.safetensors"),
    "kind": ({"config.json": b'{"model_type": "llama"}'}, "autoregressive language model"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_nothing_is_refused_after_the_download(
    hub: FakeHub, random_checkpoint: Path, tmp_path: Path, case: str
) -> None:
    changes, says = BROKEN[case]
    files: dict[str, Any] = checkpoint_files(random_checkpoint) | changes
    hub.add("owner/model", {name: data for name, data in files.items() if data is not None})
    result = _export("owner/model", "-o", str(tmp_path / "out"))
    assert result.exit_code == 2, result.output
    assert says in result.stderr and len(result.stderr.splitlines()) <= 2
    assert weights_sent(hub) <= 1 << 20
    assert not list((tmp_path / "hub-cache").rglob("snapshots/*/*.safetensors"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("case", BROKEN)
def test_local_folders_go_through_the_same_order(random_checkpoint: Path, tmp_path: Path, case: str) -> None:
    changes, says = BROKEN[case]
    for name, data in changes.items():
        (random_checkpoint / name).unlink() if data is None else (random_checkpoint / name).write_bytes(data)
    result = _export(str(random_checkpoint), "-o", str(tmp_path / "out"))
    assert result.exit_code == 2 and says in result.stderr, result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--quant", "int5"], "int5"),
        (["--override", "nothing.*=8"], "nothing"),
        (["--group-size", "7"], "7"),
        (["--format", "onnx", "--precision", "float16"], "precision"),
        (["-o", "taken"], "holds files that are not a bundle"),
        (["-o", "file"], "is a file"),
        (["-o", "file/below"], "is a file"),
    ],
)
def test_options_and_folder_are_refused_before_the_download(
    hub: FakeHub,
    random_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    says: str,
) -> None:
    hub.add("owner/model", checkpoint_files(random_checkpoint))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("")
    (tmp_path / "file").write_text("")
    result = _export("owner/model", *options)
    assert result.exit_code == 2 and says in result.stderr, result.output
    assert not [r for r in hub.requests("GET", ".safetensors") if r.range is None]
    assert not list((tmp_path / "hub-cache").rglob("snapshots/*/*.safetensors"))


def test_another_exports_leftovers_are_refused_before_the_download(
    hub: FakeHub, random_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgekit.export import pipeline

    hub.add("owner/model", checkpoint_files(random_checkpoint))
    out, cache = str(tmp_path / "out"), tmp_path / "hub-cache"

    def stopped(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "quantize_matrix", stopped)
        assert _export("owner/model", "-o", out).exit_code == 130
    assert cache.is_dir() and not (tmp_path / "out" / "edgekit.json").exists()
    shutil.rmtree(cache)
    result = _export("owner/model", "-o", out, "--resume", "--quant", "int8")
    assert result.exit_code == 2 and "another export" in result.stderr, result.output
    assert not list(cache.rglob("snapshots/*/*.safetensors"))
    # The same export goes on, though its weights had to be downloaded again.
    assert _export("owner/model", "-o", out, "--resume").exit_code == 0
    result = _export("owner/model", "-o", out, "--resume", "--quant", "int8")
    assert result.exit_code == 2 and "another export" in result.stderr, result.output


@pytest.mark.parametrize("where", ["cache", "output"])
def test_too_little_space_is_found_before_the_download(
    hub: FakeHub, random_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    hub.add("owner/model", checkpoint_files(random_checkpoint))
    few = 10_000 if where == "cache" else (random_checkpoint / "model.safetensors").stat().st_size + 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 1 << 40, few))
    result = _export("owner/model", "-o", str(tmp_path / "out"))
    assert result.exit_code == 2 and "left; free some space" in result.stderr, result.output
    assert not list((tmp_path / "hub-cache").rglob("snapshots/*/*.safetensors"))


class Stopped(BaseException):
    """Stands for Ctrl-C."""


class StopsAt(Silent):
    """Stops a download when so many bytes have come."""

    def __init__(self, nbytes: int) -> None:
        self.left, self.notes = nbytes, list[str]()

    def advance(self, done: int, what: str) -> None:
        self.left -= done
        if self.left < 0:
            raise Stopped

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_an_interrupted_download_goes_on(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub 2.4 begins every file anew in a new process."""
    from huggingface_hub import constants

    monkeypatch.setattr(repository, "RESUMED_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    data = random.Random(5).randbytes(3_000_000)
    hub.add("owner/model", {"config.json": b'{"model_type": "llada"}', "model.safetensors": data})
    with pytest.raises(Stopped):
        locate("owner/model").fetch(StopsAt(1_000_000))
    part = next((tmp_path / "hub-cache").rglob("*.incomplete"))
    had = part.stat().st_size
    assert 900_000 < had < 2_000_000 and not list((tmp_path / "hub-cache").rglob("model.safetensors"))
    del hub.log[:]
    again, source = StopsAt(len(data)), locate("owner/model")
    source.fetch(again)
    assert (source.path / "model.safetensors").read_bytes() == data
    [rest] = [r for r in hub.requests("GET", "/model.safetensors") if r.path.startswith("/content/")]
    assert rest.range == f"bytes={had}-" and rest.sent == len(data) - had
    assert again.left == 0 and "going on at" in again.notes[0]
    assert not list((tmp_path / "hub-cache").rglob("*.incomplete"))
    # The token is for the hub, not for the servers that have the content.
    assert {r.authorized for r in hub.log if r.path.startswith("/content/")} == {False}
    assert {r.authorized for r in hub.requests("HEAD", "/model.safetensors")} == {True}


def test_a_damaged_download_is_not_kept(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "RESUMED_FROM_BYTES", 1 << 10)
    data = random.Random(6).randbytes(100_000)
    hub.add("owner/model", {"config.json": b'{"model_type": "llada"}', "model.safetensors": data})
    hub.served_as["model.safetensors"] = data[:-1] + b"!"
    with pytest.raises(DownloadFailed, match="another SHA-256"):
        resolve("owner/model")
    assert not list((tmp_path / "hub-cache").rglob("*.incomplete"))
    assert not list((tmp_path / "hub-cache").rglob("model.safetensors"))
    del hub.served_as["model.safetensors"]
    assert (resolve("owner/model") / "model.safetensors").read_bytes() == data


def test_gated_and_private_and_unknown(hub: FakeHub) -> None:
    hub.add("owner/gated", {"config.json": b"{}", "model.safetensors": b""}, gated=True)
    hub.add("owner/private", {"config.json": b"{}"}, private=True)
    hub.add("owner/open", {"config.json": b"{}"})
    with pytest.raises(GatedModel, match="accept its licence"):
        locate("owner/gated")
    for name in ("owner/private", "owner/nothing"):
        with pytest.raises(ModelNotFound, match="check the spelling"):
            locate(name)
    with pytest.raises(RevisionNotFound, match="no branch, tag or commit v9"):
        locate("owner/open@v9")


def test_offline_what_was_downloaded_suffices(
    hub: FakeHub, random_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.add("owner/whole", checkpoint_files(random_checkpoint))
    hub.add("owner/begun", checkpoint_files(random_checkpoint))
    whole, _ = resolve("owner/whole"), locate("owner/begun")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.log)
    assert resolve("owner/whole") == whole
    assert locate("owner/whole").checkpoint().names
    with pytest.raises(HubUnavailable, match="cached copy is incomplete"):
        locate("owner/begun").checkpoint()
    assert len(hub.log) == asked


def test_the_commit_of_a_folder_of_the_users_choice(hub: FakeHub, tmp_path: Path) -> None:
    """The oracle is what the library itself writes there."""
    files = {"config.json": b'{"model_type": "llada"}', "model.safetensors": b"x" * 5000}
    commit = hub.add("owner/model", files)
    folder = tmp_path / "mine"
    huggingface_hub.snapshot_download("owner/model", local_dir=folder, endpoint=hub.url)
    assert repository.origin(folder) == (None, commit)
    assert repository.origin(resolve("owner/model")) == ("owner/model", commit)
    assert repository.origin(tmp_path) is None
    later = (folder / "model.safetensors").stat().st_mtime + 10
    os.utime(folder / "model.safetensors", (later, later))
    assert repository.origin(folder) is None


def test_links_that_leave_the_folder_do_not_travel(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "private.key").write_text("secret")
    (folder / "terms.txt").write_text("terms")
    (folder / "LICENSE").symlink_to(tmp_path / "private.key")
    (folder / "NOTICE").symlink_to("terms.txt")
    (folder / "README.md").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "USE_POLICY.md")
    assert set(legal_files(folder)) == {"NOTICE"}


def test_links_within_the_cache_travel(hub: FakeHub, random_checkpoint: Path) -> None:
    template = {"additional_chat_templates/tool.jinja": b"{{ tools }}"}
    hub.add("owner/model", checkpoint_files(random_checkpoint) | template)
    snapshot = resolve("owner/model")
    files = read_tokenizer(snapshot)
    assert set(template) < set(files) and all((snapshot / name).is_symlink() for name in files)
    # One that leads out of the cache is no link of the library's.
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to(random_checkpoint / "tokenizer.json")
    with pytest.raises(LinkLeavesFolder, match=r"tokenizer\.json"):
        read_tokenizer(snapshot)


def test_where_nothing_answers_the_cache_does(
    hub: FakeHub, random_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    hub.add("owner/whole", checkpoint_files(random_checkpoint))
    whole, noted = resolve("owner/whole"), StopsAt(0)
    for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):
        nobody = getattr(constants, name).replace(hub.url, "http://127.0.0.1:9")
        monkeypatch.setattr(constants, name, nobody)
    assert locate("owner/whole", progress=noted).path == whole
    assert noted.notes == [
        "note: the hub cannot be reached ([Errno 111] Connection refused); taking what the cache has"
    ]
    with pytest.raises(HubUnavailable, match="no cached copy"):
        locate("owner/other")
    assert capfd.readouterr().err == ""


def test_provenance_and_licence_travel_with_the_bundle(
    hub: FakeHub, random_checkpoint: Path, tmp_path: Path
) -> None:
    card = b"---\nlicense: other\nlicense_name: odd-licence\nlicense_link: LICENSE.md\n---\n# Theirs\n"
    more = {"README.md": card, "LICENSE.md": b"Do as you like.\n", "USE_POLICY.md": b"Do no harm.\n"}
    commit = hub.add("owner/model", checkpoint_files(random_checkpoint) | more)
    assert _export("owner/model", "-o", str(tmp_path / "a"), "--format", "onnx").exit_code == 0
    # A folder of the cache is known by its place.
    cached = resolve("owner/model")
    assert _export(str(cached), "-o", str(tmp_path / "b"), "--format", "onnx").exit_code == 0
    for name in ("a", "b"):
        manifest = manifests.load(tmp_path / name)
        made_of = manifest.provenance
        assert made_of["repository"] == "owner/model" and made_of["revision"] == commit
        assert made_of["license"] == "other" and made_of["license_name"] == "odd-licence"
        assert {"LICENSE.md", "USE_POLICY.md", "SOURCE_README.md", "README.md"} <= set(manifest.files)
        assert (tmp_path / name / "SOURCE_README.md").read_bytes() == card
        front = yaml.safe_load((tmp_path / name / "README.md").read_text().split("---\n")[1])
        assert front["base_model"] == "owner/model" and front["base_model_relation"] == "quantized"
        assert (front["license"], front["license_name"]) == ("other", "odd-licence")
        assert front["library_name"] == "edgekit" and front["pipeline_tag"] == "text-generation"
        assert commit in (tmp_path / name / "README.md").read_text()
        sealing.check_all(tmp_path / name)
    huggingface_hub.ModelCard.load(tmp_path / "a" / "README.md")


REFUSED = httpx2.ConnectError("[Errno 111] Connection refused")
OFFLINE = errors.LocalEntryNotFoundError(
    "Cannot find an appropriate cached snapshot folder.\nTo enable, set X."
)


@pytest.mark.parametrize(
    ("raised", "error_class", "says"),
    [
        (
            http_error(errors.GatedRepoError, 403),
            GatedModel,
            f"https://huggingface.co/{REPO} .*hf auth login",
        ),
        (http_error(errors.RepositoryNotFoundError, 401), ModelNotFound, "no such Hugging Face repository"),
        (http_error(errors.RevisionNotFoundError, 404), RevisionNotFound, "no branch, tag or commit v9"),
        (http_error(errors.DisabledRepoError, 403), ModelNotFound, "disabled"),
        (
            errors.HFValidationError("Repo id must use alphanumeric chars.\n..."),
            ModelNotFound,
            "alphanumeric",
        ),
        (OFFLINE, HubUnavailable, "Cannot find an appropriate cached snapshot folder.*HF_HUB_OFFLINE"),
        (errors.OfflineModeIsEnabled("offline mode is on"), HubUnavailable, "offline mode"),
        (
            errors.IncompleteSnapshotError("some files", "/cache/snap"),
            HubUnavailable,
            "/cache/snap is incomplete",
        ),
        (errors.RevisionResolutionError("no commit"), HubUnavailable, r"\(HF_HUB_OFFLINE is set\)"),
        (REFUSED, HubUnavailable, "Connection refused"),
        (httpx2.ReadTimeout(""), HubUnavailable, "ReadTimeout"),
        (http_error(errors.HfHubHTTPError, 503), DownloadFailed, "503 Client Error"),
        (errors.XetDownloadError("chunk failed"), DownloadFailed, "chunk failed"),
        (OSError(28, "No space left on device"), DownloadFailed, "No space left on device"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_hub_errors(answer: Any, raised: Exception, error_class: type[HubError], says: str) -> None:
    answer(raised)
    with pytest.raises(error_class) as error:
        resolve(REPO, "v9")
    assert type(error.value) is error_class
    message = str(error.value)
    assert message.startswith(REPO) and "\n" not in message
    assert re.search(says, message), message
    assert error.value.__cause__ is raised


def test_bugs_keep_their_traceback(answer: Any) -> None:
    answer(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        resolve(REPO)


def test_without_huggingface_hub(hide_package: Callable[..., None]) -> None:
    hide_package("huggingface_hub")
    with pytest.raises(HubNotInstalled, match=r"edgekit\[hub\]"):
        resolve(REPO)


def test_offline_mode_of_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HubUnavailable, match="no cached copy"):
        resolve(REPO)
