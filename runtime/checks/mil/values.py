"""Constants of a program: stored in the model file, or in a weight file by offset. Decoded when asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgekit.runtime.checks.mil.blob import BlobFile, BlobRecord
from edgekit.runtime.checks.mil.errors import (
    MalformedBlob,
    MalformedPackage,
    TruncatedBlob,
    UnsupportedPackage,
)
from edgekit.runtime.checks.mil.types import BOOL, DTYPES, STRING, Array, DType, TensorType, unpack

#: Kinds of numpy types that each field of a TensorValue message may hold; "bytes" holds packed elements.
_FIELD_KINDS = {"floats": "f", "doubles": "f", "ints": "iu", "longInts": "iu", "bools": "b", "strings": "O"}

#: Opens the weight file of a name such as "@model_path/weights/weight.bin".
OpenBlob = Callable[[str], BlobFile]


def tensor_type(proto: Any, where: str) -> TensorType:
    """The type in a `ValueType` message; `where` begins the message of an error."""
    kind = proto.WhichOneof("type")
    if kind != "tensorType":
        raise UnsupportedPackage(f"{where} is a {kind or 'value without a type'}; only tensors are supported")
    tensor = proto.tensorType
    dtype = DTYPES.get(tensor.dataType)
    if dtype is None:
        raise MalformedPackage(f"{where} has the unknown element type {tensor.dataType}")
    if tensor.rank != len(tensor.dimensions):
        raise MalformedPackage(f"{where} has rank {tensor.rank} and {len(tensor.dimensions)} dimensions")
    return TensorType(
        dtype,
        tuple(
            d.constant.size if d.WhichOneof("dimension") == "constant" else None for d in tensor.dimensions
        ),
    )


class Constant:
    """A tensor known before the program runs. It is a `Rows`; checked when made, read when asked for.

    Raises:
        MalformedPackage: the stored form does not fit the declared type. Its subclasses for weight files.
        UnsupportedPackage: not a tensor.
    """

    by_rows = True

    def __init__(self, where: str, proto: Any, open_blob: OpenBlob) -> None:
        self.type = tensor_type(proto.type, where)
        self.where = where
        if None in self.type.shape:
            raise MalformedPackage(f"{where} is a constant of unknown shape {self.type}")
        self.shape = tuple(size for size in self.type.shape if size is not None)
        self._count = int(np.prod(self.shape, dtype=np.int64))
        self.record: BlobRecord | None = None
        kind = proto.WhichOneof("value")
        if kind == "blobFileValue":
            self._blob = open_blob(proto.blobFileValue.fileName)
            self.record = self._checked_record(proto.blobFileValue.offset)
        elif kind == "immediateValue" and proto.immediateValue.WhichOneof("value") == "tensor":
            # Decoded at once: what lies in the model file is small, and in memory already.
            self._immediate = self._decoded(proto.immediateValue.tensor)
        else:
            raise MalformedPackage(f"{where} has no value")

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of `all()`."""
        return self._count * self.dtype.numpy.itemsize

    def rows(self, start: int, stop: int) -> Array:
        if self.record is None:
            return self._immediate[start:stop]
        width = self._count // max(1, self.shape[0])
        values = self._blob.read(self.record, start * width, (stop - start) * width)
        return values.reshape(stop - start, *self.shape[1:])

    def all(self) -> Array:
        if self.record is None:
            return self._immediate
        return self._blob.read(self.record).reshape(self.shape)

    def text(self) -> str:
        """The string that this scalar constant is."""
        if self.dtype is not STRING or self.shape:
            raise MalformedPackage(f"{self.where} is {self.type}, not a string")
        return str(self._immediate[()])

    def _checked_record(self, offset: int) -> BlobRecord:
        record = self._blob.record(offset)
        found = f"{self.where} is declared {self.type}; its record at {offset} of {self._blob.path}"
        if record.dtype is not self.dtype:
            raise MalformedBlob(f"{found} holds {record.dtype}")
        if record.count < self._count:
            raise TruncatedBlob(f"{found} holds {record.count} elements instead of {self._count}")
        if record.count > self._count:
            raise MalformedBlob(f"{found} holds {record.count} elements instead of {self._count}")
        return record

    def _decoded(self, tensor: Any) -> Array:
        declared = f"{self.where} is declared {self.type}"
        field = tensor.WhichOneof("value")
        if field is None:
            if self._count:
                raise MalformedPackage(f"{declared} and has no elements")
            return np.empty(self.shape, self.dtype.numpy)
        stored = getattr(tensor, field).values
        if field == "bytes":
            if self.dtype in (STRING, BOOL) or len(stored) != -(-self._count * self.dtype.bits // 8):
                raise MalformedPackage(f"{declared} and has {len(stored)} bytes")
            return unpack(np.frombuffer(stored, np.uint8), self.dtype, self._count).reshape(self.shape)
        if self.dtype.numpy.kind not in _FIELD_KINDS[field]:
            raise MalformedPackage(f"{declared} and stored as {field}")
        if len(stored) != self._count:
            raise MalformedPackage(f"{declared} and has {len(stored)} elements")
        try:
            return np.array(stored, self.dtype.numpy).reshape(self.shape)
        except OverflowError as error:
            raise MalformedPackage(f"{declared} and has elements outside of that type") from error
