"""An endpoint of chat completions: what its answers say, when they came, and all that servers do instead."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.fake_endpoint import FIRST_S, NEXT_S, Answering, FakeEndpoint

from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.tools.benchmark.endpoint import Endpoint, EndpointUnusable, messages_as
from edgekit.tools.benchmark.reply import RequestFailed

ASK = messages_as("four and two")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as made:
        yield made


def test_an_answer_with_its_tokens_and_times(server: FakeEndpoint) -> None:
    endpoint = Endpoint(server.address, "m", body={"temperature": 0, "max_tokens": 9})
    reply = endpoint.ask(ASK)
    assert (reply.text, reply.prompt_tokens, reply.tokens) == ("FOUR AND TWO", 12, 12)
    assert reply.first_text_seconds is not None
    # The server sleeps before the first token and between any two: no clock can be faster.
    assert FIRST_S <= reply.first_text_seconds <= reply.seconds - 11 * NEXT_S
    assert server.bodies == [
        {
            "model": "m", "messages": ASK, "stream": True, "stream_options": {"include_usage": True},
            "temperature": 0, "max_tokens": 9,
        }
    ]  # fmt: skip


def test_requests_share_a_connection_until_the_server_closes_it(server: FakeEndpoint) -> None:
    endpoint = Endpoint(server.address, "m")
    for _ in range(3):
        assert endpoint.ask(ASK).text == "FOUR AND TWO"
    assert len(server.connections) == 1

    def closes(request: Answering) -> None:
        request.streams("LAST", None)
        request.close_connection = True  # without a word about it

    server.instead["last"] = closes
    assert endpoint.ask(messages_as("last")).text == "LAST"
    time.sleep(0.05)
    assert endpoint.ask(ASK).text == "FOUR AND TWO" and len(server.connections) == 2
    endpoint.close()


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("http://h", "/v1/chat/completions"),
        ("http://h/", "/v1/chat/completions"),
        ("http://h:1/v1", "/v1/chat/completions"),
        ("https://h/v1/", "/v1/chat/completions"),
        ("http://h/api/v3/chat/completions", "/api/v3/chat/completions"),
        ("https://h/openai/d?api-version=1", "/openai/d/chat/completions?api-version=1"),
    ],
)
def test_addresses_with_and_without_their_end(given: str, path: str) -> None:
    endpoint = Endpoint(given, "m")
    assert endpoint.path == path and endpoint.host in ("h", "h:1")


@pytest.mark.parametrize("given", ["http://", "ftp://h", "http://h:x", "http://h:99999", "http://ä", "h"])
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(InvalidOption, match="is no address; use one such as http://localhost:8080/v1"):
        Endpoint(given, "m")
    with pytest.raises(InvalidOption, match="password") as caught:
        Endpoint("http://me:secret@h/v1", "m")
    assert "secret" not in str(caught.value)


def cut(request: Answering) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/event-stream")
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.piece(b"data: " + json.dumps(request.chunk({"content": "half"})).encode() + b"\n\n")
    request.close_connection = True


def ended(request: Answering) -> None:
    """Complete as HTTP, and no complete answer."""
    request.sends([request.chunk({"content": "half"})], b"")


def late(request: Answering) -> None:
    time.sleep(0.6)
    request.close_connection = True


def dripping(request: Answering) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/event-stream")
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    for _ in range(100):
        time.sleep(0.05)
        request.piece(b"data: " + json.dumps(request.chunk({"content": "a"})).encode() + b"\n\n")


def going_on(piece: bytes, **headers: str) -> Callable[[Answering], None]:
    """Bytes come all the time, and never an event."""

    def answer(request: Answering) -> None:
        request.send_response(200)
        for name, value in {"Content-Type": "text/event-stream", **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        with suppress(OSError):
            for _ in range(100):
                time.sleep(0.05)
                request.wfile.write(piece)
        request.close_connection = True

    return answer


def odd_chunks(request: Answering) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/event-stream")
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.wfile.write(b"-5\r\ndata: ")
    request.close_connection = True


def shortened(request: Answering) -> None:
    body = json.dumps({"choices": [{"message": {"content": "a"}}]}).encode()
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body) + 10))
    request.end_headers()
    request.wfile.write(body)
    request.close_connection = True


def counting(tokens: object) -> Callable[[Answering], None]:
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}
    answer = {"choices": [{"message": {"content": "a"}}], "usage": usage}
    return lambda request: request.says(200, json.dumps(answer), "application/json")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda r: r.error(500, "out of\nmemory"), r"answered 500 Internal Server Error: out of memory$"),
        (lambda r: r.error(429, "slow down"), r"answered 429 Too Many Requests: slow down$"),
        (lambda r: r.says(503, "", "text/plain"), r"answered 503 Service Unavailable$"),
        (lambda r: r.says(400, '{"error": "no such thing"}'), r"400 Bad Request: no such thing$"),
        (lambda r: r.says(400, '{"detail": 3}'), r'400 Bad Request: {"detail": 3}$'),
        (lambda r: r.says(200, "<p>Hello", "text/html"), r"'text/html' .* '<p>Hello'.*OpenAI-compatible"),
        (lambda r: r.says(200, "{", "application/json"), r"the answer is no JSON: '{'"),
        (lambda r: r.says(200, "[1]", "application/json"), r"no JSON object"),
        (lambda r: r.says(200, "{}", "application/json"), r"no choice in it"),
        (lambda r: r.says(200, "data: {\n\n", "text/event-stream"), r"the answer is no JSON: '{'"),
        (lambda r: r.says(200, "", "text/event-stream"), r"ended before it was complete"),
        (lambda r: r.sends([{"error": {"message": "it crashed"}}]), r"the server says: it crashed"),
        (cut, r"ended before it was complete"),
        (ended, r"ended before it was complete"),
        (late, r"took more than 0.2 s"),
        (dripping, r"took more than 0.2 s"),
        (going_on(b"d"), r"took more than 0.2 s"),
        (going_on(b": processing\n\n", Connection="close"), r"took more than 0.2 s"),
        (lambda r: r.says(429, '[{"error": {"message": "quota"}}]'), r"429 Too Many Requests: quota$"),
        (lambda r: r.says(500, "null"), r"500 Internal Server Error: None$"),
        (lambda r: r.says(500, "[" * 60_000), r"500 Internal Server Error: "),
        (odd_chunks, r"ended"),
        (shortened, r"ended before it was complete"),
        (counting(-3), r"counts -3 completion_tokens"),
        (counting(True), r"counts True completion_tokens"),
        (counting(10**400), r"counts .* completion_tokens"),
        (counting("7"), r"counts '7' completion_tokens"),
        (lambda r: r.says(200, '{"choices": [{"message": null}]}', "application/json"), r"no message in it"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_one_line_and_the_next_request_has_one(
    server: FakeEndpoint, does: Callable[[Answering], None], said: str
) -> None:
    server.instead["broken"] = does
    endpoint = Endpoint(server.address, "m", timeout_s=0.2)
    with pytest.raises(RequestFailed, match=said) as caught:
        endpoint.ask(messages_as("broken"))
    assert not isinstance(caught.value, EndpointUnusable) and "\n" not in str(caught.value)
    assert endpoint.ask(ASK).text == "FOUR AND TWO"


def test_what_no_other_request_would_mend() -> None:
    with FakeEndpoint(key="right") as server:
        for key in (None, "wrong"):
            with pytest.raises(
                EndpointUnusable, match="answered 401 Unauthorized: Incorrect API key.*--api-key"
            ):
                Endpoint(server.address, "m", key).ask(ASK)
        assert Endpoint(server.address, "m", "right").ask(ASK).text == "FOUR AND TWO"
        with pytest.raises(
            EndpointUnusable, match="404 Not Found.*it has no /v2/chat/completions, or no model 'm'"
        ):
            Endpoint(server.address.replace("v1", "v2"), "m", "right").ask(ASK)
        server.instead["moved"] = lambda request: request.says(307, "", Location="https://other/v1")
        with pytest.raises(EndpointUnusable, match="307.*it is elsewhere: 'https://other/v1'"):
            Endpoint(server.address, "m", "right").ask(messages_as("moved"))
        address = server.address
    with pytest.raises(
        EndpointUnusable, match="127.0.0.1:.* cannot be reached: Connection refused; is the server"
    ):
        Endpoint(address, "m").ask(ASK)
    with pytest.raises(EndpointUnusable, match="no-such-host.invalid cannot be reached: "):
        Endpoint("http://no-such-host.invalid/v1", "m").ask(ASK)
    with pytest.raises(EndpointUnusable, match="cannot be reached"):
        Endpoint("http://a..b/v1", "m").ask(ASK)


def test_events_as_the_standard_has_them(server: FakeEndpoint) -> None:
    """Comments, other fields, line ends of two characters, data in several lines, and letters that other
    readers take for line ends."""

    def odd(request: Answering) -> None:
        text = "a\u2028b\u0085c"
        first, rest = json.dumps(request.chunk({"content": text}), ensure_ascii=False).split(", ", 1)
        end = json.dumps(request.chunk({}, "stop"))
        body = f": hello\r\nid: 1\r\nevent: x\r\ndata: {first},\r\ndata:{rest}\r\n\r\n\r\ndata: {end}\r\n\r\n"
        request.says(200, body, "text/event-stream")

    server.instead["odd"] = odd
    assert Endpoint(server.address, "m").ask(messages_as("odd")).text == "a\u2028b\u0085c"


def test_an_answer_in_one_piece_has_no_first_text(server: FakeEndpoint) -> None:
    whole = {
        "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    server.instead["whole"] = lambda request: request.says(200, json.dumps(whole))
    reply = Endpoint(server.address, "m").ask(messages_as("whole"))
    assert (reply.text, reply.first_text_seconds, reply.prompt_tokens, reply.tokens) == ("yes", None, 3, 1)


def test_what_a_model_thinks_is_none_of_its_answer(server: FakeEndpoint) -> None:
    def thinks(request: Answering) -> None:
        said = [{"reasoning_content": "hm"}, {"content": None}, {"content": "4"}]
        request.sends([*map(request.chunk, said), request.chunk({}, "stop")])

    server.instead["think"] = thinks
    reply = Endpoint(server.address, "m").ask(messages_as("think"))
    assert (reply.text, reply.tokens) == ("4", None)


def test_a_server_that_keeps_an_answer_open_behind_its_end(server: FakeEndpoint) -> None:
    over = threading.Event()

    def open_end(request: Answering) -> None:
        request.sends([request.chunk({"content": "a"}, "stop")])

    def stays(request: Answering) -> None:
        request.wfile, real = Unended(request.wfile), request.wfile
        open_end(request)
        over.wait(5)
        request.wfile, request.close_connection = real, True

    server.instead["open"] = stays
    began = time.monotonic()
    endpoint = Endpoint(server.address, "m")
    reply = endpoint.ask(messages_as("open"))
    assert reply.text == "a" and reply.seconds < 0.5 <= time.monotonic() - began < 4
    over.set()
    assert endpoint.ask(ASK).text == "FOUR AND TWO"


class Unended:
    """A stream that never says that it ends."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def write(self, data: bytes) -> int:
        return len(data) if data == b"0\r\n\r\n" else self._inner.write(data)

    def flush(self) -> None:
        self._inner.flush()


def test_a_proxy_of_the_environment_is_used(server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that knows CONNECT alone, and sends everything to the server."""
    asked = list[str]()
    listening = socket.create_server(("127.0.0.1", 0))
    host, port = server.address.removesuffix("/v1").rpartition("//")[2].split(":")

    def proxy() -> None:
        client, _ = listening.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        asked.append(head.split(b"\r\n")[0].decode())
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection((host, int(port))) as other:
            pipes = [
                threading.Thread(target=pipe, args=pair, daemon=True)
                for pair in ((client, other), (other, client))
            ]
            for each in pipes:
                each.start()
            for each in pipes:
                each.join()

    def pipe(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(4096):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=proxy, daemon=True)
    thread.start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listening.getsockname()[1]}")
    endpoint = Endpoint("http://model.example:81/v1", "m")
    assert endpoint.ask(ASK).text == "FOUR AND TWO"
    endpoint.close()
    thread.join(5)
    assert len(asked) == 1 and re.match(r"CONNECT model.example:81 ", asked[0])
    listening.close()
