"""A server of files on the loopback address that answers ranges, and fails in the ways that servers do.

with RangeServer(folder) as server:
    server.faults = iter([Cut(1000), WrongRange(), Damage(5)])     one for each request, then none
    fetch(server.url, "bundle")
    assert server.sent < 10_000
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from support.loopback import Loopback

_PART = 64 << 10


@dataclass(frozen=True)
class Fault:
    """What is done to one answer. Each field stands for itself; most are of use alone."""

    status: int | None = None  # in place of the answer, with a page of HTML
    cut: int | None = None  # the connection is closed behind so many bytes
    flip: int | None = None  # a bit of this byte, counted from the start of the answer, is another
    shift: int = 0  # the bytes are those so many further on; the headers are right
    said: str | None = None  # Content-Range
    whole: bool = False  # the range is ignored
    longer: bool = False  # its end is ignored
    surplus: bytes = b""  # behind the bytes, counted in Content-Length
    coding: str | None = None  # Content-Encoding
    lengths: tuple[str, ...] | None = None  # Content-Length, once for each
    before: bytes = b""  # the answer
    redirect: str | None = None  # to another address, "{path}" being what was asked for
    silent: bool = False  # the connection is closed before any answer
    instead: tuple[bytes, bytes] | None = None  # of an answer: the first, then the second again and again
    drips: bool = False  # a byte now and then
    endless: bool = False  # a body without end; with `redirect` of that answer, and with `drips` slowly


EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
#: Answers that always give something, and none of it is of a file's bytes. By what they give.
NOTHING_OF_USE = {
    "promises": Fault(instead=(b"", b"HTTP/1.1 100 Continue\r\n\r\n")),
    "hints": Fault(instead=(b"", EARLY_HINTS)),
    "status": Fault(instead=(b"HTTP/1.1 200 ", b"O")),
    "headers": Fault(instead=(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")),
    "size of a chunk": Fault(instead=(_CHUNKED + b"4\r\nsome\r\n1", b";a")),
    "trailers": Fault(instead=(_CHUNKED + b"4\r\nsome\r\n0\r\n", b"X: y\r\n")),
}


@dataclass
class Asked:
    """A request: the path below the folder, its range, what was answered, and how many bytes were sent."""

    path: str
    range: str | None
    status: int = 0
    sent: int = 0


@dataclass
class RangeServer(Loopback):
    """The server, in threads of this process, while its block lasts."""

    folder: Path
    faults: Iterator[Fault | None] | None = None
    #: Decides on the fault of a request in place of `faults`.
    fault_of: Callable[[Asked], Fault | None] | None = None
    #: Called behind every part that was sent, with the bytes sent so far.
    after_part: Callable[[int], object] | None = None
    without_ranges: bool = False
    part_s: float = 0.0  # between two parts
    log: list[Asked] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        owner = self
        self._lock = threading.Lock()

        class Handler(_Answering):
            server_of = owner

        self.listen(Handler)

    def serve_encrypted(self, context: ssl.SSLContext) -> str:
        """Speak TLS from now on; gives the address."""
        # Handshakes are for the threads of connections: one that fails must not end the server's own.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        return f"https://localhost:{self._server.server_port}"

    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [asked.path for asked in self.log]

    def next_fault(self, asked: Asked) -> Fault | None:
        with self._lock:
            self.log.append(asked)
            if self.fault_of is not None:
                return self.fault_of(asked)
            return None if self.faults is None else next(self.faults, None)

    def count(self, asked: Asked, nbytes: int) -> None:
        with self._lock:
            asked.sent += nbytes
            self.sent += nbytes
            total = self.sent
        if self.after_part is not None:
            self.after_part(total)


class _Answering(BaseHTTPRequestHandler):
    server_of: RangeServer

    def do_GET(self) -> None:
        owner = self.server_of
        asked = Asked(unquote(self.path).lstrip("/"), self.headers.get("Range"))
        fault = owner.next_fault(asked) or Fault()
        if fault.silent:
            return self.close_now()
        self.wfile.write(fault.before)
        if fault.redirect is not None:
            to = {"Location": fault.redirect.format(path=self.path)}
            if not fault.endless:
                return self.head(asked, 302, to | {"Content-Length": "0"})
            self.head(asked, 302, to)
            return self.go_on(b"\0" if fault.drips else bytes(_PART), 0.05 if fault.drips else 0.0)
        if fault.endless:
            self.head(asked, 200, {})
            return self.go_on(bytes(_PART))
        if fault.instead is not None:
            self.wfile.write(fault.instead[0])
            return self.go_on(fault.instead[1], 0.05)
        file = owner.folder / asked.path
        if fault.status is not None or not file.is_file():
            return self.page(asked, fault.status or 404)
        data = file.read_bytes()
        first, end, status = 0, len(data), 200
        if asked.range is not None and not (fault.whole or owner.without_ranges):
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.range)
            assert found is not None, asked.range
            first, end, status = int(found[1]), min(int(found[2]) + 1, len(data)), 206
            if fault.longer:
                end = len(data)
            if first >= end:
                return self.page(asked, 416)
        body = bytearray(data[first + fault.shift : end + fault.shift].ljust(end - first, b"\0"))
        if fault.flip is not None and body:
            body[fault.flip % len(body)] ^= 4
        body += fault.surplus
        headers = {"Content-Length": str(len(body))}
        if status == 206:
            headers["Content-Range"] = fault.said or f"bytes {first}-{end - 1}/{len(data)}"
        if fault.coding is not None:
            headers["Content-Encoding"] = fault.coding
        self.head(asked, status, headers, fault.lengths)
        for byte in body if fault.drips else b"":
            self.wfile.write(bytes([byte]))
            time.sleep(0.05)
        self.send(asked, bytes(body if fault.cut is None else body[: fault.cut]))
        if fault.cut is not None:
            self.close_now()

    def go_on(self, part: bytes, pause_s: float = 0.0) -> None:
        """Until the other side closes the connection."""
        while True:
            self.wfile.write(part)
            time.sleep(pause_s)

    def page(self, asked: Asked, status: int) -> None:
        body = b"<!doctype html><title>another page</title>"
        self.head(asked, status, {"Content-Length": str(len(body)), "Content-Type": "text/html"})
        self.send(asked, body)

    def head(
        self, asked: Asked, status: int, headers: dict[str, str], lengths: tuple[str, ...] | None = None
    ) -> None:
        asked.status = status
        self.send_response(status)
        for name, value in headers.items():
            if lengths is None or name != "Content-Length":
                self.send_header(name, value)
        for length in lengths or ():
            self.send_header("Content-Length", length)
        self.end_headers()

    def send(self, asked: Asked, body: bytes) -> None:
        for at in range(0, len(body), _PART):
            part = body[at : at + _PART]
            self.wfile.write(part)
            self.server_of.count(asked, len(part))
            if self.server_of.part_s:
                time.sleep(self.server_of.part_s)

    def close_now(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass
