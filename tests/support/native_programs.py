"""Runs single programs in the native core (`ekt_program`), as `program_interpreter` runs them in numpy."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit.flashload.reader import FlashFile
from support.native_testing import library

#: Tensors of a run: name within the run -> (safetensors dtype, array).
Stored = Mapping[str, tuple[str, NDArray[Any]]]
INPUTS = ("soft", "prefix_k", "prefix_v", "cos", "sin", "mask")


class ProgramRefused(Exception):
    """The core's message about a program, and its status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p), ("dtype", c_char_p), ("rank", c_int64), ("shape", c_int64 * 4),
        ("data", c_void_p), ("bytes", c_int64),
    )  # fmt: skip


class _Call(ctypes.Structure):
    _fields_ = (
        ("entry", c_char_p),
        *((n, c_int64) for n in ("hidden", "kv_heads", "head_dim", "rotary")),
        *((n, c_int64) for n in ("threads", "positions", "prefix", "phase", "in_place", "reversed", "batch")),
        *((n, c_int64) for n in ("experts", "dense_tensors", "expert_tensors")),
        ("dense", c_void_p), ("expert", c_void_p),
        *((n, c_void_p) for n in ("x", *INPUTS, "y", "k", "v")),
        ("scratch_bytes", c_int64),
    )  # fmt: skip


@dataclass
class Ran:
    """Outputs of a program (k and v None where they were not asked for), and the scratch memory it had."""

    y: NDArray[np.float32]
    k: NDArray[np.float32] | None
    v: NDArray[np.float32] | None
    scratch_bytes: int


@dataclass
class NativeProgram:
    """An entry with the weights of its run, and of each expert's."""

    entry: Mapping[str, Any]
    weights: Stored
    experts: Sequence[Stored] = ()
    kv_heads: int = 1
    head_dim: int = 1
    _keep: list[Any] = field(default_factory=list)

    def run(
        self,
        inputs: Mapping[str, NDArray[Any]],
        *,
        threads: int = 1,
        in_place: bool = False,
        reverse: bool = False,
        batch: int = 0,
        kv: bool = True,
    ) -> Ran:
        """Inputs by name, as the interpreter takes them. `in_place`: y overwrites x. `reverse`: the last
        expert comes first. `batch`: experts that come at a time, 0 for all. `kv`: keys and values are
        wanted, where the program makes them.

        Raises ProgramRefused.
        """
        self._keep.clear()
        x = self._array(inputs.get("x", inputs.get("embedded")))
        assert x is not None
        _, positions, hidden = x.shape
        arrays = {name: self._array(inputs.get(name)) for name in INPUTS}
        prefix, cos = arrays["prefix_k"], arrays["cos"]
        y = np.full_like(x, np.nan)
        shape = (1, self.kv_heads, positions, self.head_dim)
        made = kv and len(self.entry["outputs"]) == 3
        k, v = (np.full(shape, np.nan, np.float32) if made else None for _ in range(2))
        dense = self._tensors([self.weights])
        expert = self._tensors(self.experts)
        call = _Call(
            entry=json.dumps(self.entry).encode(),
            hidden=hidden,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rotary=1 if cos is None else cos.shape[1],
            threads=threads,
            positions=positions,
            prefix=0 if prefix is None else prefix.shape[2],
            phase=int(inputs["phase"][0]) if "phase" in inputs else 0,
            in_place=in_place,
            reversed=reverse,
            batch=batch,
            experts=len(self.experts),
            dense_tensors=len(dense),
            expert_tensors=len(expert) // max(1, len(self.experts)),
            dense=ctypes.addressof(dense),
            expert=ctypes.addressof(expert),
            x=x.ctypes.data,
            y=y.ctypes.data,
            k=None if k is None else k.ctypes.data,
            v=None if v is None else v.ctypes.data,
            **{name: None if a is None else a.ctypes.data for name, a in arrays.items()},
        )
        message = ctypes.create_string_buffer(512)
        status = library().ekt_program(ctypes.byref(call), message)
        if status != 0:
            raise ProgramRefused(message.value.decode(), status)
        return Ran(y, k, v, int(call.scratch_bytes))

    def _array(self, array: NDArray[Any] | None) -> NDArray[np.float32] | None:
        if array is None:
            return None
        array = np.ascontiguousarray(array, np.float32)
        self._keep.append(array)
        return array

    def _tensors(self, runs: Sequence[Stored]) -> Any:
        rows = [(name, dtype, array) for run in runs for name, (dtype, array) in run.items()]
        tensors = (_Tensor * max(1, len(rows)))()
        for tensor, (name, dtype, array) in zip(tensors, rows, strict=False):
            array = np.ascontiguousarray(array)
            self._keep.append(array)
            tensor.name, tensor.dtype, tensor.rank = name.encode(), dtype.encode(), array.ndim
            tensor.shape[: array.ndim] = array.shape
            tensor.data, tensor.bytes = array.ctypes.data, array.nbytes
        self._keep.append(tensors)
        return tensors if rows else (_Tensor * 0)()


def stored_run(file: FlashFile, run: str) -> dict[str, tuple[str, NDArray[Any]]]:
    """Copies of the tensors of a run."""
    buffer, views = file.load(run)
    dtypes = {slot.name: slot.dtype for slot in file.run(run).tensors}
    found = {
        name.removeprefix(run + "."): (dtypes[name], view.copy())
        for name, view in views.items()
        if not name.startswith("__pad__")
    }
    views.clear()
    buffer.close()
    return found
