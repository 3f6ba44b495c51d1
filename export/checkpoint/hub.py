"""Finding the checkpoint that a user names: it is looked at first, and its weights are downloaded if nothing
in its small files rules out an export.
"""

from __future__ import annotations

import fnmatch
import importlib.resources
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from edgekit.export.checkpoint import kinds
from edgekit.export.checkpoint.errors import (
    InvalidAdapter,
    MissingShard,
    MissingWeights,
    NotACheckpoint,
)
from edgekit.export.checkpoint.peft_adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from edgekit.export.checkpoint.safetensors_dir import CONFIG, Checkpoint, weight_names
from edgekit.export.checkpoint.safetensors_file import SafetensorsFile, parse_safetensors
from edgekit.flashload.files import existing
from edgekit.runtime.bundle.model_card import CARD, is_legal
from edgekit.runtime.hub import Progress, Silent
from edgekit.runtime.hub.errors import HubUnavailable, ModelNotFound, RevisionNotFound
from edgekit.runtime.hub.repository import NAME, Repository
from edgekit.runtime.tokenizer import TEMPLATE_FOLDER

SHIPPED_MODELS = ("tiny-gemma", "tiny-llada", "tiny-block")
#: What may stand before owner/name, here as for `run`.
HUB_PREFIX = "hf:"

#: What is downloaded before anything else, with the licence and the model card: configs, the index, and what
#: a tokenizer consists of. Other files but weights (code, pickles, images) stay on the hub.
SMALL_FILES = (
    "*.json", "*.jinja", "merges.txt", "tokenizer.model", f"{TEMPLATE_FOLDER}/*.jinja",
    # An adapter that Nemotron-Labs-Diffusion brings along, which is small beside it.
    f"linear_spec_lora/{ADAPTER_CONFIG}", f"linear_spec_lora/{ADAPTER_WEIGHTS}",
)  # fmt: skip

#: Headers are read in blocks of this size: nearly all need one request.
_HEADER_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """A model that was found: the folder of its checkpoint, and the repository that its weights are in."""

    path: Path
    repository: Repository | None = None

    def checkpoint(self) -> Checkpoint:
        """The checkpoint, of whose weights headers alone are read. Raises CheckpointError or HubError."""
        if self.repository is None:
            return Checkpoint.open(self.path)
        try:
            return Checkpoint.open(self.path, _Remote(self.repository))
        except (MissingWeights, MissingShard) as error:
            if self.repository.online:
                raise
            raise _incomplete(self.repository, str(error)) from error

    def lacking(self) -> dict[str, int]:
        """Files of weights that have to be downloaded, with their sizes in bytes."""
        if self.repository is None:
            return {}
        return self.repository.lacking(weight_names(self.path, _Remote(self.repository)))

    def shares_disk(self, other: Path) -> bool:
        """Whether the download goes to the disk that folder `other` is or will be on."""
        return existing(self.path).stat().st_dev == existing(other).stat().st_dev

    def fetch(self, progress: Progress | None = None) -> bool:
        """Download the weights that are not here; whether there were any. Raises HubError."""
        lacking, progress = self.lacking(), progress or Silent()
        if self.repository is None or not lacking:
            return False
        progress.stage("downloading weights", sum(lacking.values()))
        self.repository.fetch(lacking, progress)
        return True


def locate(
    model: str,
    revision: str | None = None,
    progress: Progress | None = None,
    others: Iterable[str] = (),
) -> Source:
    """Find the checkpoint that `model` names; everything but its weights is there then.

    model: an existing directory, else the name of a shipped model (SHIPPED_MODELS), else owner/name on the
    Hugging Face hub, with or without `hf:` before it. revision: branch, tag or commit, for hub models only,
    where `@revision` behind the name says the same. others: names that the caller takes too, for the
    question whether one of them was meant.
    Raises NotACheckpoint, NotForExport, or a HubError: ModelNotFound (RevisionNotFound), GatedModel,
    HubUnavailable, DownloadFailed or HubNotInstalled.
    """
    path = Path(os.path.expanduser(model))
    if model and path.is_dir():  # Path("") would be the working directory
        _refuse_other_kinds(path)
        return Source(_without_revision(path, revision))
    if model and path.exists():
        kinds.refuse_file(path)
        what = "is a file" if path.is_file() else "is not a regular file"
        raise NotACheckpoint(f"{path}: {what}; give the directory that holds config.json and the weights")
    if model in SHIPPED_MODELS:
        shipped = Path(str(importlib.resources.files("edgekit.tools") / "tiny" / model))
        if not shipped.is_dir():
            raise ModelNotFound(f"{shipped}: this installation lacks the model {model}; reinstall edgekit")
        return Source(_without_revision(shipped, revision))
    name, behind = _hub_name(model, others)
    try:
        return _in_repository(name, revision or behind or None, progress or Silent())
    except RevisionNotFound:
        raise
    except ModelNotFound as error:
        meant = kinds.did_you_mean(model, (*SHIPPED_MODELS, *others))
        raise ModelNotFound(f"{error}{meant}") from error.__cause__


