"""The functions of an MLX bundle.

Section `programs` of the manifest:

    {"format": "mlx", "layout": "mlx-2", "mlx": "0.32.4", "precision": "float16",
     "entries": {"final": FUNCTION, "dense": FUNCTION,
                 "moe": {"before": FUNCTION, "expert": FUNCTION, "after": FUNCTION}, ...}}
    FUNCTION = {"inputs": [ARGUMENT...], "outputs": [ARGUMENT...], "gpu": {"file"}, "cpu": {"file"}}
    ARGUMENT = {"name", "dtype", "shape"}: sizes are numbers, or names of lengths

See `edgekit.export.formats.mlx.writer` for what they compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekit.flashload.errors import MalformedFile
from edgekit.flashload.manifest import Manifest
from edgekit.runtime.bundle.packages import SAMPLE_STATISTICS, STATISTICS
from edgekit.runtime.bundle.sections import Wrong, value

#: Types of arguments in the manifest: what their arrays have. numpy holds bfloat16 as its bits.
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32), "I64": np.dtype(np.int64),
}  # fmt: skip
_SIDES = ("inputs", "outputs")
_LAYER = ("y", "k", "v")
_MIXTURE = ("experts.x", "experts.index", "experts.weight")


@dataclass(frozen=True)
class Argument:
    """An input or output. Weights are named `w.` and the tensor's name in its run."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Function:
    """A function of one file: arrays in the order of `inputs` to those of `outputs`."""

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    file: str


def read(manifest: Manifest, device: str, where: str) -> dict[str, Function]:
    """The functions for a device ("gpu", "cpu") by name: all that the model's passes call. Layers with
    experts are three: `NAME.before`, `NAME.expert` and `NAME.after`. Messages begin with `where`.

    Raises:
        MalformedFile: something is missing, or not of the form above.
    """
    try:
        entries = value(manifest.programs, "entries", dict)
        functions: dict[str, Function] = {}
        for layer in manifest.layers:
            name = str(layer["program"])
            whole = not layer["experts"]
            entry = value(entries, name, dict)
            for part in ("",) if whole else ("before", "expert", "after"):
                own = f"{name}.{part}" if part else name
                table = value(entry, part, dict, f"program {name}") if part else entry
                functions[own] = _function(table, own, device, manifest)
            if whole:
                _check_outputs(functions, (name,), _LAYER)
            else:
                _check_outputs(functions, (f"{name}.before",), _MIXTURE)
                _check_outputs(functions, (f"{name}.expert",), ("y",))
                _check_outputs(functions, (f"{name}.before", f"{name}.after"), _LAYER)
        for name, outputs in _around(manifest.model["self_conditioning"]).items():
            functions[name] = _function(value(entries, name, dict), name, device, manifest)
            _check_outputs(functions, (name,), outputs)
    except Wrong as error:
        raise MalformedFile(f"{where}: {error}; export the bundle again") from None
    return functions


def _around(self_conditioning: bool) -> dict[str, Sequence[str]]:
    """The functions other than layers, and what each must give."""
    sampled = (*STATISTICS, *SAMPLE_STATISTICS)
    found: dict[str, Sequence[str]] = {
        "final": ("y",), "head": STATISTICS, "head_sample": sampled, "head_logits": ("z",)
    }  # fmt: skip
    if self_conditioning:
        found |= {"self_conditioning": ("y",)}
        found |= {"head_soft": (*STATISTICS, "soft"), "head_sample_soft": (*sampled, "soft")}
    return found


def _function(table: Any, name: str, device: str, manifest: Manifest) -> Function:
    at = f"program {name[:80]}"
    inputs, outputs = (_arguments(value(table, side, list, at), f"{at}, {side}") for side in _SIDES)
    file = value(value(table, device, dict, at), "file", str, f"{at}, {device}")
    if file not in manifest.files:
        raise Wrong(f"{at}: {file[:80]} is not among the files of the bundle")
    return Function(name, inputs, outputs, file)


def _arguments(rows: list[Any], at: str) -> tuple[Argument, ...]:
    found: dict[str, Argument] = {}
    for row in rows:
        name, dtype, shape = (
            value(row, k, t, at) for k, t in (("name", str), ("dtype", str), ("shape", list))
        )
        if dtype not in DTYPES:
            raise Wrong(f"{at}: {name[:80]} is {dtype[:40]}, expected one of {', '.join(DTYPES)}")
        if not all((type(size) is int and size > 0) or (isinstance(size, str) and size) for size in shape):
            raise Wrong(f"{at}: {name[:80]} has shape {str(shape)[:80]}")
        if name in found:
            raise Wrong(f"{at}: {name[:80]} is there twice")
        found[name] = Argument(name, dtype, tuple(shape))
    return tuple(found.values())


def _check_outputs(functions: Mapping[str, Function], names: Sequence[str], expected: Sequence[str]) -> None:
    given = {output.name for name in names for output in functions[name].outputs}
    for output in expected:
        if output not in given:
            raise Wrong(f"program {' and '.join(names)}: outputs have no {output}")
