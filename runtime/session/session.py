"""A model being run: the core's session over the engine of a bundle's format.

The core holds weights, prefix and head; arrays cross the C ABI of `edgekit.h`, and calls release the
interpreter lock. Engines in Python are called back (`edgekit.runtime.engines.plug`).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import nullcontext
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgekit.flashload import _native, errors
from edgekit.flashload.owner_process import OwnerProcess
from edgekit.flashload.structs import Struct
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.core_structs import EngineStruct, HeadOutputStruct, HeadRequestStruct
from edgekit.runtime.engines.base import Engine, Executor
from edgekit.runtime.engines.plug import EnginePlug
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.process import MOST_THREADS, peak_bytes, usable_cores
from edgekit.runtime.sampling.errors import NonFiniteLogits
from edgekit.runtime.sampling.noise import PhiloxGumbel
from edgekit.runtime.sampling.options import check_int
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids
from edgekit.runtime.session.encoded_ids import EncodedIds
from edgekit.runtime.session.memory import PLAN_SIGNATURE, MemoryPlan, read_plan

#: Makes an engine for an opened bundle, such as its class.
MakeEngine = Callable[[Bundle], Engine]

_UNLIMITED = 2**64 - 1
_ERRORS = {13: NonFiniteLogits, 19: EngineFailed}


@dataclass(frozen=True)
class SessionOptions:
    """`memory_bytes` bounds the whole process (None: everything resident, which the machine must have memory
    for); `resident_bytes` caps the pinned weights further.

    `positions` and `canvas` are the largest prefix and pass that the budget must hold; threads 0 takes
    every usable core. Raises InvalidOption for a number of threads that no engine takes.
    """

    memory_bytes: int | None = None
    resident_bytes: int | None = None
    positions: int = 2048
    canvas: int = 256
    threads: int = 0
    sequences: int = 1

    def __post_init__(self) -> None:
        if self.threads != 0:
            check_int("threads", self.threads, 1, MOST_THREADS)


class _Options(Struct):
    _fields_ = (
        ("struct_size", c_uint32), ("threads", c_int32), ("memory_bytes", c_uint64),
        ("resident_bytes", c_uint64), ("positions", c_int64), ("canvas", c_int64), ("sequences", c_int64),
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
    "ek_session_open_engine": (c_char_p, POINTER(_Options), POINTER(EngineStruct), POINTER(c_void_p)),
    "ek_plan_session": PLAN_SIGNATURE,
    "ek_session_get_plan": (c_void_p, POINTER(c_void_p)),
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


def _core_options(o: SessionOptions) -> _Options:
    return _Options(
        threads=o.threads,
        memory_bytes=o.memory_bytes or 0,
        resident_bytes=_UNLIMITED if o.resident_bytes is None else o.resident_bytes,
        positions=o.positions,
        canvas=o.canvas,
        sequences=o.sequences,
    )


class Session:
    """Implements `sampling.Denoiser` and `sampling.Projector`. Not for use by several threads at once.
    In a child of fork its calls raise InvalidRequest: the threads that do the work stay in the parent.

    Raises:
        NativeError: the core is missing or cannot be loaded.
        EdgekitError: the bundle is damaged, its engine is not available, or the budget is too small.

    What an engine in Python raises within a call is raised by the call.
    """

    def __init__(
        self,
        path: str | Path,
        options: SessionOptions | None = None,
        executor: Executor | None = None,
        engine: MakeEngine | None = None,
    ) -> None:
        """`executor` runs a bundle's packages in place of the format's own, for checks; `engine` makes what
        computes in place of the format's own engine altogether.
        """
        self._handle: int | None = None
        self._process = OwnerProcess()
        self.options = o = options or SessionOptions()
        self.bundle = Bundle.open(path)
        self.model = self.bundle.model
        self._library = _library()
        computes = (
            engines.create(self.bundle, o.threads or usable_cores(), executor)
            if engine is None
            else engine(self.bundle)
        )
        self._plug = None if computes is None else EnginePlug(computes, self.bundle)
        self.encoded = EncodedIds()
        self.uncached: Ids = np.empty(0, np.int64)
        self._positions = 0  # of the last denoise
        handle = c_void_p()
        wanted = _core_options(o)
        table = None if self._plug is None else ctypes.byref(self._plug.struct)
        folder, place = _native.path_bytes(self.bundle.path), ctypes.byref(handle)
        try:
            self._check(
                lambda: self._library.ek_session_open_engine(folder, ctypes.byref(wanted), table, place)
            )
        except BaseException:
            if self._plug is not None:
                self._plug.close()
            raise
        self._handle = handle.value
        info = self._info()
        self.vocab_size, self.hidden_size = int(info.vocabulary), int(info.hidden_size)
        self.threads = int(info.threads)
        self._process_bytes = int(info.process_bytes)

    @property
    def engine(self) -> Engine | None:
        """What computes in Python; None for the core's own engine."""
        return None if self._plug is None else self._plug.engine

    @property
    def plan(self) -> MemoryPlan:
        """The plan that runs: memory by cause, and which weights stay there now."""
        return read_plan(
            lambda plan: self._library.ek_session_get_plan(self._open_handle(), plan), _native.check
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
        own = {"engine": "native"} if self._plug is None else self._plug.engine.statistics()
        return stats | own | {
            "io_mode": found.io_mode.decode(),
            "compute_seconds": found.pass_seconds - found.io_wait_seconds,
            "process_bytes": self._process_bytes,
            "peak_bytes": peak_bytes(),
            "memory_bytes": self.options.memory_bytes,
        }  # fmt: skip

    def close(self) -> None:
        """Release memory and files; in a child of fork, which has no part in them, nothing."""
        handle, self._handle = self._handle, None
        if handle is None or not self._process.here:
            return
        with nullcontext() if self._plug is None else self._plug.raising():
            self._library.ek_session_close(handle)
        if self._plug is not None:
            self._plug.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _open_handle(self) -> int:
        if self._handle is None:
            raise errors.InvalidRequest(f"{self.bundle.path}: the session is closed")
        return self._handle

    def _call(self, function: Any, *arguments: Any) -> None:
        handle = self._open_handle()
        self._check(lambda: function(handle, *arguments))

    def _check(self, call: Callable[[], int]) -> None:
        """Raise what an engine in Python raised within a call into the core, else what its status says."""
        if self._plug is None:
            return _native.check(call(), _ERRORS)
        with self._plug.raising():
            _native.check(call(), _ERRORS)

    def _info(self) -> _Info:
        info = _Info()
        _native.check(self._library.ek_session_get_info(self._open_handle(), ctypes.byref(info)))
        return info

    def _request(self, positions: int, request: HeadRequest, run: Callable[[Any, Any], None]) -> HeadOutput:
        """Arrays for the answer to `request`, filled by `run`."""
        rows = None if request.rows is None else np.ascontiguousarray(request.rows, np.int64)
        count = positions if rows is None else rows.size
        k = min(request.top_k, self.vocab_size)
        noise = request.gumbel
        if noise is not None and not isinstance(noise, PhiloxGumbel):
            raise errors.InvalidRequest(
                "sessions make their own noise: give a draw of PhiloxNoise, not a function"
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


def open_session(
    path: str | Path,
    options: SessionOptions | None = None,
    engine: str | MakeEngine | None = None,
    executor: Executor | None = None,
) -> Session:
    """The session for a bundle. Of a set it is the bundle that `engine` or this system runs.

    `engine` insists on one by name ("native", "onnx", "mlx", "coreml", "coreai"), or makes one of the
    caller's own for the opened bundle; `executor` is as in `Session`. Raises what `Bundle.open` and `Session`
    raise.
    """
    own = engine if callable(engine) else None
    bundle = Bundle.open(path, None if callable(engine) else engine)
    return Session(bundle.path, options, executor, own)


def plan_session(
    bundle: Bundle,
    options: SessionOptions | None = None,
    engine: Engine | None = None,
    process_bytes: int | None = None,
) -> MemoryPlan:
    """The plan that a session over `engine` (None: the core's own) would make, from headers alone.
    `process_bytes` stands for what the process holds; None: what this one does.

    Raises:
        BudgetExceeded: the budget is too small; says how much would be enough.
    """
    plug = None if engine is None else EnginePlug(engine, bundle)
    wanted = _core_options(options or SessionOptions())
    table = None if plug is None else ctypes.byref(plug.struct)
    folder, held = _native.path_bytes(bundle.path), _UNLIMITED if process_bytes is None else process_bytes
    with nullcontext() if plug is None else plug.raising():
        return read_plan(
            lambda plan: _library().ek_plan_session(folder, ctypes.byref(wanted), table, held, plan),
            functools.partial(_native.check, further=_ERRORS),
        )
