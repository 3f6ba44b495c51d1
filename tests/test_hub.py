from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

from edgekit.export.checkpoint import hub, resolve
from edgekit.export.checkpoint.errors import (
    CheckpointError,
    DownloadFailed,
    GatedModel,
    HubNotInstalled,
    HubUnavailable,
    ModelNotFound,
    NotACheckpoint,
    RevisionNotFound,
)

REPO = "GSAI-ML/LLaDA-8B-Instruct"
Call = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Call]]:
    """Replaces snapshot_download by a result or an exception; returns the list of its calls."""

    def replace(outcome: Any) -> list[Call]:
        calls: list[Call] = []

        def snapshot_download(*args: Any, **kwargs: Any) -> str:
            calls.append((args, kwargs))
            if isinstance(outcome, Exception):
                raise outcome
            return str(outcome)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return replace


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    request = httpx2.Request("GET", f"https://huggingface.co/api/models/{REPO}")
    message = f"{status} Client Error. (Request ID: Root=1)\n\nSomething for url: {request.url}.\nMore text."
    return kind(message, response=httpx2.Response(status, request=request))


def test_directory_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    calls = download(AssertionError("no download"))
    folder = tmp_path / "GSAI-ML" / "LLaDA-8B-Instruct"
    folder.mkdir(parents=True)
    assert resolve(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve(REPO) == Path(REPO)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/GSAI-ML/LLaDA-8B-Instruct") == folder
    assert calls == []


def test_file_and_missing_path(tmp_path: Path, download: Any) -> None:
    calls = download(AssertionError("no download"))
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(NotACheckpoint, match="is a file; give the directory"):
        resolve(str(tmp_path / "model.safetensors"))
    nowhere = str(tmp_path / "nowhere")
    for name in (nowhere, "./nowhere", "~nobody/x", "../a/b", "tiny-gema", "a/b/c", "", "owner/", "o/na me"):
        with pytest.raises(ModelNotFound) as error:
            resolve(name)
        assert "\n" not in str(error.value)
        assert f"{name}: no such directory" in str(error.value)
    with pytest.raises(ModelNotFound, match="tiny-gemma, tiny-llada"):
        resolve("tiny-gema")
    assert calls == []


@pytest.mark.parametrize("name", hub.SHIPPED_MODELS)
def test_shipped_models_are_found_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: Any
) -> None:
    calls = download(AssertionError("no download"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub.importlib.resources, "files", lambda package: tmp_path / package)
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


def test_download_returns_the_snapshot(tmp_path: Path, download: Any) -> None:
    calls = download(tmp_path / "snapshot")
    assert resolve(REPO, "v1.0") == tmp_path / "snapshot"
    [(args, kwargs)] = calls
    assert args == (REPO,)
    assert kwargs["revision"] == "v1.0"


def test_only_checkpoint_and_tokenizer_files_are_downloaded(tmp_path: Path, download: Any) -> None:
    calls = download(tmp_path)
    resolve(REPO)
    wanted = [
        "config.json", "generation_config.json", "model.safetensors", "model-00001-of-00006.safetensors",
        "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "chat_template.jinja", "additional_chat_templates/tool_use.jinja", "vocab.json", "merges.txt",
    ]  # fmt: skip
    unwanted = [
        "README.md", ".gitattributes", "modeling_llada.py", "pytorch_model.bin", "model-Q4_K_M.gguf",
        "original/model.safetensors", "onnx/config.json", "logo.png", "training_args.bin",
    ]  # fmt: skip
    kwargs = calls[0][1]
    kept = filter_repo_objects(
        wanted + unwanted, allow_patterns=kwargs["allow_patterns"], ignore_patterns=kwargs["ignore_patterns"]
    )
    assert list(kept) == wanted


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
        (errors.RevisionResolutionError("no commit"), HubUnavailable, "no commit"),
        (REFUSED, HubUnavailable, "Connection refused"),
        (httpx2.ReadTimeout(""), HubUnavailable, "ReadTimeout"),
        (http_error(errors.HfHubHTTPError, 503), DownloadFailed, "503 Client Error"),
        (errors.XetDownloadError("chunk failed"), DownloadFailed, "chunk failed"),
        (OSError(28, "No space left on device"), DownloadFailed, "No space left on device"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_hub_errors(download: Any, raised: Exception, error_class: type[CheckpointError], says: str) -> None:
    download(raised)
    with pytest.raises(error_class) as error:
        resolve(REPO, "v9")
    assert type(error.value) is error_class
    message = str(error.value)
    assert message.startswith(REPO) and "\n" not in message
    assert re.search(says, message), message
    assert error.value.__cause__ is raised


def test_bugs_keep_their_traceback(download: Any) -> None:
    download(ZeroDivisionError("a bug"))
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
