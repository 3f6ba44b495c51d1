"""The cut of a model into packages, and the lengths that these have functions for.

    layers.A-B          a chunk of layers, called at once; `layers.A` if it is one
    self_conditioning   where the model has it
    final               the last norm
    head.N              rows of the vocabulary table

Where the core computes experts, a layer that has some is alone in its package, which holds its dense part.

A package has one function for each of `Lengths`, all over the same weights. The tensors of a package are
those of its runs, named as there but for their unit: `0.self_attn.q_proj.codes` of the first layer in a
chunk, `0.experts.7.down.scales`, `norm.weight`, `table.codes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.export.errors import ExportError
from edgekit.export.formats.options import Packaging
from edgekit.export.models.base import Architecture
from edgekit.export.programs import Lengths
from edgekit.flashload.sizes import size

PACKAGE_FOLDER = "packages"
#: Of packages that are compiled for a chip.
COMPILED_FOLDER = "compiled"
#: Rows of a package of the head: what the Neural Engine takes as one dimension.
MOST_HEAD_ROWS = 16384
#: Chunks are of this many layers where size allows and nothing is asked for.
MOST_LAYERS = 8
#: Lengths when none are given: the first of those for passes, and how far they go.
FIRST_LENGTH, LAST_LENGTH = 128, 1024
PREFIX_CANVASES = 8
#: Of models without a canvas's length: positions of a block, and those that sessions encode at a time.
BLOCK, CHUNK = 32, 256


@dataclass(frozen=True)
class PackagePlan:
    """A package of a bundle. `layers` are those of a chunk; `start` and `rows` those of the table."""

    name: str
    kind: str
    layers: tuple[int, ...] = ()
    start: int = 0
    rows: int = 0


def choose_lengths(architecture: Architecture, packaging: Packaging) -> tuple[Lengths, ...]:
    """The lengths to make functions for.

    Raises:
        ExportError: lengths that make no sense for the model.
    """
    given, longest = packaging.lengths, architecture.max_positions
    if given is not None and any(n < 0 or (n == 0 and not architecture.causal_prefix) for n in given):
        asked_for = ",".join(map(str, given))
        raise ExportError(f"--lengths {asked_for}: {min(given)} positions are not possible; give 1 or more")
    most = packaging.max_positions
    if given is not None and most is not None:
        raise ExportError("--lengths and --max-positions exclude each other: the longest length is the most")
    if most is not None and most < 1:
        raise ExportError(f"--max-positions {most} is not possible; it must be at least 1")
    asked = max(given or (), default=most or 0)
    if longest is not None and asked > longest:
        raise ExportError(f"{asked} positions are not possible; the model was made for at most {longest}")
    if architecture.causal_prefix:
        passes = _passes(architecture)
        far = most or min(longest or PREFIX_CANVASES * passes[-1], PREFIX_CANVASES * passes[-1])
        prefixes = sorted({0, *(given or _doubling(passes[-1], far))})
        return tuple(Lengths(t, p) for p in prefixes for t in passes)
    far = most or min(longest or LAST_LENGTH, LAST_LENGTH)
    return tuple(Lengths(t, 0) for t in sorted(set(given or _doubling(FIRST_LENGTH, far))))


def _passes(architecture: Architecture) -> tuple[int, ...]:
    """The lengths of passes over a prefix: a canvas, or a block and a chunk of a prompt."""
    if architecture.canvas_length is not None:
        return (architecture.canvas_length,)
    block = architecture.prefix_block
    return (max(BLOCK, block), CHUNK) if block < CHUNK else (block,)


def _doubling(first: int, last: int) -> Iterator[int]:
    """first, 2 first, 4 first... and at the end `last`."""
    while first < last:
        yield first
        first *= 2
    yield last


def cut(
    architecture: Architecture,
    sizes: Sequence[int],
    row_bytes: int,
    packaging: Packaging,
    limit_bytes: int,
    most_layers: int = MOST_LAYERS,
    alone: Collection[int] = (),
) -> list[PackagePlan]:
    """The packages of a model in the order of execution. `sizes` are the bytes of each layer, `row_bytes`
    those of a row of the head's table; chunks have `most_layers` at most where nothing is asked for. Layers
    that are `alone` share no package.

    Raises:
        ExportError: a chunk of the given number of layers, or a single layer, is larger than `limit_bytes`.
    """
    asked, count = packaging.layers_per_chunk, len(sizes)
    if asked is not None and asked < 1:
        raise ExportError(f"--layers-per-chunk {asked} is not possible; it must be at least 1")

    def chunks(per_chunk: int) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for i in range(count):
            joins = found and len(found[-1]) < per_chunk and not {i, found[-1][0]} & set(alone)
            if joins:
                found[-1] += (i,)
            else:
                found.append((i,))
        return found

    def largest(per_chunk: int) -> int:
        return max(sum(sizes[i] for i in layers) for layers in chunks(per_chunk))

    fitting = [n for n in range(1, min(count, most_layers) + 1) if largest(n) <= limit_bytes]
    per_chunk = asked or (fitting[-1] if fitting else 1)
    packages = (
        [PackagePlan("self_conditioning", "self_conditioning")] if architecture.self_conditioning else []
    )
    for layers in chunks(per_chunk):
        name = f"layers.{layers[0]}" + (f"-{layers[-1]}" if len(layers) > 1 else "")
        nbytes = sum(sizes[i] for i in layers)
        if nbytes > limit_bytes:
            advice = (
                f"use --layers-per-chunk {fitting[-1]}" if fitting else "use fewer bits (--quant, --override)"
            )
            raise ExportError(
                f"package {name} would have {size(nbytes)}, over the limit of {size(limit_bytes)}; {advice}"
            )
        packages.append(PackagePlan(name, "layers", layers))
    packages.append(PackagePlan("final", "final"))
    rows = max(1, min(MOST_HEAD_ROWS, limit_bytes // row_bytes))
    vocab = architecture.vocab_size
    for i, start in enumerate(range(0, vocab, rows)):
        packages.append(PackagePlan(f"head.{i}", "head", (), start, min(vocab, start + rows) - start))
    return packages


def content_key(package: PackagePlan, kinds: Sequence[str]) -> tuple[Any, ...]:
    """Packages of equal keys differ in nothing but weights; `kinds` are those of all layers."""
    return (package.kind, tuple(kinds[i] for i in package.layers), package.rows)


def layer_places(packages: Sequence[PackagePlan]) -> list[dict[str, Any]]:
    """For every layer its package and the slot in it, as the manifest has them."""
    return [
        {"package": package.name, "slot": slot} for package in packages for slot in range(len(package.layers))
    ]


def manifest_entry(
    package: PackagePlan, suffix: str, folder: Path, functions: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """The manifest's entry for a whole package in the bundle `folder`."""
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
