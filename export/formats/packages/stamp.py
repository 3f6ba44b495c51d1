"""Packages made from a template: its files without the bytes of its tensors, and where those belong.

Converters need many times the memory of what they write, and all layers of a kind differ in nothing but
weights. So each content is converted once, without weights, and every package gets the template's files
with its own tensors in their places.

    regions = {"0.self_attn.q_proj.codes": Region("main.mlirb", offset, nbytes), ...}
    template = Template(files, regions)
    package = template.create(path)                      # a folder of final size, tensors zero
    package.write("0.self_attn.q_proj.codes", array)     # whole, or a part that begins at byte `start`
    package.sync()
    package.read("0.self_attn.q_proj.codes")             # uint8, for the audit
    package.seal()                                       # when all tensors are in
    Stamped(path, template)                              # an existing package, for reading or going on
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from edgekit.export.errors import ExportError
from edgekit.flashload.files import fsync_directory


@dataclass(frozen=True)
class Region:
    """The place of a tensor's bytes: `file` is relative to the package, with forward slashes."""

    file: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Frame:
    """A file without its tensors: its size, and (offset, bytes) of everything else that is not zero."""

    size: int
    fixed: tuple[tuple[int, bytes], ...]

    @classmethod
    def whole(cls, data: bytes) -> Frame:
        """A file without tensors."""
        return cls(len(data), ((0, data),))


@dataclass(frozen=True)
class Template:
    """The files of a package by relative path, and the regions of its tensors by name. `seals` are files that
    hold the SHA-256 of another one and nothing else, by that one's path: they come when the tensors are in.

    Raises:
        ExportError: a region lies outside of its file, or on another one.
    """

    files: Mapping[str, Frame]
    regions: Mapping[str, Region]
    seals: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ends = dict.fromkeys(self.files, (0, ""))
        for name, region in sorted(self.regions.items(), key=lambda item: item[1].offset):
            frame = self.files.get(region.file)
            if frame is None or region.offset < 0 or region.offset + region.nbytes > frame.size:
                raise ExportError(f"tensor {name} lies outside of {region.file} in the template")
            end, before = ends[region.file]
            if region.offset < end:
                raise ExportError(f"tensors {before} and {name} overlap in {region.file} of the template")
            ends[region.file] = (region.offset + region.nbytes, name)

    @property
    def nbytes(self) -> int:
        """Bytes of a package."""
        return sum(frame.size for frame in self.files.values())

    def digest(self) -> str:
        """SHA-256 of all of a package but its tensors; equal templates have equal ones."""
        total = hashlib.sha256()
        for name, frame in sorted(self.files.items()):
            total.update(json.dumps([name, frame.size, [[o, len(b)] for o, b in frame.fixed]]).encode())
            for _, data in frame.fixed:
                total.update(data)
        regions = [[name, r.file, r.offset, r.nbytes] for name, r in sorted(self.regions.items())]
        total.update(json.dumps([regions, sorted(self.seals.items())]).encode())
        return total.hexdigest()

    def create(self, path: Path) -> Stamped:
        """Write the files of a package but its seals to the folder `path`, which may hold them already;
        tensors are zero.

        Raises OSError: the disk refuses.
        """
        for name, frame in self.files.items():
            target = path / PurePosixPath(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as file:
                file.truncate(frame.size)
                for offset, data in frame.fixed:
                    file.seek(offset)
                    file.write(data)
        return Stamped(path, self)


@dataclass(frozen=True)
class Stamped:
    """A package on disk that was made from a template."""

    path: Path
    template: Template

    def write(self, name: str, data: np.ndarray, start: int = 0) -> None:
        """Put the bytes of an array into a tensor's region, from byte `start` of it on.

        Raises:
            ExportError: there is no such tensor, or the bytes do not fit in.
            OSError: the disk refuses.
        """
        region, flat = self._region(name), np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if start < 0 or start + flat.nbytes > region.nbytes:
            raise ExportError(
                f"{self.path}: {flat.nbytes} bytes at {start} do not fit tensor {name}, which has "
                f"{region.nbytes}"
            )
        with open(self.path / region.file, "r+b", buffering=0) as file:
            file.seek(region.offset + start)
            view = flat.data
            while view.nbytes:
                view = view[file.write(view) :]

    def read(self, name: str, start: int = 0, nbytes: int | None = None) -> np.ndarray:
        """Bytes start..start+nbytes (by default to its end) of a tensor, as uint8.

        Raises:
            ExportError: there is no such tensor, or the file is too short.
        """
        region = self._region(name)
        count = region.nbytes - start if nbytes is None else nbytes
        data = np.empty(count, np.uint8)
        with open(self.path / region.file, "rb") as file:
            file.seek(region.offset + start)
            if start < 0 or start + count > region.nbytes or file.readinto(data.data) != count:
                raise ExportError(f"{self.path / region.file}: ends within tensor {name}; export again")
        return data

    def seal(self) -> None:
        """Write the seals, and make all of the package durable. Raises OSError."""
        for file, seal in self.template.seals.items():
            (self.path / seal).write_bytes(self._sha256(file))
        self._sync({*self.template.files, *self.template.seals.values()}, folders=True)

    def damage(self) -> str:
        """Describe damage to a sealed package outside of its tensors; empty for none. Raises OSError."""
        for name, frame in self.template.files.items():
            path = self.path / name
            if not path.exists() or path.stat().st_size != frame.size:
                return f"{name} is missing or of another size"
            with open(path, "rb") as file:
                for offset, data in frame.fixed:
                    file.seek(offset)
                    if file.read(len(data)) != data:
                        return f"{name} reads back different from what was written"
        for name, seal in self.template.seals.items():
            path = self.path / seal
            if not path.exists() or path.read_bytes() != self._sha256(name):
                return f"{seal} is not the checksum of {name}"
        return ""

    def sync(self, tensors: Iterable[str] | None = None) -> None:
        """Make what was written to some tensors, or all of the package but its seals, durable. Raises
        OSError.
        """
        if tensors is not None:
            self._sync({self._region(name).file for name in tensors}, folders=False)
        else:
            self._sync(set(self.template.files), folders=True)

    def _sync(self, files: set[str], folders: bool) -> None:
        for name in sorted(files):
            fd = os.open(self.path / name, os.O_RDWR)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        if folders:
            inside = {folder for name in files for folder in PurePosixPath(name).parents}
            for folder in sorted(inside):
                fsync_directory(self.path / folder)

    def _sha256(self, file: str) -> bytes:
        with open(self.path / file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()

    def _region(self, name: str) -> Region:
        if name not in self.template.regions:
            raise ExportError(f"{self.path}: has no tensor {name} among {len(self.template.regions)}")
        return self.template.regions[name]
