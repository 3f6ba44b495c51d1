"""Text by the core, see `ek_text_` in edgekit.h."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from types import TracebackType
from typing import Any, ClassVar, Self

from edgekit.flashload import _native
from edgekit.runtime.core_structs import CanvasCellStruct, CanvasPartStruct
from edgekit.runtime.one_owner import OneOwner


class _Message(ctypes.Structure):
    _fields_ = (("role", c_char_p), ("content", c_char_p), ("content_bytes", c_uint64))


_SIGNATURES: dict[str, Sequence[Any]] = {
    "ek_text_open_json": (c_char_p, c_uint64, POINTER(c_void_p)),
    "ek_text_find": (c_void_p, c_char_p, POINTER(c_int64)),
    "ek_text_count": (c_void_p, POINTER(c_int64)),
    "ek_text_encode": (c_void_p, c_char_p, c_uint64, c_int32, POINTER(c_int64), c_int64, POINTER(c_int64)),
    "ek_text_encode_behind": (c_void_p, c_char_p, c_uint64, POINTER(c_int64), c_int64, POINTER(c_int64)),
    "ek_text_decode": (c_void_p, POINTER(c_int64), c_int64, c_int32, c_char_p, c_uint64, POINTER(c_uint64)),
    "ek_text_set_chat_form": (c_void_p, c_char_p, c_uint64),
    "ek_text_chat": (c_void_p, POINTER(_Message), c_int64, c_char_p, c_uint64, POINTER(c_uint64)),
    "ek_canvas_draw": (
        *(c_void_p, POINTER(CanvasCellStruct), c_int64, c_char_p, c_uint64, POINTER(c_uint64)),
        *(POINTER(CanvasPartStruct), c_int64, POINTER(c_int64)),
    ),
    "ek_text_stream_open": (c_void_p, c_int32, POINTER(c_void_p)),
    "ek_text_stream_push": (c_void_p, POINTER(c_int64), c_int64),
    "ek_text_stream_finish": (c_void_p,),
    "ek_text_stream_take": (c_void_p, c_char_p, c_uint64, POINTER(c_uint64)),
}
#: Bytes of text that most answers of the core have room in.
_ROOM = 4096


class _Held(OneOwner):
    """Something of the core that `CLOSE` gives back, at the latest when nobody has it any more."""

    CLOSE: ClassVar[str]

    def __init__(self) -> None:
        self._core = _native.functions(_SIGNATURES, self.CLOSE)
        self._handle = c_void_p()
        self._closing = weakref.finalize(self, _close, getattr(self._core, self.CLOSE), self._handle)
        self._closing.atexit = False  # a thread may use it until the process has ended

    def close(self) -> None:
        """Give its memory back. It may be called twice."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(function: Callable[[c_void_p], None], handle: c_void_p) -> None:
    function(handle)
    handle.value = None


