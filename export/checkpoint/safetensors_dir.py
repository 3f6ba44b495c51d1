"""A checkpoint directory as the Hugging Face hub lays it out.

config.json, perhaps generation_config.json, and the weights: `model.safetensors`, or shards that
`model.safetensors.index.json` lists. When both are there the single file is taken, as transformers does.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from edgekit.export.checkpoint.errors import (
    DuplicateTensor,
    InvalidConfig,
    InvalidIndex,
    MissingShard,
    MissingTensor,
    MissingWeights,
    NotACheckpoint,
    PickleWeights,
    SurplusTensor,
    UnsupportedDtype,
    WrongShape,
)
from edgekit.export.checkpoint.safetensors_file import (
    SafetensorsFile,
    TensorEntry,
    open_safetensors,
    raw_dtype,
)
from edgekit.export.checkpoint.text_files import (
    MOST_CONFIG_BYTES,
    MOST_INDEX_BYTES,
    is_there,
    read_config,
    read_json_object,
)
from edgekit.export.checkpoint.tokenizer_files import read_tokenizer
from edgekit.flashload.errors import cut, quoted

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Types that `read` takes, each with the numpy type of its bits; numpy has no bfloat16.
FLOAT_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
}
# Scratch memory of one conversion; the read itself goes straight to the result.
CONVERT_CHUNK_BYTES = 8 << 20
_NAMES_SHOWN = 3


class WeightFiles(Protocol):
    """The files of a checkpoint by name; the weights among them need not be on this machine."""

    def names(self) -> Collection[str]: ...

    def open(self, name: str) -> SafetensorsFile:
        """The checked header of a file of weights."""


@dataclass(frozen=True)
class _Folder:
    """The files of a folder."""

    path: Path

    def names(self) -> Collection[str]:
        return [entry.name for entry in self.path.iterdir() if entry.is_file()]

    def open(self, name: str) -> SafetensorsFile:
        return open_safetensors(self.path / name)


@dataclass(frozen=True)
class Coverage:
    """The findings of `Checkpoint.check`. Sizes are stored bytes; `ignored` holds what patterns excluded."""

    tensors: int
    nbytes: int
    ignored: tuple[str, ...]
    ignored_nbytes: int


class Checkpoint:
    """A read-only view of a checkpoint directory. `open` reads headers only. Usable from any thread."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        generation_config: dict[str, Any],
        files: Sequence[SafetensorsFile],
    ) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation_config
        self._where: dict[str, tuple[SafetensorsFile, TensorEntry]] = {}
        for file in files:
            for name, entry in file.entries.items():
                if name in self._where:
                    other = self._where[name][0].path.name
                    raise DuplicateTensor(
                        f"{path}: tensor {cut(name)} is in both {other} and {file.path.name}"
                    )
                self._where[name] = (file, entry)
        self.names = tuple(self._where)

    @cached_property
    def tokenizer(self) -> Mapping[str, bytes]:
        """The files of the tokenizer, read once, so that what was checked is what bundles get. As
        `read_tokenizer`.
        """
        return read_tokenizer(self.path)

    @classmethod
    def open(cls, path: str | Path, files: WeightFiles | None = None) -> Checkpoint:
        """Open the checkpoint in directory `path`. With `files` its weights are looked for there: one whose
        weights are still to be downloaded can be checked, but not read.

        Raises NotACheckpoint, InvalidConfig, MissingWeights (PickleWeights), InvalidIndex, MissingShard,
        MalformedWeights (LfsPointer), TruncatedWeights, DuplicateTensor or WeightsUnreadable.
        """
        path = Path(path)
        config = read_config(path, CONFIG, "a Hugging Face checkpoint", NotACheckpoint, InvalidConfig)
        generation, generation_config = path / GENERATION_CONFIG, {}
        if is_there(generation):
            generation_config = read_json_object(generation, MOST_CONFIG_BYTES, InvalidConfig)
        return cls(path, config, generation_config, _weight_files(path, files or _Folder(path)))

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of tensor `name`, outermost axis first."""
        return self._find(name)[1].shape

    def dtype(self, name: str) -> str:
        """Stored type in safetensors spelling, such as "BF16"."""
        return self._find(name)[1].dtype

    def nbytes(self, name: str) -> int:
        """Stored size in bytes."""
        return self._find(name)[1].nbytes

    def file(self, name: str) -> Path:
        """The weight file that holds tensor `name`."""
        return self._find(name)[0].path

    def stamp(self, name: str) -> tuple[str, int, int]:
        """Name, size in bytes and time of change (ns) of the weight file that holds tensor `name`."""
        file = self._find(name)[0]
        return file.path.name, file.identity[1], file.identity[2]

    def read(self, name: str) -> np.ndarray:
        """Tensor `name` as a new float32 array.

        Memory used is the result plus at most CONVERT_CHUNK_BYTES. F32, BF16 and F16 are exact, F64 rounds.
        Raises MissingTensor, UnsupportedDtype (integers, 8-bit floats, unknown types), WeightsChanged,
        TruncatedWeights or WeightsUnreadable.
        """
        file, entry = self._find(name)
        return read_float32(file, entry, entry.shape, 0)

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` (exclusive) along axis 0 as a new float32 array; only their bytes are read.

        Raises IndexError for a range outside the tensor, otherwise as `read`.
        """
        file, entry = self._find(name)
        shape, offset = _slice(entry, start, stop)
        return read_float32(file, entry, shape, offset)

    def read_raw(self, name: str, start: int | None = None, stop: int | None = None) -> np.ndarray:
        """The stored bits of tensor `name`, or of its rows `start` to `stop`, as a new array.

        BF16 comes as uint16, 8-bit floats and booleans as uint8, other types as themselves. Raises
        UnsupportedDtype for unknown types and those of less than a byte, otherwise as `read_slice`.
        """
        file, entry = self._find(name)
        shape, offset = entry.shape, 0
        if start is not None or stop is not None:
            rows = entry.shape[0] if entry.shape else 0
            shape, offset = _slice(entry, start or 0, rows if stop is None else stop)
        kind = raw_dtype(entry.dtype)
        if kind is None:
            raise UnsupportedDtype(
                f"{file.path}: tensor {cut(name)} has type {cut(entry.dtype)}, which edgekit cannot read"
            )
        result = np.empty(shape, kind)
        if result.size:
            file.read_into(entry, offset, _bytes_of(result))
        return result

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Sequence[str] = ()) -> Coverage:
        """Compare the checkpoint with the tensors that a model needs.

        expected: name -> shape. ignored: glob patterns (`*` also crosses dots) of tensors that may be there
        and are not used; an expected tensor is used even if a pattern matches it.
        Raises MissingTensor, WrongShape, UnsupportedDtype or SurplusTensor, in this order, each naming the
        first few tensors concerned and their number.
        """
        skip = [re.compile(fnmatch.translate(pattern)) for pattern in ignored]
        surplus: list[str] = []
        skipped: list[str] = []
        for name in self.names:
            if name not in expected:
                (skipped if any(pattern.match(name) for pattern in skip) else surplus).append(name)
        missing = [name for name in expected if name not in self._where]
        if missing:
            hint = f"; it has {_listed(surplus)} that the model does not know" if surplus else ""
            needed = f"{_listed(missing)} of the {len(expected)} that the model needs"
            raise MissingTensor(f"{self.path}: lacks {needed}{hint}")
        wrong = [name for name, shape in expected.items() if self.shape(name) != tuple(shape)]
        if wrong:
            first = wrong[0]
            more = f"; wrong too: {_listed(wrong[1:])}" if len(wrong) > 1 else ""
            raise WrongShape(
                f"{self.file(first)}: tensor {first} has shape {cut(list(self.shape(first)))} where "
                f"{CONFIG} implies {cut(list(expected[first]))}{more}"
            )
        not_float = [name for name in expected if self.dtype(name) not in FLOAT_DTYPES]
        if not_float:
            raise UnsupportedDtype(
                f"{self.file(not_float[0])}: {_listed(not_float)} stored as {cut(self.dtype(not_float[0]))}; "
                "edgekit quantizes from floating point, so give the original (bf16) checkpoint"
            )
        if surplus:
            raise SurplusTensor(f"{self.file(surplus[0])}: the model has no place for {_listed(surplus)}")
        return Coverage(
            tensors=len(expected),
            nbytes=sum(self.nbytes(name) for name in expected),
            ignored=tuple(skipped),
            ignored_nbytes=sum(self.nbytes(name) for name in skipped),
        )

    def _find(self, name: str) -> tuple[SafetensorsFile, TensorEntry]:
        try:
            return self._where[name]
        except KeyError:
            raise MissingTensor(f"{self.path}: has no tensor {cut(name)} among {len(self.names)}") from None


