"""A bundle, or a set of them, into a repository on the Hugging Face hub."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import SET_NAME
from edgekit.flashload.errors import OpenFailed
from edgekit.flashload.files import file_digests
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.runtime.bundle import Bundle, model_card
from edgekit.runtime.bundle.packages import packaged
from edgekit.runtime.errors import one_line
from edgekit.runtime.hub import Progress, answers, verification
from edgekit.runtime.hub.answers import RemoteFile
from edgekit.runtime.hub.errors import (
    HubError,
    ModelNotFound,
    NotLoggedIn,
    UploadFailed,
    unexpected,
)
from edgekit.runtime.hub.repository import NAME, Repository
from edgekit.runtime.hub.translation import hub_like, translated
from edgekit.runtime.sampling import SamplerModel
from edgekit.runtime.sampling.answer_room import short_of

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
    card: str | None  # the model card of a bundle that has none among its files
    there: bool  # the repository holds all of it, as it is here


def check(folder: Path, repository: str, revision: str | None, private: bool, progress: Progress) -> Checked:
    """Look at everything that could be wrong before a byte is uploaded: the name, the login, every checksum.

    Raises:
        NotLoggedIn, ModelNotFound: what is wrong with the login or the name. BundleError: with the bundle.
        UploadFailed: the repository holds something else, or is public and should be private.
    """
    name = repository.removeprefix("hf:")
    if not NAME.fullmatch(name):
        raise ModelNotFound(f"{repository}: is not owner/name of a repository on the Hugging Face hub")
    if not folder.is_dir():
        raise OpenFailed(f"{folder}: {'is no folder of a bundle' if folder.exists() else 'no such folder'}")
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
    if private:
        _check_private(name)
    held = _held(name, revision)
    _check_room(name, held)
    verification.check(folder, files, progress)
    last = {SET_NAME, MANIFEST_NAME}
    names = sorted(files, key=lambda n: (n.rpartition("/")[2] in last, n))
    nbytes = sum((folder / n).stat().st_size for n in names)
    card = None if model_card.CARD in files else _card(folder)
    there = _is_there(folder, files, held, card)
    return Checked(folder, name, revision, private, tuple(names), nbytes, card, there)


def upload(checked: Checked) -> str:
    """Upload what was checked, byte for byte; returns the address of the page. What an interrupted upload has
    brought to the hub is not sent again; of a bundle that is there already, nothing is.

    Manifests are committed after all other files: until then there is no bundle, and a replaced one is
    refused by whoever downloads it meanwhile.
    Raises HubError.
    """
    name, revision = checked.repository, checked.revision
    with translated(name, revision, uploading=True), _quiet():
        import huggingface_hub

        api = huggingface_hub.HfApi(library_name="edgekit")
        page = f"{api.endpoint}/{name}"
        page = f"{page}/tree/{revision}" if revision not in (None, "main") else page
        if checked.there:
            return page
        try:
            api.create_repo(name, private=checked.private or None, exist_ok=True)
            if checked.private:  # it may have been made meanwhile
                _check_private(name)
            if revision is not None and revision != "main":
                api.create_branch(name, branch=revision, exist_ok=True)
            if checked.card is not None:
                api.upload_file(
                    path_or_fileobj=checked.card.encode(),
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
    return page


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside the block the library logs nothing but errors: that a commit would be empty is ours to say."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_private(name: str) -> None:
    """Refuse a repository that all may see. One that is not there will be made."""
    try:
        with translated(name):
            private = answers.is_private(name)
    except ModelNotFound:
        return
    if not private:
        raise UploadFailed(
            f"{name}: the repository exists and is public, and --private only makes new ones private; make "
            "it private in its settings on the hub, push to another name, or leave --private out"
        )


def _held(name: str, revision: str | None) -> Mapping[str, RemoteFile]:
    """Files that the branch holds; none if it, or the repository, will be made."""
    try:
        return Repository.open(name, revision).files
    except ModelNotFound:
        return {}


def _check_room(name: str, held: Mapping[str, RemoteFile]) -> None:
    """Refuse a repository that holds something else than a bundle: its model card would be replaced."""
    if MANIFEST_NAME in held or SET_NAME in held:
        return
    others = [n for n in held if n not in _BEGINNINGS and not model_card.is_legal(n)]
    if "config.json" in others or any(n.endswith((".safetensors", ".gguf", ".bin")) for n in others):
        raise UploadFailed(
            f"{name}: holds something else than a bundle ({others[0]}); push to a repository of its own"
        )


def _is_there(
    folder: Path,
    files: Mapping[str, verification.Entry | None],
    held: Mapping[str, RemoteFile],
    card: str | None,
) -> bool:
    """Whether the hub holds all files as they are here, a card that is written for it, and no manifest beyond
    them.
    """
    from huggingface_hub.utils.sha import git_hash

    if any(name in held and name not in files for name in (SET_NAME, MANIFEST_NAME)):
        return False
    if card is not None:
        remote = held.get(model_card.CARD)
        if remote is None or remote.blob != git_hash(card.encode()):
            return False
    for name, entry in files.items():
        remote, path = held.get(name), folder / name
        if remote is None or remote.size != path.stat().st_size:
            return False
        if remote.sha256 is not None:
            same = remote.sha256 == (entry.sha256 if entry is not None else file_digests(path)[1])
        else:
            same = remote.blob == git_hash(path.read_bytes())
        if not same:
            return False
    return True


def _card(folder: Path) -> str:
    """The model card of a bundle or set that has none among its files, as its export would write it. Raises
    BundleError.
    """
    if bundle_set.is_set(folder):
        folder = folder / bundle_set.load(folder).members[-1].path
    manifest = manifests.load(folder)
    short = None
    if packaged(manifest.format):
        bundle = Bundle.open(folder)
        model = SamplerModel.of(manifest.sampler, bundle.model, bundle.model.role_head)
        short = None if bundle.packages is None else short_of(model, bundle.packages.lengths())
    return model_card.card(manifest, short[1] if short else None)
