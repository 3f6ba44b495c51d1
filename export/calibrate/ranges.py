"""Ranges of what goes in and out of products while a model denoises, for formats whose activations have
static scales.

The layers run one after the other, each on all texts, so that memory holds the weights of one layer and the
activations between two. Texts of equal lengths run side by side: the weights of an expert, of which each text
has a few rows, are read once for many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgekit.export.calibrate.canvases import Canvas
from edgekit.export.calibrate.products import WatchedProducts
from edgekit.export.models.base import DENOISE, PREFILL, Architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import TensorSource, full_name, read_rows

#: Texts that run side by side, at most.
_TOGETHER = 16
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
    passes = [_Pass(architecture, own) for own in side_by_side(architecture, texts)]
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


def side_by_side(architecture: Architecture, texts: Iterable[Canvas]) -> list[list[Canvas]]:
    """Texts by their lengths, so many together as memory should hold. Where positions choose experts by
    blocks, those of a text must end with one: its last block would reach into the next text.
    """
    found: list[list[Canvas]] = []
    known: dict[tuple[int, int], list[Canvas]] = {}
    for text in texts:
        lengths = len(text.prompt), len(text.noised)
        whole = not any(length % architecture.prefix_block for length in lengths)
        own = known.get(lengths, [])
        if not whole or len(own) % _TOGETHER == 0:
            known[lengths] = own = []
            found.append(own)
        own.append(text)
    return found


class _Pass:
    """Texts of equal lengths on their way through the layers."""

    def __init__(self, architecture: Architecture, texts: Sequence[Canvas]) -> None:
        self._prefixed = architecture.causal_prefix
        self._texts = texts
        self.prompt = self.canvas = self.soft = torch.empty(0)

    def embed(self, architecture: Architecture, source: TensorSource) -> None:
        """Look their tokens up."""
        prompts, noised, clean = (
            torch.stack(each)
            for each in zip(*((t.prompt, t.noised, t.clean) for t in self._texts), strict=True)
        )
        if not self._prefixed:
            noised = torch.cat((prompts, noised), 1)
        conditioned = architecture.self_conditioning is not None
        used = [prompts, noised, *([clean] if conditioned else [])]
        rows = {
            i: torch.from_numpy(read_rows(source, architecture.embedding, i, i + 1).reshape(-1).copy())
            for i in torch.cat([ids.flatten() for ids in used]).unique().tolist()
        }

        def embedded(ids: Tensor) -> Tensor:
            flat = torch.stack([rows[i] for i in ids.flatten().tolist()])
            return flat.view(*ids.shape, -1) * architecture.embedding_scale

        self.canvas = embedded(noised)
        if self._prefixed:
            self.prompt = embedded(prompts)
        if conditioned:
            # The first step knows nothing of the text; later ones are as sure as they can be.
            known = torch.tensor([[[0.0 if text.first else 1.0]] for text in self._texts])
            self.soft = embedded(clean) * known

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
