"""Output formats: one module each, named as on the command line.

A format module has `NAME`, `LAYOUT`, `specs(name, spec, choice)` and `arrays(name, role, quantized)` for
what the flash file stores, `layer_kinds(architecture, choices)` and `write_programs(folder, architecture,
choices, progress)`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from edgekit.export.errors import ExportError

FORMATS = ("onnx", "native")


def load(name: str) -> ModuleType:
    """The module of a format.

    Raises:
        ExportError: unknown format, or its packages are not installed.
    """
    if name not in FORMATS:
        raise ExportError(f"unknown format {name!r}; supported: {', '.join(FORMATS)}")
    try:
        return importlib.import_module(f"edgekit.export.formats.{name}")
    except ModuleNotFoundError as error:
        raise ExportError(
            f"format {name} needs the package {error.name}: pip install 'edgekit[export]'"
        ) from error
