"""PyTorch as an engine: the programs and weights of the native format on an NVIDIA GPU, or on the processor
where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.core_memory import address, array
from edgekit.flashload.manifest import Manifest
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines import memory
from edgekit.runtime.engines.base import Arrays, Engine, EngineBytes, LayersOutput, Lengths, Routing
from edgekit.runtime.errors import EngineFailed, EngineUnavailable, UnsupportedBundle, one_line
from edgekit.runtime.sampling.types import Floats

try:
    import torch
    from torch import Tensor

    from edgekit.runtime.engines.torch.products import BLOCK_CODES, linear
    from edgekit.runtime.engines.torch.program import OpList, Weights, WrongProgram, activation
except ModuleNotFoundError as error:
    raise EngineUnavailable("the torch engine needs torch: pip install 'edgekit[torch]'") from error

LAYOUT = "native-1"
#: What names of an expert's matrices begin with in programs; its run leaves it out.
_EXPERTS = "experts."
Result = TypeVar("Result")


class TorchEngine(Engine):
    """Runs the programs of a native bundle.

    Raises:
        UnsupportedBundle: the bundle's programs or layout are not this engine's.
    """

    name = "torch"

    def __init__(self, folder: BundleFolder, manifest: Manifest, threads: int) -> None:
        if manifest.format != "native" or manifest.programs.get("layout") != LAYOUT:
            found = f"{manifest.format}/{manifest.programs.get('layout')}"
            raise UnsupportedBundle(
                f"{folder.path}: programs are {found}; the torch engine runs native/{LAYOUT}; "
                "export the bundle again"
            )
        self._folder, self._entries = folder, manifest.programs.get("entries")
        self._programs: dict[str, OpList] = {}
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self._device.type == "cpu":
            torch.set_num_threads(threads)

    def memory(self, bundle: Bundle, lengths: Lengths) -> EngineBytes:
        return memory.unpacked_in_blocks(bundle, lengths, 4 * BLOCK_CODES)

    def layers(self, program: str, inputs: Sequence[Arrays], weights: Arrays) -> LayersOutput:
        (only,) = inputs

        def run(own: OpList) -> LayersOutput:
            values = own.begin(self._tensors(only))
            own.run(values, self._weights(weights, own))
            y, k, v = (_array(values[n]) for n in own.outputs)
            return y, [(k, v)]

        return self._run(program, run)

    def route(self, program: str, inputs: Arrays, weights: Arrays) -> Routing:
        def run(own: OpList) -> Routing:
            values = own.begin(self._tensors(inputs))
            own.run(values, self._weights(weights, own), slice(own.mixture))
            x, index, weight = (_array(values[n]) for n in own.experts.inputs if n is not None)
            kept = [values.get(n) for n in own.outputs[1:]]
            k, v = (None if each is None else _array(each) for each in kept)
            if k is None or v is None:
                raise WrongProgram("makes keys and values behind its experts")
            further = {str(n): _array(value) for n, value in values.items()}
            return Routing(x, index, weight, k, v, further)

        return self._run(program, run)

    def expert(self, program: str, x: Floats, weights: Arrays) -> Floats:
        def run(own: OpList) -> Floats:
            names = [str(name).removeprefix(_EXPERTS) for name in own.experts.weights]
            shapes = {name: own.weights.get(_EXPERTS + name, []) for name in names}
            held = Weights(self._tensors(weights), shapes)
            gate_up, down = (held.matrix(name) for name in names)
            gate, up = linear(self._tensor(x), gate_up, True).chunk(2, -1)
            return _array(linear(activation(gate, own.experts.attributes["kind"]) * up, down, True))

        return self._run(program, run)

    def join(self, program: str, inputs: Arrays, routing: Routing, mixed: Floats, weights: Arrays) -> Floats:
        def run(own: OpList) -> Floats:
            assert own.mixture is not None, "it was routed"
            values = {int(name): self._tensor(value) for name, value in routing.further.items()}
            values[own.experts.outputs[0]] = self._tensor(mixed)
            own.run(values, self._weights(weights, own), slice(own.mixture + 1, None))
            return _array(values[own.outputs[0]])

        return self._run(program, run)

    def self_condition(self, embedded: Floats, soft: Floats, weights: Arrays) -> Floats:
        return self._one("self_conditioning", {"embedded": embedded, "soft": soft}, weights)

    def final(self, x: Floats, weights: Arrays) -> Floats:
        return self._one("final", {"x": x}, weights)

    def head_logits(self, x: Floats, temperature: float, table: Arrays) -> Floats:
        def run(own: OpList) -> Floats:
            rows = len(table["codes"] if "codes" in table else table["weight"])
            columns = own.weights.get("table", [0, 0])[1]
            held = Weights(self._tensors(table), {"table": [rows, columns]})
            values = own.begin({"x": self._tensor(x)})
            own.run(values, held)
            return _array(values[own.outputs[0]] / temperature)

        return self._run("head", run)

    def statistics(self) -> dict[str, Any]:
        return {"engine": self.name, "device": str(self._device)}

    def _one(self, name: str, inputs: Arrays, weights: Arrays) -> Floats:
        def run(own: OpList) -> Floats:
            values = own.begin(self._tensors(inputs))
            own.run(values, self._weights(weights, own))
            return _array(values[own.outputs[0]])

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
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            why = f"cannot be run by torch {torch.__version__}: {one_line(error)}"
        raise EngineFailed(f"{self._folder.path}: program {name[:80]} {why}; export the bundle again")

    def _weights(self, stored: Arrays, program: OpList) -> Weights:
        return Weights(self._tensors(stored), program.weights)

    def _tensors(self, arrays: Arrays) -> dict[str, Tensor]:
        return {name: self._tensor(each) for name, each in arrays.items()}

    def _tensor(self, given: np.ndarray) -> Tensor:
        """Memory of the core as a tensor, on the GPU a copy of it. bfloat16 is uint16 in numpy."""
        given = np.ascontiguousarray(given)
        # PyTorch has no tensors that are only read, and warns of arrays that are.
        writable = given if given.flags.writeable else array(address(given), given.shape, given.dtype.type)
        made = torch.from_numpy(writable.view(np.int16) if given.dtype == np.uint16 else writable)
        return (made.view(torch.bfloat16) if given.dtype == np.uint16 else made).to(self._device)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
