"""Names of tensors in an MLX bundle: those of the checkpoint, which mlx-vlm uses for every family that it
knows.

Experts that a checkpoint stacks in one tensor (`experts.gate_up_proj` [E, 2M, H]) are stored each on its own,
with gate and up apart (`experts.7.gate_proj.weight`): mlx-vlm stacks and joins them when it loads, and an
expert is one piece of the file. A module is what config.json's `quantization` goes by: the stacked one there.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.export.errors import ExportError
from edgekit.export.formats.mlx.layout import EXPERT_PARTS
from edgekit.export.runs import Piece, RunPlan
from edgekit.flashload.format import TensorSpec
from edgekit.flashload.packed import Slice


def stored(runs: Sequence[RunPlan]) -> dict[str, tuple[Slice, ...]]:
    """Stored tensors of the runs, by their names there.

    Raises:
        ExportError: a matrix is made of several tensors of the checkpoint, so that it has no name in it.
    """
    found: dict[str, tuple[Slice, ...]] = {}
    for run in runs:
        specs = {tensor.name: tensor for tensor in run.spec.tensors}
        for piece in run.pieces:
            if piece.spec.role == "float":
                found[piece.name] = _vector(piece, specs[piece.name])
                continue
            cut = piece.spec.parts[0].rows
            first = piece.start if cut is None else cut[0]
            for own, name in _matrices(piece).items():
                for suffix in (".weight", ".scales", ".biases"):
                    if (tensor := specs.get(own + suffix)) is not None:
                        found[own + suffix] = (Slice(name + suffix, first, tensor.shape[0]),)
    return found


def modules(piece: Piece) -> list[str]:
    """The modules that a reader quantizes as this piece of a matrix is stored."""
    if piece.spec.role == "experts" and piece.spec.parts[0].index is not None:
        return [piece.spec.parts[0].tensor]
    return list(_matrices(piece).values())


def _vector(piece: Piece, tensor: TensorSpec) -> tuple[Slice, ...]:
    """The checkpoint's vectors that one of ours joins."""
    parts = piece.spec.parts
    if not tensor.shape:
        return (Slice(parts[0].tensor, 0, 1),)
    rows = tensor.shape[0] // len(parts)
    if any(part.index is not None for part in parts) or rows * len(parts) != tensor.shape[0]:
        raise ExportError(f"format mlx has no names for the parts of {piece.name}")
    return tuple(Slice(part.tensor, 0, rows) for part in parts)


def _matrices(piece: Piece) -> dict[str, str]:
    """The stored matrices of a piece: the name in its run -> that of the module in the checkpoint."""
    parts = piece.spec.parts
    named = [part.tensor.removesuffix(".weight") for part in parts]
    if piece.spec.role != "experts":
        if len(parts) != 1 or parts[0].index is not None:
            raise ExportError(f"format mlx has no name for {piece.name}, which joins {len(parts)} tensors")
        return {piece.name: named[0]}
    unit, _, own = piece.name.rpartition(".")
    halves = EXPERT_PARTS[own]
    if len(parts) == len(halves) and all(part.index is None for part in parts):
        return {f"{unit}.{half}": name for half, name in zip(halves, named, strict=True)}
    stem = named[0].rpartition(".")[0]
    return {f"{unit}.{half}": f"{stem}.{parts[0].index}.{half}" for half in halves}
