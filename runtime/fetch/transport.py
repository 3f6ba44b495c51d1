"""Answers to requests for bytes of a file: over HTTP, and from a folder of this machine."""

from __future__ import annotations

import http.client
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, build_opener
from urllib.request import Request as HttpRequest

from edgekit.flashload._native import load
from edgekit.flashload.errors import FetchFailed, InvalidRequest, one_line, quoted
from edgekit.flashload.fetch import Request

#: Read at once: small enough to stop soon.
_PART_BYTES = 256 << 10
#: Of the time that a request has for an answer, and for its next bytes; tests give less.
PATIENCE_SHARE = 1.0

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
    if source.startswith("hf:"):
        name, _, revision = source.removeprefix("hf:").partition("@")
        address = f"https://huggingface.co/{name or 'OWNER/NAME'}/resolve/{revision or 'main'}"
        raise InvalidRequest(
            f"{quoted(source, 200)}: is no address; on the hub that is {quoted(address, 200)}"
        )
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
        if not _has_place(address) or any(letter <= " " or letter == "\x7f" for letter in address):
            raise InvalidRequest(
                f"{quoted(address, 200)}: is no address; give that of a folder, as https://host/folder"
            )
        parts = urlsplit(address)
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
        patience_s = request.patience_s * PATIENCE_SHARE
        pace = _Pace(patience_s, request.least_bytes_s)
        asked.add_header("Accept-Encoding", "identity")
        asked.add_header("User-Agent", f"edgekit/{load().version}")
        if request.nbytes:
            asked.add_header("Range", f"bytes={request.offset}-{request.offset + request.nbytes - 1}")
        try:
            with _opener.open(asked, timeout=patience_s) as answer:
                coding = answer.headers.get("Content-Encoding", "").strip()
                if coding.lower() not in ("", "identity"):
                    raise FetchFailed(f"answered in the coding {quoted(coding)}, which was not asked for")
                _require_length(answer.headers)
                head(answer.status, answer.headers.get("Content-Range"))
                while part := answer.read1(_PART_BYTES):
                    pace.check(len(part))
                    yield part
        except HTTPError as error:
            with closing(error):
                head(error.code, error.headers.get("Content-Range"))
            raise FetchFailed(f"answered with HTTP status {error.code}") from None
        except URLError as error:
            raise FetchFailed(f"cannot be reached ({_reason(error.reason, patience_s)})") from None
        except (OSError, http.client.HTTPException) as error:
            raise FetchFailed(f"the connection broke ({_reason(error, patience_s)})") from None
        except ValueError as error:  # of an address that it leads to
            raise FetchFailed(f"leads to what is no address ({one_line(error)})") from None


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
            if not path.is_file():  # to open one may wait for ever
                raise FetchFailed(f"{path} is no file")
            with open(path, "rb") as file:
                file.seek(request.offset)
                left = request.nbytes or os.fstat(file.fileno()).st_size
                while left > 0 and (part := file.read(min(left, _PART_BYTES))):
                    left -= len(part)
                    yield part
        except OSError as error:
            raise FetchFailed(f"{path} cannot be read ({error.strerror})") from None


class _Redirects(HTTPRedirectHandler):
    """Follows redirects among addresses of http and https, but not from https to http. What such an answer
    has for people to read is left alone: it may have no end.
    """

    def http_error_302(self, req, fp, code, msg, headers):  # type: ignore[no-untyped-def]
        fp.close()
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        before, after = (urlsplit(address).scheme.lower() for address in (req.full_url, newurl))
        if after not in ("http", "https") or not _has_place(newurl):
            raise FetchFailed(f"leads to what is no address of the web, {quoted(newurl, 200)}")
        if before == "https" and after == "http":
            raise FetchFailed(f"leads to an address without encryption, {quoted(newurl, 200)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Pace:
    """Ends what gives a byte now and then, so that another source may give the rest."""

    def __init__(self, patience_s: float, least_bytes_s: int) -> None:
        self._patience_s, self._least_bytes_s = patience_s, least_bytes_s
        self._began, self._nbytes = time.monotonic(), 0

    def check(self, nbytes: int) -> None:
        """Raises FetchFailed where too little has come for too long."""
        self._nbytes += nbytes
        if (passed := time.monotonic() - self._began) < self._patience_s:
            return
        if self._nbytes < self._least_bytes_s * passed:
            raise FetchFailed(f"gave {self._nbytes} bytes in {passed:.0f} seconds")
        self._began, self._nbytes = time.monotonic(), 0


class _Watch:
    """Shuts a connection that lets one wait for too long, whatever it sends meanwhile: Python's reading
    of HTTP goes on for as long as something comes, be it no byte of a body.
    """

    def __init__(self, patience_s: float, find: Callable[[], socket.socket | None]) -> None:
        self._patience_s, self.find = patience_s, find
        self._until, self._is_late = math.inf, False
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self) -> None:
        """From now on something is waited for."""
        self._until = time.monotonic() + self._patience_s

    def end(self, what: str) -> None:
        """It is here, or will not come. Raises FetchFailed where it was too late."""
        self._until = math.inf
        if self._is_late:
            raise FetchFailed(f"gave no {what} in {self._patience_s:.0f} seconds")

    def close(self) -> None:
        self._over.set()

    def _look(self) -> None:
        left_s = self._patience_s  # no wait that begins meanwhile is over before
        while not self._over.wait(left_s):
            left_s = min(self._until - time.monotonic(), self._patience_s)
            if left_s > 0:
                continue
            if (found := self.find()) is None:  # it is still looked for
                left_s = self._patience_s
                continue
            self._is_late = True
            with suppress(OSError):
                # That of the TCP connection: TLS's own would wait for the other side.
                socket.socket.shutdown(found, socket.SHUT_RDWR)
            return