class CoreText(_Held):
    """The tokenizer of a tokenizer.json in the core. Threads may use it together, but not close it while one
    of them does.
    """

    CLOSE = "ek_text_close"

    def __init__(self, tokenizer_json: bytes) -> None:
        """Raises MalformedFile, and UnsupportedBundle for a part that the core does not know."""
        super().__init__()
        _native.check(
            self._core.ek_text_open_json(tokenizer_json, len(tokenizer_json), ctypes.byref(self._handle))
        )

    def find(self, token: str) -> int | None:
        """The id of the token that is spelled exactly so."""
        try:
            spelled = token.encode()
        except UnicodeEncodeError:  # half of a surrogate pair is in no vocabulary
            return None
        if b"\0" in spelled:  # the core's names end there
            return None
        found = c_int64()
        _native.check(self._core.ek_text_find(self._handle, spelled, ctypes.byref(found)))
        return None if found.value < 0 else found.value

    def count(self) -> int:
        """How many tokens have a text."""
        found = c_int64()
        _native.check(self._core.ek_text_count(self._handle, ctypes.byref(found)))
        return found.value

    def encode(self, text: str | bytes, add_special: bool = True) -> list[int]:
        """The ids of a text, with what the tokenizer puts around one. Raises InvalidRequest for bytes that
        are no UTF-8, and UnsupportedBundle for a text on which the tokenizer takes too long.
        """
        data = text if isinstance(text, bytes) else text.encode()
        return _ids(
            len(data),
            lambda *buffer: self._core.ek_text_encode(
                self._handle, data, len(data), int(add_special), *buffer
            ),
        )

    def encode_behind(self, text: str | bytes) -> list[int]:
        """The ids of a text that goes on behind another one. Raises as `encode` does."""
        data = text if isinstance(text, bytes) else text.encode()
        return _ids(
            len(data),
            lambda *buffer: self._core.ek_text_encode_behind(self._handle, data, len(data), *buffer),
        )

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ids; those that are no token are left out. Raises UnsupportedBundle for a text that
        grows without bound.
        """
        given = id_array(ids)
        return _text(
            lambda *buffer: self._core.ek_text_decode(
                self._handle, given, len(ids), int(skip_special), *buffer
            )
        )

    def set_chat_form(self, chat_json: bytes) -> None:
        """Take the form of chats from the contents of a chat.json. Raises MalformedFile and
        UnsupportedBundle.
        """
        _native.check(self._core.ek_text_set_chat_form(self._handle, chat_json, len(chat_json)))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a conversation, with the opening of the answer behind it. Raises InvalidRequest for an
        order of roles that the form does not have, and for a content with a text that it refuses.
        """
        texts = [(each["role"].encode(), each["content"].encode()) for each in messages]
        given = (_Message * len(texts))(*(_Message(role, text, len(text)) for role, text in texts))
        return _text(lambda *buffer: self._core.ek_text_chat(self._handle, given, len(texts), *buffer))

    def draw(self, cells: Any, count: int) -> list[tuple[str, int]]:
        """What a screen shows of the first `count` of an array of `ek_canvas_cell`: texts and their states.
        Raises as `decode` does.
        """
        parts, part_count = (CanvasPartStruct * count)(), c_int64()
        drawn = _bytes(
            lambda *buffer: self._core.ek_canvas_draw(
                self._handle, cells, count, *buffer, parts, count, ctypes.byref(part_count)
            )
        )
        found, at = list[tuple[str, int]](), 0
        for part in parts[: part_count.value]:
            end = at + part.bytes
            found.append((drawn[at:end].decode(), part.state))
            at = end
        return found

    def stream(self, skip_special: bool = True) -> CoreTextStream:
        """A decoder for ids that arrive in pieces, to be closed before this."""
        return CoreTextStream(self, skip_special)


class CoreTextStream(_Held):
    """Turns ids that arrive piece by piece into text. One thread at a time may use it."""

    CLOSE = "ek_text_stream_close"

    def __init__(self, text: CoreText, skip_special: bool) -> None:
        super().__init__()
        self._text = text  # the core needs it for as long
        _native.check(
            self._core.ek_text_stream_open(text._handle, int(skip_special), ctypes.byref(self._handle))
        )

    def push(self, ids: Sequence[int]) -> str:
        """Take more ids; returns the text that has become certain, perhaps none."""
        given = id_array(ids)
        _native.check(self._core.ek_text_stream_push(self._handle, given, len(ids)))
        return self._taken()

    def finish(self) -> str:
        """The text still held back; what is incomplete stays U+FFFD."""
        _native.check(self._core.ek_text_stream_finish(self._handle))
        return self._taken()

    def _taken(self) -> str:
        parts, room, size = list[str](), ctypes.create_string_buffer(_ROOM), c_uint64()
        while True:
            _native.check(self._core.ek_text_stream_take(self._handle, room, _ROOM, ctypes.byref(size)))
            if not size.value:
                return "".join(parts)
            parts.append(room.raw[: size.value].decode())


def id_array(ids: Sequence[int]) -> Any:
    """Ids as the core takes them; made by way of an array, which takes a fraction of the time."""
    if not ids:
        return (c_int64 * 0)()
    try:
        given = array("q", ids)
    except OverflowError:  # no token has an id of so many bits
        given = array("q", [each if 0 <= each < 1 << 63 else -1 for each in ids])
    return (c_int64 * len(given)).from_buffer(given)


def _ids(nbytes: int, get: Callable[..., int]) -> list[int]:
    """What a function of the core makes of so many bytes of text."""
    room, count = nbytes + 16, c_int64()  # a token has a byte of the text, but for a few around it
    ids = (c_int64 * room)()
    status = get(ids, room, ctypes.byref(count))
    if count.value > room:
        ids = (c_int64 * count.value)()
        status = get(ids, count.value, ctypes.byref(count))
    _native.check(status)
    return ids[: count.value]


def _text(get: Callable[..., int]) -> str:
    """The text that a function of the core gives, see `_bytes`."""
    return _bytes(get).decode()


def _bytes(get: Callable[..., int]) -> bytes:
    """What a function of the core gives, which tells its size where there is no room for it."""
    text, size = ctypes.create_string_buffer(_ROOM), c_uint64()
    status = get(text, _ROOM, ctypes.byref(size))
    if size.value > _ROOM:
        text = ctypes.create_string_buffer(size.value)
        status = get(text, size.value, ctypes.byref(size))
    _native.check(status)
    return text.raw[: size.value]
