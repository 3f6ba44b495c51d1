"""Bundles with packages for tests: exported in chunks, every function against the reference holding the same
codes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from edgekit.export import formats, ops
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.errors import ExportError
from edgekit.export.formats.options import FormatOptions, Packaging
from edgekit.export.formats.packages.cut import PackagePlan
from edgekit.export.formats.packages.stamp import Stamped
from edgekit.export.formats.packages.writer import PackagedFormat
from edgekit.export.models import architecture
from edgekit.export.models.base import DENOISE, PREFILL, LayerInputs
from edgekit.export.ops import dequantize
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Quantized, Scheme, choose, matrix_name, quantize_matrix
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import full_name, load_float_weights
from edgekit.flashload import manifest as manifests
from edgekit.tools.cli import main
from support.audit import StoredMatrix
from support.bundles import TILE_BYTES, quantized_reference
from support.checkpoints import write_checkpoint
from support.peft_adapters import adapted_reference, write_model
from support.signal_to_noise import decibels

#: Additive value of what is not to be seen, which float16 has.
HIDDEN = -3e4
#: Small models with one layer of each kind; windows shorter than the prefix.
SMALL: dict[str, dict[str, Any]] = {
    "diffusion_gemma": {
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "sliding_window": 33,
        "num_hidden_layers": 3,
    },
    "llada": {"n_layers": 3, "n_heads": 4, "n_kv_heads": 2},
    "llada_moe": {"num_hidden_layers": 3, "num_experts": 21, "num_experts_per_tok": 3},
    "llada2_moe": {"num_hidden_layers": 2, "block_size": 8},
    "dream": {"num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
}
LENGTHS = {
    "diffusion_gemma": (0, 20, 48),
    "llada": (8, 29),
    "llada_moe": (27,),
    "llada2_moe": (0, 24),
    "dream": (7, 29),
}
#: Family, preset and layers per chunk: every family and every preset, each twice.
CASES = [
    ("diffusion_gemma", "mixed4", 3), ("diffusion_gemma", "bf16", 1), ("llada", "int4", 2),
    ("llada", "int8", 3), ("llada_moe", "mixed4", 2), ("llada_moe", "int8", 1), ("dream", "int4", 3),
    ("dream", "bf16", 2),
]  # fmt: skip
#: Family, preset and rank of layers with adapters.
ADAPTED = [("llada", "int4", 1), ("diffusion_gemma", "mixed4", 3), ("dream", "bf16", 8)]
#: Family and preset of layers whose adapters are switched.
SWITCHED = [("llada", "int4"), ("diffusion_gemma", "mixed4"), ("dream", "bf16")]
#: Family and preset of what is compared layer by layer in half precision.
HALF_CASES = [("diffusion_gemma", "mixed4"), ("llada", "int4"), ("llada_moe", "int8"), ("dream", "bf16")]


def options(
    program_format: str,
    scheme: Scheme,
    precision: str | None = None,
    packaging: Packaging | None = None,
    **others: Any,
) -> ExportOptions:
    return ExportOptions(
        program_format, "ios", scheme, TILE_BYTES, precision=precision, packaging=packaging, **others
    )


def make_bundle(
    folder: Path,
    family: str,
    program_format: str,
    scheme: Scheme,
    precision: str,
    packaging: Packaging,
    activations: str | None = None,
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """A random checkpoint in `folder`/checkpoint, exported to the returned `folder`/bundle."""
    write_checkpoint(folder / "checkpoint", family, seed, **overrides)
    how = options(program_format, scheme, precision, packaging, activations=activations)
    export(folder / "checkpoint", folder / "bundle", how)
    return folder / "bundle"


def case_bundle(
    folder: Path, program_format: str, family: str, preset: str, chunk: int = 1, precision: str = "float32"
) -> tuple[Path, ReferenceModel]:
    """A small model's bundle, with a head in four packages, and the reference that holds the same codes.
    Models with other chunks have other weights.
    """
    scheme, cut = Scheme(preset, 32), Packaging(LENGTHS[family], layers_per_chunk=chunk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgekit.export.formats.packages.cut.MOST_HEAD_ROWS", 100)
        bundle = make_bundle(
            folder, family, program_format, scheme, precision, cut, seed=chunk, **SMALL[family]
        )
    return bundle, quantized_reference(folder / "checkpoint", scheme, program_format)


def switched_bundle(
    folder: Path, program_format: str, family: str, preset: str, precision: str
) -> tuple[Path, ReferenceModel]:
    """A small model's bundle with a switched adapter of every layer but the second, in chunks of two, and its
    reference.
    """
    write_model(folder, family)
    scheme, cut = Scheme(preset, 32), Packaging(LENGTHS[family], layers_per_chunk=2)
    how = options(program_format, scheme, precision, cut, adapter=folder / "own", adapter_mode="switched")
    export(folder / "checkpoint", folder / "bundle", how)
    model = adapted_reference(folder / "checkpoint", folder / "own", scheme, program_format)
    return folder / "bundle", model


def fitted(
    program_format: str,
    checkpoint: Path,
    scheme: Scheme,
    precision: str | None,
    cut: Packaging,
    activations: str | None = None,
) -> PackagedFormat:
    """The format for a checkpoint."""
    arch = architecture(Checkpoint.open(checkpoint).config)
    form = formats.load(program_format)(arch, scheme, FormatOptions(precision, cut, activations))
    assert isinstance(form, PackagedFormat)
    return form


def quantized_matrices(checkpoint: Path, scheme: Scheme) -> dict[str, Quantized]:
    """Quantize every matrix: the results by the report's name, and of the head's table."""
    source = Checkpoint.open(checkpoint)
    arch = architecture(source.config)
    choices, floats = choose(arch, scheme), load_float_weights(arch, source)
    made = {}
    for unit, spec in arch.weights():
        if spec.role != "float":
            value = floats[full_name(unit, spec)]
            value = value[int(unit.rsplit(".", 1)[1])] if ".experts." in unit else value
            choice = choices[matrix_name(unit, spec)]
            made[matrix_name(unit, spec)] = quantize_matrix(value, choice.bits, choice.group_size)
    made.setdefault("head", made["embedding"])
    return made


def check_stored(found: dict[str, StoredMatrix], expected: dict[str, Quantized], precision: str) -> None:
    """Compare what an audit read with the quantizer's codes and scales, these in the stored precision."""
    half = torch.float16 if precision == "float16" else torch.float32
    assert found.keys() == expected.keys()
    for name, matrix in found.items():
        want = expected[name]
        assert matrix.bits == want.bits
        if want.scales is None:
            kept = want.weight if name == "embedding" else want.weight.to(half).float()
            assert torch.equal(matrix.weight, kept), name
            continue
        assert torch.equal(matrix.weight, want.weight), name
        scales = want.scales[:, None]
        scales = scales if want.group_scales is None else scales * want.group_scales.float()
        kept = scales if name == "embedding" else scales.to(half).float()
        assert matrix.scales is not None and torch.equal(matrix.scales, kept), name


