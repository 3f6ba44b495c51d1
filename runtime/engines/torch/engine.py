"""PyTorch as an engine: the programs and weights of the native format on an NVIDIA GPU, or on the processor
where there is none.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.manifest import Manifest
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines import memory
from edgekit.runtime.engines.base import Engine, EngineBytes, Lengths, Routing, TilePart
from edgekit.runtime.errors import (
    EngineFailed,
    EngineUnavailable,
    RunsOnProcessor,
    UnsupportedBundle,
    one_line,
)

try:
    import torch
    from torch import Tensor

    from edgekit.runtime.engines.torch import cuda
    from edgekit.runtime.engines.torch.device import Device, Processor
    from edgekit.runtime.engines.torch.matrix import Matrix
    from edgekit.runtime.engines.torch.products import BLOCK_CODES, grouped_linear
    from edgekit.runtime.engines.torch.program import OpList, Weights, WrongProgram, activation
    from edgekit.runtime.engines.torch.space import TorchSpace
except ModuleNotFoundError as error:
    raise EngineUnavailable("the torch engine needs torch: pip install 'edgekit[torch]'") from error

LAYOUT = "native-1"
#: What names of an expert's matrices begin with in programs; its run leaves it out.
_EXPERTS = "experts."
#: Of a GPU's memory, for kernels, libraries and what else uses the GPU.
_SPARE_BYTES = 512 << 20
Result = TypeVar("Result")
#: Whether this process is a child of fork(), in which PyTorch waits for threads that only its parent has.
_forked = False


def _fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fork)


class TorchEngine(Engine):
    """Runs the programs of a native bundle.

    Raises:
        UnsupportedBundle: the bundle's programs or layout are not this engine's.
    """

    name = "torch"

    def __init__(
        self,
        folder: BundleFolder,
        manifest: Manifest,
        threads: int,
        device: Device | None = None,
        weight_bytes: int | None = None,
    ) -> None:
        """`weight_bytes` bounds the weights that stay in the memory of a GPU; None: what is free when a
        session opens, less what passes take.
        """
        if manifest.format != "native" or manifest.programs.get("layout") != LAYOUT:
            found = f"{manifest.format}/{manifest.programs.get('layout')}"
            raise UnsupportedBundle(
                f"{folder.path}: programs are {found}; the torch engine runs native/{LAYOUT}; "
                "export the bundle again"
            )
        self._folder, self._entries = folder, manifest.programs.get("entries")
        self._programs: dict[str, OpList] = {}
        self._device = device or (cuda.device() if torch.cuda.is_available() else Processor())
        self._weight_bytes, self._passes = weight_bytes, 0
        self._space: TorchSpace | None = None
        if self._device.place.type == "cpu":
            torch.set_num_threads(1 if _forked else threads)

    def prepare(self) -> None:
        if not self._device.own_memory:
            warnings.warn(
                f"PyTorch {torch.__version__} finds no CUDA GPU: the torch engine computes on the processor",
                RunsOnProcessor,
                stacklevel=2,
            )

    def space(self) -> TorchSpace:
        self._space = TorchSpace(self._device, self._room)
        return self._space

    def memory(self, bundle: Bundle, lengths: Lengths) -> EngineBytes:
        made = memory.unpacked_in_blocks(bundle, lengths, 4 * BLOCK_CODES)
        kept = memory.kept_rows(bundle.model, lengths) + 2 * max(run.length for run in bundle.runs.values())
        self._passes = made.activations + made.scratch + made.head + kept
        return made

    def _room(self) -> int:
        """Bytes for weights that stay on the device, for passes that `memory` was asked about last."""
        if self._weight_bytes is not None:
            return self._weight_bytes
        return max(0, self._device.free_bytes() - self._passes - _SPARE_BYTES)

    # Arrays are tensors on the device, where `Engine` says numpy's.

    def layers(self, program: str, inputs: Sequence[Any], weights: Any) -> Any:
        (only,) = inputs

        def run(own: OpList) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
            values = own.begin(only)
            own.run(values, Weights(weights, own.weights))
            y, k, v = (values[n] for n in own.outputs)
            return y, [(k, v)]

        return self._run(program, run)

    def route(self, program: str, inputs: Any, weights: Any) -> Routing:
        def run(own: OpList) -> Routing:
            values = own.begin(inputs)
            own.run(values, Weights(weights, own.weights), slice(own.mixture))
            x, index, weight = (values[n] for n in own.experts.inputs if n is not None)
            k, v = (values.get(n) for n in own.outputs[1:])
            if k is None or v is None:
                raise WrongProgram("makes keys and values behind its experts")
            further: dict[str, Any] = {str(n): value for n, value in values.items()}
            made: dict[str, Any] = {"x": x, "index": index, "weight": weight, "k": k, "v": v}
            return Routing(**made, further=further)

        return self._run(program, run)

    def expert(self, program: str, x: Any, weights: Any) -> Any:
        return self.experts(program, x, [len(x)], [weights])

    def experts(self, program: str, x: Any, counts: Sequence[int], weights: Sequence[Any]) -> Any:
        def run(own: OpList) -> Tensor:
            names = [str(name).removeprefix(_EXPERTS) for name in own.experts.weights]
            shapes = {name: own.weights.get(_EXPERTS + name, []) for name in names}
            held = [Weights(each, shapes) for each in weights]
            gate_up, down = ([each.matrix(name) for each in held] for name in names)
            gate, up = grouped_linear(x, counts, gate_up).chunk(2, -1)
            return grouped_linear(activation(gate, own.experts.attributes["kind"]) * up, counts, down)

        return self._run(program, run)

    def join(self, program: str, inputs: Any, routing: Routing, mixed: Any, weights: Any) -> Any:
        def run(own: OpList) -> Tensor:
            assert own.mixture is not None, "it was routed"
            values: dict[int, Any] = {int(name): value for name, value in routing.further.items()}
            values[own.experts.outputs[0]] = mixed
            own.run(values, Weights(weights, own.weights), slice(own.mixture + 1, None))
            return values[own.outputs[0]]

        return self._run(program, run)

    def self_condition(self, embedded: Any, soft: Any, weights: Any) -> Any:
        return self._one("self_conditioning", {"embedded": embedded, "soft": soft}, weights)

    def final(self, x: Any, weights: Any) -> Any:
        return self._one("final", {"x": x}, weights)

    def head_tile(self, x: Any, temperature: float, noise: Any, soft: bool, table: Any) -> TilePart:
        z = self.head_logits(x, temperature, table)
        with torch.inference_mode():
            return _statistics(z, noise, self._table(table, x.shape[-1]).dequantized if soft else None)

    def head_logits(self, x: Any, temperature: float, table: Any) -> Any:
        def run(own: OpList) -> Tensor:
            rows = len(table["codes"] if "codes" in table else table["weight"])
            columns = own.weights.get("table", [0, 0])[1]
            values = own.begin({"x": x})
            own.run(values, Weights(table, {"table": [rows, columns]}))
            return values[own.outputs[0]] / temperature

        return self._run("head", run)

    def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = {"engine": self.name, "device": self._device.name}
        if self._space is not None and self._device.own_memory:
            tiers, graphs = self._space.tiers, self._space.graphs
            found["device_weight_bytes"] = tiers.kept_bytes
            found["device_uploaded_bytes"] = tiers.uploaded_bytes
            found["graphs"] = graphs.captured
        return found

    def _one(self, name: str, inputs: Mapping[str, Tensor], weights: Any) -> Tensor:
        def run(own: OpList) -> Tensor:
            values = own.begin(inputs)
            own.run(values, Weights(weights, own.weights))
            return values[own.outputs[0]]

        return self._run(name, run)

    def _run(self, name: str, run: Callable[[OpList], Result]) -> Result:
        """Call `run` with a program. Raises EngineFailed for one that cannot be run."""
        try:
            if name not in self._programs:
                entry = self._entries.get(name) if isinstance(self._entries, Mapping) else None
                self._programs[name] = OpList(entry)
            with torch.inference_mode():
                return run(self._programs[name])
        except WrongProgram as error:
            why = str(error)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            why = f"cannot be run by torch {torch.__version__}: {one_line(error)}"
        raise EngineFailed(f"{self._folder.path}: program {name[:80]} {why}; export the bundle again")

    def _table(self, table: Mapping[str, Tensor], columns: int) -> Matrix:
        rows = len(table["codes"] if "codes" in table else table["weight"])
        return Matrix.of(table, "", (rows, columns))


def _statistics(z: Tensor, noise: Tensor | None, table: Callable[[], Tensor] | None) -> TilePart:
    """What a tile's scores z [R, V'] say, as `engines.base.statistics_of`; with the tile's rows [V', H] soft
    embeddings too.
    """
    arg = z.argmax(1)  # of equal ones the first
    at = arg[:, None]
    top = z.gather(1, at)
    weight = (z - top).exp_()
    soft = None if table is None else weight.scatter(1, at, 1) @ table()
    weight.scatter_(1, at, 0)  # the argmax is none of the others
    others = weight.sum(1)
    # A token that is ruled out, with a z of minus infinity, adds nothing.
    weighted = torch.where(weight > 0, z, 0).mul_(weight).sum(1)
    made: dict[str, Any] = {"soft": soft, "z": z}
    if noise is not None:
        noisy = z + noise
        sample = noisy.argmax(1)
        made |= {"sample": sample, "score": noisy.gather(1, sample[:, None])[:, 0]}
        made["sample_z"] = z.gather(1, sample[:, None])[:, 0]
    parts: tuple[Any, ...] = top[:, 0], arg, others, weighted
    return TilePart(*parts, **made)
