"""A low-rank adapter in a model: merged into the weights as they are read, or beside them, where layers add
it to the rows that ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.checkpoint.errors import InvalidAdapter
from edgekit.export.checkpoint.peft_adapter import ADAPTER_CONFIG, Adapter
from edgekit.export.checkpoint.text_files import is_there
from edgekit.export.models.base import DOWN, UP, Architecture, LayerSpec, WeightSpec, low_rank
from edgekit.export.weights import TensorSource, read_rows
from edgekit.flashload.errors import cut

#: Matrices that are looked up by row: PEFT adapts them in another way.
_LOOKED_UP = "embedding"


class Merged:
    """The weights of a checkpoint with an adapter in them: W + (alpha / r) B A, in float32."""

    def __init__(self, source: TensorSource, adapter: Adapter) -> None:
        self._source, self._adapter = source, adapter

    def read(self, name: str) -> np.ndarray:
        """Tensor `name`, float32. Raises CheckpointError."""
        return self._added(name, self._source.read(name), 0)

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of it. Raises CheckpointError."""
        return self._added(name, self._source.read_slice(name, start, stop), start)

    def _added(self, name: str, value: np.ndarray, start: int) -> np.ndarray:
        if name not in self._adapter.matrices:
            return value
        with np.errstate(over="ignore", invalid="ignore"):
            value += self._adapter.up(name)[start : start + len(value)] @ self._adapter.down(name)
        return self._adapter.checked(value, name)


@dataclass(frozen=True)
class Tuned:
    """A model with an adapter, or without: what is exported, and where its weights are read from. `facts` are
    those of `adapter_facts`, `defaults` options of the sampler.
    """

    architecture: Architecture
    weights: TensorSource
    adapter: Adapter | None = None
    mode: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)

    @property
    def merged(self) -> bool:
        """Whether an adapter is in the weights."""
        return self.mode == "merged"

    @property
    def beside(self) -> list[dict[str, Any]]:
        """What a manifest says of adapters beside the weights."""
        return [dict(self.facts)] if self.facts and not self.merged else []

    def note(self) -> str:
        """What the user is told of an adapter in the weights."""
        own, shared = self.facts, ""
        if any(layer.uses_phase for layer in self.architecture.layers):
            shared = ", which text that is encoded shares with the canvas"
        count = f"{own['matrices']} matrices merged into the weights{shared}"
        return f"adapter {own['name']} of rank {own['rank']}: {count}"


def tuned(
    architecture: Architecture, source: TensorSource, folder: Path, adapter: Path | None, name: str, mode: str
) -> Tuned:
    """A model with the adapter of a folder, merged or switched as `mode` says; without one, with that which
    its checkpoint in `folder` brings along.

    Raises:
        CheckpointError: what is wrong with the adapter, or that it is another model's.
    """
    own, defaults = architecture.own_adapter, dict[str, object]()
    if adapter is None:
        if own is None or not is_there(folder / own.folder / ADAPTER_CONFIG):
            return Tuned(architecture, source)
        adapter, name, mode, defaults = folder / own.folder, own.name, "switched", dict(own.defaults)
    opened = Adapter.open(adapter)
    check_adapter(architecture, opened)
    facts = adapter_facts(architecture, opened, name or opened.path.name)
    if mode == "merged":
        return Tuned(architecture, Merged(source, opened), opened, mode, facts)
    adapted, weights = switched(architecture, opened, source)
    return Tuned(adapted, weights, opened, mode, facts, defaults)


class Beside:
    """The weights of a checkpoint, and those of an adapter under names of their own."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self.own: dict[str, Callable[[], np.ndarray]] = {}

    def read(self, name: str) -> np.ndarray:
        """Tensor `name`, float32. Raises CheckpointError."""
        return self.own[name]() if name in self.own else self._source.read(name)

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of it. Raises CheckpointError."""
        return self._source.read_slice(name, start, stop)


@dataclass(frozen=True)
class _Columns:
    """The matrices `up` of an adapter as if they were the stored ones that they are for: each has its rank of
    columns, and those of the others are zeros. A weight and its `up` are made of the same rows then.
    """

    adapter: Adapter
    shapes: dict[str, tuple[int, ...]]
    starts: dict[str, int]  # by stored matrix
    rank: int  # of all

    def read(self, name: str) -> np.ndarray:
        out = np.zeros((self.shapes[name][0], self.rank), np.float32)
        if name in self.starts:
            up = self.adapter.up(name)
            out[:, self.starts[name] : self.starts[name] + up.shape[1]] = up
        return out

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.read(name)[start:stop]


