"""A preset with its overrides: how many bits each matrix gets."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from edgekit.export.errors import QuantizationError
from edgekit.export.presets import DEFAULT_PRESET, PRESETS
from edgekit.flashload.names import unknown

#: Group sizes tried when the asked one does not divide a matrix's columns, before falling back to 8 bits.
SMALLEST_GROUP = 16
#: Tables whose rows are looked up one by one or streamed in tiles: 4 bits are not implemented for them.
_TABLES = ("embedding", "head")


@dataclass(frozen=True)
class Override:
    """`pattern` (shell wildcards over names such as layers.3.mlp.down_proj) gets `bits`; the last match
    wins.
    """

    pattern: str
    bits: int


def parse_override(text: str) -> Override:
    """Parse `PATTERN=BITS`, e.g. `layers.0.*=8`.

    Raises:
        QuantizationError: not of that form, or bits other than 4, 8, 16.
    """
    pattern, separator, bits = text.rpartition("=")
    if not separator or not pattern or bits not in ("4", "8", "16"):
        raise QuantizationError(
            f"override {text!r} is not PATTERN=BITS with bits 4, 8 or 16 (example: 'layers.0.*=8')"
        )
    return Override(pattern, int(bits))


@dataclass(frozen=True)
class Choice:
    """The stored form of one matrix, and what had to be changed for it (empty if nothing)."""

    bits: int
    group_size: int
    note: str = ""


@dataclass(frozen=True)
class Scheme:
    """A preset with its overrides; decides from names and shapes alone.

    Raises:
        QuantizationError: unknown preset, or a group size that is not a power of two of at least 16.
    """

    preset: str = DEFAULT_PRESET
    group_size: int = 32
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise QuantizationError(unknown("preset", self.preset, PRESETS))
        if self.group_size < SMALLEST_GROUP or self.group_size & (self.group_size - 1):
            raise QuantizationError(
                f"group size {self.group_size} is not supported; use 16, 32, 64, 128 or 256"
            )

    def choose(self, name: str, role: str, shape: tuple[int, ...]) -> Choice:
        """Bits and group size of matrix `name` [N, K]; a 4-bit choice that K does not allow is changed and
        noted.
        """
        bits = PRESETS[self.preset][role]
        for override in self.overrides:
            if fnmatchcase(name, override.pattern):
                bits = override.bits
        if role == "adapter" and bits != 16:
            return Choice(16, 0, "adapters are stored in 16 bits")
        if bits == 4 and role in _TABLES:
            raise QuantizationError(
                f"{name}: vocabulary tables are stored in 8 or 16 bits; 4 is not supported"
            )
        if bits != 4:
            return Choice(bits, 0)
        group = self.group_size
        while group >= SMALLEST_GROUP and shape[1] % group:
            group //= 2
        if group < SMALLEST_GROUP:
            return Choice(
                8, 0, f"{shape[1]} columns do not divide into groups of {self.group_size}: stored in 8 bits"
            )
        if group != self.group_size:
            return Choice(
                4,
                group,
                f"{shape[1]} columns do not divide into groups of {self.group_size}: groups of {group}",
            )
        return Choice(4, group)

    def unmatched(self, names: list[str]) -> list[str]:
        """Patterns of overrides that match no name: likely misspelt."""
        return [o.pattern for o in self.overrides if not any(fnmatchcase(n, o.pattern) for n in names)]
