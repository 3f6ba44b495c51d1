"""Answers of the hub's API about a repository, checked: nothing else here takes a hub at its word.

A network that wants a login first, a wrong HF_ENDPOINT or a server with bad intentions can answer anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from edgekit.flashload.errors import quoted
from edgekit.flashload.strictjson import MAX_MARKS, marks
from edgekit.runtime.hub.errors import RevisionNotFound, unexpected

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
#: The hub lists 1000 files on a page.
MAX_PAGES = 1000
TIMEOUT_S = 30  # without a byte


@dataclass(frozen=True)
class RemoteFile:
    """A file of the repository: its size in bytes, and its SHA-256 where the hub knows it (large files)."""

    size: int
    sha256: str | None
    #: What git calls the content of a small file, where the hub says so.
    blob: str | None = None


def check_revision(name: str, revision: str | None) -> None:
    """Refuse what can be no branch for git: it names a file of the cache. Raises RevisionNotFound."""
    if revision is not None and (not is_relative(revision) or revision.startswith("-")):
        raise RevisionNotFound(f"{name}: {quoted(revision)} is no name of a branch, tag or commit")


def commit_of(name: str, revision: str | None) -> str:
    """The commit that a branch, tag or commit (None: main) is. Raises HubError, or the library's errors."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    url = f"{constants.ENDPOINT}/api/models/{name}"
    if revision is not None:
        url += f"/revision/{quote(revision, safe='')}"
    # Without another try: what is in the cache serves at once.
    headers = build_hf_headers(library_name="edgekit")
    said = _value(name, get_session().get(url, headers=headers, timeout=TIMEOUT_S))
    commit = said.get("sha") if isinstance(said, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        found = f"the commit {quoted(commit, 60)}" if isinstance(said, dict) else f"JSON of {_kind(said)}"
        raise unexpected(name, found)
    if revision is not None and COMMIT.fullmatch(revision) and commit != revision:
        raise unexpected(name, f"another commit, {commit}, than {revision}")
    return commit


def is_private(name: str) -> bool:
    """Whether only some may see the repository. Raises HubError, or the library's errors."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    headers = build_hf_headers(library_name="edgekit")
    url = f"{constants.ENDPOINT}/api/models/{name}"
    said = _value(name, get_session().get(url, headers=headers, timeout=TIMEOUT_S))
    private = said.get("private") if isinstance(said, dict) else None
    if not isinstance(private, bool):
        raise unexpected(name, "a repository that is neither public nor private")
    return private


def files_of(name: str, commit: str) -> dict[str, RemoteFile]:
    """All files of a commit by their paths. Raises HubError, or the library's errors."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, http_backoff

    files: dict[str, RemoteFile] = {}
    url = f"{constants.ENDPOINT}/api/models/{name}/tree/{commit}?recursive=true&expand=false"
    for _ in range(MAX_PAGES):
        headers = build_hf_headers(library_name="edgekit")
        response = http_backoff("GET", url, headers=headers, timeout=TIMEOUT_S)
        rows = _value(name, response)
        if not isinstance(rows, list):
            raise unexpected(name, f"JSON of {_kind(rows)} where a list of files should be")
        for row in rows:
            if not isinstance(row, dict) or not isinstance(row.get("type"), str):
                raise unexpected(name, "a list of something else than files")
            if row["type"] == "file":
                path, file = _file(name, row)
                files[path] = file
        following = _next(name, response)
        if following is None:
            return files
        url = following
    raise unexpected(name, f"a list of files that does not end after {MAX_PAGES} pages")


def is_relative(path: object) -> bool:
    """Whether a path stays below the folder that it is joined to, on every system."""
    if not isinstance(path, str) or "\\" in path or any(ord(letter) < 32 for letter in path):
        return False
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    drive = len(path) > 1 and path[1] == ":"
    return not drive and all(part not in ("", ".", "..") for part in path.split("/"))


def _file(name: str, row: Mapping[str, Any]) -> tuple[str, RemoteFile]:
    path, size, large = row.get("path"), row.get("size"), row.get("lfs")
    if not isinstance(path, str) or not is_relative(path):
        raise unexpected(name, f"a file named {quoted(path)}")
    sha256 = large.get("oid") if isinstance(large, dict) else None
    if type(size) is not int or not 0 <= size < 1 << 63:
        raise unexpected(name, f"{quoted(path)} of {quoted(size, 30)} bytes")
    if large is not None and not (isinstance(sha256, str) and SHA256.fullmatch(sha256)):
        raise unexpected(name, f"{quoted(path)} with the SHA-256 {quoted(sha256, 70)}")
    oid = row.get("oid")
    blob = oid if large is None and isinstance(oid, str) and COMMIT.fullmatch(oid) else None
    return path, RemoteFile(size, sha256, blob)


def _value(name: str, response: Any) -> Any:
    """The JSON of an answer."""
    from huggingface_hub.utils import hf_raise_for_status

    hf_raise_for_status(response)
    raw: bytes = response.content
    if marks(raw) > MAX_MARKS:
        raise unexpected(name, f"more than {MAX_MARKS} values at once")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        html = raw[:1000].lstrip().lower().startswith((b"<!doctype", b"<html", b"<head"))
        raise unexpected(name, "a web page" if html else "no JSON") from None


def _next(name: str, response: Any) -> str | None:
    """The address of the page after this one, which is the hub's own: the token goes there."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.utils import fix_hf_endpoint_in_url

    from edgekit.runtime.hub.client import origin

    try:
        link = response.links.get("next", {}).get("url")
        if link is None:
            return None
        # A mirror may pass on the addresses of the hub that it mirrors.
        url = fix_hf_endpoint_in_url(str(response.url.join(link)), constants.ENDPOINT)
        if origin(url) == origin(constants.ENDPOINT):
            return url
    except (httpx2.InvalidURL, ValueError):
        link = response.headers["link"]
    raise unexpected(name, f"a list of files that goes on at {quoted(link)}")


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
