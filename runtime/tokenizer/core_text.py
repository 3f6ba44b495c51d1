"""Text by the core: what applications without Python have, see `ek_text_` in edgekit.h."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from types import TracebackType
from typing import Any, ClassVar, Self

from edgekit.flashload import _native


class _Message(ctypes.Structure):
    _fields_ = (("role", c_char_p), ("content", c_char_p), ("content_bytes", c_uint64))


_SIGNATURES: dict[str, Sequence[Any]] = {
    "ek_text_open_json": (c_char_p, c_uint64, POINTER(c_void_p)),
    "ek_text_find": (c_void_p, c_char_p, POINTER(c_int64)),
    "ek_text_encode": (c_void_p, c_char_p, c_uint64, c_int32, POINTER(c_int64), c_int64, POINTER(c_int64)),
    "ek_text_decode": (c_void_p, POINTER(c_int64), c_int64, c_int32, c_char_p, c_uint64, POINTER(c_uint64)),
    "ek_text_set_chat_form": (c_void_p, c_char_p, c_uint64),
    "ek_text_chat": (c_void_p, POINTER(_Message), c_int64, c_char_p, c_uint64, POINTER(c_uint64)),
    "ek_text_stream_open": (c_void_p, c_int32, POINTER(c_void_p)),
    "ek_text_stream_push": (c_void_p, POINTER(c_int64), c_int64),
    "ek_text_stream_finish": (c_void_p,),
    "ek_text_stream_take": (c_void_p, c_char_p, c_uint64, POINTER(c_uint64)),
}
#: Bytes of text that most answers of the core have room in.
_ROOM = 4096


class _Held:
    """Something of the core that `CLOSE` gives back."""

    CLOSE: ClassVar[str]

    def __init__(self) -> None:
        self._core = _native.functions(_SIGNATURES, self.CLOSE)
        self._handle = c_void_p()

    def close(self) -> None:
        """Give its memory back. It may be called twice."""
        getattr(self._core, self.CLOSE)(self._handle)
        self._handle = c_void_p()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CoreText(_Held):
    """The tokenizer of a tokenizer.json in the core, to be closed."""

    CLOSE = "ek_text_close"

    def __init__(self, tokenizer_json: bytes) -> None:
        """Raises MalformedFile, and UnsupportedBundle for a part that the core does not know."""
        super().__init__()
        _native.check(
            self._core.ek_text_open_json(tokenizer_json, len(tokenizer_json), ctypes.byref(self._handle))
        )

    def find(self, token: str) -> int | None:
        """The id of the token that is spelled exactly so."""
        found = c_int64()
        _native.check(self._core.ek_text_find(self._handle, token.encode(), ctypes.byref(found)))
        return None if found.value < 0 else found.value

    def encode(self, text: str | bytes, add_special: bool = True) -> list[int]:
        """The ids of a text, with what the tokenizer puts around one. Raises InvalidRequest for bytes that
        are no UTF-8, and UnsupportedBundle for a text on which the tokenizer takes too long.
        """
        data = text if isinstance(text, bytes) else text.encode()
        room, count = len(data) + 16, c_int64()  # a token has a byte of the text, but for a few around it
        ids = (c_int64 * room)()
        status = self._core.ek_text_encode(
            self._handle, data, len(data), int(add_special), ids, room, ctypes.byref(count)
        )
        if count.value > room:
            ids = (c_int64 * count.value)()
            status = self._core.ek_text_encode(
                self._handle, data, len(data), int(add_special), ids, count.value, ctypes.byref(count)
            )
        _native.check(status)
        return ids[: count.value]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of ids; those that are no token are left out. Raises UnsupportedBundle for a text that
        grows without bound.
        """
        given = _array(ids)
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
        order of roles that the form does not have.
        """
        texts = [(each["role"].encode(), each["content"].encode()) for each in messages]
        given = (_Message * len(texts))(*(_Message(role, text, len(text)) for role, text in texts))
        return _text(lambda *buffer: self._core.ek_text_chat(self._handle, given, len(texts), *buffer))

    def stream(self, skip_special: bool = True) -> CoreTextStream:
        """A decoder for ids that arrive in pieces, to be closed before this."""
        return CoreTextStream(self._handle, skip_special)


class CoreTextStream(_Held):
    """Turns ids that arrive piece by piece into text, as `TextStream` does."""

    CLOSE = "ek_text_stream_close"

    def __init__(self, text: c_void_p, skip_special: bool) -> None:
        super().__init__()
        _native.check(self._core.ek_text_stream_open(text, int(skip_special), ctypes.byref(self._handle)))

    def push(self, ids: Sequence[int]) -> str:
        """Take more ids; returns the text that has become certain, perhaps none."""
        given = _array(ids)
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


def _array(ids: Sequence[int]) -> Any:
    """What the core takes; made by way of an array, which takes a fraction of the time."""
    return (c_int64 * len(ids)).from_buffer(array("q", ids)) if ids else (c_int64 * 0)()


def _text(get: Callable[..., int]) -> str:
    """What a function of the core gives, which tells its size where there is no room for it."""
    text, size = ctypes.create_string_buffer(_ROOM), c_uint64()
    status = get(text, _ROOM, ctypes.byref(size))
    if size.value > _ROOM:
        text = ctypes.create_string_buffer(size.value)
        status = get(text, size.value, ctypes.byref(size))
    _native.check(status)
    return text.raw[: size.value].decode()
