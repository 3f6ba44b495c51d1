"""Output formats: one module each, named as on the command line.

A module is a `Format`, or has `variant(precision)`, which gives one for a precision of scales or arithmetic.
It may have what `OPTIONAL` lists besides.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgekit.export.errors import ExportError
from edgekit.flashload.names import unknown
from edgekit.runtime.errors import one_line

if TYPE_CHECKING:
    import numpy as np

    from edgekit.export.formats.packaging import Packaging
    from edgekit.export.models.base import Architecture, WeightSpec
    from edgekit.export.quantize import Choice, Quantized
    from edgekit.flashload.format import TensorSpec

FORMATS = ("onnx", "native", "mlx", "coreml", "coreai")
#: The extra of edgekit that brings all that exporting for a format takes.
_EXTRAS = {"native": "export", "onnx": "export-onnx", "mlx": "mac", "coreml": "ios", "coreai": "ios"}
#: What exporting for a format imports.
_PACKAGES = {
    "native": ("torch",), "onnx": ("torch", "onnx", "onnxscript"), "mlx": ("torch", "mlx"),
    "coreml": ("torch", "coremltools"), "coreai": ("torch", "coreai"),
}  # fmt: skip
_APPLE, _X86, _ARM = ("Darwin", "arm64"), ("Linux", "x86_64"), ("Linux", "aarch64")
#: The systems and machines that a format's packages exist for, where that is not all of them.
_SYSTEMS = {
    "mlx": ((_APPLE, _X86, _ARM), "Apple silicon and Linux"),
    "coreml": ((_APPLE, ("Darwin", "x86_64"), _X86), "macOS and Linux on x86-64"),
    "coreai": ((_APPLE, _X86), "macOS 26 on Apple silicon and Linux on x86-64"),
}
#: Formats whose weights are in packages: their `variant` takes a `Packaging` and activations besides.
PACKAGED = ("coreml", "coreai")
#: What a format need not have, and what holds then: the name of the flash file; the folder of the tokenizer's
#: files; the key in the manifest of what `write_programs` gives; further facts on its programs; the choices
#: of (architecture, scheme, choices) that it can store; files that it writes for (folder, config, choices,
#: runs) besides, returning their names; what it stores for float vectors; bytes of weights that it stores
#: beside the runs; whether another format stores the same arrays; what tensors of the runs are in a packed
#: flash file (see `flashload.packed`), None for an aligned one. Without the rest, the format itself is right
#: for every model, runs go to the flash file, and the manifest knows nothing more of layers:
#: `fitted(architecture, choices, longest)`, `open_store(weights, runs, resume, tag)`, `layer_facts()`.
OPTIONAL: dict[str, Any] = {
    "WEIGHTS_FILE": "weights.safetensors",
    "TOKENIZER_FOLDER": "tokenizer",
    "SECTION": "entries",
    "facts": dict,
    "storable": lambda architecture, scheme, choices: choices,
    "write_files": lambda folder, config, choices, runs: [],
    "floats": lambda name, values: values,
    "copied_bytes": lambda: 0,
    "stores_like": lambda other: False,
    "stored": lambda runs: None,
    "fitted": None,
    "open_store": None,
    "layer_facts": None,
}


class Format(Protocol):
    """What every format has. One with `fitted` is complete once that was called, and is then asked about the
    architecture and the choices that it was called with.
    """

    @property
    def NAME(self) -> str:
        """As on the command line."""

    @property
    def LAYOUT(self) -> str:
        """Names the stored forms: engines refuse bundles of layouts that they do not know."""

    def specs(self, name: str, spec: WeightSpec, choice: Choice) -> tuple[TensorSpec, ...]:
        """The stored tensors of a weight, under the full `name`."""

    def arrays(self, name: str, role: str, q: Quantized) -> dict[str, np.ndarray]:
        """The stored arrays of a quantized weight, matching `specs`."""

    def layer_kinds(self, architecture: Architecture, choices: Mapping[str, Choice]) -> list[str]:
        """The program name of every layer."""

    def write_programs(
        self,
        folder: Path,
        architecture: Architecture,
        choices: Mapping[str, Choice],
        progress: Callable[[str], None],
    ) -> dict[str, Any]:
        """Write every program below `folder`; returns the manifest's entries."""


def check_installed(name: str) -> None:
    """Refuse a format of FORMATS that lacks a package. Imports none of them: that takes seconds.

    Raises:
        ExportError: which package.
    """
    for package in _PACKAGES[name]:
        if importlib.util.find_spec(package) is None:
            raise ExportError(f"format {name} {_needs(name, package)}")


def _needs(name: str, package: str) -> str:
    """What to say of a package that is not installed."""
    systems, named = _SYSTEMS.get(name, ((), ""))
    if systems and (platform.system(), platform.machine()) not in systems and package != "torch":
        return f"needs the package {package}, which there is for {named} only"
    return f"needs the package {package}: pip install 'edgekit[{_EXTRAS[name]}]'"


def load(
    name: str,
    precision: str | None = None,
    packaging: Packaging | None = None,
    activations: str | None = None,
) -> Format:
    """A format, in a precision ("float16", "float32"; None is its own) where it has several. `packaging` and
    `activations` ("float", "int8") are for formats whose weights are in packages.

    Raises:
        ExportError: unknown format, precision or activations, or its packages are not installed.
    """
    if name not in FORMATS:
        raise ExportError(unknown("format", name, FORMATS))
    quiet = logging.root.manager.disable
    logging.disable(logging.WARNING)  # coremltools tells everybody what it cannot do outside of macOS
    try:
        module = importlib.import_module(f"edgekit.export.formats.{name}")
    except ImportError as error:
        if (error.name or "").startswith("edgekit"):
            raise
        package = (error.name or name).partition(".")[0]
        why = f"cannot load the package {package}: {one_line(error)}"
        if isinstance(error, ModuleNotFoundError):
            why = _needs(name, package)
        raise ExportError(f"format {name} {why}") from error
    finally:
        logging.disable(quiet)
    if packaging is not None and name not in PACKAGED:
        raise ExportError(
            f"format {name} has no packages, hence no lengths, chunks or minimum OS to choose; leave them out"
        )
    if activations is not None and name not in PACKAGED:
        raise ExportError(
            f"format {name} has no activations to choose, they are its engine's; leave --activations out"
        )
    if hasattr(module, "variant"):
        chosen = (precision, packaging, activations) if name in PACKAGED else (precision,)
        variant: Format = module.variant(*chosen)
        return variant
    if precision is not None:
        raise ExportError(f"format {name} has no precision to choose; leave it out")
    plain: Any = module
    own: Format = plain
    return own


def optional(module: Any, name: str) -> Any:
    """What a format has of `OPTIONAL`, or what holds where it has not."""
    return getattr(module, name, OPTIONAL[name])
