"""Open flash files of the C ABI (`ek_flash_file`)."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from edgekit.flashload import reader
from edgekit.flashload.structs import TensorStruct


class Flash:
    """An open `ek_flash_file` without the class in between. Its methods give the status first."""

    def __init__(self, path: Path) -> None:
        self.library: Any = reader._library()
        self.handle = c_void_p(1)
        self.status: int = self.library.ek_flash_open(os.fsencode(path), byref(self.handle))

    def find(self, run: str) -> tuple[int, int, int]:
        size, tensors = c_uint64(), c_int64()
        status = self.library.ek_flash_find_run(self.handle, run.encode(), byref(size), byref(tensors))
        return status, size.value, tensors.value

    def tensor(self, run: str, index: int) -> tuple[int, TensorStruct]:
        found = TensorStruct()
        return self.library.ek_flash_get_tensor(self.handle, run.encode(), index, byref(found)), found

    def read(self, run: str, buffer: Any, size: int) -> int:
        status: int = self.library.ek_flash_read_run(self.handle, run.encode(), buffer, size)
        return status

    def part(self, run: str, offset: int, size: int) -> tuple[int, bytes]:
        out = ctypes.create_string_buffer(max(size, 1))
        status = self.library.ek_flash_read_part(self.handle, run.encode(), offset, size, out)
        return status, out.raw[:size]

    def message(self) -> str:
        text: bytes = self.library.ek_last_error()
        return text.decode()

    def close(self) -> None:
        self.library.ek_flash_close(self.handle)
