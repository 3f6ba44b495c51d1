"""What an engine in Python implements: the programs of a bundle, run on arrays. All else (streaming, prefix,
masks, experts' weights, head, sampling) is the core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.space import Space
from edgekit.runtime.engines.unpack import unpack_int4
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.sampling.types import Floats, Ids

Arrays = Mapping[str, np.ndarray]
#: What the process allocates later and nothing else counts: programs, thread stacks, the tokenizer.
ALLOWANCE_BYTES = 48 << 20
#: y [1, T, H] of the last of some layers, and k, v [1, KV, T, D] of these positions for each.
LayersOutput = tuple[Floats, list[tuple[Floats, Floats]]]


@dataclass(frozen=True)
class EngineBytes:
    """Memory that an engine takes besides weights and what the session holds for it, in bytes: arrays within
    a pass, copies of weights that are being used, arrays of the vocabulary head, and what it allocates
    later and cannot name.
    """

    activations: int = 0
    scratch: int = 0
    head: int = 0
    allowance: int = 0


@dataclass(frozen=True)
class Lengths:
    """What a session is opened for: rows of the longest segment of a pass, rows that it sees before its own,
    segments of a pass, and rows of the largest head request. An engine in Python is given one segment at a
    time.
    """

    rows: int
    kept: int
    segments: int
    head_rows: int


@dataclass(eq=False)
class TilePart:
    """Statistics of z over one tile of the vocabulary, one entry per row; arg and sample are relative to the
    tile's first row.

    top, sum_others, sum_z_others float32 [R]: the largest z, and sums over the tile but the argmax of
    exp(z - top) and z exp(z - top). score, sample, sample_z [R] where noise was given. soft [R, H] where it
    was asked for: exp(z - top) @ tile. z [R, V'] itself, where
    the engine has it anyway.
    """

    top: Floats
    arg: Ids
    sum_others: Floats
    sum_z_others: Floats
    score: Floats | None = None
    sample: Ids | None = None
    sample_z: Floats | None = None
    soft: Floats | None = None
    z: Floats | None = None


@dataclass(eq=False)
class Routing:
    """What comes before a layer's experts: their rows x [T, H], the chosen experts index [T, k] of each row
    and weight [T, k], and keys and values [1, KV, T, D]; `further` are results that `join` wants.
    """

    x: Floats
    index: np.ndarray
    weight: Floats
    k: Floats
    v: Floats
    further: Arrays = field(default_factory=dict)


class Engine:
    """Weights come as the stored tensors of a run, under their names within it; arrays are float32 unless
    stated.

    Every array that a function is given, weights or not, is read-only and valid during the call only: it lies
    in memory that is written again, and that goes with the session. Copy what is to stay.

    Calls come from the thread that uses the session, one at a time. A model without experts or
    self-conditioning needs `layers`, `final` and `head_logits` alone. Weights that lie in packages are not
    an engine's: an `Executor` runs them.
    """

    name: str
    #: Of the bundles that it runs; None: of any.
    format: str | None = None
    #: Whether the session has a memory budget, or streams; else an engine may keep copies of weights: a unit
    #: comes as the same object every time. Set before the first pass.
    bounded: bool = True

    def space(self) -> Space:
        """Where its arrays lie in a session: in the session's memory, unless it has memory of its own."""
        return Space()

    def prepare(self) -> None:
        """Find the device. Called once before a session is opened, and not where memory is only planned for.

        Raises:
            EngineUnavailable: there is none.
        """
        return None

    def memory(self, bundle: Bundle, lengths: Lengths) -> EngineBytes:
        """What the engine takes for passes of these lengths."""
        return EngineBytes(allowance=ALLOWANCE_BYTES)

    def layers(self, program: str, inputs: Sequence[Arrays], weights: Any) -> LayersOutput:
        """The consecutive layers of one run without experts. `inputs` holds those of each layer, as in
        `export.programs.layer_program`; only the first has `x` [1, T, H].
        """
        raise self._cannot(f"program {program}")

    def route(self, program: str, inputs: Arrays, weights: Any) -> Routing:
        """What comes before the experts of a layer that has them."""
        raise self._cannot(f"experts in program {program}")

    def expert(self, program: str, x: Floats, weights: Any) -> Floats:
        """One expert on its rows [N, H]."""
        raise self._cannot(f"experts in program {program}")

    def experts(self, program: str, x: Any, counts: Sequence[int], weights: Sequence[Any]) -> Any:
        """Several experts on their rows x [N, H], `counts[i]` rows of expert i behind those of the one before
        it. A space that does not gather experts gives one at a time.
        """
        (only,) = weights
        return self.expert(program, x, only)

    def join(self, program: str, inputs: Arrays, routing: Routing, mixed: Floats, weights: Any) -> Floats:
        """What comes after the experts, whose weighted sum is `mixed` [T, H]: y [1, T, H]."""
        raise self._cannot(f"experts in program {program}")

    def self_condition(self, embedded: Floats, soft: Floats, weights: Any) -> Floats:
        """The decoder's input [1, T, H]; both arguments carry the embedding scale."""
        raise self._cannot("self-conditioning")

    def final(self, x: Floats, weights: Any) -> Floats:
        """The last norm: [1, T, H]."""
        raise self._cannot("the last norm")

    def head_tile(
        self, x: Floats, temperature: float, noise: Floats | None, soft: bool, table: Any
    ) -> TilePart | None:
        """One tile of the vocabulary head for rows x [R, H]; `table` holds the tile's rows. None: statistics
        are made of `head_logits`.
        """
        return None

    def head_logits(self, x: Floats, temperature: float, table: Any) -> Floats:
        """z [R, V'] of one tile."""
        raise self._cannot("the vocabulary head")

    def statistics(self) -> dict[str, Any]:
        """Counters, for `Session.statistics` and the Done event of a `Generator`."""
        return {"engine": self.name}

    def _cannot(self, what: str) -> EngineFailed:
        return EngineFailed(f"the {self.name} engine does not run {what}; export for another engine")


def statistics_of(z: Floats, noise: Floats | None = None) -> TilePart:
    """What a tile's scores z [R, V'] say, and with noise the sample; without soft."""
    rows = np.arange(len(z))
    arg = z.argmax(1)
    top = z[rows, arg]
    weight = np.exp(z - top[:, None])
    weight[rows, arg] = 0  # the argmax is none of the others
    # A token that is ruled out, with a z of minus infinity, adds nothing.
    part = TilePart(top, arg, weight.sum(1), (np.where(weight > 0, z, 0) * weight).sum(1))
    if noise is not None:
        noisy = z + noise
        part.sample = noisy.argmax(1)
        part.score, part.sample_z = noisy[rows, part.sample], z[rows, part.sample]
    return part


def matrix(weights: Arrays, name: str = "") -> Floats:
    """A stored matrix [N, K], or rows of a vocabulary table (no name), in float32: from 16 bits, from 8-bit
    codes, or from 4-bit codes with integer scales of groups. Layouts: `export.formats.onnx`.

    Raises KeyError: the weights hold none of that name in such a form.
    """
    prefix = name and name + "."
    if prefix + "packed" in weights:
        packed, groups = weights[prefix + "packed"], weights[prefix + "group_scales"]
        codes = np.empty((packed.shape[0], groups.shape[1]), np.int8)
        stored = unpack_int4(packed, groups, codes).T.astype(np.float32)
        return stored * weights[prefix + "scales"][:, None]
    if prefix + "codes" in weights:
        codes = weights[prefix + "codes"]
        if codes.dtype == np.uint8:
            return (codes.astype(np.float32) - 128) * weights[prefix + "scales"][:, None]
        return codes.T.astype(np.float32) * weights[prefix + "scales"][:, None]
    return (weights[prefix + "weight"].astype(np.uint32) << 16).view(np.float32)


class OpenModel(Protocol):
    """A package as its system's runtime has it open. Used by one thread at a time."""

    def call(self, function: str, inputs: Arrays) -> Mapping[str, np.ndarray]:
        """Run a function on arrays by name, of the declared types and shapes. Raises EngineFailed."""

    def close(self) -> None:
        """Give its memory back."""


def output_of(found: Mapping[str, Any], name: str, shape: tuple[int, ...], at: str) -> np.ndarray:
    """An output of a function of a package, of the shape that the manifest says; `at` begins the message.
    Raises EngineFailed.
    """
    own = found.get(name)
    if own is None or np.shape(own) != shape:
        what = "nothing" if own is None else f"shape {list(np.shape(own))}"
        raise EngineFailed(
            f"{at} gives {what} for output {name}, the manifest says {list(shape)}; copy or export the "
            "bundle again"
        )
    return np.asarray(own)


class Executor(Protocol):
    """What runs packages: the system's own runtime, or one that stands in for it."""

    name: str

    def open(self, path: Path, functions: Sequence[str]) -> OpenModel:
        """Open a package; `functions` are those that will most likely be called. May be called by another
        thread than the calls. Raises EngineFailed.
        """
