"""Bundles for Qualcomm's NPU: functions of their packages in Qualcomm's emulation, and the reference with the
same 16-bit codes of activations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from torch import Tensor

from edgekit.export import ops
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.qnn.provider import provider
from edgekit.export.models import architecture, complete
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.runtime.engines.qnn.programs import PLACES, Place, model_file
from edgekit.runtime.engines.qnn.socs import EMULATED, SOCS
from support.bundles import quantized_reference
from support.checkpoints import write_checkpoint
from support.package_bundles import Programs
from support.package_bundles import options as package_options

#: Scale and zero of what is multiplied with a matrix, and of the product.
Codes = tuple[tuple[float, float], tuple[float, float]]


class QnnPrograms(Programs):
    """Functions of a bundle, each in a session of ONNX Runtime's own bindings that is opened once."""

    def __init__(self, bundle: Path) -> None:
        super().__init__(bundle)
        self._opened = dict[tuple[str, str], Any]()

    def call(self, package: str, function: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        key = package, function
        if key not in self._opened:
            folder = self.bundle / self.entries[package]["path"]
            (place,) = (each for each in PLACES if (folder / model_file(function, each)).is_file())
            self._opened[key] = _session(folder / model_file(function, place), place)
        session = self._opened[key]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))


def _session(file: Path, place: Place) -> Any:
    ort, qnn, devices = provider()
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    if place == "npu":
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        chip = {"backend_path": qnn.get_qnn_htp_path(), "soc_model": str(SOCS[EMULATED].model)}
        settings.add_provider_for_devices(devices, chip)
    return ort.InferenceSession(str(file), settings)


def options(scheme: Scheme, cut: Packaging, **others: Any) -> ExportOptions:
    return package_options("qnn", scheme, None, cut, **others)


def random_bundle(
    folder: Path, family: str, preset: str, length: int = 24, **sizes: Any
) -> tuple[Path, ReferenceModel]:
    """A bundle of two layers, for passes or prefixes of `length`, and the reference with its codes."""
    few = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2} if family == "llada" else {"num_hidden_layers": 2}
    write_checkpoint(folder / "checkpoint", family, **{**few, **sizes})
    source, scheme = Checkpoint.open(folder / "checkpoint"), Scheme(preset, 32)
    prefixed = architecture(complete(source.config, source.names)).causal_prefix
    cut = Packaging((0, length) if prefixed else (length,), layers_per_chunk=1)
    export(folder / "checkpoint", folder / "bundle", options(scheme, cut))
    return folder / "bundle", quantized_reference(folder / "checkpoint", scheme, "qnn")


def activation_codes(programs: Programs) -> dict[str, Codes]:
    """The codes of all products of a bundle, by the names of their matrices (`layers.0.mlp.up_proj`), read
    from its programs by onnx. Several that share what they multiply have the codes of the first for it.
    """
    found: dict[str, Codes] = {}
    for package, entry in programs.entries.items():
        layers = [i for i, own in enumerate(programs.manifest.layers) if own["package"] == package]
        for file in (programs.bundle / entry["path"]).glob("*.npu.onnx"):
            graph = onnx.load(file).graph
            held = {
                i.name: numpy_helper.to_array(i)
                for i in graph.initializer
                if "scale" in i.name or "zero" in i.name
            }
            made = {n.output[0]: n for n in graph.node}
            read = {n.input[0]: n for n in graph.node if n.op_type == "QuantizeLinear"}
            for node in graph.node:
                if node.op_type != "MatMul" or not node.input[1].startswith("w."):
                    continue
                name = node.input[1].removeprefix("w.")
                slot, _, own = name.partition(".")
                unit = f"layers.{layers[int(slot)]}.{own}" if layers else f"{package}.{name}"
                of = [made[node.input[0]].input[1:], read[node.output[0]].input[1:]]
                given, product = ((float(held[scale]), float(held[zero])) for scale, zero in of)
                found[unit] = given, product
    return found


def coded(x: Tensor, codes: tuple[float, float]) -> Tensor:
    """x through its 16-bit codes."""
    scale, zero = codes
    return ((x / scale).round() + zero).clamp(0, 65535).sub(zero) * scale


@contextmanager
def coded_activations(programs: Programs, model: ReferenceModel) -> Iterator[dict[str, list[Tensor]]]:
    """Inside, the reference makes 16-bit codes where the NPU does, and rounds rows before the head, which is
    the core's; gives what it has multiplied with codes: all products of a matrix, by its name.
    """
    codes, used = activation_codes(programs), dict[str, list[Tensor]]()
    linear, logits = ops.linear, ops.vocab_logits
    names = {id(t): n.rpartition(".")[0] for n, t in model.weights().items() if n.endswith(".codes")}

    def with_codes(x: Tensor, weight: Tensor, groups: Any, scales: Any, bias: Any, *rest: Any) -> Tensor:
        name = names.get(id(weight), "")
        if name not in codes:  # a router, which is the core's
            return linear(x, weight, groups, scales, bias, *rest)
        given, product = codes[name]
        y = coded(linear(coded(x, given), weight, groups, scales, None, 16), product)
        used.setdefault(name, []).append(y if bias is None else y + bias)
        return used[name][-1]

    def rounded_logits(x: Tensor, table: Tensor, scales: Any, softcap: float) -> Tensor:
        return logits(ops.round_rows(x), table, scales, softcap)

    ops.linear, ops.vocab_logits = with_codes, rounded_logits
    try:
        yield used
    finally:
        ops.linear, ops.vocab_logits = linear, logits