def switched(
    architecture: Architecture, adapter: Adapter, source: TensorSource
) -> tuple[Architecture, TensorSource]:
    """The model with an adapter beside its weights, and where both are read from. Layers that it changes have
    a kind of their own, and take factors of rows.

    Raises:
        InvalidAdapter: it changes what is in no layer, or experts.
    """
    weights = Beside(source)
    for unit, _, tensor in _matrices(architecture):
        inside, _, expert = unit.removeprefix("layers.").partition(".")
        if tensor in adapter.matrices and (not inside.isdigit() or expert):
            what = "experts" if expert else f"the {unit.replace('_', '-')}"
            raise InvalidAdapter(
                f"{adapter.path}: changes {what} ({cut(tensor)}), where no adapter can be switched; "
                "merge it: --adapter-mode merged"
            )
    shapes, kinds = architecture.stored_shapes(), dict[str, list[tuple[tuple[str, int], ...]]]()
    layers = []
    for i, layer in enumerate(architecture.layers):
        own: list[WeightSpec] = []
        for spec in layer.weights:
            own += _beside(spec, f"layers.{i}.{spec.name}", adapter, shapes, weights)
        layers.append(_switched_layer(layer, own, kinds) if own else layer)
    return replace(architecture, layers=tuple(layers)), weights


def _beside(
    spec: WeightSpec, name: str, adapter: Adapter, shapes: dict[str, tuple[int, ...]], weights: Beside
) -> tuple[WeightSpec, ...]:
    """The adapter of a weight, if it has one: that of all stored matrices which make it up."""
    starts, rank = dict[str, int](), 0
    for part in spec.parts:
        if part.tensor in adapter.matrices and part.tensor not in starts:
            starts[part.tensor] = rank
            rank += adapter.matrices[part.tensor].rank
    if not starts:
        return ()
    up = replace(spec, shape=(spec.shape[0], rank))
    source = _Columns(adapter, shapes, starts, rank)
    weights.own[name + DOWN] = partial(_joined, adapter, list(starts))
    weights.own[name + UP] = partial(read_rows, source, up, 0, spec.shape[0])
    rows, columns = spec.shape
    return low_rank(spec.name, rows, columns, rank, name + DOWN, name + UP)


def _joined(adapter: Adapter, tensors: list[str]) -> np.ndarray:
    return np.concatenate([adapter.down(tensor) for tensor in tensors])


def _switched_layer(
    layer: LayerSpec, own: list[WeightSpec], kinds: dict[str, list[tuple[tuple[str, int], ...]]]
) -> LayerSpec:
    """A layer with these matrices. Layers of one kind whose adapters are alike stay of one kind."""
    form = tuple((spec.name, spec.shape[0]) for spec in own)
    known = kinds.setdefault(layer.kind, [])
    if form not in known:
        known.append(form)
    number = known.index(form)
    kind = f"{layer.kind}_adapted" + (f"_{number + 1}" if number else "")
    return replace(layer, kind=kind, weights=(*layer.weights, *own), uses_adapter=True)


def check_adapter(architecture: Architecture, adapter: Adapter) -> None:
    """Refuse an adapter that is not of this model.

    Raises:
        InvalidAdapter: it changes what the model does not have, or has in another shape.
    """
    known, shapes = {t: spec for _, spec, t in _matrices(architecture)}, architecture.stored_shapes()
    for tensor, own in adapter.matrices.items():
        module = cut(tensor.removesuffix(".weight"))
        if tensor not in known:
            # Of a layer: embedding and head, which come first, are rarely what an adapter is for.
            example = next((t for t in known if ".0." in t), next(iter(known))).removesuffix(".weight")
            raise InvalidAdapter(
                f"{adapter.path}: changes {module}, which is no matrix of this model (they are named like "
                f"{example}): the adapter is another model's, or for a part that edgekit leaves out"
            )
        if own.shape != shapes[tensor]:
            raise InvalidAdapter(
                f"{adapter.path}: {module} is {list(own.shape)} for the adapter and {list(shapes[tensor])} "
                "in the model: it is another model's"
            )
        if known[tensor].role == _LOOKED_UP:
            raise InvalidAdapter(f"{adapter.path}: changes the embedding {module}, which is not supported")


def adapter_facts(architecture: Architecture, adapter: Adapter, name: str) -> dict[str, Any]:
    """What a manifest says of an adapter: its name, largest rank, what it changes, and its size in bytes."""
    changed = {spec.name: None for _, spec, tensor in _matrices(architecture) if tensor in adapter.matrices}
    values = sum(own.rank * sum(own.shape) for own in adapter.matrices.values())
    return {
        "name": name,
        "rank": adapter.rank,
        "targets": list(changed),
        "matrices": len(adapter.matrices),
        "bytes": 2 * values,
    }


def _matrices(architecture: Architecture) -> Iterator[tuple[str, WeightSpec, str]]:
    """Unit, weight and name of every stored matrix."""
    for unit, spec in architecture.weights():
        for part in spec.parts if spec.role != "float" else ():
            yield unit, spec, part.tensor
