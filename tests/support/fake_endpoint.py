"""A model behind chat completions on the loopback address, which answers what a function says.

with FakeEndpoint(lambda messages: "four") as server:
    ... POST server.address + "/chat/completions" ...
    assert server.bodies[0]["model"] == "m"
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.loopback import Loopback

#: Seconds from the request to the first token, and between two tokens.
FIRST_S, NEXT_S = 0.02, 0.002


class FakeEndpoint(Loopback):
    """The server, in threads of this process, while its block lasts. A token is a letter of an answer.

    `instead`: by the text of the last message, what is done in place of answering; `key`: the one that it
    wants. It remembers the bodies of requests, and the connections that they came by.
    """

    def __init__(self, answer: Callable[[str], str] = str.upper, key: str | None = None) -> None:
        self.answer, self.key = answer, key
        self.bodies: list[dict[str, Any]] = []
        self.connections: set[Any] = set()
        self.instead: dict[str, Callable[[Answering], None]] = {}
        server = self

        class Handler(Answering):
            endpoint = server

        self.listen(Handler)

    @property
    def address(self) -> str:
        return f"{self.url}/v1"


class Answering(BaseHTTPRequestHandler):
    """One request that is being answered."""

    endpoint: FakeEndpoint
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        own = self.endpoint
        own.connections.add(self.client_address)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        own.bodies.append(body)
        asked = body["messages"][-1]["content"]
        if own.key is not None and self.headers.get("authorization") != f"Bearer {own.key}":
            self.error(401, "Incorrect API key provided")
        elif self.path != "/v1/chat/completions":
            self.error(404, f"Invalid URL (POST {self.path})")
        elif asked in own.instead:
            own.instead[asked](self)
        else:
            self.streams(own.answer(asked), self.counted(body, asked))

    def counted(self, body: Mapping[str, Any], asked: str) -> dict[str, int] | None:
        if not body.get("stream_options", {}).get("include_usage"):
            return None
        return {"prompt_tokens": len(asked), "completion_tokens": len(self.endpoint.answer(asked))}

    def error(self, status: int, message: str) -> None:
        self.says(status, json.dumps({"error": {"message": message, "type": "invalid_request_error"}}))

    def says(self, status: int, text: str, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        data = text.encode()
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def streams(self, text: str, usage: Mapping[str, int] | None) -> None:
        """An answer as servers stream it: the role, the text letter by letter, the end, the usage, [DONE]."""
        time.sleep(FIRST_S)
        pieces = [{"role": "assistant", "content": ""}, *({"content": letter} for letter in text)]
        chunks = [self.chunk(piece) for piece in pieces] + [self.chunk({}, "stop")]
        self.sends([*chunks, *([] if usage is None else [{"choices": [], "usage": usage}])])

    def chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [choice],
        }  # fmt: skip

    def sends(self, chunks: Sequence[Mapping[str, Any]], last: bytes = b"data: [DONE]\n\n") -> None:
        """Server-sent events, in pieces of an encoding that says where they end."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for each in chunks:
            time.sleep(NEXT_S)
            self.piece(b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n")
        self.piece(last)
        self.piece(b"")

    def piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()
