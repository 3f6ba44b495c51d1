"""A function's tape, followed without computing it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgekit.flashload.errors import MalformedFile
from edgekit.runtime.engines.mlx.functions.file import Entry, ExportedFunction
from edgekit.runtime.engines.mlx.functions.rules import Array, Refused, apply, dtype


def replay(function: ExportedFunction, arguments: Sequence[Array], where: str) -> list[Array]:
    """Follow the function for arguments and return its results, in the order of its outputs.

    Raises:
        MalformedFile: its tape does not hang together, or gives a primitive what MLX must not compute;
            `where` names the file.
    """
    known: dict[int, Array] = {}
    at = "its inputs"
    try:
        if not function.shapeless:
            raise Refused("is for the sizes that it was traced with alone")
        if len(arguments) != len(function.inputs):
            raise Refused(f"takes {len(function.inputs)} arrays, not {len(arguments)}")
        given = {}
        for entry, argument in zip(function.inputs, arguments, strict=True):
            if dtype(entry.dtype) != argument.dtype or len(entry.shape) != len(argument.shape):
                raise Refused(
                    f"an input is {dtype(entry.dtype)} of {len(entry.shape)} dimensions, not "
                    f"{argument.dtype} of shape {list(argument.shape)[:8]}"
                )
            given[entry.id] = argument
        if len(given) != len(arguments):
            raise Refused("two inputs are the same array")
        for number, entry in enumerate(function.tape):
            at = f"entry {number}" + (f" ({entry.name})" if entry.name else "")
            if entry.id in known or (entry.id in given) != (not entry.name and entry.data is None):
                raise Refused("an array is there twice, or not at all")
            known[entry.id] = given[entry.id] if entry.id in given else _entry(entry, known)
        at = "its outputs"
        return [_known(known, i) for i in function.outputs]
    except Refused as error:
        raise MalformedFile(f"{where}: {at}: {error}; export the bundle again") from None


def _entry(entry: Entry, known: dict[int, Array]) -> Array:
    if entry.data is not None:
        return _constant(entry)
    made = apply(entry.name, entry.state, [_known(known, i) for i in entry.inputs])
    if dtype(entry.dtype) != made.dtype:
        raise Refused(f"makes {made.dtype}, not {dtype(entry.dtype)}")
    return made


def _known(known: dict[int, Array], number: int) -> Array:
    if number not in known:
        raise Refused("refers to an array that is not there yet")
    return known[number]


def _constant(entry: Entry) -> Array:
    kind = dtype(entry.dtype)
    if kind not in ("U32", "I64"):
        return Array(entry.shape, kind)
    values = np.frombuffer(entry.data or b"", "<u4" if kind == "U32" else "<i8")
    return Array.of_integers(kind, values.reshape(entry.shape))
