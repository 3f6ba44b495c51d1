"""What formats that keep weights in packages have in common: how a model is cut into packages, and the
functions that each has.

    layers.A-B          a chunk of layers, called at once; `layers.A` if it is one
    self_conditioning   where the model has it
    final               the last norm
    head.N              rows of the vocabulary table

A package has one function for each of `Lengths`, all over the same weights. The tensors of a package are
those of its runs, named as there but for their unit: `0.self_attn.q_proj.codes` of the first layer in a
chunk, `0.experts.7.down.scales`, `norm.weight`, `table.codes`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekit.export.errors import ExportError
from edgekit.export.formats.layer_kinds import layer_choices, numbered_kinds
from edgekit.export.formats.options import Packaging
from edgekit.export.models.base import Architecture
from edgekit.export.programs import (
    HEADS,
    Lengths,
    Placeholders,
    Program,
    final_program,
    head_programs,
    layer_program,
    self_conditioning_program,
)
from edgekit.export.quantize import Choice
from edgekit.flashload.sizes import size

PACKAGE_FOLDER = "packages"
#: Rows of a package of the head: what the Neural Engine takes as one dimension.
MOST_HEAD_ROWS = 16384
#: Chunks are of this many layers where size allows and nothing is asked for.
MOST_LAYERS = 8
#: Lengths when none are given: the first of those for passes, and how far they go.
FIRST_LENGTH, LAST_LENGTH = 128, 1024
PREFIX_CANVASES = 8


@dataclass(frozen=True)
class Package:
    """A package of a bundle. `layers` are those of a chunk; `start` and `rows` those of the table."""

    name: str
    kind: str
    layers: tuple[int, ...] = ()
    start: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Feature:
    """An input or output of a function. `role` says what a runtime feeds or gets; names are identifiers."""

    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.role.replace(".", "_")

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "role": self.role}


@dataclass(frozen=True)
class Signature:
    """What a function takes and gives."""

    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]


@dataclass(frozen=True)
class FunctionPlan:
    """A function to be made. `inputs` are by role; `bindings` are, for each layer of a chunk, the roles of
    its program's inputs besides x; `variant` is one of `programs.HEADS`.
    """

    name: str
    kind: str
    lengths: Lengths
    inputs: tuple[Feature, ...]
    bindings: tuple[Mapping[str, str], ...] = ()
    variant: str = ""

    def as_dict(self, signature: Signature) -> dict[str, Any]:
        """The manifest's entry."""
        return {
            "kind": self.kind,
            "t": self.lengths.t,
            "p": self.lengths.p,
            "inputs": [f.as_dict() for f in signature.inputs],
            "outputs": [f.as_dict() for f in signature.outputs],
        }


def choose_lengths(architecture: Architecture, packaging: Packaging) -> tuple[Lengths, ...]:
    """The lengths to make functions for.

    Raises:
        ExportError: lengths that make no sense for the model.
    """
    given, longest = packaging.lengths, architecture.max_positions
    if given is not None and any(n < 0 or (n == 0 and not architecture.causal_prefix) for n in given):
        raise ExportError(f"lengths must be positive, not {', '.join(map(str, given))}")
    most = packaging.max_positions
    if given is not None and most is not None:
        raise ExportError("--lengths and --max-positions exclude each other: the longest length is the most")
    if most is not None and most < 1:
        raise ExportError(f"--max-positions {most} is not possible; it must be at least 1")
    asked = max(given or (), default=most or 0)
    if longest is not None and asked > longest:
        raise ExportError(f"{asked} positions are not possible; the model was made for at most {longest}")
    if architecture.causal_prefix:
        t = architecture.canvas_length
        assert t is not None  # every family with a prefix has one
        far = most or min(longest or PREFIX_CANVASES * t, PREFIX_CANVASES * t)
        return tuple(Lengths(t, p) for p in sorted({0, *(given or _doubling(t, far))}))
    far = most or min(longest or LAST_LENGTH, LAST_LENGTH)
    return tuple(Lengths(t, 0) for t in sorted(set(given or _doubling(FIRST_LENGTH, far))))


