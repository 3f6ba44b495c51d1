"""From what a user calls a model to a directory that `Checkpoint.open` takes."""

from __future__ import annotations

import importlib.resources
import os
import re
from pathlib import Path

from edgekit.export.checkpoint.errors import (
    DownloadFailed,
    GatedModel,
    HubNotInstalled,
    HubUnavailable,
    ModelNotFound,
    NotACheckpoint,
    RevisionNotFound,
)
from edgekit.flashload.names import nearest
from edgekit.runtime.telemetry import load_huggingface_hub

SHIPPED_MODELS = ("tiny-gemma", "tiny-llada")

# Weights as safetensors, configs, and what a tokenizer consists of. Everything else (pickle weights, GGUF
# files, remote code, images) stays on the hub, and so do weights in sub-folders (`onnx/`, `original/`).
ALLOW_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "vocab.json", "merges.txt", "tokenizer.model"]
IGNORE_PATTERNS = ["*/*.safetensors", "*/*.json"]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(model: str, revision: str | None = None) -> Path:
    """Directory of the checkpoint that `model` names; downloads it if it has to.

    model: an existing directory, else the name of a shipped model (SHIPPED_MODELS), else owner/name on the
    Hugging Face hub, taken from the local cache when that is complete. revision: branch, tag or commit, for
    hub models only.
    Raises NotACheckpoint, ModelNotFound (RevisionNotFound), GatedModel, HubUnavailable, DownloadFailed or
    HubNotInstalled.
    """
    path = Path(os.path.expanduser(model))
    if model and path.is_dir():  # Path("") would be the working directory
        return _without_revision(path, revision)
    if model and path.exists():
        raise NotACheckpoint(f"{path}: is a file; give the directory that holds config.json and the weights")
    if model in SHIPPED_MODELS:
        shipped = Path(str(importlib.resources.files("edgekit.tools") / "tiny" / model))
        if not shipped.is_dir():
            raise ModelNotFound(f"{shipped}: this installation lacks the model {model}; reinstall edgekit")
        return _without_revision(shipped, revision)
    if not _REPOSITORY.fullmatch(model):
        meant = f"; did you mean {close}?" if (close := nearest(model, SHIPPED_MODELS)) else ""
        raise ModelNotFound(
            f"{model}: no such directory, and neither a shipped model ({', '.join(SHIPPED_MODELS)}) "
            f"nor owner/name of a Hugging Face repository{meant}"
        )
    return _download(model, revision)


def _without_revision(path: Path, revision: str | None) -> Path:
    if revision is not None:
        raise RevisionNotFound(f"{path}: only hub models have revisions, {revision} cannot be chosen")
    return path


def _download(repo: str, revision: str | None) -> Path:
    try:
        import httpx2

        huggingface_hub = load_huggingface_hub()
    except ImportError as error:
        raise HubNotInstalled(f"{repo}: downloading needs huggingface_hub; install edgekit[hub]") from error
    errors = huggingface_hub.errors
    at = f"{repo}@{revision}" if revision else repo
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=ALLOW_PATTERNS, ignore_patterns=IGNORE_PATTERNS
            )
        )
    except errors.GatedRepoError as error:
        raise GatedModel(
            f"{repo}: is gated; accept its licence at https://huggingface.co/{repo} "
            "and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"{repo}: no such directory and no such Hugging Face repository; check the spelling, "
            "or log in with `hf auth login` if it is private"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise RevisionNotFound(f"{repo}: has no branch, tag or commit {revision or 'main'}") from error
    except errors.DisabledRepoError as error:
        raise ModelNotFound(f"{repo}: the repository has been disabled on the hub") from error
    except errors.HFValidationError as error:
        raise ModelNotFound(f"{repo}: not a valid repository name ({_first_line(error)})") from error
    except errors.IncompleteSnapshotError as error:
        raise HubUnavailable(
            f"{at}: the hub cannot be reached and the cached copy {error.snapshot_path} is incomplete; "
            "go online and run this again"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        errors.RevisionResolutionError,
        httpx2.TransportError,
    ) as error:
        raise HubUnavailable(
            f"{at}: the hub cannot be reached ({_first_line(error)}) and there is no cached copy; go online, "
            "unset HF_HUB_OFFLINE, or give a local directory"
        ) from error
    except (httpx2.HTTPError, errors.XetDownloadError, OSError) as error:
        raise DownloadFailed(
            f"{at}: the download failed ({_first_line(error)}); run this again, it goes on where it stopped"
        ) from error


def _first_line(error: Exception) -> str:
    """The first non-empty line of the message: the hub's messages are paragraphs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
