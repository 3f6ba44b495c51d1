"""A Hugging Face hub on the loopback address: the part of its protocol that downloads and uploads use.

    with FakeHub() as hub:
        hub.add("owner/name", {"config.json": b"{}", ...})
        ... with HF_ENDPOINT set to hub.url ...
        assert hub.requests("GET", "model.safetensors") == []

Files of at least `large_bytes` are in large file storage: their ETag is their SHA-256, and the hub redirects
to another host for their content, as the real one does to its content servers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from support.loopback import Loopback

LARGE_BYTES = 4096
TOKEN = "hf_a_token_that_may_write"
_BLOCK = 16 << 10


@dataclass
class Request:
    """A request, and how many bytes of content were sent for it."""

    method: str
    path: str
    range: str | None = None
    status: int = 0
    sent: int = 0
    authorized: bool = False  # whether there was a token with it


@dataclass
class Repo:
    """Branches and commits of a repository."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        text = json.dumps([len(self.commits), sorted(files)]).encode()
        oid = hashlib.sha1(text + b"".join(files[name] for name in sorted(files))).hexdigest()
        self.commits[oid] = dict(files)
        self.branches[branch] = oid
        return oid

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)


class FakeHub(Loopback):
    """The server, in threads of this process, while its block lasts."""

    def __init__(self, large_bytes: int = LARGE_BYTES) -> None:
        self.repos: dict[str, Repo] = {}
        self.log: list[Request] = []
        self.large_bytes = large_bytes
        self.stored: dict[str, bytes] = {}  # large files by SHA-256
        self.served_as: dict[str, bytes] = {}  # content that is sent in place of a path's own
        self.without_ranges = False
        #: Answers that no hub gives, by the regular expression of a path (before a query).
        self.instead: dict[str, Callable[[Answering], None]] = {}
        hub = self

        class Handler(Answering):
            pass

        Handler.hub = hub
        self.listen(Handler)

    def add(self, name: str, files: Mapping[str, bytes], branch: str = "main", **facts: Any) -> str:
        """A commit of a repository, which is made if it is not there; returns the commit's id."""
        repo = self.repos.setdefault(name, Repo(**facts))
        for data in files.values():
            self.stored[hashlib.sha256(data).hexdigest()] = data
        return repo.commit(files, branch)

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        """The files of a branch."""
        repo = self.repos[name]
        return repo.commits[repo.branches[branch]]

    def requests(self, method: str, ending: str) -> list[Request]:
        """The requests so far whose path ends so; content of large files is asked for under their name."""
        return [r for r in self.log if r.method == method and r.path.endswith(ending)]


