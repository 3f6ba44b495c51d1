"""Ranges of what goes in and out of products while a model denoises, for formats whose activations have
static scales.

The layers run one after the other, each on all texts, so that memory holds the weights of one layer and the
activations between two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from edgekit.export.calibrate.canvases import Canvas
from edgekit.export.calibrate.products import WatchedProducts
from edgekit.export.models.base import DENOISE, PREFILL, Architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import TensorSource, full_name, read_rows

#: Told the name of each unit when it has been run.
Told = Callable[[str], None]


@dataclass(frozen=True)
class Range:
    """The least and the largest value of an array."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> Range:
        low, high = torch.aminmax(values)
        return cls(float(low), float(high))

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class ProductRange:
    """Ranges of what a matrix is multiplied with, and of its products without a bias."""

    given: Range
    made: Range


#: By the names that reports have for matrices: `layers.3.mlp.up_proj`.
Ranges = Mapping[str, ProductRange]


@torch.no_grad()
def collect(
    architecture: Architecture,
    source: TensorSource,
    texts: Iterable[Canvas],
    told: Told = lambda _: None,
) -> dict[str, ProductRange]:
    """Run the model on texts, with float weights out of `source`, and return the ranges of all matrices of
    layers and self-conditioning, but of experts. It calls `told` behind every layer.

    A model that keeps a prefix encodes each prompt first and denoises behind it; others see all in one pass.
    """
    found: dict[str, ProductRange] = {}
    passes = [_Pass(architecture, canvas) for canvas in texts]
    for own in passes:
        own.embed(architecture, source)
    if architecture.self_conditioning is not None:
        weights = _unit(architecture, source, "self_conditioning")
        module = architecture.self_conditioning
        with WatchedProducts(*_watching("self_conditioning", weights, found)):
            for own in passes:
                own.canvas = module(own.canvas, own.soft, weights)
        told("self_conditioning")
    for i, layer in enumerate(architecture.layers):
        one = dataclasses.replace(architecture, layers=(layer,))
        own_weights = {f"layers.0.{k}": v for k, v in _unit(architecture, source, f"layers.{i}").items()}
        model = ReferenceModel(one, own_weights)
        named = {k.removeprefix("layers.0."): v for k, v in model.weights().items()}
        with WatchedProducts(*_watching(f"layers.{i}", named, found)):
            for own in passes:
                own.through(model)
        told(f"layers.{i}")
    return found


class _Pass:
    """A text on its way through the layers."""

    def __init__(self, architecture: Architecture, text: Canvas) -> None:
        self._prefixed = architecture.causal_prefix
        whole = torch.cat((text.prompt, text.noised))
        self._ids = (text.prompt, text.noised) if self._prefixed else (text.prompt[:0], whole)
        self._clean = None if text.first else text.clean
        self.prompt = self.canvas = self.soft = torch.empty(0)

    def embed(self, architecture: Architecture, source: TensorSource) -> None:
        """Look its tokens up."""
        rows = {
            i: torch.from_numpy(read_rows(source, architecture.embedding, i, i + 1).reshape(-1).copy())
            for i in {
                int(i) for ids in (*self._ids, *(() if self._clean is None else (self._clean,))) for i in ids
            }
        }

        def embedded(ids: Tensor) -> Tensor:
            return torch.stack([rows[int(i)] for i in ids])[None] * architecture.embedding_scale

        self.canvas = embedded(self._ids[1])
        if self._prefixed:
            self.prompt = embedded(self._ids[0])
        # The first step knows nothing of the text; later ones are as sure as they can be.
        self.soft = torch.zeros_like(self.canvas) if self._clean is None else embedded(self._clean)

    def through(self, model: ReferenceModel) -> None:
        """Run a layer."""
        kept = None
        if self._prefixed:
            self.prompt, kept = model.layers(self.prompt, phase=PREFILL, causal=True)
        self.canvas, _ = model.layers(self.canvas, kept, phase=DENOISE, causal=False)


def _unit(architecture: Architecture, source: TensorSource, unit: str) -> dict[str, Tensor]:
    """The float weights of a layer by their names in it, its experts stacked; or of self-conditioning."""
    out: dict[str, Tensor] = {}
    stacks: dict[str, list[Tensor]] = {}
    for of, spec in architecture.weights():
        if of != unit and not of.startswith(unit + ".experts."):
            continue
        value = torch.from_numpy(read_rows(source, spec, 0, spec.shape[0]))
        name = full_name(of, spec).removeprefix(unit + ".")
        if of == unit:
            out[name] = value
        else:
            stacks.setdefault(name, []).append(value)
    return out | {name: torch.stack(parts) for name, parts in stacks.items()}


def _watching(
    unit: str, weights: Mapping[str, Tensor], found: dict[str, ProductRange]
) -> tuple[dict[str, Tensor], Callable[[str, Tensor, Tensor], None]]:
    """The matrices of a unit by the names of reports, and what notes their products in `found`."""
    matrices = {
        f"{unit}.{name.removesuffix('.weight')}": value
        for name, value in weights.items()
        if name.endswith(".weight") and value.ndim == 2
    }

    def seen(name: str, x: Tensor, y: Tensor) -> None:
        own = ProductRange(Range.of(x), Range.of(y))
        before = found.get(name)
        found[name] = (
            own if before is None else ProductRange(before.given | own.given, before.made | own.made)
        )

    return matrices, seen