# --- values -------------------------------------------------------------------------------------------------


def read_float32(
    file: SafetensorsFile, entry: TensorEntry, shape: tuple[int, ...], offset: int
) -> np.ndarray:
    """An array of `shape` from byte `offset` of a tensor, in float32. Raises as `Checkpoint.read`."""
    if entry.dtype not in FLOAT_DTYPES:
        raise UnsupportedDtype(
            f"{file.path}: tensor {cut(entry.name)} is stored as {cut(entry.dtype)}, not as one of "
            f"{', '.join(FLOAT_DTYPES)}; give the original (bf16) checkpoint"
        )
    result = np.empty(shape, "<f4")
    if result.size == 0:
        return result
    if entry.dtype == "F32":
        file.read_into(entry, offset, _bytes_of(result))
        return result
    kind = FLOAT_DTYPES[entry.dtype]
    flat = result.reshape(-1)
    scratch = np.empty(min(flat.size, CONVERT_CHUNK_BYTES // kind.itemsize), kind)
    for begin in range(0, flat.size, scratch.size):
        out = flat[begin : begin + scratch.size]
        part = scratch[: out.size]
        file.read_into(entry, offset + begin * kind.itemsize, _bytes_of(part))
        if entry.dtype == "BF16":  # bfloat16 is the upper half of a float32
            np.left_shift(part, 16, out=out.view("<u4"), dtype=np.uint32)
        else:
            out[:] = part
    return result


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _slice(entry: TensorEntry, start: int, stop: int) -> tuple[tuple[int, ...], int]:
    """Shape and byte offset of rows start:stop."""
    rows = entry.shape[0] if entry.shape else 0
    if not 0 <= start <= stop <= rows:
        raise IndexError(f"rows {start}:{stop} of tensor {entry.name} with shape {list(entry.shape)}")
    return (stop - start, *entry.shape[1:]), start * (entry.nbytes // rows if rows else 0)


# --- files --------------------------------------------------------------------------------------------------


def weight_names(path: Path, files: WeightFiles) -> dict[str, list[str]]:
    """The files that hold the weights of the checkpoint in `path`, with the names of the tensors that its
    index places in each. Raises MissingWeights (PickleWeights), InvalidIndex or MissingShard.
    """
    names = set(files.names())
    if SINGLE_FILE in names:
        return {SINGLE_FILE: []}
    return _index(path, names) if INDEX in names else _no_weights(path, sorted(names))


def _weight_files(path: Path, files: WeightFiles) -> list[SafetensorsFile]:
    opened = []
    for file, names in weight_names(path, files).items():
        opened.append(files.open(file))
        gone = [name for name in names if name not in opened[-1].entries]
        if gone:
            raise InvalidIndex(
                f"{path / INDEX}: places {_listed(gone)} in {cut(file)}, which does not hold it"
            )
    return opened


def _no_weights(path: Path, names: Sequence[str]) -> NoReturn:
    if any(re.fullmatch(r"model-\d+-of-\d+\.safetensors", name) for name in names):
        raise MissingWeights(f"{path}: has shards but no {INDEX}, which says what they hold; download it too")
    others = [name for name in names if name.endswith(".safetensors")]
    if others:
        raise MissingWeights(f"{path}: has {others[0]} but neither {SINGLE_FILE} nor {INDEX}")
    pickles = [name for name in names if re.fullmatch(r"(pytorch_model.*|.*\.(bin|pt|pth|ckpt))", name)]
    if pickles:
        raise PickleWeights(
            f"{path}: has only pickle weights ({pickles[0]}), which run code when loaded; "
            f"convert them to {SINGLE_FILE} with the save_pretrained of transformers"
        )
    raise MissingWeights(f"{path}: has neither {SINGLE_FILE} nor {INDEX}")


def _index(path: Path, present: Collection[str]) -> dict[str, list[str]]:
    """The names of the tensors in each file that the index lists."""
    index_path = path / INDEX
    weight_map = read_json_object(index_path, MOST_INDEX_BYTES, InvalidIndex).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidIndex(f"{index_path}: has no weight_map of tensor to file; download it again")
    by_file: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or "/" in file or "\\" in file or file in ("", ".", ".."):
            raise InvalidIndex(
                f"{index_path}: places tensor {cut(name)} in {quoted(file)}, which is not a file name"
            )
        by_file.setdefault(file, []).append(name)
    absent = [file for file in by_file if file not in present]
    if absent:
        missing = f"{len(absent)} of {len(by_file)} shards missing"
        raise MissingShard(f"{path}: {missing}: {_first(absent)}; download them")
    return by_file


def _listed(names: Iterable[str]) -> str:
    """ "1 tensor (a)", "5 tensors (a, b, c, ...)"."""
    names = list(names)
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'} ({_first(names)})"


def _first(names: Sequence[str]) -> str:
    """ "a, b, c, ..." """
    return ", ".join(map(cut, names[:_NAMES_SHOWN])) + (", ..." if len(names) > _NAMES_SHOWN else "")
