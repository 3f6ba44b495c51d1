"""One commit of a repository on the Hugging Face hub: what it holds, and its files in the hub's local cache.

The cache is huggingface_hub's own, so that what other tools have downloaded is not downloaded again:

    models--owner--name/refs/main            the commit that a branch had when somebody looked
    models--owner--name/snapshots/COMMIT/    the files, links to
    models--owner--name/blobs/ETAG           their content; the ETag of a large file is its SHA-256
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import quoted
from edgekit.flashload.files import existing, file_digests, free_bytes
from edgekit.flashload.sizes import size
from edgekit.runtime.errors import one_line
from edgekit.runtime.hub import Progress, Silent, answers
from edgekit.runtime.hub.answers import RemoteFile
from edgekit.runtime.hub.errors import (
    DownloadFailed,
    HubBusy,
    HubUnavailable,
    unexpected,
)
from edgekit.runtime.hub.translation import hub_like, translated

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: Smaller files are fetched again from their beginning after an interruption: it costs a second or two.
RESUMED_FROM_BYTES = 16 << 20


@dataclass(frozen=True)
class Repository:
    """A repository at one commit; every file that it gives is that commit's."""

    name: str
    commit: str
    files: Mapping[str, RemoteFile]  # by path
    folder: Path  # of the cache, where the commit's files are or will be
    online: bool
    remark: str = ""  # what to tell the user, if the cache stands for a hub that does not answer

    @classmethod
    def open(cls, name: str, revision: str | None = None) -> Repository:
        """Look at branch, tag or commit `revision` of owner/name. Where the hub cannot be reached, what the
        cache has of it stands for the whole.

        Raises HubError.
        """
        answers.check_revision(name, revision)
        with translated(name, revision):
            import httpx2
            from huggingface_hub import constants, errors
            from huggingface_hub.file_download import repo_folder_name

            cache = Path(constants.HF_HUB_CACHE).expanduser().resolve()
            storage = cache / repo_folder_name(repo_id=name, repo_type="model")
            commit, remark, silent = None, "", None
            try:
                if not constants.HF_HUB_OFFLINE:
                    commit = answers.commit_of(name, revision)
            except (httpx2.TransportError, errors.HfHubHTTPError, HubBusy) as error:
                response = getattr(error, "response", None)
                status = error.status if isinstance(error, HubBusy) else getattr(response, "status_code", 500)
                if status < 500:  # it answered
                    raise
                silent = error
                remark = f"the hub cannot be reached ({one_line(error)}); taking what the cache has"
            if commit is None:
                try:
                    commit = _cached_commit(name, revision)
                except errors.RevisionResolutionError:
                    if isinstance(silent, HubBusy):
                        raise silent from None
                    raise
                folder = storage / "snapshots" / commit
                found = [p for p in folder.rglob("*") if p.is_file()]
                if not found:
                    raise HubUnavailable(
                        f"{name}@{commit}: the hub cannot be reached and there is no cached copy; go online, "
                        "unset HF_HUB_OFFLINE, or give a local directory"
                    )
                files = {p.relative_to(folder).as_posix(): RemoteFile(p.stat().st_size, None) for p in found}
                return cls(name, commit, files, folder, False, remark)
            _remember(storage, revision, commit)
            files = answers.files_of(name, commit)
        return cls(name, commit, files, storage / "snapshots" / commit, True)

    def lacking(self, names: Collection[str]) -> dict[str, int]:
        """Those of the files that the cache does not have, with their sizes in bytes (0: not known)."""
        absent = [name for name in names if not (self.folder / name).exists()]
        return {name: self.files[name].size if name in self.files else 0 for name in absent}

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a file, fewer at its end. Raises HubError."""
        stop = min(stop, self.files[name].size)
        if (self.folder / name).exists():
            with open(self.folder / name, "rb") as file:
                file.seek(start)
                return file.read(stop - start)
        with translated(self.name, self.commit, file=name, nbytes=self.files[name].size):
            from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

            headers = build_hf_headers(library_name="edgekit") | {
                "range": f"bytes={start}-{stop - 1}",
                "accept-encoding": "identity",
            }
            data = bytearray()
            with http_stream_backoff("GET", self._url(name), headers=headers, timeout=30) as response:
                hf_raise_for_status(response)
                # A server that does not know ranges sends all of it: no more is taken than was asked for.
                skip = start if response.status_code == 200 else 0
                for block in response.iter_bytes():
                    data += block
                    if len(data) >= skip + stop - start:
                        break
        return bytes(data[skip : skip + stop - start])

    def get(self, name: str) -> Path:
        """A small file, downloaded if it has to be. Raises HubError."""
        self.fetch([name])
        return self.folder / name

    def fetch(self, names: Collection[str], progress: Progress | None = None) -> set[str]:
        """Download files that the cache does not have. Returns those whose SHA-256 was found to be the hub's.

        What an interrupted download has brought of a large file stays in the cache and is gone on with: the
        library itself begins every file anew.
        Raises HubError.
        """
        progress = progress or Silent()
        lacking = self.lacking(names)
        if not lacking:
            return set()
        if not self.online:
            raise HubUnavailable(
                f"{self.name}@{self.commit}: the hub cannot be reached and the cached copy lacks "
                f"{next(iter(lacking))}; go online, unset HF_HUB_OFFLINE, or give a local directory"
            )
        self._check_space(sum(lacking.values()))
        checked = set()
        for name in lacking:
            remote = self.files.get(name)
            if remote is None:
                raise DownloadFailed(f"{self.name}@{self.commit}: has no file {quoted(name)}")
            with translated(self.name, self.commit, file=name, nbytes=remote.size):
                if self._fetch_one(name, progress):
                    checked.add(name)
        return checked

    def _fetch_one(self, name: str, progress: Progress) -> bool:
        """Whether the SHA-256 was checked."""
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download

        checked, at = False, f"{self.name}@{self.commit}: {name}"
        # The library has files of more than 50 GB by its own protocol only, and begins those anew.
        if RESUMED_FROM_BYTES <= self.files[name].size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            with hub_like(at):
                about = get_hf_file_metadata(self._url(name), library_name="edgekit")
            if about.size not in (None, self.files[name].size):
                raise unexpected(at, f"{about.size} bytes, and {self.files[name].size} in its list")
            if about.etag is not None and answers.SHA256.fullmatch(about.etag) and about.size is not None:
                self._fetch_blob(name, about.etag, about.size, progress)
                checked = True
        # What is in the cache already is linked, everything else is downloaded.
        with hub_like(at):
            hf_hub_download(
                self.name,
                name,
                revision=self.commit,
                library_name="edgekit",
                tqdm_class=None if checked else _bar(progress, name),
            )
        path, nbytes = self.folder / name, self.files[name].size
        if (found := path.stat().st_size) != nbytes:  # the library believes the answer, not the list
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise unexpected(at, f"{found} bytes, and {nbytes} in its list")
        return checked

    def _fetch_blob(self, name: str, sha256: str, nbytes: int, progress: Progress) -> None:
        """Bring a large file's content into the cache, in as many attempts as it takes."""
        from huggingface_hub.file_download import http_get, repo_folder_name
        from huggingface_hub.utils import WeakFileLock, build_hf_headers

        storage = self.folder.parent.parent
        blob = storage / "blobs" / sha256
        part = blob.with_name(f"{sha256}.edgekit.incomplete")
        lock = storage.parent / ".locks" / repo_folder_name(repo_id=self.name, repo_type="model")
        lock.mkdir(parents=True, exist_ok=True)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock / f"{sha256}.lock"):  # the library's: two downloads of it wait for each other
            if blob.exists():
                progress.advance(nbytes, name)
                return
            have = part.stat().st_size if part.exists() else 0
            if have > nbytes:
                part.unlink()
                have = 0
            if have:
                progress.note(f"{name}: going on at {size(have)} of {size(nbytes)}")
                progress.advance(have, name)
            with open(part, "ab") as file, hub_like(f"{self.name}@{self.commit}: {name}"):
                http_get(
                    self._url(name),
                    file,
                    resume_size=have,
                    headers=build_hf_headers(library_name="edgekit"),
                    expected_size=nbytes,
                    displayed_filename=name,
                    tqdm_class=_bar(progress, name),
                )
            if file_digests(part)[1] != sha256:
                part.unlink()
                raise DownloadFailed(
                    f"{self.name}@{self.commit}: {name}: what was downloaded has another SHA-256 than the "
                    "hub says; run this again, it is downloaded anew"
                )
            part.replace(blob)

    def _url(self, name: str) -> str:
        import huggingface_hub

        return huggingface_hub.hf_hub_url(self.name, name, revision=self.commit)

    def _check_space(self, needed: int) -> None:
        free = free_bytes(self.folder)
        if needed > free:
            raise DownloadFailed(
                f"{self.name}: the download takes {size(needed)}, and {existing(self.folder)} has "
                f"{size(free)} left; free some space, or set HF_HOME to a folder on another disk"
            )


