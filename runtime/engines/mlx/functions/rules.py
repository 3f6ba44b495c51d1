"""Rules of MLX's primitives: the arrays that each makes, and those that it must not be given.

A rule is stricter than MLX: it allows what edgekit writes, and refuses what MLX would compute on trust.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

Shape = tuple[int, ...]
#: Types as files have them (an i32 and the size in a u8), by the names that manifests and safetensors use.
DTYPES = {
    b"\x03\0\0\0\4": "U32", b"\x08\0\0\0\x08": "I64", b"\x09\0\0\0\2": "F16", b"\x0a\0\0\0\4": "F32",
    b"\x0c\0\0\0\2": "BF16",
}  # fmt: skip
_INTEGERS = ("U32", "I64")
#: MLX counts elements and strides in 32 bits in places.
_MOST_ELEMENTS = 2**31 - 1


class Refused(Exception):
    """A call of a primitive that MLX must not see."""


@dataclass(frozen=True)
class Array:
    """An array as far as it is known before it is computed."""

    shape: Shape
    dtype: str
    #: All values are in 0..bound-1; None where nothing is known. Whoever gathers by them must know.
    bound: int | None = None

    @classmethod
    def of_integers(cls, kind: str, values: np.ndarray) -> Array:
        """An array of type `kind` that is there."""
        known = values.size > 0 and int(values.min()) >= 0
        return cls(values.shape, kind, int(values.max()) + 1 if known else None)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class State:
    """The state of a primitive, read in order."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def integer(self) -> int:
        """An i32, or an enumeration."""
        return self._take("<i")

    def flag(self) -> bool:
        """A byte."""
        return bool(self._take("<B"))

    def integers(self) -> Shape:
        """A vector of i32."""
        return tuple(self.integer() for _ in range(self._take("<Q")))

    def dtype(self) -> str:
        """A type. Raises Refused for one that edgekit does not write."""
        data = self._data[self._at : self._at + 5]
        self._at += 5
        return dtype(data)


Rule = Callable[[State, Sequence[Array]], Array]


def dtype(data: bytes) -> str:
    """The name of a type. Raises Refused for one that edgekit does not write."""
    if data not in DTYPES:
        raise Refused(f"type {data.hex()} is not one that edgekit writes")
    return DTYPES[data]


def apply(name: str, state: bytes, inputs: Sequence[Array]) -> Array:
    """The arrays that a primitive makes of its inputs. Raises Refused for inputs of another kind."""
    count = _INPUTS.get(name, 1)
    if not inputs or (count is not None and len(inputs) != count):
        raise Refused(f"takes {count or 'some'} arrays, not {len(inputs)}")
    made = RULES[name](State(state), inputs)
    if made.size > _MOST_ELEMENTS:
        raise Refused(f"makes an array of shape {list(made.shape)[:8]}")
    return made


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise Refused(what)


def _floating(inputs: Sequence[Array]) -> None:
    _need(
        all(a.dtype == "F32" for a in inputs), f"computes in F32, not {' and '.join(a.dtype for a in inputs)}"
    )


def _shapes(inputs: Sequence[Array]) -> str:
    return " and ".join(str(list(a.shape)[:8]) for a in inputs[:4])


def _axis(axis: int, a: Array) -> int:
    _need(0 <= axis < len(a.shape), f"axis {axis} of an array of shape {list(a.shape)[:8]}")
    return axis


def _axes(axes: Shape, dimensions: int) -> Shape:
    _need(
        len(set(axes)) == len(axes) and all(0 <= x < dimensions for x in axes),
        f"axes {list(axes)[:8]} of an array of {dimensions} dimensions",
    )
    return axes


def _unary(state: State, inputs: Sequence[Array]) -> Array:
    _floating(inputs)
    return Array(inputs[0].shape, inputs[0].dtype)


def _binary(state: State, inputs: Sequence[Array]) -> Array:
    _floating(inputs)
    _need(inputs[0].shape == inputs[1].shape, f"shapes {_shapes(inputs)} differ")
    return Array(inputs[0].shape, inputs[0].dtype)


def _as_type(state: State, inputs: Sequence[Array]) -> Array:
    made = state.dtype()
    kept = made in _INTEGERS and inputs[0].dtype in _INTEGERS
    return Array(inputs[0].shape, made, inputs[0].bound if kept else None)


def _softmax(state: State, inputs: Sequence[Array]) -> Array:
    _floating(inputs)
    _need(inputs[0].size > 0 and len(inputs[0].shape) > 0, "has nothing to sum")
    return inputs[0]


