"""The packages of a bundle (`.mlpackage`, `.aimodel`): programs of fixed sizes that hold their weights.

Section `programs` of the manifest:

    {"format": "coreml", "layout": "coreml-2", "precision": "float16", "minimum_os": {"macos": "15"},
     "activations": "int8",         (before products with weights of 8 bits, or int16 before all; float if it
                                     is not there)
     "coreai": "1.0.0b3",           (in the format of that name: the version that wrote the packages)
     "compiled": {"sm8650": ["compiled/sm8650/..."]},     (files by chip, in the format qnn, if there are any)
     "head": {...},                 (the core's program of a head whose table lies in the flash file, in the
                                     format qnn: no package is a tile of it)
     "mixtures": {"moe": {...}},    (the core's programs of layers whose experts lie in the flash file: what
                                     follows the products that their packages give)
     "packages": {"layers.0-3": {
         "path": "packages/layers.0-3.mlpackage", "bytes": 123, "files": ["packages/layers.0-3.ml..."],
         "parts": ["layers.0", ...],       (a tile of the vocabulary head also has "start" and "rows")
         "functions": {"t256_p512": {"kind": "layers", "t": 256, "p": 512,
             "inputs": [{"name", "dtype", "shape", "role"}], "outputs": [the same]}}}}}

A function takes t positions after p positions of prefix. What its arrays are is said by their roles:

    layers             x [1, t, H]; prefix_k.J, prefix_v.J [1, KV, P, D] of the chunk's layer J (none if p is
                       0); cos.ROPE, sin.ROPE [t, R]; query_scale.ROPE [t, 1] where the rope has one;
                       adapter [t, 1] where one of the layers has an adapter;
                       mask.full [t, p + t], mask.W [t, P + t] for a window W; phase [1]
                       ->  y [1, t, H], or dense.I [1, t, H] for each that the layer's mixture takes;
                       k.J, v.J [1, KV, t, D]
    self_conditioning  embedded, soft [1, t, H]  ->  y [1, t, H]
    final              x [1, t, H]  ->  y [1, t, H]
    head               x [t, H]; temperature [1]; noise [t, V'] where it samples  ->  z [t, V'], or the
                       statistics of `engines.base.TilePart`

A layer with a window W keeps W - 1 positions, so its P is min(p, W - 1) or a little more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgekit.flashload.errors import MalformedFile, UnsupportedVersion, quoted
from edgekit.flashload.manifest import FileEntry, Manifest
from edgekit.flashload.registry import BrokenPlugin
from edgekit.runtime.bundle.layer import Layer
from edgekit.runtime.bundle.sections import Wrong, each, value
from edgekit.runtime.engine_registry import running

#: Of the section and the stored forms.
_VERSION = 2
KINDS = ("layers", "self_conditioning", "final", "head")
DTYPES = ("float16", "float32", "int32")
#: What activations are before products: int8 before those with weights of 8 bits, int16 before all. Floats
#: are of the precision.
ACTIVATIONS = ("float", "int8", "int16")
STATISTICS = ("max", "argmax", "sum_others", "sum_z_others")
SAMPLE_STATISTICS = ("score", "sample", "sample_z")
#: Outputs that are token numbers.
TOKENS = ("argmax", "sample")


def packaged(program_format: str) -> bool:
    """Whether the weights of a format lie in packages: it is run by an executor of their functions. Where its
    engine cannot be had, they are not known to.
    """
    try:
        row = running(program_format)
    except BrokenPlugin:
        return False
    return row is not None and row.packaged


def layout_of(program_format: str) -> str:
    """The layout of a format's packages that this edgekit writes and reads."""
    return f"{program_format}-{_VERSION}"


