"""huggingface_hub's connection while edgekit uses it: who gets the token, and what a server may cost.

The library has one client for the whole process, which a program may use, or replace, for itself. So two
hooks are added to whatever client its factory makes; outside of `terms` they do nothing, and neither in other
threads.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import httpx2
from huggingface_hub import constants, set_client_factory
from huggingface_hub.utils import _http, parse_ratelimit_headers

from edgekit.runtime.hub.errors import (
    DownloadFailed,
    HubBusy,
    HubError,
    HubUnavailable,
    UnexpectedAnswer,
    unexpected,
)

#: Of all answers of the API to one question together, unpacked: the hub lists a file in about 300 bytes.
MAX_ANSWER_BYTES = 64 << 20
#: Of what comes with an error or a redirect.
MAX_OTHER_BYTES = 1 << 20
#: Seconds that all answers of the API to one question may be on their way together, behind their headers.
MAX_ANSWER_S = 60.0
#: Files come faster: bytes per second, over so many seconds of waiting.
MIN_SPEED, SPEED_WINDOW_S = 1024, 60.0
#: A longer wait than this is the user's to decide about.
MAX_WAIT_S = 60
#: The issuer of tokens: a mirror (HF_ENDPOINT) may send us back to it.
_ISSUER = "https://huggingface.co"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}")  # an ETag names a file in the cache
_PACKING, _BLOCK_BYTES = "gzip", 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-.*")


@dataclass
class Terms:
    """The terms that answers are held to: `nbytes` is the size of the file that is asked for, `commit` the
    one that it belongs to. `about` begins messages.
    """

    about: str
    answer_bytes: int
    nbytes: int | None = None
    commit: str | None = None
    answer_seconds: float = MAX_ANSWER_S


_TERMS: ContextVar[Terms | None] = ContextVar("edgekit hub terms", default=None)


@contextmanager
def terms(about: str, nbytes: int | None = None, commit: str | None = None) -> Iterator[None]:
    """Inside the block the library's requests of this thread are made on these terms.

    Raises UnexpectedAnswer or HubBusy where the server does not keep to them.
    """
    _install()
    token = _TERMS.set(Terms(about, MAX_ANSWER_BYTES, nbytes, commit, MAX_ANSWER_S))
    try:
        yield
    finally:
        _TERMS.reset(token)


def origin(url: httpx2.URL | str) -> tuple[str, str, int | None]:
    """Scheme, host and port. Raises httpx2.InvalidURL."""
    url = httpx2.URL(url)
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _install() -> None:
    # There is no public way to ask for the factory; a program's own one (proxies, certificates) is kept.
    # Setting it closes the client that is there: done once, not in every block.
    inner = getattr(_http, "_GLOBAL_CLIENT_FACTORY", _http.default_client_factory)
    if getattr(inner, "edgekit", False):
        return

    def factory() -> httpx2.Client:
        client: httpx2.Client = inner()
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks["request"], _before],
            "response": [_after, *hooks["response"]],
        }
        return client

    factory.edgekit = True  # type: ignore[attr-defined]
    set_client_factory(factory)


def _before(request: httpx2.Request) -> None:
    """The library gives the token to whatever address a page of its own names as the next one, and takes
    packings that are not unpacked here.
    """
    if _TERMS.get() is None:
        return
    if request.headers.get("accept-encoding", "").strip() != "identity":
        request.headers["accept-encoding"] = _PACKING
    if not request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    if not _has_the_token(request.url):
        del request.headers["authorization"]


def _has_the_token(url: httpx2.URL | str) -> bool:
    return origin(url) in (origin(constants.ENDPOINT), origin(_ISSUER))


def _after(response: httpx2.Response) -> None:
    held = _TERMS.get()
    if held is None:
        return
    request, status = response.request, response.status_code
    if status >= 400:
        wait = _wait_asked_for(response)
        if wait > MAX_WAIT_S:
            raise HubBusy(
                f"{held.about}: too many requests, or the hub is busy ({status}): it asks to wait "
                f"{_duration(wait)}; run this again then",
                status,
            )
    commit = response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
    if held.commit is not None and commit not in (None, held.commit):
        raise unexpected(held.about, f"a file of another commit, {commit[:60]!r}")
    if request.method == "HEAD":
        headers = response.headers
        label = headers.get(constants.HUGGINGFACE_HEADER_X_LINKED_ETAG) or headers.get("etag")
        if label is not None and not _LABEL.fullmatch(label.removeprefix("W/").strip('"')):
            raise unexpected(held.about, f"the ETag {label[:60]!r}")
        if route := _xet_route(response):
            raise unexpected(held.about, f"a key for Xet at {route[:60]!r}")
    elif status >= 400:
        _replace(response, httpx2.ByteStream(_error_body(response, held)))
    else:
        _replace(response, _Bounded(response, held))


def _xet_route(response: httpx2.Response) -> str | None:
    """The address, if it is not the hub's, where the library's native part would ask with our token."""
    try:
        link = response.links.get(constants.HUGGINGFACE_HEADER_LINK_XET_AUTH_KEY, {}).get("url")
        route = link or response.headers.get(constants.HUGGINGFACE_HEADER_X_XET_REFRESH_ROUTE)
        return None if route is None or _has_the_token(route) else route
    except (httpx2.InvalidURL, ValueError):
        return "no address"


def _replace(response: httpx2.Response, stream: httpx2.SyncByteStream) -> None:
    """Give the response an unpacked content."""
    if response.headers.pop("content-encoding", "identity") != "identity":
        response.headers.pop("content-length", None)  # it is that of the packed content
    response.stream = stream


class _Bounded(httpx2.SyncByteStream):
    """The content of a response, unpacked block by block, up to what it may be."""

    def __init__(self, response: httpx2.Response, held: Terms) -> None:
        self._raw, self._held = response.stream, held
        self._packing = response.headers.get("content-encoding")
        request = response.request
        # Small files come from below /api/ too. For one that comes by Xet the library asks for a key first.
        api = httpx2.URL(constants.ENDPOINT).path.rstrip("/") + "/api/"
        is_key = request.url.path.startswith(api) and "/xet-read-token/" in request.url.path
        self._is_file = held.nbytes is not None and not is_key
        self._left = MAX_OTHER_BYTES
        if response.is_success and held.nbytes is not None and self._is_file:
            asked = _RANGE.fullmatch(request.headers.get("range", ""))
            begun = int(asked[1]) if asked is not None and response.status_code == 206 else 0
            self._left = held.nbytes - begun
        elif response.is_success:
            self._left = held.answer_bytes

    def __iter__(self) -> Iterator[bytes]:
        if self._packing in (None, "identity"):
            blocks = self._arriving()
        elif self._packing == _PACKING:
            blocks = _unpacked(_counted(self._arriving(), self._left + MAX_OTHER_BYTES, self._too_much))
        else:
            raise unexpected(self._held.about, f"a packing that was not asked for, {self._packing[:60]!r}")
        for block in blocks:
            self._left -= len(block)
            if not self._is_file:
                self._held.answer_bytes -= len(block)
            if self._left < 0:
                raise self._too_much()
            yield block

    def _arriving(self) -> Iterator[bytes]:
        """Blocks as the server sends them, as long as it is not too slow; waiting for them is what counts."""
        assert isinstance(self._raw, httpx2.SyncByteStream)
        blocks, waited, received = iter(self._raw), 0.0, 0
        while True:
            begun = time.monotonic()
            block = next(blocks, None)
            if block is None:
                return
            passed = time.monotonic() - begun
            waited, received = waited + passed, received + len(block)
            if not self._is_file:
                self._held.answer_seconds -= passed
                if self._held.answer_seconds < 0:
                    raise HubUnavailable(
                        f"{self._held.about}: the hub takes longer than {MAX_ANSWER_S:.0f} s for an answer; "
                        "try again later"
                    )
            elif waited > SPEED_WINDOW_S:
                if received < MIN_SPEED * waited:
                    raise DownloadFailed(
                        f"{self._held.about}: the server sends less than {MIN_SPEED} bytes per second; "
                        "try again later"
                    )
                waited, received = 0.0, 0
            yield block

    def close(self) -> None:
        assert isinstance(self._raw, httpx2.SyncByteStream)
        self._raw.close()

    def _too_much(self) -> UnexpectedAnswer:
        if self._is_file:
            return unexpected(self._held.about, f"more than the {self._held.nbytes} bytes that it announced")
        return unexpected(self._held.about, "an answer without end")


def _counted(raw: Iterator[bytes], most: int, too_much: Callable[[], Exception]) -> Iterator[bytes]:
    """Packed bytes: some packings are longer than their contents."""
    for block in raw:
        most -= len(block)
        if most < 0:
            raise too_much()
        yield block


def _unpacked(raw: Iterator[bytes]) -> Iterator[bytes]:
    """The content of gzip's first member, which is all that servers send: what follows it is not read."""
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    for block in raw:
        while block and not unpacking.eof:
            try:
                content = unpacking.decompress(block, _BLOCK_BYTES)
            except zlib.error as error:
                raise httpx2.DecodingError(str(error)) from error
            block = unpacking.unconsumed_tail
            yield content
        if unpacking.eof:
            return


def _error_body(response: httpx2.Response, held: Terms) -> bytes:
    """The content of an error, if the library can read it: of other shapes it makes errors of its own."""
    data, stream = b"", _Bounded(response, held)
    try:
        for block in stream:
            data += block
        said = json.loads(data)
        errors = said.get("errors") or []
        good = isinstance(said.get("error", ""), str) and all(isinstance(e["message"], str) for e in errors)
        return data if good else b"{}"
    except (
        httpx2.HTTPError,
        HubError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ):
        return b"{}"
    finally:
        stream.close()


def _wait_asked_for(response: httpx2.Response) -> float:
    """Seconds that the library would sleep."""
    try:
        limit = parse_ratelimit_headers(response.headers)
        if response.status_code == 429 and limit is not None and limit.remaining == 0:
            return limit.reset_in_seconds
        after = response.headers.get("retry-after", "").strip()
        return int(after) if after.isdigit() else 0
    except ValueError:  # too many digits
        return float("inf")


def _duration(seconds: float) -> str:
    if seconds >= 365 * 24 * 3600:
        return "years"
    if seconds < 600:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
