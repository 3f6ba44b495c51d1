"""A model as plans know it: its units of weights, and what its passes compute."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from edgekit.export import skeleton
from edgekit.export.models.base import LayerSpec
from edgekit.export.pipeline import Progress
from edgekit.export.quantize import Scheme
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.costs import Costs, of_bundle
from edgekit.runtime.session import SessionOptions
from edgekit.runtime.session.memory import MemoryPlan
from edgekit.runtime.session.session import plan_session
from edgekit.tools.planning.source import Configuration

#: Of a process with nothing but the runtime: what it holds before a session.
PROCESS_BYTES = 60_000_000


@dataclass(frozen=True)
class PlannedModel:
    """A model whose `bundle` has no weights; it lives as long as the block that opened it. Of its
    `expert_layers`, each has so many `experts`, of which a row goes to `top_k`, and the rows of a canvas to
    `capacity` at most; all 0 without experts.
    """

    name: str
    bundle: Bundle
    costs: Costs
    experts: int
    top_k: int
    capacity: int
    expert_layers: int
    parameters: int
    _plans: dict[tuple[SessionOptions, int], MemoryPlan] = field(
        default_factory=dict, repr=False, compare=False
    )

    def plan(self, options: SessionOptions, process: int | None = None) -> MemoryPlan:
        """What a session would have where, in a process that holds so many bytes before; devices of the same
        budget share it. Raises BudgetExceeded.
        """
        held = PROCESS_BYTES if process is None else process
        if (options, held) not in self._plans:
            self._plans[options, held] = plan_session(self.bundle, options, process_bytes=held)
        return self._plans[options, held]

    @property
    def weights_bytes(self) -> int:
        return int(self.bundle.manifest.weights.size)

    @cached_property
    def part_of(self) -> dict[str, str]:
        """What the weights of a unit are for, by its name: "layers", "experts", "head", or "conditioning"."""
        model = self.bundle.model
        table = model.embedding if model.head is None else model.head
        found = dict.fromkeys(table.runs, "head")
        for layer in model.layers:
            found |= {layer.run: "layers"} | dict.fromkeys(layer.experts, "experts")
        return found | {"self_conditioning": "conditioning"}

    @property
    def softens(self) -> bool:
        """Whether the vocabulary head also gives the mean embedding of the next canvas."""
        return self.costs.conditioning > 0

    def touched(self, rows: int, sequences: int = 1) -> float:
        """The share of a layer's experts that some row of a pass is expected to go to, where each goes to any
        `top_k` of those that its sequence may choose from. Trained routers are less even: they touch fewer.
        """
        if not self.experts:
            return 0.0
        chosen = self.capacity / self.experts
        of_sequence = chosen * (1 - (1 - self.top_k / self.capacity) ** (rows / sequences))
        return 1 - (1 - of_sequence) ** sequences


@contextmanager
def planned(found: Configuration, scheme: Scheme, progress: Progress | None = None) -> Iterator[PlannedModel]:
    """A model of which its configuration alone is there. Raises EdgekitError where it is not supported."""
    with tempfile.TemporaryDirectory(prefix="edgekit-plan-") as folder:
        architecture = skeleton.write(
            Path(folder) / "bundle",
            found.config,
            scheme,
            generation_config=found.generation,
            progress=progress,
        )
        bundle = Bundle.open(Path(folder) / "bundle")
        mixed = [layer for layer in architecture.layers if layer.experts]
        experts = max((len(layer.experts) for layer in mixed), default=0)
        yield PlannedModel(
            found.name,
            bundle,
            of_bundle(bundle),
            experts,
            max((_top_k(layer) for layer in mixed), default=0),
            max((_capacity(layer, experts) for layer in mixed), default=0),
            len(mixed),
            int(bundle.manifest.quantization["parameters"]),
        )


def _top_k(layer: LayerSpec) -> int:
    return int(layer.module.top_k)  # type: ignore[arg-type]


def _capacity(layer: LayerSpec, experts: int) -> int:
    rule: dict[str, Any] = getattr(layer.module, "rule", {})
    return int(rule.get("capacity", experts))