def _doubling(first: int, last: int) -> Iterator[int]:
    """first, 2 first, 4 first... and at the end `last`."""
    while first < last:
        yield first
        first *= 2
    yield last


def cut(
    architecture: Architecture, sizes: Sequence[int], row_bytes: int, packaging: Packaging, limit_bytes: int
) -> list[Package]:
    """The packages of a model in the order of execution. `sizes` are the bytes of each layer, `row_bytes`
    those of a row of the head's table.

    Raises:
        ExportError: a chunk of the given number of layers, or a single layer, is larger than `limit_bytes`.
    """
    asked, count = packaging.layers_per_chunk, len(sizes)
    if asked is not None and asked < 1:
        raise ExportError(f"--layers-per-chunk {asked} is not possible; it must be at least 1")

    def largest(per_chunk: int) -> int:
        return max(sum(sizes[i : i + per_chunk]) for i in range(0, count, per_chunk))

    fitting = [n for n in range(1, min(count, MOST_LAYERS) + 1) if largest(n) <= limit_bytes]
    per_chunk = asked or (fitting[-1] if fitting else 1)
    packages = [Package("self_conditioning", "self_conditioning")] if architecture.self_conditioning else []
    for first in range(0, count, per_chunk):
        layers = tuple(range(first, min(count, first + per_chunk)))
        name = f"layers.{first}" + (f"-{layers[-1]}" if len(layers) > 1 else "")
        nbytes = sum(sizes[i] for i in layers)
        if nbytes > limit_bytes:
            advice = (
                f"use --layers-per-chunk {fitting[-1]}" if fitting else "use fewer bits (--quant, --override)"
            )
            raise ExportError(
                f"package {name} would have {size(nbytes)}, over the limit of {size(limit_bytes)}; {advice}"
            )
        packages.append(Package(name, "layers", layers))
    packages.append(Package("final", "final"))
    rows = max(1, min(MOST_HEAD_ROWS, limit_bytes // row_bytes))
    vocab = architecture.vocab_size
    for i, start in enumerate(range(0, vocab, rows)):
        packages.append(Package(f"head.{i}", "head", (), start, min(vocab, start + rows) - start))
    return packages


def functions(
    architecture: Architecture, package: Package, lengths: Sequence[Lengths], number: str
) -> list[FunctionPlan]:
    """The functions of a package, over inputs of type `number` ("float16", "float32")."""
    if package.kind == "layers":
        return [_layers_function(architecture, package, own, number) for own in lengths]
    hidden, plans = architecture.hidden_size, []
    for t in sorted({own.t for own in lengths}):
        own, name, whole = Lengths(t, 0), f"t{t}", (1, t, hidden)
        if package.kind == "final":
            plans.append(FunctionPlan(name, "final", own, (Feature("x", number, whole),)))
        elif package.kind == "self_conditioning":
            inputs = tuple(Feature(role, number, whole) for role in ("embedded", "soft"))
            plans.append(FunctionPlan(name, "self_conditioning", own, inputs))
        else:
            for variant, (sample, soft, _) in HEADS.items():
                if soft and architecture.self_conditioning is None:
                    continue
                features = [Feature("x", number, (t, hidden)), Feature("temperature", number, (1,))]
                if sample:
                    features.append(Feature("noise", number, (t, package.rows)))
                plans.append(FunctionPlan(f"{variant}_{name}", "head", own, tuple(features), variant=variant))
    return plans


def _layers_function(
    architecture: Architecture, package: Package, lengths: Lengths, number: str
) -> FunctionPlan:
    t = lengths.t
    inputs: dict[str, Feature] = {}
    bindings = []

    def take(role: str, dtype: str, *shape: int) -> str:
        inputs[role] = Feature(role, dtype, shape)
        return role

    take("x", number, 1, t, architecture.hidden_size)
    for slot, i in enumerate(package.layers):
        layer = architecture.layers[i]
        p, own = lengths.prefix(layer.window), {}
        for name in ("prefix_k", "prefix_v") if p else ():
            own[name] = take(f"{name}.{slot}", number, 1, layer.kv_heads, p, layer.head_dim)
        rotary = len(architecture.ropes[layer.rope].inverse_frequency)
        for name in ("cos", "sin"):
            own[name] = take(f"{name}.{layer.rope}", number, t, rotary)
        reach = "full" if layer.window is None else str(layer.window)
        own["mask"] = take(f"mask.{reach}", number, t, p + t)
        if layer.uses_phase:
            own["phase"] = take("phase", "int32", 1)
        bindings.append(own)
    return FunctionPlan(
        f"t{t}_p{lengths.p}", "layers", lengths, tuple(inputs.values()), bindings=tuple(bindings)
    )


def content_key(package: Package, kinds: Sequence[str]) -> tuple[Any, ...]:
    """Packages of equal keys differ in nothing but weights; `kinds` are those of all layers."""
    return (package.kind, tuple(kinds[i] for i in package.layers), package.rows)


def manifest_entry(
    package: Package, suffix: str, folder: Path, functions: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """What the manifest says of a whole package in the bundle `folder`."""
    path = f"{PACKAGE_FOLDER}/{package.name}{suffix}"
    files = sorted(p.relative_to(folder).as_posix() for p in (folder / path).rglob("*") if p.is_file())
    entry: dict[str, Any] = {
        "path": path,
        "bytes": sum((folder / name).stat().st_size for name in files),
        "files": files,
        "parts": [f"layers.{i}" for i in package.layers] or [package.name],
        "functions": dict(functions),
    }
    return entry | ({"start": package.start, "rows": package.rows} if package.kind == "head" else {})


def layer_places(packages: Sequence[Package]) -> list[dict[str, Any]]:
    """For every layer its package and the slot in it, as the manifest has them."""
    return [
        {"package": package.name, "slot": slot} for package in packages for slot in range(len(package.layers))
    ]


@dataclass(frozen=True)
class StaticPrograms:
    """Exported programs of a model for fixed lengths, each made once."""

    architecture: Architecture
    choices: Mapping[str, Choice]
    placeholders: Placeholders
    _made: dict[tuple[Any, ...], Program] = field(default_factory=dict)

    @functools.cached_property
    def kinds(self) -> list[str]:
        """The program name of every layer."""
        return numbered_kinds(
            self.architecture,
            self.choices,
            lambda _, own: tuple((c.bits, c.group_size) for c in own.values()),
        )

    def layer(self, index: int, lengths: Lengths) -> Program:
        """The program of a layer; see `programs.layer_program`."""
        layer, kind = self.architecture.layers[index], self.kinds[index]
        own = Lengths(lengths.t, lengths.prefix(layer.window))
        key = ("layers", kind, own)
        if key not in self._made:
            choices = layer_choices(layer, index, self.choices)
            self._made[key] = layer_program(kind, self.architecture, layer, choices, self.placeholders, own)
        return self._made[key]

    def final(self, lengths: Lengths) -> Program:
        """The last norm."""
        return final_program(self.architecture, lengths)

    def self_conditioning(self, lengths: Lengths) -> Program:
        """Self-conditioning."""
        specs = [s for s in self.architecture.self_conditioning_weights if s.role != "float"]
        own = {s.name: self.choices[f"self_conditioning.{s.name}"] for s in specs}
        return self_conditioning_program(self.architecture, own, self.placeholders, lengths)

    def head(self, variant: str, lengths: Lengths, rows: int) -> Program:
        """A variant of the head over a tile of `rows`."""
        if ("head", variant, lengths, rows) not in self._made:
            choice = self.choices["head" if self.architecture.head is not None else "embedding"]
            for program in head_programs(self.architecture, choice, self.placeholders, lengths, rows):
                self._made[("head", program.name, lengths, rows)] = program
        return self._made[("head", variant, lengths, rows)]
