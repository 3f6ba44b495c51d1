"""A bundle on disk: its manifest, its flash file, and what the manifest says about the model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_folder import BundleFolder
from edgekit.flashload.errors import InvalidRequest, MalformedFile
from edgekit.flashload.format import Run
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.names import shown, unknown
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.bundle import manifest_sections, packages
from edgekit.runtime.bundle.choice import check_written_for, choose
from edgekit.runtime.bundle.layer import Layer
from edgekit.runtime.bundle.packages import Packages
from edgekit.runtime.bundle.rope import Rope, ropes
from edgekit.runtime.sampling import InvalidOption

if TYPE_CHECKING:
    from edgekit.runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Table:
    """A vocabulary table in tiles: tile i is run (or package) `runs[i]` and holds the tokens from `starts[i]`
    to the next start (or `rows`).
    """

    runs: tuple[str, ...]
    starts: tuple[int, ...]
    rows: int
    bits: int

    def spans(self) -> list[tuple[str, int, int]]:
        """(run, first token, one past the last token) per tile."""
        return list(zip(self.runs, self.starts, (*self.starts[1:], self.rows), strict=True))


@dataclass(frozen=True)
class Model:
    """The `model` section of a manifest."""

    family: str
    hidden_size: int
    vocab_size: int
    embedding_scale: float
    shift_logits: bool
    causal_prefix: bool
    prefix_block: int  # positions of committed text that see each other; 1: it is causal
    self_conditioning: bool
    canvas_length: int | None
    max_positions: int | None  # None: unknown
    ropes: dict[str, Rope]
    embedding: Table
    head: Table | None  # None: the embedding's runs serve as the head
    tied_head: bool
    layers: tuple[Layer, ...]
    adapters: tuple[str, ...] = ()  # names of those that segments of a pass may ask for, from 1 on
    role_head: bool = False  # it tells the logical roles of positions

    def adapter_number(self, name: str | None) -> int:
        """The number of an adapter, as segments of a pass take it; of None 0.

        Raises:
            InvalidOption: the bundle has no adapter of that name beside its weights.
        """
        if name is None:
            return 0
        if name in self.adapters:
            return self.adapters.index(name) + 1
        if self.adapters:
            raise InvalidOption(unknown("adapter", name, self.adapters))
        raise InvalidOption(
            f"adapter is {shown(name)}, the bundle has none beside its weights; export it with --adapter and "
            "--adapter-mode switched"
        )

    @property
    def chunks(self) -> list[tuple[int, ...]]:
        """Layers by number, those of one run (a package may hold several) together."""
        found: list[list[int]] = []
        for i, layer in enumerate(self.layers):
            if layer.slot == 0:
                found.append([])
            found[-1].append(i)
        return [tuple(chunk) for chunk in found]


@dataclass(frozen=True)
class Bundle:
    """An opened bundle; reading headers alone. Its files are read through `folder`, which compares them with
    the manifest.
    """

    path: Path
    folder: BundleFolder
    manifest: Manifest
    model: Model
    packages: Packages | None = None  # None: all weights are in the flash file

    @classmethod
    def open(cls, path: str | Path, engine: str | None = None) -> Bundle:
        """The bundle in a folder, or of a set there the one for `engine`, or by default for this system.

        Raises OpenFailed, ReadFailed, ChecksumMismatch, MalformedFile, UnsupportedVersion, InvalidRequest for
        what is no path, InvalidOption for an engine that does not exist, or UnsupportedBundle where there is
        none for `engine`.
        """
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"the bundle is {shown(path)}; pass its folder")
        given, path = path, choose(Path(name), engine)
        folder = BundleFolder(path)
        manifest = manifests.load(folder)
        where = str(path / manifests.MANIFEST_NAME)
        written = manifest.format
        check_written_for(written, engine, given)
        packaged = packages.packaged(written)
        manifest_sections.check(manifest, where, packaged=packaged)
        layers = tuple(map(_packaged_layer if packaged else _layer, manifest.layers))
        held = _packages(manifest, layers, where) if packaged else None
        model = _model(manifest.model, layers, held)
        return cls(path, folder, manifest, model, held)

    @classmethod
    def opened(cls, given: str | Path | Bundle, engine: str | None = None) -> Bundle:
        """`given` itself where it is open already, else what is opened of it. Raises what `open` raises."""
        if not isinstance(given, Bundle):
            return cls.open(given, engine)
        check_written_for(given.manifest.format, engine, given.path)
        return given

    @property
    def weights_path(self) -> Path:
        return self.path / self.manifest.weights.file

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of what the bundle says its files are: equal for equal bundles."""
        listed = {name: entry.sha256 for name, entry in self.manifest.files.items()}
        listed[self.manifest.weights.file] = self.manifest.weights.sha256
        return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer. Raises TokenizerError, and what `BundleFolder.read` does."""
        from edgekit.runtime.tokenizer import Tokenizer

        return Tokenizer.from_files(self.tokenizer_files(), str(self.path / self._tokenizer_folder))

    def tokenizer_files(self) -> dict[str, bytes]:
        """The files of the tokenizer that the manifest lists and that have an effect, by their names there.

        Raises what `BundleFolder.read` does.
        """
        from edgekit.runtime.tokenizer import most_bytes

        folder = self._tokenizer_folder
        names = [name.removeprefix(folder) for name in self.manifest.files if name.startswith(folder)]
        used = [name for name in names if most_bytes(name)]
        return {name: self.folder.read(folder + name) for name in used}

    @property
    def _tokenizer_folder(self) -> str:
        """One of its own, or the bundle itself."""
        return "" if "tokenizer.json" in self.manifest.files else "tokenizer/"

    @cached_property
    def runs(self) -> Mapping[str, Run]:
        """The runs of the flash file by name, read once. Raises as `open_weights`."""
        with self.open_weights() as file:
            return {run.name: run for run in file.layout.runs}

    def open_weights(self) -> FlashFile:
        """The flash file, its header checked against what the layers name.

        Raises:
            MalformedFile: a run that the manifest names is not in the file, or the size differs.
            ChecksumMismatch: the header is not the one that the manifest was written for.
        """
        file = self.folder.open_weights()
        named = set(self.model.embedding.runs)
        own = [layer.run if self.packages is None else layer.mixture for layer in self.model.layers]
        named |= {run for run in own if run}
        named |= {run for layer in self.model.layers for run in layer.experts}
        if self.model.head is not None and (self.packages is None or not self.packages.head):
            named |= set(self.model.head.runs)
        missing = sorted(named - set(file.runs))
        if missing:
            file.close()
            raise MalformedFile(
                f"{self.weights_path}: has no run {missing[0]!r}, which the manifest names; "
                "export the bundle again"
            )
        return file


def _layer(layer: dict[str, Any]) -> Layer:
    return Layer(
        layer["program"], layer["run"], tuple(layer["experts"]),
        layer["kv_heads"], layer["head_dim"], layer["rope"], layer.get("window"),
    )  # fmt: skip


def _packaged_layer(layer: dict[str, Any]) -> Layer:
    name, mixture = layer["package"], layer.get("mixture") or {"run": "", "program": ""}
    return Layer(
        name, name, tuple(layer["experts"]) if mixture["run"] else (),
        layer["kv_heads"], layer["head_dim"], layer["rope"], layer.get("window"),
        layer["slot"], mixture["run"], mixture["program"],
    )  # fmt: skip


def _packages(manifest: Manifest, layers: tuple[Layer, ...], where: str) -> Packages:
    model = manifest.model
    sizes = packages.Sizes(
        model["hidden_size"],
        model["vocab_size"],
        {name: rope.widths for name, rope in ropes(model).items()},
        model["self_conditioning"],
        len(model.get("adapters") or ()),
        "head" in manifest.programs and "runs" in model["tables"].get("head", model["tables"]["embedding"]),
    )
    return packages.parse(manifest, layers, sizes, where)


def _model(model: dict[str, Any], layers: tuple[Layer, ...], held: Packages | None) -> Model:
    tables = {
        name: Table(tuple(t["runs"]), tuple(t["starts"]), t["rows"], t["bits"])
        for name, t in model["tables"].items()
        if held is None or "runs" in t
    }
    tied = "head" not in model["tables"]
    if held is not None and held.head:
        bits = model["tables"].get("head", model["tables"]["embedding"])["bits"]
        tiles = held.head
        tables["head"] = Table(
            tuple(t.name for t in tiles), tuple(t.start for t in tiles), model["vocab_size"], bits
        )
    return Model(
        family=model["family"],
        hidden_size=model["hidden_size"],
        vocab_size=model["vocab_size"],
        embedding_scale=model["embedding_scale"],
        shift_logits=model["shift_logits"],
        causal_prefix=model["causal_prefix"],
        prefix_block=model.get("prefix_block", 1),
        self_conditioning=model["self_conditioning"],
        canvas_length=model.get("canvas_length"),
        max_positions=model.get("max_positions"),
        ropes=ropes(model),
        embedding=tables["embedding"],
        head=tables.get("head"),
        tied_head=tied,
        layers=layers,
        adapters=tuple(own["name"] for own in model.get("adapters") or ()),
        role_head=model.get("role_head") is not None,
    )