def _cached_commit(name: str, revision: str | None) -> str:
    """The commit that a branch had when somebody looked. Raises HubUnavailable, or the library's errors."""
    import huggingface_hub

    api = huggingface_hub.HfApi(library_name="edgekit")
    commit: str = api.resolve_revision(name, revision=revision, local_files_only=True).resolved
    if not answers.COMMIT.fullmatch(commit):
        raise HubUnavailable(
            f"{name}: the hub cannot be reached, and its cache says that {revision or 'main'} is "
            f"{quoted(commit, 60)}, which is no commit; go online and run this again"
        )
    return commit


def _remember(storage: Path, revision: str | None, commit: str) -> None:
    """Note in the cache, as the library does, what commit a branch has. It need not be writable."""
    if revision is not None and answers.COMMIT.fullmatch(revision):
        return
    note = storage / "refs" / (revision or "main")
    with suppress(OSError):
        if not note.is_file() or note.read_text("utf-8") != commit:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(commit, "utf-8")


def origin(folder: Path) -> tuple[str | None, str] | None:
    """(owner/name, commit) of a folder that was downloaded from the hub: one of the cache's, or one that was
    downloaded to a folder of the user's choice, where only the commit is recorded, and which may have been
    changed since. None for others.
    """
    folder = folder.resolve()
    kind, *parts = folder.parent.parent.name.split("--")
    if (
        folder.parent.name == "snapshots"
        and kind == "models"
        and parts
        and answers.COMMIT.fullmatch(folder.name)
    ):
        return "/".join(parts), folder.name
    commits = set()
    for file in [folder / "config.json", *folder.glob("*.safetensors")]:
        record = folder / ".cache" / "huggingface" / "download" / f"{file.name}.metadata"
        try:
            commit, _, when = record.read_text("utf-8").split("\n")[:3]
            # As the library tells a file that was changed: by more than a second.
            unchanged = file.stat().st_mtime - 1 <= float(when)
        except (OSError, ValueError):
            return None
        commits.add(commit if unchanged and answers.COMMIT.fullmatch(commit) else "")
    return (None, commits.pop()) if len(commits) == 1 and "" not in commits else None


def _bar(progress: Progress, name: str) -> type[Any]:
    """A class in place of the library's progress bar: it tells `progress` of the bytes that are written.
    Those that Xet has received are told apart from them, so that they do not count twice.
    """

    class Bar:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, count: float | None = 1) -> None:
            progress.advance(int(count or 0), name)

        def update_transfer(self, count: float | None = 1) -> None: ...
        def close(self) -> None: ...
        def set_postfix_str(self, *_: Any, **__: Any) -> None: ...
        def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None: ...

    return Bar
