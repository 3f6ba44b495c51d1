"""Options of an export that shape a bundle, beside its format and the bits of weights."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.export.errors import ExportError
from edgekit.flashload.names import shown

#: Types of stored floats and of arithmetic, where a format offers several; the first is the default.
PRECISIONS = ("float16", "float32")


@dataclass(frozen=True)
class Packaging:
    """The cut of a model into packages and the lengths of their functions; None where the defaults hold.

    `lengths`: of the prefix for models that keep one (0 is always among them), of the pass for the others.
    `max_positions` bounds the default ones. `minimum_os` is the version of iOS.
    """

    lengths: tuple[int, ...] | None = None
    max_positions: int | None = None
    layers_per_chunk: int | None = None
    minimum_os: str | None = None


@dataclass(frozen=True)
class FormatOptions:
    """The choices that formats offer, each only some of them; None is a format's own default.

    `precision` is one of PRECISIONS; `packaging` is for formats whose weights are in packages; `activations`
    are "float" or "int8" before products with weights of 8 bits; `device` is what programs are compiled for,
    `socs` are chips that packages are compiled for beside the form that any takes; `texts` tells that the
    model is to be run on texts of the user's own.
    """

    precision: str | None = None
    packaging: Packaging | None = None
    activations: str | None = None
    device: str | None = None
    socs: tuple[str, ...] | None = None
    texts: bool | None = None


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parse numbers of positions, e.g. `128,256`.

    Raises:
        ExportError: not of that form.
    """
    try:
        lengths = tuple(int(n) for n in text.split(","))
    except ValueError:
        raise ExportError(f"--lengths {text!r} are not numbers with commas (example: 128,256)") from None
    if min(lengths) < 0:
        raise ExportError(f"--lengths {text}: {min(lengths)} positions are not possible; give 1 or more")
    return lengths


def parse_names(text: str) -> tuple[str, ...]:
    """Names of chips with commas between them, each once, e.g. `sm8650,sm8750`.

    Raises:
        ExportError: there is no name between two commas, or at an end.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ExportError(f"--soc is {shown(text)}; separate names by single commas (example: sm8650,sm8750)")
    return tuple(dict.fromkeys(names))