@dataclass(frozen=True)
class Port:
    """An array that goes in or out under `name`; `role` says what it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str


@dataclass(frozen=True)
class Function:
    """A function of a package for `t` positions after `p` positions of prefix; ports by role."""

    name: str
    kind: str
    t: int
    p: int
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]

    @property
    def samples(self) -> bool:
        """Whether a function of the head takes noise."""
        return "noise" in self.inputs

    @property
    def prefixes(self) -> tuple[int, ...]:
        """The prefix positions that each layer of the chunk takes."""
        count = sum(role.startswith("k.") for role in self.outputs)
        ports = (self.inputs.get(f"prefix_k.{slot}") for slot in range(count))
        return tuple(0 if port is None else port.shape[2] for port in ports)


@dataclass(frozen=True)
class Package:
    """A package: `path` is its folder below the bundle, `nbytes` the size of its files. `start` is the first
    token of a tile of the head, `rows` the tokens in it.
    """

    name: str
    path: str
    nbytes: int
    files: tuple[str, ...]
    kind: str
    functions: tuple[Function, ...]
    start: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Packages:
    """All packages of a bundle by name, in the order of the manifest. `written_by` is the version of the
    format's own library, where the manifest has it; `compiled` are files of packages that were compiled for a
    chip, by its name.
    """

    format: str
    precision: str
    activations: str
    minimum_os: Mapping[str, str]
    entries: Mapping[str, Package]
    written_by: str = ""
    compiled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Package:
        return self.entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    @property
    def head(self) -> tuple[Package, ...]:
        """The tiles of the vocabulary head in the order of their tokens."""
        return tuple(
            sorted((e for e in self.entries.values() if e.kind == "head"), key=lambda e: (e.start, e.rows))
        )

    def lengths(self) -> list[tuple[int, int]]:
        """The (positions of a pass, positions of prefix) that every package of layers has a function for."""
        each = [{(f.t, f.p) for f in e.functions} for e in self.entries.values() if e.kind == "layers"]
        return sorted(set.intersection(*each)) if each else []

    def most(self) -> str:
        """Describe the longest of them."""
        most = ", ".join(f"{t} after {p}" if p else str(t) for t, p in self.lengths()[-1:])
        return f"its programs take at most {most} positions"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model that functions are checked against."""

    hidden: int
    vocab: int
    ropes: Mapping[str, Mapping[str, int]]  # by name: the widths of their tables, by name
    self_conditioning: bool
    adapters: int = 0
    head_in_flash: bool = False  # the head may lie there, in place of packages
    dense: Mapping[str, int] = field(default_factory=dict)  # products that mixtures take, by their names


def parse(manifest: Manifest, layers: Sequence[Layer], sizes: Sizes, where: str) -> Packages:
    """Check the section of the manifest and return it; messages begin with `where`. The run of each of
    `layers` is a package.

    Raises:
        UnsupportedVersion: a layout that this edgekit does not read.
        MalformedFile: something is missing, inconsistent, or not what an engine can feed.
    """
    programs, layout = manifest.programs, layout_of(manifest.format)
    if programs.get("layout") != layout:
        raise UnsupportedVersion(
            f"{where}: packages of layout {str(programs.get('layout'))[:40]}, this edgekit reads {layout}; "
            "update edgekit or export the bundle again"
        )
    try:
        table, sizes = value(programs, "packages", dict), replace(sizes, dense=_dense(programs, layers))
        entries = {
            name: _Reader(sizes, layers, manifest.files, name, table[name]).package() for name in table
        }
        packages = Packages(
            manifest.format,
            value(programs, "precision", str),
            _activations(programs),
            {str(k): str(v) for k, v in value(programs, "minimum_os", dict).items()},
            entries,
            str(programs.get(manifest.format) or ""),
            _compiled(manifest),
        )
        _check_parts(packages, layers, sizes)
    except Wrong as error:
        raise MalformedFile(f"{where}: {error}; export the bundle again") from None
    return packages


def _dense(programs: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, int]:
    """How many products of a layer each of the core's mixtures takes, by its name."""
    mixtures = value(programs, "mixtures", dict) if "mixtures" in programs else {}
    for i, layer in enumerate(layers):
        if layer.mixture and layer.mixture_program not in mixtures:
            raise Wrong(f"layer {i}: there is no mixture {quoted(layer.mixture_program)}")
    return {
        name: sum(i.startswith("dense.") for i in each(entry, "inputs", str, f"mixture {quoted(name)}"))
        for name, entry in mixtures.items()
    }


