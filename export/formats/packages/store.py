"""Stores the runs of an export in packages, run by run, so that an export interrupted at any instruction can
go on.

    <output>/packages/NAME<suffix>.partial   a package that lacks tensors; without `.partial` when it is whole
    <output>/packages.journal                JSON lines: {"plan"} first; {"package", "template"} before the
                                             first run of a package; {"run", "places", "xxh3"} per run

A run enters the journal only after its bytes were synced. Rows of the embedding table go to the flash file;
where the head is tied to it, they go to the head's packages as well. A head without packages is in the flash
file too, and so are experts that the core computes, with the run of their mixture.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol

import numpy as np
import xxhash

from edgekit.export.formats.packages.cut import PACKAGE_FOLDER, PackagePlan
from edgekit.export.formats.packages.stamp import Stamped, Template
from edgekit.export.runs import RunPlan
from edgekit.flashload.errors import (
    ChecksumMismatch,
    LayoutError,
    MalformedFile,
    ResumeMismatch,
    WriteFailed,
)
from edgekit.flashload.files import fsync_directory, write_failed
from edgekit.flashload.writer import FileDigest, FlashWriter

JOURNAL = PACKAGE_FOLDER + ".journal"
PARTIAL = ".partial"
_BLOCK_BYTES = 4 << 20


class PackageSource(Protocol):
    """A format's knowledge of its packages: in the order of execution, their templates, which units are in
    the flash file, and how rows of a tied table (arrays as the flash file has them, by suffix) are stored in
    the head's.
    """

    SUFFIX: ClassVar[str]

    @property
    def packages(self) -> Sequence[PackagePlan]: ...
    def template(self, package: PackagePlan) -> Template: ...
    def in_flash(self, unit: str) -> bool: ...
    def head_array(self, suffix: str, rows: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Place:
    """Bytes of a tensor of a package, from `start` of it on."""

    package: str
    tensor: str
    start: int
    nbytes: int


class PackageStore:
    """Takes the runs of an export as `FlashWriter` does: `done`, `write_run`, `finish`.

    `tag` says what the tensors are made of. With `resume`, an interrupted export of the same plan goes on
    where it stopped; without it, leftovers are overwritten.

    Raises ResumeMismatch (leftovers of another export), MalformedFile (unreadable journal), WriteFailed, and
    what FlashWriter raises.
    """

    def __init__(
        self,
        weights: Path,
        runs: Sequence[RunPlan],
        source: PackageSource,
        *,
        tied: bool,
        resume: bool = False,
        tag: str = "",
    ) -> None:
        self._output, self._source, self._tied = weights.parent, source, tied
        self._runs = {run.spec.name: run for run in runs}
        self._packages = {package.name: package for package in source.packages}
        self._needed = {name: set[str]() for name in self._packages}
        for run in runs:
            for package, _ in self._reached(run):
                self._needed[package.name].add(run.spec.name)
        self._slots = {i: (p.name, s) for p in source.packages for s, i in enumerate(p.layers)}
        self._records: dict[str, dict[str, Any]] = {}  # of finished runs
        self._begun: dict[str, str] = {}  # digest of the template by package
        self._journal = self._output / JOURNAL
        plan = [[r.spec.name, [[t.name, t.dtype, t.shape] for t in r.spec.tensors]] for r in runs]
        cuts = [[p.name, p.kind, p.layers, p.start, p.rows] for p in source.packages]
        self._plan = hashlib.sha256(json.dumps([plan, cuts, tag]).encode()).hexdigest()
        flash = [run.spec for run in runs if source.in_flash(run.unit)]
        self._flash = FlashWriter(weights, flash, resume=resume, tag=tag)
        try:
            if not (resume and self._read_journal()):
                self._start_over()
            for name in self._packages:
                self._complete(name)
        except OSError as error:
            self.close()
            raise self._failed("cannot go on", error) from error
        except BaseException:
            self.close()
            raise

    def path(self, package: str) -> Path:
        """The folder of a whole package."""
        return self._output / PACKAGE_FOLDER / (package + self._source.SUFFIX)

    def done(self, run_name: str) -> bool:
        """Whether the run is on disk."""
        in_flash = not self._source.in_flash(self._runs[run_name].unit) or self._flash.done(run_name)
        return in_flash and run_name in self._records

    def write_run(self, name: str, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
        """Write one run and sync it. `tensors` are all of its tensors in the order of its spec.

        Raises LayoutError for other tensors, WriteFailed when the disk refuses. The run then stays unwritten
        and may be written again.
        """
        run, digest, places = self._runs[name], xxhash.xxh3_64(), list[Place]()

        def placed() -> Iterator[tuple[str, np.ndarray]]:
            for tensor, array in tensors:
                for place, data in self._places(run, tensor, array):
                    self._stamped(place.package).write(place.tensor, data, place.start)
                    digest.update(data.reshape(-1).view(np.uint8).data)
                    places.append(place)
                yield tensor, array

        try:
            if self._source.in_flash(run.unit) and not self._flash.done(name):
                self._flash.write_run(name, placed())
            else:
                _check(run, placed())
            for package in sorted({p.package for p in places}):
                self._stamped(package).sync(p.tensor for p in places if p.package == package)
            record = {
                "run": name,
                "places": [[p.package, p.tensor, p.start, p.nbytes] for p in places],
                "xxh3": digest.hexdigest(),
            }
            self._append(record)
            self._records[name] = record
            for package in sorted({p.package for p in places}):
                self._complete(package)
        except OSError as error:
            raise self._failed(f"run {name}", error) from error

    def finish(self) -> FileDigest:
        """Read the packages back and finish the flash file; size and digest of that.

        Raises LayoutError when runs, or bytes of a tensor that no run has, are missing; ChecksumMismatch when
        the disk does not return what was written; WriteFailed.
        """
        missing = [name for name in self._runs if not self.done(name)]
        if missing:
            raise LayoutError(
                f"{self._output}: {len(missing)} of {len(self._runs)} runs are not written, "
                f"the first is {missing[0]}"
            )
        self._check_coverage()
        try:
            self._check_packages()
        except OSError as error:
            raise self._failed("cannot be read back", error) from error
        return self._flash.finish()

    def close(self) -> None:
        """Release the files. An unfinished export stays on disk and can be resumed."""
        self._flash.close()

    def __enter__(self) -> PackageStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- where tensors belong --------------------------------------------------------------------------

    def _reached(self, run: RunPlan) -> Iterator[tuple[PackagePlan, tuple[int, int]]]:
        """The packages that hold something of a run; of a table, with the rows (start, stop)."""
        for package in self._packages.values():
            if run.unit == "head" or (run.unit == "embedding" and self._tied):
                piece = run.pieces[0]
                start = max(piece.start, package.start)
                stop = min(piece.stop, package.start + package.rows)
                if package.kind == "head" and start < stop:
                    yield package, (start, stop)
            elif run.unit == package.kind or (
                _layer(run.unit) in package.layers and not self._source.in_flash(run.unit)
            ):
                yield package, (0, 0)

    def _places(self, run: RunPlan, tensor: str, array: np.ndarray) -> Iterator[tuple[Place, np.ndarray]]:
        """Places for the bytes of a tensor; contiguous."""
        own = tensor.removeprefix(run.unit + ".")
        for package, (start, stop) in self._reached(run):
            if package.kind == "head":
                suffix, first = tensor.rpartition(".")[2], run.pieces[0].start
                rows = array[start - first : stop - first]
                rows = np.ascontiguousarray(
                    self._source.head_array(suffix, rows) if run.unit == "embedding" else rows
                )
                offset = (start - package.start) * (rows.nbytes // len(rows))
                yield Place(package.name, f"table.{suffix}", offset, rows.nbytes), rows
                continue
            if package.kind == "layers":
                layer = _layer(run.unit)
                own = f"{self._slots[layer][1]}.{tensor.removeprefix(f'layers.{layer}.')}"
            yield Place(package.name, own, 0, array.nbytes), np.ascontiguousarray(array)

    def _check_coverage(self) -> None:
        """That runs have filled the tensors of every package, each byte once."""
        written: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for record in self._records.values():
            for package, tensor, start, nbytes in record["places"]:
                written.setdefault((package, tensor), []).append((start, start + nbytes))
        for package in self._packages:
            for tensor, region in self._template(package).regions.items():
                spans = sorted(written.pop((package, tensor), ()))
                ends, starts = [0, *(b for _, b in spans)], [*(a for a, _ in spans), region.nbytes]
                wrong = next((min(e, s) for e, s in zip(ends, starts, strict=True) if e != s), None)
                if wrong is not None:
                    raise LayoutError(
                        f"{self.path(package)}: byte {wrong} of the {region.nbytes} of tensor {tensor} is "
                        "not written by exactly one run; this is a bug in edgekit"
                    )

    def _check_packages(self) -> None:
        """That the disk returns what was written."""
        for name, record in self._records.items():
            digest = xxhash.xxh3_64()
            for package, tensor, start, nbytes in record["places"]:
                stamped = Stamped(self.path(package), self._template(package))
                for offset in range(start, start + nbytes, _BLOCK_BYTES):
                    size = min(_BLOCK_BYTES, start + nbytes - offset)
                    digest.update(stamped.read(tensor, offset, size).data)
            if digest.hexdigest() != record["xxh3"]:
                packages = ", ".join(sorted({place[0] for place in record["places"]}))
                raise ChecksumMismatch(
                    f"{self._output / PACKAGE_FOLDER}: run {name} reads back different from what was written "
                    f"to {packages}; check the disk and export again with --overwrite"
                )
        for package in self._packages:
            if damage := Stamped(self.path(package), self._template(package)).damage():
                raise ChecksumMismatch(
                    f"{self.path(package)}: {damage}; check the disk and export again with --overwrite"
                )

    # --- state -----------------------------------------------------------------------------------------

    def _template(self, package: str) -> Template:
        return self._source.template(self._packages[package])

    def _partial(self, package: str) -> Path:
        path = self.path(package)
        return path.with_name(path.name + PARTIAL)

    def _stamped(self, package: str) -> Stamped:
        """A package that lacks tensors, begun if it is not there."""
        template, partial = self._template(package), self._partial(package)
        if package in self._begun:
            return Stamped(partial, template)
        shutil.rmtree(partial, ignore_errors=True)
        stamped = template.create(partial)
        stamped.sync()
        fsync_directory(partial.parent)
        self._append({"package": package, "template": template.digest()})
        self._begun[package] = template.digest()
        return stamped

    def _complete(self, package: str) -> None:
        """Give a package its name when all its runs are in."""
        partial = self._partial(package)
        if self._needed[package] <= self._records.keys() and partial.exists():
            Stamped(partial, self._template(package)).seal()
            os.replace(partial, self.path(package))
            fsync_directory(partial.parent)

    def _start_over(self) -> None:
        # The journal goes first: stale lines must never describe fresh packages.
        self._journal.unlink(missing_ok=True)
        folder = self._output / PACKAGE_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._append({"plan": self._plan})
        fsync_directory(self._output)

    def _read_journal(self) -> bool:
        """Take over the finished runs. False when there is no journal, or it holds nothing."""
        if not self._journal.exists():
            return False
        lines = self._journal.read_bytes().split(b"\n")
        records = []
        for number, line in enumerate(lines[:-1]):
            try:
                records.append(json.loads(line))
            except ValueError:
                if number < len(lines) - 2:
                    raise MalformedFile(
                        f"{self._journal}: line {number + 1} is unreadable; --overwrite starts again"
                    ) from None
        if not records:
            return False
        if records[0].get("plan") != self._plan:
            raise ResumeMismatch(
                f"{self._journal}: belongs to another export (other model, texts, lengths, preset or "
                "version); resume with the same options, or start again with --overwrite"
            )
        for record in records[1:]:
            if "package" in record:
                self._begun[record["package"]] = record["template"]
            else:
                self._records[record["run"]] = record
        for package, digest in self._begun.items():
            found = self.path(package).exists() or self._partial(package).exists()
            if not found or self._template(package).digest() != digest:
                what = "was made by other versions of edgekit or its packages" if found else "is missing"
                raise ResumeMismatch(f"{self.path(package)}: {what}; --overwrite starts again")
        # A torn last line goes, so that the next one starts at a line of its own.
        with open(self._journal, "r+b") as file:
            file.truncate(sum(len(line) + 1 for line in lines[: len(records)]))
        return True

    def _append(self, record: Mapping[str, Any]) -> None:
        with open(self._journal, "ab") as file:
            file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _failed(self, what: str, error: OSError) -> WriteFailed:
        return write_failed(f"{self._output / PACKAGE_FOLDER}: {what}", error)


def _layer(unit: str) -> int:
    """The layer that a unit (`layers.3`, `layers.3.experts.7`) belongs to; -1 if none."""
    parts = unit.split(".")
    return int(parts[1]) if parts[0] == "layers" else -1


def _check(run: RunPlan, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Take tensors that must be those of the run's spec."""
    for spec, (name, array) in zip(run.spec.tensors, tensors, strict=True):
        if (name, array.nbytes, array.shape) != (spec.name, spec.nbytes, spec.shape):
            raise LayoutError(
                f"run {run.spec.name}: expected tensor {spec.name} {list(spec.shape)}, "
                f"got {name} {list(array.shape)} of {array.nbytes} bytes"
            )
