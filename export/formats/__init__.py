"""Output formats: one module each, named as on the command line.

A format module has `NAME`, `LAYOUT`, `specs(name, spec, choice)` and `arrays(name, role, quantized)` for
what the flash file stores, `layer_kinds(architecture, choices)` and `write_programs(folder, architecture,
choices, progress)`. It may have `variant(precision)`, which gives an object with all of this for a precision
of scales or arithmetic, and what `OPTIONAL` lists.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from edgekit.export.errors import ExportError

FORMATS = ("onnx", "native", "mlx")
#: The extra of edgekit that brings a format's packages, where it is not `export`.
_EXTRAS = {"mlx": "export,mlx"}
#: What a format need not have, and what holds then: the name of the flash file; the folder of the tokenizer's
#: files; further facts on its programs; the choices of (architecture, scheme, choices) that it can store;
#: files that it writes for (folder, config, choices, runs) besides, returning their names.
OPTIONAL: dict[str, Any] = {
    "WEIGHTS_FILE": "weights.safetensors",
    "TOKENIZER_FOLDER": "tokenizer",
    "facts": dict,
    "storable": lambda architecture, scheme, choices: choices,
    "write_files": lambda folder, config, choices, runs: [],
}


def load(name: str, precision: str | None = None) -> ModuleType:
    """The module of a format, or its variant for a precision ("float16", "float32"); None is its own.

    Raises:
        ExportError: unknown format or precision, or its packages are not installed.
    """
    if name not in FORMATS:
        raise ExportError(f"unknown format {name!r}; supported: {', '.join(FORMATS)}")
    try:
        module = importlib.import_module(f"edgekit.export.formats.{name}")
    except ImportError as error:
        if (error.name or "").startswith("edgekit"):
            raise
        package, extra = (error.name or name).partition(".")[0], _EXTRAS.get(name, "export")
        raise ExportError(
            f"format {name} needs the package {package}: pip install 'edgekit[{extra}]'"
        ) from error
    if hasattr(module, "variant"):
        variant: ModuleType = module.variant(precision)
        return variant
    if precision is not None:
        raise ExportError(f"format {name} has no precision to choose; leave it out")
    return module


def optional(module: Any, name: str) -> Any:
    """What a format has of `OPTIONAL`, or what holds where it has not."""
    return getattr(module, name, OPTIONAL[name])