class _Answer(http.client.HTTPResponse):
    """An answer whose bytes have to come in time."""

    watch: _Watch | None = None

    def _read_status(self):  # type: ignore[no-untyped-def]
        """As the class above, but past all that only announces the answer, such as 103 Early Hints: Python
        does so with 100 alone. It ends with the time that the answer has to begin in.
        """
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if status <= 101 or status >= 200:  # 101 is an answer of its own
                return version, status, reason
            http.client.parse_headers(self.fp)

    def read1(self, n: int = -1) -> bytes:
        """As the class above. Raises FetchFailed too."""
        assert self.watch is not None
        self.watch.begin()
        try:
            return super().read1(n)
        finally:
            self.watch.end("bytes")

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()
        super().close()


class _InTime:
    """A connection whose answer has to begin within its timeout, and to go on so."""

    response_class: type[http.client.HTTPResponse] = _Answer
    sock: socket.socket | None
    timeout: float | None

    def request(self, *args: Any, **options: Any) -> None:
        """Raises FetchFailed where the connection is not there in time, OSError."""
        self._watch = _Watch(self.timeout or 0.0, lambda: self.sock)
        self._watch.begin()
        try:
            super().request(*args, **options)  # type: ignore[misc]
        except BaseException:
            self._watch.close()
            self._watch.end("answer")
            raise

    def getresponse(self) -> http.client.HTTPResponse:
        """Raises FetchFailed where it has not begun, OSError."""
        sock = self.sock
        self._watch.find = lambda: sock  # the connection lets go of it
        try:
            response: _Answer = super().getresponse()  # type: ignore[misc]
            self._watch.end("answer")
        except BaseException:
            self._watch.close()
            self._watch.end("answer")
            raise
        response.watch = self._watch
        return response


class _Http(_InTime, http.client.HTTPConnection):
    pass


class _Https(_InTime, http.client.HTTPSConnection):
    _context: ssl.SSLContext
    _tunnel_host: str | None

    def connect(self) -> None:
        """As the class above, but that what is shut when it is late is known before the handshake."""
        http.client.HTTPConnection.connect(self)
        assert self.sock is not None
        name = self._tunnel_host or self.host
        safe = self._context.wrap_socket(self.sock, server_hostname=name, do_handshake_on_connect=False)
        self.sock = safe
        safe.do_handshake()


class _HttpHandler(HTTPHandler):
    def http_open(self, req: HttpRequest) -> http.client.HTTPResponse:
        return self.do_open(_Http, req)


class _HttpsHandler(HTTPSHandler):
    def https_open(self, req: HttpRequest) -> http.client.HTTPResponse:
        return self.do_open(_Https, req)


_opener = build_opener(_Redirects, _HttpHandler, _HttpsHandler)


def _reason(error: object, patience_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing for {patience_s:.0f} seconds"
    if isinstance(error, http.client.IncompleteRead):
        return "its answer is not whole"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
        return "it answered with something else than HTTP"
    if isinstance(error, http.client.UnknownProtocol):
        return "it answered with another version of HTTP"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error) if isinstance(error, BaseException) else str(error)


def _require_length(headers: Message) -> None:
    """Raises FetchFailed for a Content-Length that gives none: where Python takes no notice of it, it reads
    for as long as the connection is open.
    """
    if "chunked" in headers.get("Transfer-Encoding", "").lower():
        return
    lengths = list(dict.fromkeys(said.strip() for said in headers.get_all("Content-Length", [])))
    if len(lengths) > 1:
        said = " and ".join(quoted(length) for length in lengths[:2])
        raise FetchFailed(f"answered with different lengths, Content-Length {said}")
    for length in lengths:
        if not (length.isascii() and length.isdigit()):
            raise FetchFailed(f"answered with Content-Length {quoted(length)}, which is no number of bytes")


def _has_place(address: str) -> bool:
    """Whether it names a host, and a port that there is, if any. Systems take others modulo 65536."""
    try:
        parts = urlsplit(address)
        return bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False


def _without_password(address: str) -> str:
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
