"""Text by the core: what applications without Python have, see `ek_text_` in edgekit.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int64, c_uint64, c_void_p
from types import TracebackType
from typing import Any

from edgekit.flashload import _native


class _Message(ctypes.Structure):
    _fields_ = (("role", c_char_p), ("content", c_char_p), ("content_bytes", c_uint64))


_SIGNATURES: dict[str, Sequence[Any]] = {
    "ek_text_open_json": (c_char_p, c_uint64, POINTER(c_void_p)),
    "ek_text_set_chat_form": (c_void_p, c_char_p, c_uint64),
    "ek_text_chat": (c_void_p, POINTER(_Message), c_int64, c_char_p, c_uint64, POINTER(c_uint64)),
}


class CoreText:
    """The tokenizer of a tokenizer.json in the core, to be closed."""

    def __init__(self, tokenizer_json: bytes) -> None:
        """Raises MalformedFile, and UnsupportedBundle for a part that the core does not know."""
        self._core = _native.functions(_SIGNATURES, "ek_text_close")
        self._handle = c_void_p()
        _native.check(
            self._core.ek_text_open_json(tokenizer_json, len(tokenizer_json), ctypes.byref(self._handle))
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

    def close(self) -> None:
        """Give its memory back. It may be called twice."""
        self._core.ek_text_close(self._handle)
        self._handle = c_void_p()

    def __enter__(self) -> CoreText:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _text(get: Callable[..., int]) -> str:
    """What a function of the core gives that is asked for its size first."""
    size = c_uint64()
    _native.check(get(None, 0, ctypes.byref(size)))
    text = ctypes.create_string_buffer(max(1, size.value))
    _native.check(get(text, size.value, ctypes.byref(size)))
    return text.raw[: size.value].decode()
