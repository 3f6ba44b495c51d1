"""Calls the native vocabulary head (`ekt_head`) on tables in memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.runtime.sampling.types import HeadOutput
from support.native_testing import library

Floats = NDArray[np.float32]


class _Call(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("threads", "rows", "hidden", "vocabulary", "bits")),
        *((name, ctypes.c_int64) for name in ("tile_rows", "top_k", "gumbel", "soft")),
        *((name, ctypes.c_uint64) for name in ("seed", "draw")),
        *((name, ctypes.c_float) for name in ("gumbel_scale", "temperature", "softcap", "reserved")),
        *((name, ctypes.c_void_p) for name in ("x", "codes", "scales")),
        *((name, ctypes.c_void_p) for name in ("argmax", "others", "entropy", "log_z", "sample")),
        *((name, ctypes.c_void_p) for name in ("sample_prob", "soft_out", "top_ids", "top_z", "logits")),
    ]


@dataclass(frozen=True, eq=False)
class Head:
    """A table (codes uint8 [V, H] and scales float32 [V], or bfloat16 as uint16 [V, H]) and options."""

    codes: NDArray[Any]
    scales: Floats | None = None
    temperature: float = 1.0
    softcap: float = 0.0
    noise: tuple[int, int, float] | None = None  # seed, draw, scale
    soft: bool = False
    top_k: int = 0
    logits: bool = True
    tile_rows: int = 1 << 30
    threads: int = 1

    def but(self, **changes: Any) -> Head:
        return replace(self, **changes)

    def call(self, x: Floats) -> tuple[_Call, dict[str, NDArray[Any]]]:
        """The arguments of `ekt_head` and the arrays that it fills; both must live through the call."""
        rows, hidden = x.shape
        vocabulary, bits = self.codes.shape[0], 8 * self.codes.itemsize
        k = max(0, min(self.top_k, vocabulary))
        out: dict[str, NDArray[Any]] = {"argmax": np.full(rows, -1, np.int64)}
        out |= {name: np.full(rows, 7, np.float32) for name in ("others", "entropy", "log_z")}
        if self.noise is not None:
            out |= {"sample": np.full(rows, -1, np.int64), "sample_prob": np.full(rows, 7, np.float32)}
        if self.soft:
            out["soft_out"] = np.full((rows, hidden), 7, np.float32)
        if k:
            out |= {"top_ids": np.full((rows, k), -1, np.int64), "top_z": np.full((rows, k), 7, np.float32)}
        if self.logits:
            out["logits"] = np.full((rows, vocabulary), 7, np.float32)
        assert x.flags.c_contiguous and x.dtype == np.float32 and self.codes.flags.c_contiguous
        arrays = {"x": x, "codes": self.codes, **out}
        if self.scales is not None:
            arrays["scales"] = self.scales
        seed, draw, scale = self.noise or (0, 0, 0.0)
        numbers = {
            "threads": self.threads, "rows": rows, "hidden": hidden, "vocabulary": vocabulary, "bits": bits,
            "tile_rows": self.tile_rows, "top_k": self.top_k, "gumbel": self.noise is not None,
            "soft": self.soft, "seed": seed, "draw": draw, "gumbel_scale": scale,
            "temperature": self.temperature, "softcap": self.softcap,
        }  # fmt: skip
        return _Call(**numbers, **{name: array.ctypes.data for name, array in arrays.items()}), out

    def __call__(self, x: Floats) -> HeadOutput:
        """Raises RuntimeError with the core's message."""
        call, out = self.call(x)
        run = library().ekt_head
        run.restype = ctypes.c_char_p
        message = run(ctypes.byref(call))
        if message is not None:
            raise RuntimeError(message.decode())
        soft = out.pop("soft_out", None)
        return HeadOutput(**out, soft=soft)


def aligned(shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Zeros at a multiple of 64 bytes, as the flash file's tensors are in memory."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    return memory[skip : skip + size].view(dtype).reshape(shape)