def check_name(model: str) -> None:
    """Raises ModelNotFound for what names nothing: no file, no shipped model, no repository of the hub, for
    which it is not looked.
    """
    if model not in SHIPPED_MODELS and not (model and Path(os.path.expanduser(model)).exists()):
        _hub_name(model)


def _hub_name(model: str, others: Iterable[str] = ()) -> tuple[str, str]:
    """The owner/name that `model` is, and the revision behind it. Raises ModelNotFound."""
    name, _, revision = model.removeprefix(HUB_PREFIX).partition("@")
    if not NAME.fullmatch(name):
        meant = kinds.did_you_mean(model, (*SHIPPED_MODELS, *others))
        raise ModelNotFound(
            f"{model}: no such directory, and neither a shipped model ({', '.join(SHIPPED_MODELS)}) "
            f"nor owner/name of a Hugging Face repository{meant}"
        )
    return name, revision


def adapter_folder(adapter: str, progress: Progress | None = None) -> Path:
    """The folder of the LoRA adapter that is named: an existing directory, or owner/name on the Hugging Face
    hub, as for `locate`, of which nothing but the adapter is downloaded.

    Raises:
        InvalidAdapter: there is no such folder, or the repository holds no adapter. HubError.
    """
    path, progress = Path(os.path.expanduser(adapter)), progress or Silent()
    if adapter and path.is_dir():
        return path
    name, _, revision = adapter.removeprefix(HUB_PREFIX).partition("@")
    if path.exists() or not NAME.fullmatch(name):
        found = "is a file" if path.exists() else "no such directory, nor owner/name of a repository"
        raise InvalidAdapter(f"{adapter}: {found}; give the folder that holds {ADAPTER_CONFIG}")
    repository = Repository.open(name, revision or None)
    if repository.remark:
        progress.note(f"note: {repository.remark}")
    wanted = [file for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if file in repository.files]
    if ADAPTER_CONFIG not in wanted:
        raise InvalidAdapter(f"{name}: has no {ADAPTER_CONFIG}, so it is no adapter in PEFT's layout")
    progress.stage("fetching the adapter", sum(repository.lacking(wanted).values()))
    repository.fetch(wanted, progress)
    return repository.folder


def resolve(model: str, revision: str | None = None) -> Path:
    """Directory of the checkpoint that `model` names, weights included. Arguments and errors as in
    `locate`.
    """
    source = locate(model, revision)
    source.fetch()
    return source.path


def _in_repository(name: str, revision: str | None, progress: Progress) -> Source:
    repository = Repository.open(name, revision)
    if repository.remark:
        progress.note(f"note: {repository.remark}")
    files = repository.files
    as_bundle = HUB_PREFIX + name + (f"@{revision}" if revision else "")
    kinds.refuse_other_kinds(name, files, lambda: kinds.config_in(repository.get(CONFIG)), as_bundle)
    if CONFIG not in files and not repository.online:
        raise _incomplete(repository, f"no {CONFIG}")
    if CONFIG not in files:
        raise NotACheckpoint(f"{name}: has no {CONFIG}, so it is no checkpoint in Hugging Face layout")
    wanted = [file for file in files if _is_small(file)]
    progress.stage("fetching config and tokenizer", sum(repository.lacking(wanted).values()))
    repository.fetch(wanted, progress)
    return Source(repository.folder, repository)


def _incomplete(repository: Repository, lacking: str) -> HubUnavailable:
    return HubUnavailable(
        f"{repository.name}: the hub cannot be reached and the cached copy is incomplete ({lacking}); go "
        "online, unset HF_HUB_OFFLINE, or give a local directory"
    )


def _is_small(name: str) -> bool:
    if name == CARD or is_legal(name):
        return True
    return any(fnmatch.fnmatchcase(name, p) and name.count("/") == p.count("/") for p in SMALL_FILES)


def _refuse_other_kinds(path: Path) -> None:
    # Names of packages, which are folders, and of files in folders of one level: enough to tell kinds apart.
    names = [entry.name + "/" * entry.is_dir() for entry in path.iterdir()]
    names += [f"{entry.parent.name}/{entry.name}" for entry in path.glob("*/*.onnx")]
    kinds.refuse_other_kinds(str(path), names, lambda: kinds.config_in(path / CONFIG))


def _without_revision(path: Path, revision: str | None) -> Path:
    if revision is not None:
        raise RevisionNotFound(f"{path}: only hub models have revisions, {revision} cannot be chosen")
    return path


@dataclass(frozen=True)
class _Remote:
    """The files of a repository; of weights that are not in the cache the headers are fetched alone."""

    repository: Repository

    def names(self) -> Collection[str]:
        return [name for name in self.repository.files if "/" not in name]

    def open(self, name: str) -> SafetensorsFile:
        repository = self.repository
        nbytes = repository.files[name].size
        block = b""

        def read(offset: int, count: int) -> bytes:
            nonlocal block
            if offset + count > len(block):
                block = repository.read_range(name, 0, max(offset + count, _HEADER_BLOCK_BYTES))
            return block[offset : offset + count]

        path = repository.folder / name
        stat = path.stat() if path.exists() else None
        identity = (0, nbytes, 0) if stat is None else (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return parse_safetensors(path, nbytes, identity, read)
