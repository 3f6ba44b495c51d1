"""The runs of a flash file: which weights are read together, in which order, and how large tables are cut
into tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.quantize import Choice
from edgekit.flashload.format import RunSpec, TensorSpec

#: A tile of a vocabulary table: small against a layer, large against a disk's request size.
TABLE_TILE_BYTES = 8 << 20
#: Tiles are cut at multiples of this many rows, so that kernels see full blocks.
TILE_ROWS = 64


@dataclass(frozen=True)
class Piece:
    """Rows start..stop of a weight, stored under `name`; `matrix` is the name that presets and reports
    use. A `copy` is in another run as well.
    """

    name: str
    matrix: str
    spec: WeightSpec
    start: int
    stop: int
    copy: bool = False


@dataclass(frozen=True)
class RunPlan:
    """A run, the weights it is made of, and the unit it belongs to (`embedding`, `layers.3`,
    `layers.3.experts.7`...).
    """

    unit: str
    spec: RunSpec
    pieces: tuple[Piece, ...]

    @property
    def source_elements(self) -> int:
        """Elements read from the checkpoint for this run: the measure of progress."""
        return sum(
            (p.stop - p.start) * (p.spec.shape[1] if len(p.spec.shape) > 1 else 1) for p in self.pieces
        )

    @property
    def float_elements(self) -> int:
        """Elements that stay float32: norms, biases, scalars."""
        return sum(p.stop - p.start for p in self.pieces if p.spec.role == "float" and not p.copy)


class Layout(Protocol):
    """A format's stored forms; see `edgekit.export.formats.base`."""

    @property
    def architecture(self) -> Architecture: ...
    @property
    def choices(self) -> Mapping[str, Choice]: ...
    def units(self) -> Iterator[tuple[str, str, WeightSpec]]: ...
    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]: ...


def plan_runs(layout: Layout, tile_bytes: int) -> list[RunPlan]:
    """Runs in execution order: embedding tiles, self-conditioning, per layer its dense part and each
    expert, final norm, head tiles.
    """
    choices = layout.choices
    units: dict[str, list[tuple[str, WeightSpec]]] = {}
    for unit, owner, spec in layout.units():
        units.setdefault(unit, []).append((owner, spec))
    plans = []
    known: set[str] = set()
    for unit, members in units.items():
        if unit in ("embedding", "head"):
            plans += _tiles(unit, members[0][1], choices[unit], layout, tile_bytes)
            continue
        pieces = tuple(
            Piece(f"{unit}.{s.name}", matrix, s, 0, s.shape[0], matrix in known)
            for s, matrix in ((s, f"{owner}.{s.name}") for owner, s in members)
        )
        known |= {piece.matrix for piece in pieces}
        tensors = tuple(
            t for p in pieces for t in layout.specs(p.name, p.spec, choices.get(p.matrix, Choice(16, 0)))
        )
        plans.append(RunPlan(unit, RunSpec(unit, tensors), pieces))
    return plans


def _tiles(unit: str, spec: WeightSpec, choice: Choice, layout: Layout, tile_bytes: int) -> list[RunPlan]:
    rows, columns = spec.shape
    at_once = max(1, tile_bytes // (columns * choice.bits // 8))
    if at_once > TILE_ROWS:
        at_once -= at_once % TILE_ROWS
    plans = []
    for i, start in enumerate(range(0, rows, at_once)):
        stop = min(rows, start + at_once)
        name = f"{unit}.{i}"
        tile = WeightSpec(spec.name, (stop - start, columns), spec.role, spec.parts)
        plans.append(
            RunPlan(
                unit, RunSpec(name, layout.specs(name, tile, choice)), (Piece(name, unit, spec, start, stop),)
            )
        )
    return plans