def float_vectors(checkpoint: Path) -> dict[str, np.ndarray]:
    """Every float vector of a checkpoint by its unit and name, in float32."""
    source = Checkpoint.open(checkpoint)
    return {
        f"{unit}.{spec.name}": np.concatenate([np.atleast_1d(source.read(p.tensor)) for p in spec.parts])
        for unit, spec in architecture(source.config).weights()
        if spec.role == "float"
    }


def check_vectors(
    bundle: Path,
    form: PackagedFormat,
    stored_vectors: Callable[[Path], Iterable[tuple[str, np.ndarray]]],
) -> None:
    """Compare what an audit read of vectors with the checkpoint's; it finds one that is changed."""
    expected = float_vectors(bundle.parent / "checkpoint")
    found = dict(stored_vectors(bundle))
    assert found.keys() == expected.keys() and len(found) > 2
    for name, values in found.items():
        assert np.array_equal(values, expected[name].astype(form.precision)), name
    stamped = Stamped(bundle / f"packages/final{form.SUFFIX}", form.template(PackagePlan("final", "final")))
    stamped.write("norm.weight", stamped.read("norm.weight", 1, 1) ^ 64, 1)
    after = dict(stored_vectors(bundle))
    assert [n for n in found if not np.array_equal(found[n], after[n])] == ["final.norm.weight"]


