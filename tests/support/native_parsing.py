"""The native core's parsers and hash, as Python values."""

from __future__ import annotations

import ctypes
import json
import random
from typing import Any

from support.native_testing import library

OK, INVALID_ARGUMENT, OPEN_FAILED, TRUNCATED, MALFORMED, UNSUPPORTED = 0, 1, 4, 6, 9, 10


class Refused(Exception):
    """An ek_status other than EK_OK, with its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _answer(status: int, value: bool = True) -> Any:
    text = library().ekt_parsing_text
    text.restype = ctypes.POINTER(ctypes.c_char)
    size = ctypes.c_size_t()
    data = ctypes.string_at(text(ctypes.byref(size)), size.value).decode("utf-8", "surrogatepass")
    if status != OK:
        assert "\n" not in data
        raise Refused(status, data)
    return _plain(json.loads(data)) if value else None


def _plain(value: Any) -> Any:
    """Undo the forms that keep order and numbers safe."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and set(value) == {"number"}:
        text = value["number"]
        return "too large" if text == "too large" else float.fromhex(text)
    if isinstance(value, dict) and set(value) == {"object"}:
        return {key: _plain(item) for key, item in value["object"]}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def parse_json(text: bytes, value: bool = True) -> Any:
    """Numbers that no double holds come as the string "too large"; without `value` only refusals matter."""
    return _answer(library().ekt_json(text, ctypes.c_size_t(len(text))), value)


def flash_layout(data: bytes, file_size: int) -> Any:
    size = ctypes.c_size_t(len(data))
    return _answer(library().ekt_flash_layout(data, size, ctypes.c_uint64(file_size)))


def manifest(text: bytes) -> Any:
    return _answer(library().ekt_manifest(text, ctypes.c_size_t(len(text))))


def digests(data: bytes, part: int) -> tuple[str, int]:
    """SHA-256 and XXH3-64 of data that is taken in parts of `part` bytes."""
    function, hex_digits = library().ekt_digests, ctypes.create_string_buffer(64)
    function.restype = ctypes.c_uint64
    found = function(data, ctypes.c_size_t(len(data)), ctypes.c_size_t(part), hex_digits)
    return hex_digits.raw.decode(), int(found)


def is_printable(code_point: int) -> bool:
    return bool(library().ekt_is_printable(ctypes.c_uint32(code_point)))


def xxh3(data: bytes, loop: str = "", offset: int = 0, size: int | None = None) -> int | None:
    """The hash of a part of `data` with a loop ("" is the fastest), or None where this machine has none."""
    base = ctypes.cast(data, ctypes.c_void_p).value or 0
    out = ctypes.c_uint64()
    count = len(data) - offset if size is None else size
    found = library().ekt_xxh3(
        loop.encode(), ctypes.c_void_p(base + offset), ctypes.c_size_t(count), ctypes.byref(out)
    )
    return out.value if found else None


def as_native(value: Any) -> Any:
    """Python's value with the numbers that C++ has: integers of 64 bits and finite doubles."""
    if isinstance(value, dict):
        return {key: as_native(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_native(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    try:
        number = float(value)
    except OverflowError:
        return "too large"
    return "too large" if number in (float("inf"), float("-inf")) else number


def same(found: Any, expected: Any) -> bool:
    """Equal in type too (1, 1.0 and True differ), and in the order of names."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in found)
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, float):
        return found.hex() == expected.hex()
    return bool(found == expected)


PIECES = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"0", b"1", b".", b"e", b"E+", b"\\u", b"\\ud83d",
    b"\\udc00", b"d800", b"\x00", b"\x1f", b"\x7f", b"\n", b"\r", b"\t", b"\x0b", b" ", b"\xff", b"\xc3",
    b"\xc3\xa9", b"\xed\xa0\x80", b"\xf4\x8f\xbf\xbf", b"\xe2\x80\xa8", b"null", b"true", b"false", b"NaN",
    b"Infinity",
]  # fmt: skip


def damaged(text: bytes, rng: random.Random) -> bytes:
    """The text after a few edits: bytes and pieces of JSON put in, parts removed, doubled or moved."""
    out = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        at, stop = sorted((rng.randint(0, len(out)), rng.randint(0, len(out))))
        stop = min(stop, at + 12)
        edit = rng.randrange(5)
        if edit == 0:
            out[at:at] = rng.choice(PIECES)
        elif edit == 1:
            del out[at:stop]
        elif edit == 2:
            out[at:at] = out[at:stop]
        elif edit == 3 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        else:
            out[at:stop] = rng.choice(PIECES)
    return bytes(out)
