"""What passes over a bundle compute, in operations: a product and a sum are two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgekit.runtime.bundle import quantization_report
from edgekit.runtime.bundle.bundle import Bundle

#: Roles of matrices that rows do not all go through, or that no product is made with.
_APART = ("embedding", "head", "experts", "self_conditioning", "adapter")
_QUERIES = "self_attn.q_proj"


@dataclass(frozen=True)
class Costs:
    """Operations: `row` of a position in all layers but for experts and attention, `expert` of a row in one
    expert, `head` of a row that the vocabulary head scores, `attended` of a pair of a row and one that it
    sees, in all layers, and `conditioning` of a row whose earlier tokens go into a canvas. Layers with a
    window count as if they had none.
    """

    row: int
    expert: int
    head: int
    attended: int
    conditioning: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def of_pass(self, each: Mapping[str, Any]) -> int:
        """Of a pass of a report (docs/bench.md). What softens a canvas behind the head is not counted."""
        conditioned = each["rows"] if each["kind"] == "denoise" else 0
        return int(
            self.row * each["rows"]
            + self.expert * each["expert_rows"]
            + self.head * each["head_rows"]
            + self.attended * each["attended"]
            + self.conditioning * conditioned
        )


def of_matrices(matrices: Iterable[tuple[str, str, tuple[int, ...]]], tied_head: bool) -> Costs:
    """Of a model, from name, role and shape of its matrices, those of one expert each by themselves."""
    matrices = list(matrices)

    def total(wanted: Iterable[tuple[str, str, tuple[int, ...]]]) -> int:
        return sum(2 * shape[0] * shape[1] for _, _, shape in wanted)

    by_expert: dict[str, int] = {}
    for name, role, shape in matrices:
        if role == "experts":
            expert = name.rpartition(".")[0]
            by_expert[expert] = by_expert.get(expert, 0) + 2 * shape[0] * shape[1]
    table = "embedding" if tied_head else "head"
    return Costs(
        total(each for each in matrices if each[1] not in _APART and len(each[2]) == 2),
        max(by_expert.values(), default=0),
        total(each for each in matrices if each[0] == table),
        # Scores and sums are two products of a head's width for each pair; q_proj has the rows of all heads.
        sum(4 * shape[0] for name, _, shape in matrices if name.endswith(_QUERIES)),
        total(each for each in matrices if each[1] == "self_conditioning"),
    )


def of_bundle(bundle: Bundle) -> Costs:
    """Of a bundle. Raises what reading its report raises."""
    report = quantization_report.read(bundle.folder)
    return of_matrices(
        ((row["name"], row["role"], tuple(row["shape"])) for row in report), bundle.model.tied_head
    )
