"""The report on quantization: what it did to each tensor and to the whole model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TensorReport:
    """One matrix: bits of its codes, group size (0: per channel), stored bytes, relative error |w - w'| /
    |w|.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    bits: int
    group_size: int
    stored_bytes: int
    relative_error: float
    note: str = ""


@dataclass(frozen=True)
class QuantizationReport:
    """All matrices of a model plus the bytes that stay float."""

    preset: str
    tensors: tuple[TensorReport, ...]
    float_bytes: int
    float_parameters: int

    @property
    def parameters(self) -> int:
        """Parameters of matrices and float tensors together."""
        return self.float_parameters + sum(_size(t.shape) for t in self.tensors)

    @property
    def stored_bytes(self) -> int:
        """Bytes of codes, scales and float tensors, without alignment padding."""
        return self.float_bytes + sum(t.stored_bytes for t in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over parameters, scales included."""
        return 8 * self.stored_bytes / self.parameters

    def by_role(self) -> list[dict[str, Any]]:
        """One row per (role, bits): count, parameters, bytes, mean and largest relative error."""
        groups: dict[tuple[str, int], list[TensorReport]] = {}
        for t in self.tensors:
            groups.setdefault((t.role, t.bits), []).append(t)
        return [
            {
                "role": role,
                "bits": bits,
                "tensors": len(ts),
                "parameters": sum(_size(t.shape) for t in ts),
                "bytes": sum(t.stored_bytes for t in ts),
                "mean_error": sum(t.relative_error for t in ts) / len(ts),
                "max_error": max(t.relative_error for t in ts),
            }
            for (role, bits), ts in groups.items()
        ]

    def notes(self) -> list[str]:
        """Every departure from the preset, one line each."""
        return [f"{t.name}: {t.note}" for t in self.tensors if t.note]

    def as_dict(self) -> dict[str, Any]:
        """For the manifest and `--json`: totals, roles and notes; JSON values only."""
        return {
            "preset": self.preset,
            "parameters": self.parameters,
            "bytes": self.stored_bytes,
            "bits_per_weight": round(self.bits_per_weight, 4),
            "roles": self.by_role(),
            "notes": self.notes(),
        }

    def tensors_as_dicts(self) -> list[dict[str, Any]]:
        """One JSON object per matrix."""
        return [asdict(t) | {"shape": list(t.shape)} for t in self.tensors]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def joined_report(preset: str, rows: Iterable[TensorReport], float_parameters: int) -> QuantizationReport:
    """The report on a model from those on its pieces, in their order: rows of one name are tiles of one
    matrix.
    """
    matrices: dict[str, list[TensorReport]] = {}
    for row in rows:
        matrices.setdefault(row.name, []).append(row)
    tensors = tuple(_joined(tiles) for tiles in matrices.values())
    return QuantizationReport(preset, tensors, float_parameters * 4, float_parameters)


def _joined(tiles: list[TensorReport]) -> TensorReport:
    if len(tiles) == 1:
        return tiles[0]
    rows = sum(t.shape[0] for t in tiles)
    # Tiles have about equal norms; weighting squares by rows is exact when they are.
    error = (sum(t.relative_error**2 * t.shape[0] for t in tiles) / rows) ** 0.5
    return replace(
        tiles[0],
        shape=(rows, tiles[0].shape[1]),
        stored_bytes=sum(t.stored_bytes for t in tiles),
        relative_error=error,
    )
