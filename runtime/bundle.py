"""A bundle on disk: its manifest, its flash file, and what the manifest says about the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import MalformedFile, OpenFailed
from edgekit.flashload.manifest import Manifest
from edgekit.flashload.reader import FlashFile


@dataclass(frozen=True)
class Layer:
    """One layer of the manifest."""

    program: str
    run: str
    experts: tuple[str, ...]
    kv_heads: int
    head_dim: int
    rope: str
    window: int | None


@dataclass(frozen=True)
class Table:
    """A vocabulary table in tiles: tile i is `runs[i]` and holds the tokens from `starts[i]` to the next
    start (or `rows`).
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
    self_conditioning: bool
    canvas_length: int | None
    max_positions: int | None  # None: unknown
    ropes: dict[str, list[float]]
    embedding: Table
    head: Table | None  # None: tied to the embedding
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Bundle:
    """An opened bundle; reading headers alone."""

    path: Path
    manifest: Manifest
    model: Model

    @classmethod
    def open(cls, path: str | Path) -> Bundle:
        """Raises OpenFailed, MalformedFile or UnsupportedVersion."""
        path = Path(path)
        if path.is_file():
            raise OpenFailed(f"{path}: is a file; give the folder of a bundle")
        if path.is_dir() and not (path / manifests.MANIFEST_NAME).exists():
            raise OpenFailed(
                f"{path}: has no {manifests.MANIFEST_NAME}: not a bundle, or an unfinished export, "
                "which --resume continues"
            )
        manifest = manifests.load(path)
        try:
            model = _model(manifest.model, manifest.layers)
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedFile(
                f"{path / manifests.MANIFEST_NAME}: the model section is incomplete ({error}); "
                "export the bundle again"
            ) from error
        return cls(path, manifest, model)

    @property
    def weights_path(self) -> Path:
        return self.path / self.manifest.weights.file

    @property
    def tokenizer_path(self) -> Path:
        """The folder of the tokenizer's files: one of their own, or the bundle itself."""
        return self.path if "tokenizer.json" in self.manifest.files else self.path / "tokenizer"

    def open_weights(self) -> FlashFile:
        """The flash file, its header checked against what the layers name.

        Raises:
            MalformedFile: a run that the manifest names is not in the file, or the size differs.
        """
        file = FlashFile(self.weights_path)
        named = {r for layer in self.model.layers for r in (layer.run, *layer.experts)}
        for table in (self.model.embedding, self.model.head):
            named |= set(table.runs) if table else set()
        missing = sorted(named - set(file.runs))
        if missing:
            file.close()
            raise MalformedFile(
                f"{self.weights_path}: has no run {missing[0]!r}, which the manifest names; "
                "export the bundle again"
            )
        return file


def _model(model: dict[str, Any], layers: list[Any]) -> Model:
    tables = {
        name: Table(tuple(t["runs"]), tuple(t["starts"]), t["rows"], t["bits"])
        for name, t in model["tables"].items()
    }
    for name, table in tables.items():
        spans = table.spans()
        if not spans or table.starts[0] != 0 or any(start >= stop for _, start, stop in spans):
            raise ValueError(f"the tiles of table {name} do not follow each other")
    return Model(
        family=model["family"],
        hidden_size=model["hidden_size"],
        vocab_size=model["vocab_size"],
        embedding_scale=model["embedding_scale"],
        shift_logits=model["shift_logits"],
        causal_prefix=model["causal_prefix"],
        self_conditioning=model["self_conditioning"],
        canvas_length=model["canvas_length"],
        max_positions=model.get("max_positions"),
        ropes=model["ropes"],
        embedding=tables["embedding"],
        head=tables.get("head"),
        layers=tuple(Layer(**{**layer, "experts": tuple(layer["experts"])}) for layer in layers),
    )
