"""Bundles whose weights lie in packages, and an executor that computes these with the reference layers.

The packages hold nothing: the executor knows the model. What they declare is as a writer would: functions of
fixed sizes, arrays under names that say nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgekit.export import ops
from edgekit.export.models.base import LayerInputs
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.flashload import manifest as manifests
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.packages import SAMPLE_STATISTICS, STATISTICS, TOKENS, Function, Package
from support import sealing
from support.bundles import make_bundle, quantized_reference

Lengths = Sequence[tuple[int, int]]
Arrays = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]


def packaged(
    bundle: Path,
    target: Path,
    model: ReferenceModel,
    lengths: Lengths,
    layers_per_package: int = 2,
    tile_rows: int = 100,
    dtype: str = "float32",
    program_format: str = "coreml",
) -> Path:
    """A copy of an ordinary bundle with its layers and head in packages; returns `target`."""
    shutil.copytree(bundle, target)
    shutil.rmtree(target / "programs", ignore_errors=True)
    manifest = json.loads((target / "edgekit.json").read_text())
    arch = model.architecture
    made: dict[str, Any] = {}
    chunks = [
        list(range(i, min(i + layers_per_package, len(arch.layers))))
        for i in range(0, len(arch.layers), layers_per_package)
    ]
    rows = list(range(0, arch.vocab_size, tile_rows))

    def package(name: str, functions: dict[str, Any], **more: Any) -> None:
        path = f"packages/{name}.{'mlpackage' if program_format == 'coreml' else 'aimodel'}"
        content = (name * 400).encode()[: 1000 + 97 * len(made)]
        (target / path / "Data").mkdir(parents=True)
        (target / path / "Data" / "weight.bin").write_bytes(content)
        entry = manifests.file_entry(target / path / "Data" / "weight.bin")
        manifest["files"][f"{path}/Data/weight.bin"] = asdict(entry)
        made[name] = {"path": path, "bytes": len(content), "files": [f"{path}/Data/weight.bin"], **more}
        made[name]["functions"] = functions

    def function(kind: str, t: int, p: int, inputs: Shapes, outputs: Shapes) -> dict[str, Any]:
        ports = [_ports(side, dtype, prefix) for side, prefix in ((inputs, "in"), (outputs, "out"))]
        return {"kind": kind, "t": t, "p": p, "inputs": ports[0], "outputs": ports[1]}

    hidden, passes = arch.hidden_size, sorted({t for t, _ in lengths})
    x = {t: (1, t, hidden) for t in passes}
    if arch.self_conditioning is not None:
        package(
            "self_conditioning",
            {
                f"f{t}": function("self_conditioning", t, 0, {"embedded": x[t], "soft": x[t]}, {"y": x[t]})
                for t in passes
            },
        )
    for chunk in chunks:
        name = "layers." + "-".join(str(i) for i in sorted({chunk[0], chunk[-1]}))
        functions = {
            f"a{t}b{p}": function("layers", t, p, *_layer_ports(arch, chunk, t, p)) for t, p in lengths
        }
        package(name, functions, parts=[f"layers.{i}" for i in chunk])
        for slot, i in enumerate(chunk):
            manifest["layers"][i] |= {"package": name, "slot": slot}
    package("final", {f"f{t}": function("final", t, 0, {"x": x[t]}, {"y": x[t]}) for t in passes})
    for i, start in enumerate(rows):
        count = min(tile_rows, arch.vocab_size - start)
        functions = {}
        for t in passes:
            for sample in (False, True):
                for soft in (False, True) if arch.self_conditioning is not None else (False,):
                    given = dict.fromkeys((*STATISTICS, *(SAMPLE_STATISTICS if sample else ())), (t,))
                    taken = {"x": (t, hidden), "temperature": (1,)}
                    taken |= {"noise": (t, count)} if sample else {}
                    given |= {"soft": (t, hidden)} if soft else {}
                    functions[f"f{len(functions)}"] = function("head", t, 0, taken, given)
            taken = {"x": (t, hidden), "temperature": (1,)}
            functions[f"f{len(functions)}"] = function("head", t, 0, taken, {"z": (t, count)})
        package(f"head.{i}", functions, start=start, rows=count)
    manifest["programs"] = {
        "format": program_format, "layout": f"{program_format}-2", "precision": dtype,
        "minimum_os": {"macos": "15"}, "packages": made,
    }  # fmt: skip
    manifest["files"] = {n: e for n, e in manifest["files"].items() if not n.startswith("programs/")}
    sealing.write(target, manifest)
    return target


def _layer_ports(arch: Any, chunk: list[int], t: int, p: int) -> tuple[Shapes, Shapes]:
    taken: dict[str, tuple[int, ...]] = {"x": (1, t, arch.hidden_size)}
    given: dict[str, tuple[int, ...]] = {"y": (1, t, arch.hidden_size)}
    for slot, i in enumerate(chunk):
        layer = arch.layers[i]
        kept = p if layer.window is None else min(p, -(-(layer.window - 1) // 32) * 32)
        if kept:
            for name in ("prefix_k", "prefix_v"):
                taken[f"{name}.{slot}"] = (1, layer.kv_heads, kept, layer.head_dim)
        widths = arch.ropes[layer.rope].widths
        taken |= {f"{name}.{layer.rope}": (t, width) for name, width in widths.items()}
        taken[f"mask.{layer.window or 'full'}"] = (t, kept + t)
        if layer.uses_phase:
            taken["phase"] = (1,)
        for name in ("k", "v"):
            given[f"{name}.{slot}"] = (1, layer.kv_heads, t, layer.head_dim)
    return taken, given


def _ports(shapes: Shapes, dtype: str, prefix: str) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{prefix}{i}",
            "dtype": "int32" if role in (*TOKENS, "phase") else dtype,
            "shape": list(shape),
            "role": role,
        }
        for i, (role, shape) in enumerate(shapes.items())
    ]


class ReferenceExecutor:
    """Computes packages with the layers of a reference model, in float32 between inputs and outputs.

    Whatever lies where the mask hides it must not matter: it is overwritten with large numbers. `calls` lists
    (package, function); `opened` counts openings and `open_now` what is open. It `overwrites` what it was
    given when it has computed, and `cuts` what the package of that name gives.
    """

    name = "reference"

    def __init__(self, model: ReferenceModel, bundle: Path) -> None:
        packages = Bundle.open(bundle).packages
        assert packages is not None
        self.model, self.entries = model, {bundle / e.path: e for e in packages.entries.values()}
        self.layers = Bundle.open(bundle).model.layers
        self.calls: list[tuple[str, Function]] = []
        self.opened: list[str] = []
        self.expected: list[tuple[str, ...]] = []
        self.open_now: list[str] = []
        self.most_open_bytes = 0
        self.overwrites, self.cuts = False, ""

    def open(self, path: Path, functions: Sequence[str]) -> ReferencePackage:
        entry = self.entries[path]
        self.opened.append(entry.name)
        self.expected.append(tuple(functions))
        self.open_now.append(entry.name)
        sizes = {e.name: e.nbytes for e in self.entries.values()}
        self.most_open_bytes = max(self.most_open_bytes, sum(sizes[n] for n in list(self.open_now)))
        return ReferencePackage(self, entry)


class ReferencePackage:
    """A package that is open."""

    def __init__(self, executor: ReferenceExecutor, entry: Package) -> None:
        self._executor, self._entry, self._closed = executor, entry, False

    def close(self) -> None:
        assert not self._closed
        self._closed = True
        self._executor.open_now.remove(self._entry.name)

    @torch.no_grad()
    def call(self, function: str, inputs: Arrays) -> dict[str, np.ndarray]:
        assert not self._closed
        (declared,) = (f for f in self._entry.functions if f.name == function)
        self._executor.calls.append((self._entry.name, declared))
        assert inputs.keys() == {port.name for port in declared.inputs.values()}
        given = {}
        for role, port in declared.inputs.items():
            array = inputs[port.name]
            assert array.dtype == port.dtype and array.shape == port.shape, (role, array.dtype, array.shape)
            assert array.flags.c_contiguous
            given[role] = torch.from_numpy(array).float() if role != "phase" else torch.from_numpy(array)
        out = getattr(self, "_" + declared.kind)(declared, given)
        made = {
            port.name: out[role].numpy().astype(port.dtype).reshape(port.shape)
            for role, port in declared.outputs.items()
        }
        if self._executor.overwrites:
            for array in inputs.values():
                array[...] = 9
        return {k: v[:, :-1] for k, v in made.items()} if self._entry.name == self._executor.cuts else made

    def _layers(self, function: Function, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        model, out = self._executor.model, {}
        numbers = [i for i, layer in enumerate(self._executor.layers) if layer.run == self._entry.name]
        x, generator = given["x"].clone(), torch.Generator().manual_seed(0)
        for slot, i in enumerate(numbers):
            layer = model.architecture.layers[i]
            mask = given[f"mask.{layer.window or 'full'}"]
            assert set(mask.unique().tolist()) <= {0.0, -30000.0}
            hidden = (mask < 0).all(0)
            kept = function.prefixes[slot]
            prefix = []
            for name in ("prefix_k", "prefix_v"):
                value = given.get(f"{name}.{slot}", torch.zeros(1, layer.kv_heads, 0, layer.head_dim)).clone()
                value[:, :, hidden[:kept]] = 50 * torch.randn(
                    1, layer.kv_heads, int(hidden[:kept].sum()), layer.head_dim, generator=generator
                )
                prefix.append(value)
            if slot == 0:
                unused = hidden[kept:]
                x[:, unused] = 50 * torch.randn(1, int(unused.sum()), x.shape[-1], generator=generator)
            tables = {
                name: given[f"{name}.{layer.rope}"] for name in model.architecture.ropes[layer.rope].widths
            }
            inputs = LayerInputs(
                x,
                **tables,
                prefix_k=prefix[0],
                prefix_v=prefix[1],
                mask=mask,
                phase=given.get("phase"),
                adapter=given.get("adapter") if layer.uses_adapter else None,
            )
            x, out[f"k.{slot}"], out[f"v.{slot}"] = layer.apply(inputs, model._unit(f"layers.{i}."))
        return out | {"y": x}

    def _self_conditioning(
        self, function: Function, given: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        model = self._executor.model
        assert model.architecture.self_conditioning is not None
        unit = model._unit("self_conditioning.")
        return {"y": model.architecture.self_conditioning(given["embedded"], given["soft"], unit)}

    def _final(self, function: Function, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        model = self._executor.model
        return {"y": ops.rms_norm(given["x"], model._unit("norm.")["weight"], model.architecture.norm_eps)}

    def _head(self, function: Function, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        model, entry = self._executor.model, self._entry
        table, scales = model._table("head" if model.architecture.head is not None else "embedding")
        tile = slice(entry.start, entry.start + entry.rows)
        table, scales = table[tile], None if scales is None else scales[tile]
        softcap = model.architecture.softcap
        if "z" in function.outputs:
            z = ops.vocab_logits(given["x"], table, scales, softcap) / given["temperature"]
            return {"z": z}
        soft = "soft" in function.outputs
        values = ops.vocab_head(
            given["x"], table, scales, given["temperature"], given.get("noise"), softcap, soft
        )
        names = [*STATISTICS, *(SAMPLE_STATISTICS if function.samples else ()), *(["soft"] if soft else [])]
        return dict(zip(names, values, strict=True))


def random_packages(
    folder: Path, family: str, lengths: Lengths, scheme: Scheme | None = None, seed: int = 0, **options: Any
) -> tuple[Path, ReferenceModel]:
    """A bundle in packages of a random model, and the reference that holds the same codes."""
    scheme = scheme or Scheme("mixed4")
    made = {k: options.pop(k) for k in ("layers_per_package", "tile_rows", "dtype") if k in options}
    bundle = make_bundle(folder, family, scheme, seed, "native", **options)
    model = quantized_reference(folder / "checkpoint", scheme, "native")
    return packaged(bundle, folder / "packaged", model, lengths, **made), model


def stored_bytes(bundle: Path) -> int:
    """Bytes of all packages."""
    packages = Bundle.open(bundle).packages
    assert packages is not None
    return sum(entry.nbytes for entry in packages.entries.values())
