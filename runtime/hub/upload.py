"""A bundle, or a set of them, into a repository on the Hugging Face hub."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import SET_NAME
from edgekit.flashload.errors import OpenFailed
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.runtime import model_card
from edgekit.runtime.errors import one_line
from edgekit.runtime.hub import Progress, verification
from edgekit.runtime.hub.answers import RemoteFile
from edgekit.runtime.hub.errors import (
    HubError,
    ModelNotFound,
    NotLoggedIn,
    UploadFailed,
    hub_like,
    translated,
    unexpected,
)
from edgekit.runtime.hub.repository import NAME, Repository

#: What a repository may hold that was not made for a bundle.
_BEGINNINGS = (".gitattributes", ".gitignore", model_card.CARD)


@dataclass(frozen=True)
class Checked:
    """A bundle whose files were compared with their checksums, and the repository that it goes to."""

    folder: Path
    repository: str
    revision: str | None
    private: bool
    names: tuple[str, ...]  # of all files, with forward slashes; those that say what a bundle is come last
    nbytes: int


def check(folder: Path, repository: str, revision: str | None, private: bool, progress: Progress) -> Checked:
    """Look at everything that could be wrong before a byte is uploaded: the name, the login, every checksum.

    Raises:
        NotLoggedIn, ModelNotFound: what is wrong with the login or the name. BundleError: with the bundle.
        UploadFailed: the repository holds something else.
    """
    name = repository.removeprefix("hf:")
    if not NAME.fullmatch(name):
        raise ModelNotFound(f"{repository}: is not owner/name of a repository on the Hugging Face hub")
    several = bundle_set.is_set(folder)
    if not several and not (folder / MANIFEST_NAME).is_file():
        raise OpenFailed(f"{folder}: has no {MANIFEST_NAME}: not a bundle, or an unfinished export")
    files = verification.listed_below(folder)
    with translated(name, uploading=True):
        import huggingface_hub

        if not huggingface_hub.get_token():
            raise NotLoggedIn(
                f"{name}: uploading needs a login: `hf auth login` with a token that may write, or HF_TOKEN"
            )
        with hub_like(name):
            huggingface_hub.HfApi(library_name="edgekit").whoami()
    _check_room(name, revision)
    verification.check(folder, files, progress)
    last = {SET_NAME, MANIFEST_NAME}
    names = sorted(files, key=lambda n: (n.rpartition("/")[2] in last, n))
    nbytes = sum((folder / n).stat().st_size for n in names)
    return Checked(folder, name, revision, private, tuple(names), nbytes)


def upload(checked: Checked) -> str:
    """Upload what was checked, byte for byte; returns the address of the page. What an interrupted upload has
    brought to the hub is not sent again.

    Manifests are committed after all other files: until then there is no bundle, and a replaced one is
    refused by whoever downloads it meanwhile.
    Raises HubError.
    """
    name, revision = checked.repository, checked.revision
    with translated(name, revision, uploading=True):
        import huggingface_hub

        api = huggingface_hub.HfApi(library_name="edgekit")
        try:
            api.create_repo(name, private=checked.private or None, exist_ok=True)
            if revision is not None and revision != "main":
                api.create_branch(name, branch=revision, exist_ok=True)
            if model_card.CARD not in checked.names:
                api.upload_file(
                    path_or_fileobj=_card(checked.folder).encode(),
                    path_in_repo=model_card.CARD,
                    repo_id=name,
                    revision=revision,
                    commit_message="Model card",
                )
            ends = (SET_NAME, MANIFEST_NAME)
            last = [n for n in checked.names if n.rpartition("/")[2] in ends]
            for part, message in (
                ([n for n in checked.names if n not in last], "Files of the bundle"),
                (last, "Manifest of the bundle"),
            ):
                api.upload_folder(
                    repo_id=name,
                    folder_path=checked.folder,
                    revision=revision,
                    allow_patterns=[glob.escape(n) for n in part],
                    # A set in place of a bundle, or the other way round: both manifests would be there.
                    delete_patterns=list(ends) if part is last else None,
                    commit_message=message,
                    commit_description=f"{len(checked.names)} files compared with their SHA-256 by edgekit",
                )
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
            if isinstance(error, huggingface_hub.errors.HFValidationError | OSError):
                raise
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            if isinstance(cause, HubError):
                raise cause from error
            if isinstance(error, JSONDecodeError | RecursionError) or not isinstance(
                error, RuntimeError | ValueError
            ):
                raise unexpected(name, one_line(error)[:100]) from error
            raise UploadFailed(
                f"{name}: the upload failed ({one_line(cause)}); run this again, it goes on where it stopped"
            ) from error
        page = f"{api.endpoint}/{name}"
    return f"{page}/tree/{revision}" if revision not in (None, "main") else page


def _check_room(name: str, revision: str | None) -> None:
    """Refuse a repository that holds something else than a bundle: its model card would be replaced."""
    try:
        held: dict[str, RemoteFile] = dict(Repository.open(name, revision).files)
    except ModelNotFound:  # it, or the branch, will be made
        return
    if MANIFEST_NAME in held or SET_NAME in held:
        return
    others = [n for n in held if n not in _BEGINNINGS and not model_card.is_legal(n)]
    if "config.json" in others or any(n.endswith((".safetensors", ".gguf", ".bin")) for n in others):
        raise UploadFailed(
            f"{name}: holds something else than a bundle ({others[0]}); push to a repository of its own"
        )


def _card(folder: Path) -> str:
    """The model card of a bundle that has none among its files."""
    if bundle_set.is_set(folder):
        folder = folder / bundle_set.load(folder).members[-1].path
    return model_card.card(manifests.load(folder))
