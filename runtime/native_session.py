"""A model being run by the native core: `Session` of `edgekit.runtime.session`, in C++.

The library holds weights, prefix and head; arrays cross the C ABI of `edgekit.h`, and calls release the
interpreter lock.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgekit.flashload import _native, errors
from edgekit.flashload.plan import Plan
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.memory import Needs, residency
from edgekit.runtime.native_structs import HeadOutputStruct, HeadRequestStruct, Struct
from edgekit.runtime.prefix import EncodedIds
from edgekit.runtime.process import peak_bytes
from edgekit.runtime.sampling.errors import NonFiniteLogits
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids
from edgekit.runtime.session import SessionOptions

_UNLIMITED = 2**64 - 1
_NOT_FINITE = {13: NonFiniteLogits}


class _Options(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("threads", c_int32), ("memory_bytes", c_uint64),
        ("resident_bytes", c_uint64), ("positions", c_int64), ("canvas", c_int64),
    )  # fmt: skip


class _Info(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("threads", c_int32), ("vocabulary", c_int64), ("hidden_size", c_int64),
        ("prefix_length", c_int64), ("process_bytes", c_uint64), ("prefix_bytes", c_uint64),
        ("activation_bytes", c_uint64), ("scratch_bytes", c_uint64), ("head_bytes", c_uint64),
        ("allowance_bytes", c_uint64), ("canvas_length", c_int64), ("max_positions", c_int64),
        ("causal_prefix", c_int32), ("reserved", c_int32), ("uncached_length", c_int64),
    )  # fmt: skip


class _Statistics(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("reserved", c_uint32), ("io_mode", c_char_p), ("pinned_bytes", c_uint64),
        ("ring_bytes", c_uint64), ("streamed_bytes_per_step", c_uint64), ("bytes_read", c_uint64),
        ("scratch_bytes", c_uint64), ("io_seconds", c_double), ("io_wait_seconds", c_double),
        ("pass_seconds", c_double), ("bytes_skipped", c_uint64), ("bytes_exchanged", c_uint64),
    )  # fmt: skip


_PASS = POINTER(HeadRequestStruct), POINTER(HeadOutputStruct)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ek_session_open": (c_char_p, POINTER(_Options), POINTER(c_void_p)),
    "ek_session_get_info": (c_void_p, POINTER(_Info)),
    "ek_session_reset": (c_void_p,),
    "ek_session_idle": (c_void_p,),
    "ek_session_prefill": (c_void_p, c_void_p, c_int64),
    "ek_session_denoise": (c_void_p, c_void_p, c_int64, c_void_p, *_PASS),
    "ek_session_project": (c_void_p, *_PASS),
    "ek_session_get_statistics": (c_void_p, POINTER(_Statistics)),
}


def _library() -> ctypes.CDLL:
    return _native.functions(_SIGNATURES, "ek_session_close")


class NativeSession:
    """Implements `sampling.Denoiser` and `sampling.Projector`. Not for use by several threads at once.
    In a child of fork its calls raise InvalidRequest: the threads that do the work stay in the parent.

    Raises:
        NativeError: the library is missing or cannot be loaded.
        EdgekitError: the bundle is damaged or in another format, or the budget is too small.
    """

    def __init__(self, path: str | Path, options: SessionOptions | None = None) -> None:
        self._handle: int | None = None
        self.options = options or SessionOptions()
        self.bundle = Bundle.open(path)
        self.model = self.bundle.model
        self._library = _library()
        o = self.options
        wanted = _Options(
            threads=o.threads,
            memory_bytes=o.memory_bytes or 0,
            resident_bytes=_UNLIMITED if o.resident_bytes is None else o.resident_bytes,
            positions=o.positions,
            canvas=o.canvas,
        )
        handle = c_void_p()
        folder = _native.path_bytes(self.bundle.path)
        _native.check(self._library.ek_session_open(folder, ctypes.byref(wanted), ctypes.byref(handle)))
        self._handle = handle.value
        self.encoded = EncodedIds()
        self.uncached: Ids = np.empty(0, np.int64)
        self._positions = 0  # of the last denoise
        info = self._info()
        self.vocab_size, self.hidden_size = int(info.vocabulary), int(info.hidden_size)
        self.threads = int(info.threads)
        self.needs = Needs(
            process=info.process_bytes,
            prefix=info.prefix_bytes,
            activations=info.activation_bytes + info.head_bytes,
            scratch=info.scratch_bytes,
            allowance=info.allowance_bytes,
        )

    @functools.cached_property
    def plan(self) -> Plan:
        """The residency plan, which the library makes by the same rules."""
        with self.bundle.open_weights() as file:
            return residency(
                self.bundle, file, self.needs, self.options.memory_bytes, self.options.resident_bytes
            )

    @property
    def prefix_length(self) -> int:
        return int(self._info().prefix_length)

    @property
    def pieces(self) -> list[Ids]:
        """The token ids behind the prefix, in the pieces in which they were encoded."""
        return self.encoded.calls

    def reset(self) -> None:
        """Forget the prefix, and what is uncached."""
        self._call(self._library.ek_session_reset)
        self.encoded.calls.clear()
        self.uncached = np.empty(0, np.int64)

    def prefill(self, ids: Ids) -> None:
        """Encode ids [T] causally, in chunks of the canvas's length, and keep their keys and values."""
        ids = np.ascontiguousarray(ids, np.int64)
        try:
            self._call(self._library.ek_session_prefill, ids.ctypes.data, ids.size)
        finally:
            self.encoded.prefilled(ids, self.prefix_length)

    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        """One bidirectional pass of ids [T] over [prefix KV ; canvas], and the head on the requested rows."""
        ids = np.ascontiguousarray(ids, np.int64)
        if soft is not None:
            soft = np.ascontiguousarray(soft, np.float32)
            if soft.shape != (ids.size, self.hidden_size):
                raise errors.InvalidRequest(
                    f"soft embeddings of shape {soft.shape} for {ids.size} positions of {self.hidden_size}"
                )
        output = self._request(
            ids.size,
            request,
            lambda wanted, arrays: self._call(
                self._library.ek_session_denoise, ids.ctypes.data, ids.size,
                None if soft is None else soft.ctypes.data, wanted, arrays,
            ),
        )  # fmt: skip
        self._positions = ids.size
        return output

    def project(self, request: HeadRequest) -> HeadOutput:
        """The vocabulary head once more on the hidden states of the last `denoise`."""
        return self._request(
            self._positions,
            request,
            lambda wanted, arrays: self._call(self._library.ek_session_project, wanted, arrays),
        )

    def idle(self) -> None:
        """Tell that no pass follows soon: stops reading ahead, and may keep other experts in memory."""
        self._call(self._library.ek_session_idle)

    def statistics(self) -> dict[str, Any]:
        """I/O and compute of this session so far; seconds and bytes. See also `sampling.Stats`."""
        found = _Statistics()
        self._call(self._library.ek_session_get_statistics, ctypes.byref(found))
        stats = {
            name: getattr(found, name)
            for name, _ in _Statistics._fields_
            if name not in ("struct_size", "reserved", "io_mode")
        }
        return stats | {
            "engine": "native",
            "io_mode": found.io_mode.decode(),
            "compute_seconds": found.pass_seconds - found.io_wait_seconds,
            "process_bytes": self.needs.process,
            "peak_bytes": peak_bytes(),
            "memory_bytes": self.options.memory_bytes,
        }

    def close(self) -> None:
        """Release memory and files."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.ek_session_close(handle)

    def __enter__(self) -> NativeSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _call(self, function: Any, *arguments: Any) -> None:
        if self._handle is None:
            raise errors.InvalidRequest(f"{self.bundle.path}: the session is closed")
        _native.check(function(self._handle, *arguments), _NOT_FINITE)

    def _info(self) -> _Info:
        info = _Info()
        self._call(self._library.ek_session_get_info, ctypes.byref(info))
        return info

    def _request(self, positions: int, request: HeadRequest, run: Callable[[Any, Any], None]) -> HeadOutput:
        """Arrays for the answer to `request`, filled by `run`."""
        rows = None if request.rows is None else np.ascontiguousarray(request.rows, np.int64)
        count = positions if rows is None else rows.size
        k = min(request.top_k, self.vocab_size)
        noise = request.gumbel
        if noise is not None and not isinstance(noise, PhiloxGumbel):
            raise errors.InvalidRequest(
                "the native engine makes its own noise; give it a draw of PhiloxNoise, or use another engine"
            )
        if noise is not None and (noise.positions, noise.vocab_size) != (count, self.vocab_size):
            raise errors.InvalidRequest(
                f"noise for {noise.positions} positions and {noise.vocab_size} tokens was drawn for a "
                f"request of {count} and {self.vocab_size}"
            )
        wanted = HeadRequestStruct(
            temperature=request.temperature,
            rows=None if rows is None else rows.ctypes.data,
            row_count=count,
            gumbel=noise is not None,
            gumbel_scale=request.gumbel_scale,
            seed=0 if noise is None else noise.seed,
            draw=0 if noise is None else noise.draw,
            soft=request.soft,
            top_k=k,
        )
        output = HeadOutput(
            argmax=np.empty(count, np.int64),
            others=np.empty(count, np.float32),
            entropy=np.empty(count, np.float32),
            log_z=np.empty(count, np.float32),
        )
        if noise is not None:
            output.sample, output.sample_prob = np.empty(count, np.int64), np.empty(count, np.float32)
        if request.soft:
            output.soft = np.empty((count, self.hidden_size), np.float32)
        if k > 0:
            output.top_ids, output.top_z = np.empty((count, k), np.int64), np.empty((count, k), np.float32)
        if request.logits:
            output.logits = np.empty((count, self.vocab_size), np.float32)
        arrays = HeadOutputStruct(**{n: a.ctypes.data for n, a in vars(output).items() if a is not None})
        run(ctypes.byref(wanted), ctypes.byref(arrays))
        return output