def _arg_reduce(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    _floating(inputs)
    kind, axis = state.integer(), _axis(state.integer(), a)
    _need(kind in (0, 1) and a.size > 0, f"of kind {kind} over shape {list(a.shape)[:8]}")
    return Array((*a.shape[:axis], 1, *a.shape[axis + 1 :]), "U32", a.shape[axis])


def _arg_sort(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    _floating(inputs)
    return Array(a.shape, "U32", a.shape[_axis(state.integer(), a)])


def _concatenate(state: State, inputs: Sequence[Array]) -> Array:
    first = inputs[0]
    axis = _axis(state.integer(), first)
    for a in inputs:
        same = len(a.shape) == len(first.shape) and a.dtype == first.dtype
        same = same and all(
            x == y for i, (x, y) in enumerate(zip(a.shape, first.shape, strict=True)) if i != axis
        )
        _need(same, f"shapes {_shapes((first, a))} along axis {axis}")
    size = sum(a.shape[axis] for a in inputs)
    return Array((*first.shape[:axis], size, *first.shape[axis + 1 :]), first.dtype)


def _gather_axis(state: State, inputs: Sequence[Array]) -> Array:
    a, index = inputs
    axis = _axis(state.integer(), a)
    same = len(a.shape) == len(index.shape)
    same = same and all(
        x == y for i, (x, y) in enumerate(zip(a.shape, index.shape, strict=True)) if i != axis
    )
    _need(same, f"shapes {_shapes(inputs)} along axis {axis}")
    _indices(index, a.shape[axis])
    return Array(index.shape, a.dtype, a.bound)


def _scatter_axis(state: State, inputs: Sequence[Array]) -> Array:
    a, index, values = inputs
    _floating((a, values))
    kind, axis = state.integer(), _axis(state.integer(), a)
    _need(kind == 1, f"of kind {kind}; it replaces alone")
    same = len(a.shape) == len(index.shape) and index.shape == values.shape
    same = same and all(
        x == y for i, (x, y) in enumerate(zip(a.shape, index.shape, strict=True)) if i != axis
    )
    _need(same, f"shapes {_shapes(inputs)} along axis {axis}")
    _indices(index, a.shape[axis])
    return Array(a.shape, a.dtype)


def _indices(index: Array, room: int) -> None:
    _need(index.dtype in _INTEGERS, f"indices are {index.dtype}")
    known = index.size == 0 or (index.bound is not None and index.bound <= room)
    _need(known, f"indices up to {'?' if index.bound is None else index.bound - 1} where there are {room}")


def _gather(state: State, inputs: Sequence[Array]) -> Array:
    a, *indices = inputs
    axes, sizes = _axes(state.integers(), len(a.shape)), state.integers()
    _need(len(indices) == len(axes), f"{len(axes)} axes and {len(indices)} arrays of indices")
    fits = len(sizes) == len(a.shape) and all(0 <= n <= have for n, have in zip(sizes, a.shape, strict=True))
    _need(fits, f"slices {list(sizes)[:8]} of an array of shape {list(a.shape)[:8]}")
    for axis, index in zip(axes, indices, strict=True):
        _need(index.shape == indices[0].shape, f"shapes {_shapes(indices)} differ")
        _indices(index, a.shape[axis] - sizes[axis] + 1)
    return Array((*(indices[0].shape if indices else ()), *sizes), a.dtype, a.bound)


def _flatten(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    start, end = _axis(state.integer(), a), _axis(state.integer(), a)
    _need(start <= end, f"axes {start} to {end}")
    return replace(a, shape=(*a.shape[:start], math.prod(a.shape[start : end + 1]), *a.shape[end + 1 :]))


def _unflatten(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    axis, sizes = _axis(state.integer(), a), state.integers()
    return replace(a, shape=(*a.shape[:axis], *_reshaped(a.shape[axis], sizes), *a.shape[axis + 1 :]))


def _reshape(state: State, inputs: Sequence[Array]) -> Array:
    return replace(inputs[0], shape=_reshaped(inputs[0].size, state.integers()))


def _reshaped(size: int, sizes: Shape) -> Shape:
    known = math.prod(n for n in sizes if n != -1)
    fits = sizes.count(-1) <= 1 and all(n >= -1 for n in sizes)
    fits = fits and (known > 0 and size % known == 0 if -1 in sizes else known == size)
    _need(fits, f"{size} elements as {list(sizes)[:8]}")
    return tuple(size // known if n == -1 else n for n in sizes)


def _joined(shapes: Sequence[Shape]) -> Shape:
    """The shape that all broadcast to."""
    longest = max(len(s) for s in shapes)
    columns = zip(*((1,) * (longest - len(s)) + s for s in shapes), strict=True)
    found = []
    for column in columns:
        sizes = {n for n in column if n != 1} or {1}
        _need(len(sizes) == 1, f"shapes {' and '.join(str(list(s)[:8]) for s in shapes[:4])}")
        found.append(sizes.pop())
    return tuple(found)


def _broadcast(state: State, inputs: Sequence[Array]) -> Array:
    shape = state.integers()
    shapes = [a.shape for a in inputs]
    if len(inputs) == 1:
        # Sizes that were traced are gone by where there is nothing else to go by.
        _need(_joined([*shapes, shape]) == shape and min(shape, default=0) >= 0, f"to {list(shape)[:8]}")
        return replace(inputs[0], shape=shape)
    return replace(inputs[0], shape=_joined(shapes))


def _broadcast_axes(state: State, inputs: Sequence[Array]) -> Array:
    ignored = state.integers()
    first = inputs[0]
    ordered = list(ignored) == list(range(-len(ignored), 0))
    _need(ordered and all(len(a.shape) >= len(ignored) for a in inputs), f"but for axes {list(ignored)[:8]}")
    rest = len(ignored)
    shape = _joined([a.shape[: len(a.shape) - rest] for a in inputs])
    return replace(first, shape=shape + first.shape[len(first.shape) - rest :])


def _expand_dims(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    axes = state.integers()
    sizes = iter(a.shape)
    dimensions = len(a.shape) + len(axes)
    _need(list(_axes(axes, dimensions)) == sorted(axes), f"axes {list(axes)[:8]}")
    return replace(a, shape=tuple(1 if i in axes else next(sizes) for i in range(dimensions)))


def _squeeze(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    axes = _axes(state.integers(), len(a.shape))
    _need(list(axes) == sorted(axes) and all(a.shape[x] == 1 for x in axes), f"axes {list(axes)[:8]}")
    return replace(a, shape=tuple(n for i, n in enumerate(a.shape) if i not in axes))


def _transpose(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    axes = _axes(state.integers(), len(a.shape))
    _need(len(axes) == len(a.shape), f"axes {list(axes)[:8]}")
    return replace(a, shape=tuple(a.shape[x] for x in axes))


def _reduce(state: State, inputs: Sequence[Array]) -> Array:
    (a,) = inputs
    _floating(inputs)
    kind, axes = state.integer(), _axes(state.integers(), len(a.shape))
    _need(0 <= kind <= 5, f"of kind {kind}")
    # MLX 0.32 reads beyond its lists where no axis is left.
    _need(
        a.size > 0 and math.prod(a.shape[x] for x in axes) > 1,
        f"over {list(axes)[:8]} of {list(a.shape)[:8]}",
    )
    return Array(tuple(1 if i in axes else n for i, n in enumerate(a.shape)), a.dtype)


def _number_of_elements(state: State, inputs: Sequence[Array]) -> Array:
    _axes(state.integers(), len(inputs[0].shape))
    state.flag()
    return Array((), state.dtype())


def _matmul(state: State, inputs: Sequence[Array]) -> Array:
    a, b = inputs
    _floating(inputs)
    fits = len(a.shape) == len(b.shape) >= 2 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
    _need(fits, f"shapes {_shapes(inputs)}")
    return Array((*a.shape[:-1], b.shape[-1]), a.dtype)


def _quantized_matmul(state: State, inputs: Sequence[Array]) -> Array:
    x, codes, scales, biases = inputs
    group, bits, mode, transposed = state.integer(), state.integer(), state.integer(), state.flag()
    _need(
        group in (32, 64, 128) and bits in (4, 8) and mode == 0,
        f"of {bits} bits in groups of {group}, mode {mode}",
    )
    _floating((x, scales, biases))
    fits = codes.dtype == "U32" and len(x.shape) >= 2 and len(codes.shape) == len(scales.shape) == 2
    fits = fits and scales.shape == biases.shape and codes.shape[0] == scales.shape[0]
    fits = fits and codes.shape[1] * 32 // bits == scales.shape[1] * group
    _need(fits, f"shapes {_shapes(inputs)}")
    rows, columns = codes.shape[0], scales.shape[1] * group
    taken, made = (columns, rows) if transposed else (rows, columns)
    _need(x.shape[-1] == taken, f"shapes {_shapes(inputs)}")
    return Array((*x.shape[:-1], made), x.dtype)


#: Primitives of other than one input; None: any number, at least one.
_INPUTS: dict[str, int | None] = {
    "Add": 2, "Divide": 2, "Multiply": 2, "Subtract": 2, "Matmul": 2, "GatherAxis": 2, "QuantizedMatmul": 4,
    "ScatterAxis": 3,
    "Gather": None, "Concatenate": None, "Broadcast": None, "BroadcastAxes": None,
}  # fmt: skip
RULES: dict[str, Rule] = {
    "Add": _binary, "Divide": _binary, "Multiply": _binary, "Subtract": _binary,
    "Exp": _unary, "Negative": _unary, "Sigmoid": _unary, "Sqrt": _unary, "Square": _unary, "Tanh": _unary,
    "ArgReduce": _arg_reduce, "ArgSort": _arg_sort, "AsType": _as_type, "Broadcast": _broadcast,
    "BroadcastAxes": _broadcast_axes, "Concatenate": _concatenate, "ExpandDims": _expand_dims,
    "Flatten": _flatten, "Gather": _gather, "GatherAxis": _gather_axis, "Matmul": _matmul,
    "NumberOfElements": _number_of_elements, "QuantizedMatmul": _quantized_matmul, "Reduce": _reduce,
    "Reshape": _reshape, "ScatterAxis": _scatter_axis, "Softmax": _softmax, "Squeeze": _squeeze,
    "Transpose": _transpose, "Unflatten": _unflatten,
}  # fmt: skip
