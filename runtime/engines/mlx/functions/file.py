"""The file that `mx.export_function` writes: read, and written again for a device of choice, with equal bytes
for equal functions.

MLX records in every primitive the device it was traced on, and names arrays by their addresses. Programs
for a Mac's GPU could therefore be written on a Mac alone, and never twice alike. All integers are little
endian; a vector is a u64 count and its elements, a string a vector of bytes, a shape a vector of i32, a
type an i32 and a u8.

    file        string version, i32 count of functions, u8 shapeless, string metadata, functions
    function    vector of strings (keyword names), vector of u64 (input ids), vector of (shape, type),
                vector of u64 (output ids), u64 length of the tape, the tape
    tape entry  u64 id, u8 1, vector of u64 (input ids), stream, string primitive, state, outputs; or
                u64 id, u8 0, u8 is a constant, and for constants shape, type, data
    stream      i32 index, i32 device (0 CPU, 1 GPU), i32 index of the device
    outputs     u64 0, shape, type; or u64 siblings, vector of u64 (ids), vector of shapes, vector of types
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgekit.flashload.errors import MalformedFile, quoted

DEVICES = {"cpu": 0, "gpu": 1}
#: The state of each primitive: i an i32 (enumerations too), ? a flag, v a vector of i32, t a type.
STATES = {
    "Add": "", "Divide": "", "Exp": "", "Matmul": "", "Multiply": "", "Negative": "",
    "Sigmoid": "", "Square": "", "Subtract": "", "Tanh": "",
    "AsType": "t", "Sqrt": "?", "Softmax": "?",
    "ArgReduce": "ii", "ArgSort": "i", "Concatenate": "i", "GatherAxis": "i", "Flatten": "ii",
    "ScatterAxis": "ii",
    "Broadcast": "v", "BroadcastAxes": "v", "ExpandDims": "v", "Reshape": "v", "Squeeze": "v",
    "Transpose": "v",
    "Reduce": "iv", "Unflatten": "iv", "Gather": "vv", "NumberOfElements": "v?t", "QuantizedMatmul": "iii?",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One array of the tape: of a primitive (`inputs`, `name`, `state`), a constant (`data`), or an input."""

    id: int
    shape: tuple[int, ...] = ()
    dtype: bytes = b""
    inputs: tuple[int, ...] = ()
    name: str = ""
    state: bytes = b""
    data: bytes | None = None


@dataclass(frozen=True)
class ExportedFunction:
    """The one function of a file."""

    version: str
    shapeless: bool
    device: str
    metadata: str
    inputs: tuple[Entry, ...]
    outputs: tuple[int, ...]
    tape: tuple[Entry, ...]


def parse(data: bytes, where: str) -> ExportedFunction:
    """Read the file of a single function without keyword arguments.

    Raises:
        MalformedFile: the data end early or go on, are of several functions or devices, or hold what is not
            in `STATES`; `where` names them.
    """
    reader = _Reader(data, where)
    written_by, count = reader.text(), reader.number("<i")
    shapeless, metadata = reader.number("<?"), reader.text()
    if count != 1 or reader.number("<Q"):
        raise reader.wrong(f"holds {count} functions, or one with keyword arguments; one without can be")
    ids = reader.vector(reader.id)
    arrays = reader.vector(lambda: (reader.shape(), reader.dtype()))
    if len(ids) != len(arrays):
        raise reader.wrong(f"names {len(ids)} inputs and describes {len(arrays)}")
    inputs = tuple(Entry(i, *array) for i, array in zip(ids, arrays, strict=True))
    outputs = tuple(reader.vector(reader.id))
    tape = tuple(reader.vector(reader.entry))
    reader.end()
    if len(reader.devices) != 1:
        raise reader.wrong(f"runs on {len(reader.devices)} devices; one can be")
    device = next(iter(reader.devices))
    return ExportedFunction(written_by, bool(shapeless), device, metadata, inputs, outputs, tape)


def version(data: bytes, where: str) -> str:
    """The version of MLX that wrote a file.

    Raises:
        MalformedFile: the data do not begin with one.
    """
    return _Reader(data, where).text()