def check_left_over(bundle: Path, stored_matrices: Callable[[Path], Iterable[StoredMatrix]]) -> None:
    """An audit misses matrices of the report that are in no package, and those that packages lack."""
    path = bundle / "quantization.json"
    rows = json.loads(path.read_text())
    row = next(r for r in rows if r["name"].startswith("layers.0."))
    for name, said in (
        ("layers.99.mlp.up_proj", "layers.99.mlp.up_proj is in the report, but in none of the packages"),
        ("layers.0.mlp.side_proj", "0.mlp.side_proj: is not in the program"),
    ):
        path.write_text(json.dumps([*rows, {**row, "name": name}]))
        with pytest.raises(ExportError, match=said):
            list(stored_matrices(bundle))


def check_flipped_bits(
    bundle: Path, form: PackagedFormat, stored_matrices: Callable[[Path], Iterable[StoredMatrix]]
) -> None:
    """An audit and `verify` find bits flipped in two matrices of a bundle of three layers in one package."""
    before = {m.name: m for m in stored_matrices(bundle)}
    package = next(p for p in form.packages if p.kind == "layers")
    stamped = Stamped(bundle / f"packages/{package.name}{form.SUFFIX}", form.template(package))
    for tensor, at in (("1.mlp.up_proj.codes", 77), ("2.self_attn.k_proj.scales", 10)):
        stamped.write(tensor, stamped.read(tensor, at, 1) ^ 16, at)
    after = {m.name: m for m in stored_matrices(bundle)}

    def same(name: str) -> bool:
        a, b = before[name], after[name]
        assert a.scales is not None and b.scales is not None
        return torch.equal(a.weight, b.weight) and torch.equal(a.scales, b.scales)

    changed = {name for name in before if not same(name)}
    assert changed == {"layers.1.mlp.up_proj", "layers.2.self_attn.k_proj"}
    result = CliRunner().invoke(main, ["verify", str(bundle)])
    assert result.exit_code == 1 and "damaged: packages/" in result.output


class Programs(ABC):
    """The functions of a bundle; values go in and out by role. `widened` results are float32 always."""

    widened = False

    def __init__(self, bundle: Path) -> None:
        self.bundle, self.manifest = bundle, manifests.load(bundle)
        self.entries = self.manifest.programs["packages"]

    @abstractmethod
    def call(self, package: str, function: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a function; arrays by name."""

    def run(self, package: str, function: str, values: dict[str, Any]) -> dict[str, np.ndarray]:
        """Run a function on values by role, which must be all of its inputs."""
        entry = self.entries[package]["functions"][function]
        inputs = {}
        for feature in entry["inputs"]:
            value = np.asarray(values[feature["role"]])
            assert list(value.shape) == feature["shape"], feature
            inputs[feature["name"]] = value.astype(feature["dtype"])
        out = self.call(package, function, inputs)
        described = {f["name"]: f for f in entry["outputs"]}
        assert out.keys() == described.keys()
        for name, array in out.items():
            assert list(array.shape) == described[name]["shape"]
            assert array.dtype == described[name]["dtype"] or self.widened
        return {described[name]["role"]: array for name, array in out.items()}


def random(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal numbers that float16 has, so that both sides of a comparison begin alike."""
    return (scale * rng.standard_normal(shape)).astype(np.float16).astype(np.float32)


def torched(value: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(value))


def layer_values(rng: np.random.Generator, model: ReferenceModel, function: dict[str, Any]) -> dict[str, Any]:
    """Random inputs of a function of layers: tables of some positions, masks that hide a third of keys."""
    values: dict[str, Any] = {}
    for feature in function["inputs"]:
        role, shape = feature["role"], feature["shape"]
        name, _, which = role.partition(".")
        if name in ("cos", "sin", "query_scale"):
            positions = torch.arange(function["p"], function["p"] + function["t"])
            tables = model.architecture.ropes[which].tables(positions)
            values[role] = tables[name].numpy().astype(feature["dtype"])
        elif name == "mask":
            mask = np.where(rng.random(shape) < 0.3, HIDDEN, 0.0)
            mask[:, -1] = 0.0
            values[role] = mask
        elif name == "adapter":
            values[role] = rng.integers(0, 2, shape).astype(np.float32)
        elif name == "phase":
            values[role] = np.array([rng.integers(DENOISE, PREFILL + 1)])
        else:
            values[role] = random(rng, *shape)
    return values


@torch.no_grad()
def layer_results(
    model: ReferenceModel, layers: list[int], values: dict[str, Any], x: np.ndarray
) -> dict[str, np.ndarray]:
    """Results of the reference's layers for the same values."""
    out: dict[str, np.ndarray] = {}
    y = torched(x)
    for slot, i in enumerate(layers):
        layer = model.architecture.layers[i]
        none = torch.zeros(1, layer.kv_heads, 0, layer.head_dim)
        prefix = [
            torched(values[f"{n}.{slot}"]) if f"{n}.{slot}" in values else none
            for n in ("prefix_k", "prefix_v")
        ]
        names = model.architecture.ropes[layer.rope].widths
        tables = {name: torched(values[f"{name}.{layer.rope}"]).float() for name in names}
        mask = torched(values[f"mask.{'full' if layer.window is None else layer.window}"]).float()
        phase = torch.from_numpy(values["phase"]) if layer.uses_phase else None
        adapter = torched(values["adapter"]) if layer.uses_adapter else None
        inputs = LayerInputs(
            y, **tables, prefix_k=prefix[0], prefix_v=prefix[1], mask=mask, phase=phase, adapter=adapter
        )
        y, k, v = layer.apply(inputs, model._unit(f"layers.{i}."))
        out |= {f"k.{slot}": k.numpy(), f"v.{slot}": v.numpy()}
    return out | {"y": y.numpy()}


def table_of(model: ReferenceModel, start: int, rows: int) -> torch.Tensor:
    table, scales = model._table("head" if model.architecture.head is not None else "embedding")
    return dequantize(table, None, scales)[start : start + rows]


@contextmanager
def routing() -> Iterator[list[np.ndarray]]:
    """For every mixture computed inside, which positions chose their experts by more than rounding could
    turn: where two are nearly equal, half precision may choose the other, and the result is another one.
    """
    routed, settled = ops.routed, list[np.ndarray]()

    def watched(logits: torch.Tensor, *rule: Any) -> Any:
        found = routed(logits, *rule)
        chosen, sure = found[0].sort(-1).values, torch.ones(len(logits), dtype=torch.bool)
        random = torch.Generator().manual_seed(0)
        for _ in range(16):
            near = logits + 0.02 * (2 * torch.rand(logits.shape, generator=random) - 1)
            sure &= (routed(near, *rule)[0].sort(-1).values == chosen).all(-1)
        settled.append(sure.numpy())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "routed", watched)
        yield settled


