"""The interface of a format: how it stores the weights of a model, and its programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from edgekit.export.formats.options import FormatOptions
from edgekit.export.formats.row import FormatRow
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.quantize import Choice, Quantized, Scheme, choose
from edgekit.export.runs import RunPlan
from edgekit.export.weights import TensorSource
from edgekit.flashload.format import TensorSpec
from edgekit.flashload.packed import Slice
from edgekit.flashload.writer import FileDigest, FlashWriter, planned_layout

if TYPE_CHECKING:
    from edgekit.export.calibrate.texts import Samples


class Store(Protocol):
    """The destination of an export's runs: `FlashWriter`, or a format's own store of packages."""

    def done(self, run_name: str) -> bool: ...
    def write_run(self, name: str, tensors: Iterator[tuple[str, np.ndarray]]) -> None: ...
    def finish(self) -> FileDigest: ...
    def close(self) -> None: ...


class Stages(Protocol):
    """Told of stages of an export, of `total` units each, and of units of them that are done."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...


@dataclass(frozen=True)
class WrittenPrograms:
    """The manifest's entries of the programs of a model, and the files that they are in, relative to the
    bundle.
    """

    entries: dict[str, Any]
    files: tuple[str, ...] = ()


class Format(ABC):
    """A format that is bound to a model and to options. `choices` are the forms of the model's matrices as it
    stores them, `precision` and `activations` those that hold, empty where there is nothing to choose.

    A subclass implements the abstract methods and overrides what it does differently from a bundle with one
    aligned flash file and programs beside it.

    Raises:
        ExportError: an option that the format does not offer, or that does not go with the model.
        QuantizationError: a scheme that the format cannot store.
    """

    #: The name of the flash file.
    WEIGHTS_FILE: ClassVar[str] = "weights.safetensors"
    #: The folder of the tokenizer's files in the bundle.
    TOKENIZER_FOLDER: ClassVar[str] = "tokenizer"
    #: The key of the entries of `write_programs` in the manifest's section `programs`.
    SECTION: ClassVar[str] = "entries"
    #: Whether an untied table of the head lies in the flash file, in the tiles that runs are.
    HEAD_IN_RUNS: ClassVar[bool] = True

    def __init__(
        self, row: FormatRow, architecture: Architecture, scheme: Scheme, options: FormatOptions
    ) -> None:
        row.check(options)
        self.row, self.architecture = row, architecture
        self.precision = options.precision or next(iter(row.precisions), "")
        self.activations = options.activations or next(iter(row.activations), "")
        self.choices = self.storable(scheme, choose(architecture, scheme))

    @classmethod
    def check_versions(cls) -> None:
        """Refuse versions of the format's packages that its writer does not know. Raises ExportError."""
        return None

    def distributions(self) -> tuple[str, ...]:
        """Those that take part in this export, whose versions its manifest records."""
        return self.row.distributions

    # --- weights ----------------------------------------------------------------------------------------

    def storable(self, scheme: Scheme, choices: Mapping[str, Choice]) -> Mapping[str, Choice]:
        """The choices with those replaced that the format cannot store.

        Raises:
            QuantizationError: one of them cannot be stored, and has no substitute.
        """
        return choices

    def units(self) -> Iterator[tuple[str, str, WeightSpec]]:
        """Every weight with the name of the unit that it is stored in and of the one that it belongs to, in
        execution order.
        """
        for unit, spec in self.architecture.weights():
            yield unit, unit, spec

    @abstractmethod
    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        """The stored tensors of a weight, under the full `name`."""

    @abstractmethod
    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        """The stored arrays of a quantized weight, matching `specs`; BF16 as uint16 bits.

        Raises:
            ExportError: a value is beyond what the stored types can hold.
        """

    def floats(self, name: str, values: np.ndarray) -> np.ndarray:
        """The stored array of a float weight, given in float32. Raises ExportError as `arrays` does."""
        return values

    def observe(self, source: TensorSource, samples: Samples | None, told: Callable[[str], None]) -> None:
        """Look at the model's weights, which `source` has, before the first of them is stored: a format whose
        activations have static scales runs the model on them, on `samples` of texts or on random ones. It
        calls `told` behind every part of the work.
        """
        return None

    def copied_bytes(self) -> int:
        """Bytes of weights that the format stores in addition to the runs."""
        return 0

    def stores_like(self, other: Format) -> bool:
        """Whether another format stores the same arrays of the same model."""
        return False

    def sharing(self, other: Format) -> Format:
        """This format with the exported programs of one that stores alike, so that they are made once."""
        return self

    def packed(self, runs: Sequence[RunPlan]) -> Mapping[str, tuple[Slice, ...]] | None:
        """The tensors of the runs as a packed flash file names them, see `flashload.packed`; None for an
        aligned one.
        """
        return None

    def open_store(self, weights: Path, runs: Sequence[RunPlan], *, resume: bool, tag: str) -> Store:
        """Open what takes the runs, for the flash file `weights`; `tag` says what tensors are made of. With
        `resume` it goes on where an interrupted export of the same plan stopped.

        Raises:
            EdgekitError: leftovers of another export, or the disk refuses.
        """
        specs = [run.spec for run in runs]
        return FlashWriter(weights, specs, resume=resume, tag=tag, stored=self.packed(runs))

    def planned_bytes(self, runs: Sequence[RunPlan], tag: str) -> int:
        """Bytes that the stored runs will take on disk."""
        return planned_layout([run.spec for run in runs], tag, self.packed(runs)).size

    # --- programs and files -----------------------------------------------------------------------------

    @abstractmethod
    def layer_kinds(self) -> list[str]:
        """The program name of every layer."""

    @abstractmethod
    def write_programs(self, folder: Path, progress: Callable[[str], None]) -> WrittenPrograms:
        """Write every program below `folder`, telling `progress` the name of each.

        Raises:
            ExportError: a program cannot be expressed in the format.
        """

    def compile_beside(self, folder: Path, progress: Stages) -> Sequence[str]:
        """Compile what stands beside the programs for single chips: its files, relative to the bundle."""
        return ()

    def layer_programs(self) -> int:
        """The number of programs of layers that will be written."""
        return len(set(self.layer_kinds()))

    def facts(self) -> dict[str, Any]:
        """Facts about the programs for the manifest, in addition to their entries."""
        return {}

    def layer_facts(self) -> list[dict[str, Any]]:
        """Facts about every layer for the manifest, in addition to those of all formats."""
        return [{} for _ in self.architecture.layers]

    def notes(self) -> Sequence[str]:
        """Choices that the format has made by itself, in sentences."""
        return ()

    def pass_lengths(self) -> Sequence[tuple[int, int]]:
        """The (positions of a pass, positions of prefix) that programs are made for; empty where any are."""
        return ()

    def minimum_os(self) -> Mapping[str, str] | None:
        """The oldest versions of systems, by name, that run the bundle; None where every system does."""
        return None

    def write_files(self, folder: Path, config: Mapping[str, Any], runs: Sequence[RunPlan]) -> list[str]:
        """Write what users of the format look for beside the weights; `config` is the checkpoint's
        config.json. Returns the names of the files.
        """
        return []
