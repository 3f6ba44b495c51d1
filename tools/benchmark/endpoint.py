"""A model behind an OpenAI-compatible endpoint: POST .../chat/completions, answered as server-sent events."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from edgekit.flashload.names import shown
from edgekit.runtime.errors import one_line
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.tools.benchmark.reply import Reply, RequestFailed, reply_of

#: Where an address has no path of its own, and what the path ends in.
_VERSION, _PATH = "/v1", "/chat/completions"
#: Of an answer that is no success: its reason is at the beginning.
_MOST_ERROR_BYTES = 64 << 10
#: Behind an answer that is complete.
_MOST_END_BYTES = 64 << 10
#: Seconds for the end of an answer that is complete.
_END_S = 0.5
_CONNECTIONS: dict[str, type[HTTPConnection]] = {"http": HTTPConnection, "https": HTTPSConnection}


class EndpointUnusable(RequestFailed):
    """Every other request would fail for the same reason."""


@dataclass
class Endpoint:
    """One model of a server, asked over a connection that is kept. `body` are further members of every
    request, such as {"temperature": 0}; an answer may take `timeout_s` seconds. Raises InvalidOption for what
    is no address.
    """

    address: str
    model: str
    key: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 120.0
    _connection: HTTPConnection | None = field(default=None, init=False, repr=False)
    #: Its own, which the connection forgets where the server closes it behind an answer.
    _socket: socket.socket | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._url = _checked(self.address)
        path = self._url.path.rstrip("/")
        self.path = path if path.endswith(_PATH) else (path or _VERSION) + _PATH
        if self._url.query:
            self.path += f"?{self._url.query}"

    @property
    def host(self) -> str:
        """The name and port of the server: no password, no query."""
        return self._url.netloc.rpartition("@")[2]

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> Reply:
        """The answer to messages, with its times. Raises RequestFailed; EndpointUnusable where no other
        request would do better.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.body,
        }
        data = json.dumps(body).encode()
        started = time.perf_counter()
        try:
            with self._ending_after(self.timeout_s) as late:
                response = self._sent(data, late)
                if response.status != 200:
                    raise self._refused(response)
                found = reply_of(response, started, self.timeout_s)
            self._drain(response)
            return found
        except RequestFailed as error:
            self.close()
            if late.is_set():  # which ended the connection
                raise self._took_too_long() from error
            raise
        except (OSError, HTTPException, ValueError) as error:  # ValueError: lines that are no HTTP
            unusable = self._connection is None
            self.close()
            if not unusable and (late.is_set() or isinstance(error, TimeoutError)):
                raise self._took_too_long() from error
            if unusable:
                raise EndpointUnusable(
                    f"{self.host} cannot be reached: {_reason(error)}; is the server running, and is the "
                    "address right?"
                ) from error
            raise RequestFailed(f"{self.host} ended the connection: {_reason(error)}") from error

    def _took_too_long(self) -> RequestFailed:
        return RequestFailed(f"{self.host} took more than {self.timeout_s:g} s, see --timeout")

    @contextmanager
    def _ending_after(self, seconds: float) -> Iterator[threading.Event]:
        """Inside the block the connection ends after so many seconds, however slowly bytes come, and the
        event is set then.
        """
        late = threading.Event()

        def end() -> None:
            late.set()
            own = self._socket
            if own is not None:
                with suppress(OSError):  # not TLS's own, which waits for the other side
                    socket.socket.shutdown(own, socket.SHUT_RDWR)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    def _drain(self, response: HTTPResponse) -> None:
        """Have the connection ready for another request: nothing comes behind an answer but its end."""
        if self._connection is None or self._connection.sock is None:  # the server closes it
            self.close()
            return
        try:
            with self._ending_after(_END_S) as late:
                response.read(_MOST_END_BYTES)
            if late.is_set() or not response.isclosed():
                self.close()
        except (OSError, HTTPException, ValueError):
            self.close()

    def _sent(self, data: bytes, late: threading.Event) -> HTTPResponse:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        connection = self._connected()
        if late.is_set():
            raise TimeoutError
        connection.request("POST", self.path, data, headers)
        return connection.getresponse()

    def _connected(self) -> HTTPConnection:
        """The connection of the request before, where the server has kept it, or another one."""
        if self._connection is not None:
            own = self._connection.sock
            if own is not None and not select.select([own], [], [], 0)[0]:
                return self._connection
            self.close()
        made = self._made()
        made.connect()
        with suppress(OSError):  # a request is a small packet, and its answer another one
            made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._socket = made, made.sock
        return made

    def _made(self) -> HTTPConnection:
        url, kind = self._url, _CONNECTIONS[self._url.scheme]
        assert url.hostname is not None, "it was checked"
        proxy = getproxies().get(url.scheme)
        if proxy is None or proxy_bypass(url.netloc):
            return kind(url.hostname, url.port, timeout=self.timeout_s)
        through = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        made = kind(through.hostname or proxy, through.port, timeout=self.timeout_s)
        made.set_tunnel(url.hostname, url.port)
        return made

    def _refused(self, response: HTTPResponse) -> RequestFailed:
        said = _message(response.read(_MOST_ERROR_BYTES))
        status = f"{self.host} answered {response.status} {response.reason}".rstrip()
        hints = {
            401: "it wants another API key; --api-key names the environment variable that has one",
            403: "the API key may not do this",
            404: f"it has no {self.path}, or no model {shown(self.model)}",
        }
        if 300 <= response.status < 400:
            hints[response.status] = f"it is elsewhere: {shown(response.headers.get('Location', ''))}"
        hint = hints.get(response.status)
        line = "; ".join(filter(None, (f"{status}: {said}" if said else status, hint)))
        return RequestFailed(line) if hint is None else EndpointUnusable(line)

    def close(self) -> None:
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            connection.close()


def _checked(address: str) -> SplitResult:
    try:
        url = urlsplit(address)
        port_is_one = url.port is None or url.port > 0
    except ValueError:
        port_is_one = False
    if not port_is_one or not url.hostname or url.scheme not in _CONNECTIONS or not address.isascii():
        raise InvalidOption(f"{shown(address)} is no address; use one such as http://localhost:8080/v1")
    if url.username is not None:
        raise InvalidOption(f"the address of {shown(url.hostname)} has a password in it; use an API key")
    return url


def _message(data: bytes) -> str:
    """The reason in the body of an answer, in one line."""
    text = data.decode(errors="replace")
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        found = json.loads(text)
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, dict):
            found = found.get("error", found)
        text = str(found["message"] if isinstance(found, dict) else found)
    return one_line(Exception(text)) if text.strip() else ""


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or one_line(error)


def messages_as(prompt: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A prompt as the messages of a request."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
