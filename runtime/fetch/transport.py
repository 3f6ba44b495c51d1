"""Answers to requests for bytes of a file: over HTTP, and from a folder of this machine."""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, build_opener
from urllib.request import Request as HttpRequest

from edgekit.flashload._native import load
from edgekit.flashload.errors import FetchFailed, InvalidRequest, one_line, quoted
from edgekit.flashload.fetch import Request

#: Read at once: small enough to stop soon.
_PART_BYTES = 256 << 10
_TIMEOUT_S = 30.0

#: Takes the status and Content-Range of an answer; raises FetchFailed where it is of no use.
Head = Callable[[int, str | None], None]


class Transport(Protocol):
    """A place that bundles come from."""

    @property
    def name(self) -> str:
        """How messages call it."""
        ...

    def ask(self, request: Request, head: Head) -> Iterator[bytes]:
        """The bytes of a request, part by part, after `head` was told what they are.

        Raises FetchFailed.
        """
        ...


def transport(source: str) -> Transport:
    """The transport for an address, `http://`, `https://`, or the path of a folder.

    Raises InvalidRequest for anything else.
    """
    scheme = source.partition("://")[0] if "://" in source else ""
    if scheme.lower() in ("http", "https"):
        return Server.at(source)
    if scheme or not os.path.isdir(source):
        raise InvalidRequest(
            f"{quoted(source, 200)}: is neither an address (https://...) nor a folder of this machine"
        )
    return Folder(source)


@dataclass(frozen=True)
class Server:
    """Files over HTTP, below an address."""

    name: str
    _below: str

    @staticmethod
    def at(address: str) -> Server:
        """Raises InvalidRequest for what is no address of a folder."""
        try:
            parts = urlsplit(address)
            usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            usable = False
        if not usable or any(letter <= " " or letter == "\x7f" for letter in address):
            raise InvalidRequest(
                f"{quoted(address, 200)}: is no address; give that of a folder, as https://host/folder"
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise InvalidRequest(
                f"{quoted(_without_password(address), 200)}: has a user, a query or a fragment; "
                "give the address of a folder"
            )
        shown = address.rstrip("/")
        return Server(shown, quote(shown, safe="/:%[]~!$&'()*+,;=@"))

    def ask(self, request: Request, head: Head) -> Iterator[bytes]:
        """As `Transport.ask`; redirects are followed, from https to https alone."""
        asked = HttpRequest(f"{self._below}/{quote(request.name)}")
        asked.add_header("Accept-Encoding", "identity")
        asked.add_header("User-Agent", f"edgekit/{load().version}")
        if request.nbytes:
            asked.add_header("Range", f"bytes={request.offset}-{request.offset + request.nbytes - 1}")
        try:
            with _opener.open(asked, timeout=_TIMEOUT_S) as answer:
                if (coded := answer.headers.get("Content-Encoding", "identity")) != "identity":
                    raise FetchFailed(f"answered in the coding {quoted(coded)}, which was not asked for")
                head(answer.status, answer.headers.get("Content-Range"))
                while part := answer.read1(_PART_BYTES):
                    yield part
        except HTTPError as error:
            with error:
                head(error.code, error.headers.get("Content-Range"))
            raise FetchFailed(f"answered with HTTP status {error.code}") from None
        except URLError as error:
            raise FetchFailed(f"cannot be reached ({_reason(error.reason)})") from None
        except (OSError, http.client.HTTPException) as error:
            raise FetchFailed(f"the connection broke ({_reason(error)})") from None


@dataclass(frozen=True)
class Folder:
    """Files of a folder of this machine."""

    name: str

    def ask(self, request: Request, head: Head) -> Iterator[bytes]:
        """As `Transport.ask`."""
        path = Path(self.name, request.name)
        try:
            if not path.exists():
                head(404, None)
            with open(path, "rb") as file:
                file.seek(request.offset)
                left = request.nbytes or os.fstat(file.fileno()).st_size
                while left > 0 and (part := file.read(min(left, _PART_BYTES))):
                    left -= len(part)
                    yield part
        except OSError as error:
            raise FetchFailed(f"{path} cannot be read ({error.strerror})") from None


class _Redirects(HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise FetchFailed(f"leads to an address without encryption, {quoted(newurl, 200)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = build_opener(_Redirects)


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing for {_TIMEOUT_S:.0f} seconds"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error) if isinstance(error, BaseException) else str(error)


def _without_password(address: str) -> str:
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