def check_layers(
    programs: Programs,
    model: ReferenceModel,
    seed: int,
    least: float | None,
    products: Callable[[int], Sequence[torch.Tensor]] = lambda _: (),
) -> int:
    """Compare all functions of all chunks; returns how many. Without `least` decibels, to 1e-4. `products`
    are those of the reference's last pass through a layer that its mixture takes, where the core mixes
    experts.
    """
    rng, checked = np.random.default_rng(seed), 0
    for package, entry in programs.entries.items():
        layers = [i for i, own in enumerate(programs.manifest.layers) if own["package"] == package]
        for name, function in entry["functions"].items():
            if function["kind"] != "layers":
                continue
            values = layer_values(rng, model, function)
            got = programs.run(package, name, values)
            with routing() as settled:
                expected = layer_results(
                    model, layers, {"phase": np.zeros(1, np.int64)} | values, values["x"]
                )
            if dense := {f"dense.{i}": y.detach().numpy() for i, y in enumerate(products(layers[0]))}:
                settled, expected = [], {role: expected[role] for role in ("k.0", "v.0")} | dense
            assert got.keys() == expected.keys()
            for role, array in got.items():
                what = f"{package} {name} {role}"
                if least is None:
                    top = np.abs(expected[role]).max()
                    np.testing.assert_allclose(
                        array, expected[role], rtol=1e-4, atol=2e-5 * top, err_msg=what
                    )
                else:
                    sure = settled[0] if settled and role == "y" else slice(None)
                    assert not settled or settled[0].mean() > 0.7
                    found = decibels(array[0, sure], expected[role][0, sure])
                    assert found > least, f"{what}: {found:.1f} dB"
            checked += 1
    return checked


def unrounded(x: torch.Tensor) -> torch.Tensor:
    """Activations as they are."""
    return x