def encode(function: ExportedFunction, device: str) -> bytes:
    """The bytes of the file, every primitive on `device` ("cpu" or "gpu") and ids counted from 1."""
    numbers: dict[int, int] = {}

    def ids(values: tuple[int, ...]) -> bytes:
        return struct.pack(f"<{len(values) + 1}Q", len(values), *(number(v) for v in values))

    def number(value: int) -> int:
        return numbers.setdefault(value, len(numbers) + 1)

    out = [_text(function.version), struct.pack("<i?", 1, function.shapeless), _text(function.metadata)]
    out += [struct.pack("<Q", 0), ids(tuple(e.id for e in function.inputs))]
    out += [struct.pack("<Q", len(function.inputs)), *(_shape(e.shape) + e.dtype for e in function.inputs)]
    # Outputs are numbered in the order of the tape, which comes after them.
    for entry in function.tape:
        number(entry.id)
    out += [ids(function.outputs), struct.pack("<Q", len(function.tape))]
    for entry in function.tape:
        out.append(struct.pack("<Q", number(entry.id)))
        if entry.name:
            stream = struct.pack("<iii", 0, DEVICES[device], 0)
            out += [b"\1", ids(entry.inputs), stream, _text(entry.name), entry.state]
            out += [struct.pack("<Q", 0), _shape(entry.shape), entry.dtype]
        elif entry.data is not None:
            out += [b"\0\1", _shape(entry.shape), entry.dtype, entry.data]
        else:
            out.append(b"\0\0")
    return b"".join(out)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _shape(value: tuple[int, ...]) -> bytes:
    return struct.pack(f"<Q{len(value)}i", len(value), *value)


class _Reader:
    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at = data, where, 0
        self.devices: set[str] = set()

    def wrong(self, what: str) -> MalformedFile:
        return MalformedFile(f"{self._where}: an exported function {what}; export the bundle again")

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._at:
            raise self.wrong("ends early, or is of another version of MLX")
        self._at += count
        return self._data[self._at - count : self._at]

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.wrong("goes on behind its end")

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def id(self) -> int:
        return self.number("<Q")

    def vector(self, element: Callable[[], Any]) -> list[Any]:
        count = self.number("<Q")
        if count > len(self._data):
            raise self.wrong(f"has a list of {count} elements, or is of another version of MLX")
        return [element() for _ in range(count)]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def shape(self) -> tuple[int, ...]:
        return tuple(self.vector(lambda: self.number("<i")))

    def dtype(self) -> bytes:
        return self.take(5)

    def entry(self) -> Entry:
        own = self.id()
        if self.number("<?"):
            return self._computed(own)
        if not self.number("<?"):
            return Entry(own)
        shape, dtype = self.shape(), self.dtype()
        if min(shape, default=0) < 0:
            raise self.wrong(f"has a constant of shape {list(shape)[:8]}")
        return Entry(own, shape, dtype, data=self.take(math.prod(shape) * dtype[4]))

    def _computed(self, own: int) -> Entry:
        inputs = tuple(self.vector(self.id))
        stream = struct.unpack("<iii", self.take(12))
        names = [name for name, number in DEVICES.items() if stream == (0, number, 0)]
        if not names:
            raise self.wrong(f"asks for stream {stream[0]} of device {stream[1]}.{stream[2]}")
        self.devices.update(names)
        name = self.text()
        if name not in STATES:
            raise self.wrong(f"uses MLX's primitive {quoted(name, 40)}, which edgekit does not write")
        start = self._at
        for kind in STATES[name]:
            self._skip(kind)
        state = self._data[start : self._at]
        if siblings := self.number("<Q"):
            raise self.wrong(f"uses {name} with {siblings + 1} outputs; one can be")
        return Entry(own, self.shape(), self.dtype(), inputs, name, state)

    def _skip(self, kind: str) -> None:
        if kind == "v":
            self.shape()
        else:
            self.take({"i": 4, "?": 1, "t": 5}[kind])