def _compiled(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    table = value(manifest.programs, "compiled", dict) if "compiled" in manifest.programs else {}
    for chip, files in table.items():
        at = f"packages compiled for {str(chip)[:40]!r}"
        if not isinstance(files, list) or not all(isinstance(f, str) and f in manifest.files for f in files):
            raise Wrong(f"{at} are not among the files of the bundle")
    return {str(chip): tuple(files) for chip, files in table.items()}


def _activations(programs: Mapping[str, Any]) -> str:
    found = value(programs, "activations", str) if "activations" in programs else ACTIVATIONS[0]
    if found not in ACTIVATIONS:
        raise Wrong(f"activations are {str(found)[:40]!r}, expected one of {', '.join(ACTIVATIONS)}")
    return str(found)


def _check_parts(packages: Packages, layers: Sequence[Layer], sizes: Sizes) -> None:
    """Every part of the model has its package, and no package is left over."""
    wanted = {"final": "final"}
    if sizes.self_conditioning:
        wanted["self_conditioning"] = "self_conditioning"
    wanted |= {layer.run: "layers" for layer in layers}
    wanted |= {e.name: "head" for e in packages.head}
    for name, kind in wanted.items():
        if name not in packages:
            raise Wrong(f"there is no package {name}, which the model needs")
        if packages[name].kind != kind:
            raise Wrong(f"package {name} is of kind {packages[name].kind}, expected {kind}")
    surplus = [name for name in packages.entries if name not in wanted]
    if surplus:
        raise Wrong(f"package {surplus[0]} belongs to no part of the model")
    covered = 0
    for tile in packages.head:
        if tile.start != covered:
            raise Wrong(f"package {tile.name} starts at token {tile.start}, expected {covered}")
        covered += tile.rows
    if covered != sizes.vocab and not (sizes.head_in_flash and covered == 0):
        raise Wrong(f"the packages of the head hold {covered} of {sizes.vocab} tokens")
    order = [(layer.run, layer.slot) for layer in layers]
    for i, (name, slot) in enumerate(order):
        follows = i > 0 and order[i - 1] == (name, slot - 1)
        if follows and (layers[i].mixture or layers[i - 1].mixture):
            raise Wrong(f"layer {i} shares package {name}, which layers with experts cannot")
        if not follows and (slot != 0 or name in {n for n, _ in order[:i]}):
            raise Wrong(f"layer {i} is slot {slot} of package {name}, which does not follow layer {i - 1}'s")
    if not packages.lengths():
        raise Wrong("the packages of layers have no lengths in common")


class _Reader:
    """Reads one package."""

    def __init__(
        self, sizes: Sizes, layers: Sequence[Layer], files: Mapping[str, FileEntry], name: str, table: Any
    ) -> None:
        self._sizes, self._files, self._name, self._table = sizes, files, name, table
        self._layers = [layer for layer in layers if layer.run == name]
        self._at = f"package {name[:80]}"
        self._rows = 0

    def package(self) -> Package:
        if not self._name or not self._name.isprintable() or "/" in self._name:
            raise Wrong(f"{self._name[:80]!r} is no name for a package")
        path, files = value(self._table, "path", str, self._at), value(self._table, "files", list, self._at)
        nbytes = value(self._table, "bytes", int, self._at)
        self._check_files(path, files, nbytes)
        functions = value(self._table, "functions", dict, self._at)
        if not functions:
            raise Wrong(f"{self._at} has no functions")
        kinds = {value(f, "kind", str, f"{self._at}, function {n}") for n, f in functions.items()}
        kind = kinds.pop()
        if kinds or kind not in KINDS:
            raise Wrong(f"{self._at} has kind {sorted({kind, *kinds})}, expected one of {', '.join(KINDS)}")
        start = 0
        if kind == "head":
            start, self._rows = (value(self._table, key, int, self._at) for key in ("start", "rows"))
            if start < 0 or self._rows < 1:
                raise Wrong(f"{self._at} holds {self._rows} tokens from {start} on")
        read = tuple(self._function(name, kind, table) for name, table in functions.items())
        return Package(self._name, path, nbytes, tuple(files), kind, read, start, self._rows)

    def _check_files(self, path: str, files: list[Any], nbytes: int) -> None:
        # Paths of listed files were checked to stay inside of the bundle.
        foreign = [f for f in files if not isinstance(f, str) or not f.startswith(path + "/")]
        unlisted = [f for f in files if f not in foreign and f not in self._files]
        if foreign or not files or not path:
            raise Wrong(f"{self._at}: files must be files below {path[:80]!r}")
        if unlisted:
            raise Wrong(f"{self._at}: {unlisted[0]} is not among the files of the bundle")
        size = sum(self._files[f].size for f in set(files))
        if size != nbytes or nbytes < 1:
            raise Wrong(f"{self._at}: has {nbytes} bytes, its files {size}")

    def _function(self, name: str, kind: str, table: Any) -> Function:
        at = f"{self._at}, function {name[:80]}"
        t, p = value(table, "t", int, at), 0 if table.get("p") is None else value(table, "p", int, at)
        if t < 1 or p < 0 or (p and kind != "layers"):
            raise Wrong(f"{at}: is for {t} positions after {p} of prefix")
        inputs, outputs = (
            _ports(value(table, key, list, at), f"{at}, {key}") for key in ("inputs", "outputs")
        )
        function = Function(name, kind, t, p, inputs, outputs)
        if kind == "layers":
            taken, given = _layer_shapes(function, self._layers, self._sizes, at)
        elif kind == "head":
            taken, given = _head_shapes(function, self._rows, self._sizes)
        else:
            x = (1, t, self._sizes.hidden)
            taken = {"x": x} if kind == "final" else {"embedded": x, "soft": x}
            given = {"y": x}
        _check_ports(inputs, taken, f"{at}: input")
        _check_ports(outputs, given, f"{at}: output")
        return function


_Shapes = dict[str, tuple[int, ...]]


def _layer_shapes(
    function: Function, layers: Sequence[Layer], sizes: Sizes, at: str
) -> tuple[_Shapes, _Shapes]:
    """Inputs and outputs of a chunk of layers, by role. How much prefix a layer with a window takes is read
    from its input: converters like round sizes.
    """
    t, p = function.t, function.p
    taken: _Shapes = {"x": (1, t, sizes.hidden)}
    dense = max((sizes.dense.get(layer.mixture_program, 0) for layer in layers), default=0)
    names = [f"dense.{i}" for i in range(dense)] or ["y"]
    given: _Shapes = dict.fromkeys(names, (1, t, sizes.hidden))
    for slot, layer in enumerate(layers):
        kept = p if layer.window is None else min(p, layer.window - 1)
        if kept:
            port = function.inputs.get(f"prefix_k.{slot}")
            if port is not None and len(port.shape) == 4 and layer.window is not None:
                kept = max(kept, port.shape[2])
            for name in ("prefix_k", "prefix_v"):
                taken[f"{name}.{slot}"] = (1, layer.kv_heads, kept, layer.head_dim)
        mask = f"mask.{'full' if layer.window is None else layer.window}"
        if taken.setdefault(mask, (t, kept + t)) != (t, kept + t):
            raise Wrong(f"{at}: layers that share {mask} take different lengths of prefix")
        if layer.rope not in sizes.ropes:
            raise Wrong(f"{at}: the model has no rope {layer.rope!r}")
        for name, width in sizes.ropes[layer.rope].items():
            taken[f"{name}.{layer.rope}"] = (t, width)
        for name in ("k", "v"):
            given[f"{name}.{slot}"] = (1, layer.kv_heads, t, layer.head_dim)
    if "phase" in function.inputs:
        taken["phase"] = (1,)
    if "adapter" in function.inputs and sizes.adapters:
        taken["adapter"] = (t, 1)
    return taken, given


def _head_shapes(function: Function, rows: int, sizes: Sizes) -> tuple[_Shapes, _Shapes]:
    """Inputs and outputs of a tile of the head; its own ports say which statistics."""
    t = function.t
    taken: _Shapes = {"x": (t, sizes.hidden), "temperature": (1,)}
    if "z" in function.outputs:
        return taken, {"z": (t, rows)}
    given: _Shapes = dict.fromkeys(STATISTICS, (t,))
    if function.samples:
        taken["noise"] = (t, rows)
        given |= dict.fromkeys(SAMPLE_STATISTICS, (t,))
    if "soft" in function.outputs:
        given["soft"] = (t, sizes.hidden)
    return taken, given


def _ports(rows: list[Any], at: str) -> dict[str, Port]:
    ports: dict[str, Port] = {}
    names: set[str] = set()
    for row in rows:
        name, dtype, role = (value(row, key, str, at) for key in ("name", "dtype", "role"))
        shape = value(row, "shape", list, at)
        if dtype not in DTYPES:
            raise Wrong(f"{at}: {name} is {dtype[:40]}, expected one of {', '.join(DTYPES)}")
        if not all(type(size) is int and size > 0 for size in shape):
            raise Wrong(f"{at}: {name} has shape {str(shape)[:80]}")
        if name in names or role in ports or not name:
            raise Wrong(f"{at}: {name[:80]!r} with role {role[:80]!r} is there twice")
        names.add(name)
        ports[role] = Port(name, dtype, tuple(shape), role)
    return ports


def _check_ports(ports: Mapping[str, Port], expected: _Shapes, at: str) -> None:
    for role in [*(r for r in expected if r not in ports), *(r for r in ports if r not in expected)]:
        raise Wrong(f"{at} {role[:80]} is {'not expected' if role in ports else 'missing'}")
    for role, port in ports.items():
        if port.shape != expected[role]:
            raise Wrong(f"{at} {role} has shape {list(port.shape)}, expected {list(expected[role])}")
        whole = role in TOKENS or (role == "phase" and port.dtype == "int32")
        if whole != (port.dtype == "int32"):
            raise Wrong(f"{at} {role} is {port.dtype}")