class Answering(BaseHTTPRequestHandler):
    """One request that is being answered."""

    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def _answer(self, status: int, body: bytes = b"", **headers: Any) -> None:
        self._entry.status = status
        self.send_response(status)
        self.send_header("Content-Length", headers.pop("length", len(body)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            for begin in range(0, len(body), _BLOCK):
                self.wfile.write(body[begin : begin + _BLOCK])
                self._entry.sent += len(body[begin : begin + _BLOCK])

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def _error(self, status: int, code: str, message: str = "") -> None:
        self._answer(status, b"{}", X_Error_Code=code, X_Error_Message=message or code)

    def _handle(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self._entry = Request(self.command, path, self.headers.get("range"))
        self._entry.authorized = "authorization" in self.headers
        self.hub.log.append(self._entry)
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else self._chunks()
        try:
            for pattern, answer in self.hub.instead.items():
                if re.fullmatch(pattern, path):
                    answer(self)
                    return
            for pattern, name in _ROUTES:
                if found := re.fullmatch(pattern, path):
                    getattr(self, name)(*found.groups(), *([body] if self.command in ("POST", "PUT") else []))
                    return
            self._error(404, "NotFound", f"no route for {path}")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client was interrupted

    def says(self, body: bytes | str, status: int = 200, **headers: Any) -> None:
        """Answer with this content; `_` in names of headers stands for `-`."""
        self._answer(status, body if isinstance(body, bytes) else body.encode(), **headers)

    def goes_on(self, blocks: Iterable[bytes], **headers: Any) -> None:
        """Answer without saying how long the content is."""
        self.close_connection = True
        self._entry.status = 200
        self.send_response(200)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        self.send_header("Connection", "close")
        self.end_headers()
        for block in blocks if self.command != "HEAD" else ():
            self.wfile.write(block)
            self._entry.sent += len(block)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _chunks(self) -> bytes:
        data = b""
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return data

    def _may_write(self) -> bool:
        if self.headers.get("authorization") == f"Bearer {TOKEN}":
            return True
        self._error(401, "Unauthorized", "Invalid credentials in Authorization header")
        return False

    def _repo(self, name: str, content: bool = False) -> Repo | None:
        repo = self.hub.repos.get(name)
        known = self.headers.get("authorization") == f"Bearer {TOKEN}"
        if repo is None or (repo.private and not known):
            self._error(404 if known else 401, "RepoNotFound", "Repository not found")
            return None
        if content and repo.gated:
            self._error(403, "GatedRepo", "Access to this model is restricted")
            return None
        return repo

    # --- downloading

    def _info(self, name: str, revision: str | None = None) -> None:
        if (repo := self._repo(name)) is None:
            return
        if (commit := repo.resolve(revision or "main")) is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        siblings = [{"rfilename": file} for file in repo.commits[commit]]
        self._json(
            {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": repo.private}
        )

    def _tree(self, name: str, revision: str) -> None:
        if (repo := self._repo(name)) is None:
            return
        if (commit := repo.resolve(revision)) is None:
            self._error(404, "RevisionNotFound")
            return
        rows = []
        for path, data in repo.commits[commit].items():
            row: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _git_oid(data)}
            if len(data) >= self.hub.large_bytes:
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            rows.append(row)
        self._json(rows)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        if (repo := self._repo(name, content=True)) is None:
            return
        commit = repo.resolve(revision)
        if commit is None:
            self._error(404, "RevisionNotFound")
            return
        if path not in repo.commits[commit]:
            self._answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            return
        data = repo.commits[commit][path]
        if len(data) >= self.hub.large_bytes:
            sha = hashlib.sha256(data).hexdigest()
            facts = {"X_Linked_Etag": f'"{sha}"', "X_Linked_Size": len(data), "X_Repo_Commit": commit}
            # Another host than the hub's: the library does not follow there when it asks for the ETag.
            elsewhere = self.hub.url.replace("127.0.0.1", "localhost")
            self._answer(302, b"", Location=f"{elsewhere}/content/{sha}/{path}", **facts)
        else:
            self._content(self.hub.served_as.get(path, data), f'"{_git_oid(data)}"', X_Repo_Commit=commit)

    def _large(self, sha: str, path: str) -> None:
        self._content(self.hub.served_as.get(path, self.hub.stored[sha]), f'"{sha}"')

    def _content(self, data: bytes, etag: str, **facts: Any) -> None:
        facts |= {"ETag": etag, "Accept_Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        if asked is None or self.hub.without_ranges:
            self._answer(200, b"" if self.command == "HEAD" else data, length=len(data), **facts)
            return
        begin = int(asked[1])
        part = data[begin : int(asked[2]) + 1 if asked[2] else len(data)]
        self._answer(206, part, Content_Range=f"bytes {begin}-{begin + len(part) - 1}/{len(data)}", **facts)

    # --- uploading

    def _who(self) -> None:
        if self._may_write():
            self._json({"type": "user", "name": "owner", "auth": {"type": "access_token"}})

    def _create(self, body: bytes) -> None:
        if not self._may_write():
            return
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repos:
            self._json({"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}, 409)
            return
        self.hub.add(name, {".gitattributes": b"* text\n"}, private=asked.get("visibility") == "private")
        self._json({"url": f"{self.hub.url}/{name}", "name": name})

    def _branch(self, name: str, branch: str, body: bytes) -> None:
        repo = self.hub.repos[name]
        if branch in repo.branches:
            self._error(409, "Conflict", "Reference already exists")
            return
        repo.branches[branch] = repo.branches["main"]
        self._json({})

    def _yaml(self, body: bytes) -> None:
        import yaml

        content = json.loads(body)["content"]
        front = content.split("---\n")[1] if content.startswith("---\n") else ""
        try:
            good = isinstance(yaml.safe_load(front), dict)
        except yaml.YAMLError:
            good = False
        errors = [] if good else [{"message": "no metadata"}]
        self._json({"errors": errors, "warnings": []}, 200 if good else 400)

    def _preupload(self, name: str, revision: str, body: bytes) -> None:
        if not self._may_write():
            return
        repo = self.hub.repos[name]
        held = repo.commits[repo.branches[revision]]
        rows = []
        for file in json.loads(body)["files"]:
            large = file["size"] >= self.hub.large_bytes
            data = held.get(file["path"])
            oid = None if data is None else hashlib.sha256(data).hexdigest() if large else _git_oid(data)
            mode = "lfs" if large else "regular"
            rows.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._json({"files": rows})

    def _batch(self, name: str, body: bytes) -> None:
        if not self._may_write():
            return
        rows = []
        for item in json.loads(body)["objects"]:
            row = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub.stored:
                row["actions"] = {"upload": {"href": f"{self.hub.url}/upload/{item['oid']}", "header": {}}}
            rows.append(row)
        self._answer(
            200,
            json.dumps({"transfer": "basic", "objects": rows}).encode(),
            Content_Type="application/vnd.git-lfs+json",
        )

    def _upload(self, oid: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._error(400, "BadRequest", "not the object")
            return
        self.hub.stored[oid] = body
        self._answer(200)

    def _commit(self, name: str, branch: str, body: bytes) -> None:
        if not self._may_write():
            return
        repo = self.hub.repos[name]
        files = dict(repo.commits[repo.branches[branch]])
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        oid = repo.commit(files, branch)
        self._json({"commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "commitOid": oid})


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


_REPO = r"([^/]+/[^/]+)"
_ROUTES = (
    (rf"/api/models/{_REPO}", "_info"),
    (rf"/api/models/{_REPO}/revision/(.+)", "_info"),
    (rf"/api/models/{_REPO}/tree/([^/]+)", "_tree"),
    (rf"/{_REPO}/resolve/([^/]+)/(.+)", "_resolve"),
    (r"/content/([0-9a-f]+)/(.+)", "_large"),
    (r"/api/whoami-v2", "_who"),
    (r"/api/repos/create", "_create"),
    (rf"/api/models/{_REPO}/branch/(.+)", "_branch"),
    (r"/api/validate-yaml", "_yaml"),
    (rf"/api/models/{_REPO}/preupload/(.+)", "_preupload"),
    (rf"/{_REPO}\.git/info/lfs/objects/batch", "_batch"),
    (r"/upload/([0-9a-f]+)", "_upload"),
    (rf"/api/models/{_REPO}/commit/(.+)", "_commit"),
)
