"""Bundles by name: a folder, or `hf:owner/name[@revision]` on the Hugging Face hub, which becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import BundleError, OpenFailed
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.flashload.sizes import size
from edgekit.runtime.bundle.choice import check_engine, check_written_for, choose
from edgekit.runtime.engine_registry import ENGINES, running
from edgekit.runtime.engines import check_available
from edgekit.runtime.errors import UnsupportedBundle
from edgekit.runtime.hub import Progress, Silent, verification
from edgekit.runtime.hub.answers import RemoteFile
from edgekit.runtime.hub.errors import HubError, ModelNotFound, NotABundle
from edgekit.runtime.hub.repository import NAME, Repository

PREFIX = "hf:"


def is_on_hub(bundle: str) -> bool:
    """Whether the name is one of a bundle on the hub."""
    return bundle.startswith(PREFIX)


def local_folder(
    bundle: str, engine: str | None = None, progress: Progress | None = None, *, to_run: bool = True
) -> Path:
    """The folder of a bundle, downloaded and compared with its checksums if it is named `hf:owner/name`. Of a
    set there, the folder of the bundle that `engine` or this system runs. Other names are returned as paths.

    The manifest comes first: a bundle that this version cannot read, or with `to_run` that no engine here
    runs, is refused before its weights are downloaded. Then exactly the files that it lists are.
    Raises HubError (NotABundle), BundleError (ChecksumMismatch), UnsupportedBundle, EngineUnavailable, or
    InvalidOption for an engine that does not exist.
    """
    progress = progress or Silent()
    check_engine(engine)
    if not is_on_hub(bundle):
        if NAME.fullmatch(bundle) and not Path(bundle).exists():
            raise OpenFailed(
                f"{bundle}: no such folder; for a bundle on the Hugging Face hub say {PREFIX}{bundle}"
            )
        return Path(bundle)
    name, _, revision = bundle.removeprefix(PREFIX).partition("@")
    if not NAME.fullmatch(name):
        raise ModelNotFound(f"{bundle}: is not {PREFIX}owner/name of a Hugging Face repository")
    repository = Repository.open(name, revision or None)
    if repository.remark:
        progress.note(f"note: {repository.remark}")
    member = _member(repository, engine)
    manifest_path = repository.get(f"{member}{MANIFEST_NAME}")
    manifest = manifests.load(manifest_path.parent)
    written = manifest.format
    if (row := running(written)) is None:
        raise UnsupportedBundle(
            f"{bundle}: is for the engine {written[:40]!r}, which this edgekit does not have; "
            f"it has {', '.join(ENGINES)}"
        )
    check_written_for(written, engine, bundle)
    if to_run:
        row.check_asked(engine, bundle)
        check_available(row.name if engine is None else engine)
    files = {f"{member}{file}": entry for file, entry in verification.listed(manifest).items()}
    _check_listing(bundle, repository, files)
    lacking = repository.lacking(files)
    known: set[str] = set()
    if lacking:
        progress.note(f"downloading {bundle}: {size(sum(lacking.values()))} to {repository.folder}")
        progress.stage("downloading", sum(lacking.values()))
        known = repository.fetch(lacking, progress)
    if not verification.is_verified(repository.commit, manifest_path):
        try:
            verification.check(repository.folder, files, progress, known)
        except BundleError as error:
            storage = repository.folder.parent.parent
            raise type(error)(f"{bundle}: {error}; to download it again, delete {storage}") from None
        verification.remember(repository.commit, manifest_path)
    return manifest_path.parent


def _member(repository: Repository, engine: str | None) -> str:
    """The folder of the bundle in the repository, with a slash behind it; empty for the repository itself."""
    files = repository.files
    if MANIFEST_NAME in files:
        return ""
    if bundle_set.SET_NAME not in files:
        raise _not_a_bundle(repository)
    repository.get(bundle_set.SET_NAME)
    folder = repository.folder
    member = choose(folder, engine, listed=True).relative_to(folder).as_posix()
    repository.get(f"{member}/{MANIFEST_NAME}")
    choose(folder, engine)  # the manifest is the one that bundles.json lists
    return member + "/"


def _not_a_bundle(repository: Repository) -> HubError:
    name, files = repository.name, repository.files
    if "config.json" in files and any(f.endswith(".safetensors") for f in files):
        return NotABundle(f"{name}: is a checkpoint, not a bundle; export it first: edgekit export {name}")
    return NotABundle(
        f"{name}: is no edgekit bundle: it has neither {MANIFEST_NAME} nor {bundle_set.SET_NAME}"
    )


def _check_listing(bundle: str, repository: Repository, files: Mapping[str, verification.Entry]) -> None:
    """Compare what the manifest lists with what the hub says that it has, before large files are fetched."""
    if not repository.online:
        return
    for name, entry in files.items():
        remote: RemoteFile | None = repository.files.get(name)
        if remote is None:
            raise NotABundle(
                f"{bundle}: lacks {name}, which its manifest lists; its owner must upload it again"
            )
        if remote.size != entry.size or (remote.sha256 or entry.sha256) != entry.sha256:
            raise NotABundle(
                f"{bundle}: {name} is not the file that its manifest lists; its owner must upload it again"
            )