def check_around(
    programs: Programs,
    model: ReferenceModel,
    precision: str,
    round_rows: Callable[[torch.Tensor], torch.Tensor] = unrounded,
) -> None:
    """Compare every function that is none of layers; the head is to be in four packages. `round_rows` is what
    happens to activations before the head.
    """
    rng, arch = np.random.default_rng(7), model.architecture
    near: dict[str, Any] = (
        {"rtol": 1e-4, "atol": 1e-5} if precision == "float32" else {"rtol": 0.01, "atol": 0.02}
    )
    heads = [name for name, entry in programs.entries.items() if "start" in entry]
    assert len(heads) == 4 and sum(programs.entries[n]["rows"] for n in heads) == arch.vocab_size
    for package, entry in programs.entries.items():
        for name, function in entry["functions"].items():
            values = {f["role"]: random(rng, *f["shape"]) for f in function["inputs"]}
            if "temperature" in values:
                values["temperature"] = np.array([0.7])
            if function["kind"] == "layers":
                continue
            got = programs.run(package, name, values)
            with torch.no_grad():
                expected = around(model, entry, function, values, round_rows)
            assert got.keys() == expected.keys()
            if precision == "float16" and "argmax" in got:
                # Of nearly equal scores half precision may choose another one.
                z, rows = head_scores(model, entry, values, round_rows), np.arange(len(values["x"]))
                for role in ("argmax", "sample") if "sample" in got else ("argmax",):
                    score = z + values["noise"] if role == "sample" else z
                    assert (score[rows, got[role]] >= score.max(1) - 0.02).all(), f"{package} {name} {role}"
                    expected[role] = got[role]
                if "sample" in got:
                    expected["sample_z"] = z[rows, got["sample"]]
            for role, array in got.items():
                scale = max(1.0, float(np.abs(expected[role]).max()))
                np.testing.assert_allclose(
                    array / scale, expected[role] / scale, err_msg=f"{package} {name} {role}", **near
                )


@torch.no_grad()
def head_scores(
    model: ReferenceModel,
    entry: dict[str, Any],
    values: dict[str, Any],
    round_rows: Callable[[torch.Tensor], torch.Tensor] = unrounded,
) -> np.ndarray:
    """z [T, V'] of a tile of the head for the rows x [T, H]."""
    x, temperature = (torched(np.float32(values[role])) for role in ("x", "temperature"))
    cap = model.architecture.softcap
    z = round_rows(x) @ table_of(model, entry["start"], entry["rows"]).T
    return ((cap * torch.tanh(z / cap) if cap else z) / temperature).numpy()


def around(
    model: ReferenceModel,
    entry: dict[str, Any],
    function: dict[str, Any],
    values: dict[str, Any],
    round_rows: Callable[[torch.Tensor], torch.Tensor] = unrounded,
) -> dict[str, np.ndarray]:
    """The results of a function that is none of layers, from the whole table and torch's own functions."""
    t, arch = {name: torched(np.float32(value)) for name, value in values.items()}, model.architecture
    if function["kind"] == "final":
        x = t["x"]
        norm = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + arch.norm_eps)
        return {"y": (norm * model._unit("norm.")["weight"]).numpy()}
    if function["kind"] == "self_conditioning":
        assert arch.self_conditioning is not None
        unit = model._unit("self_conditioning.")
        return {"y": arch.self_conditioning(t["embedded"], t["soft"], unit).numpy()}
    table = table_of(model, entry["start"], entry["rows"])
    z = torched(head_scores(model, entry, values, round_rows))
    roles = {f["role"] for f in function["outputs"]}
    if "z" in roles:
        return {"z": z.numpy()}
    e = torch.exp(z - z.max(-1, keepdim=True).values)
    others = torch.where(torch.arange(z.shape[1]) == z.argmax(-1)[:, None], 0.0, e)
    out = {
        "max": z.max(-1).values,
        "argmax": z.argmax(-1),
        "sum_others": others.sum(-1),
        "sum_z_others": (z * others).sum(-1),
    }
    if "noise" in t:
        score = z + t["noise"]
        at = score.argmax(-1)
        out |= {"score": score.max(-1).values, "sample": at, "sample_z": z[torch.arange(len(z)), at]}
    if "soft" in roles:
        out["soft"] = e @ table
    return {name: value.numpy() for name, value in out.items()}
