"""Output formats: a row each, named as on the command line, and a writer, which is imported when used.

Installed distributions add rows as entry points of the group `edgekit.formats`. A writer is a subclass of
`base.Format`. It is bound to a model and the options of an export in one step:

    form = load("onnx")(architecture, scheme, FormatOptions())
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgekit.export.errors import ExportError
from edgekit.export.formats.options import PRECISIONS, FormatOptions
from edgekit.export.formats.row import DeviceRow, FormatRow, Systems
from edgekit.export.formats.tvm.devices import ADVICE, DEVICES
from edgekit.flashload.errors import one_line
from edgekit.flashload.names import unknown
from edgekit.flashload.registry import Registry, resolve
from edgekit.runtime.bundle.packages import layout_of
from edgekit.runtime.engines.qnn.socs import SOCS, WITHOUT_FLOATS

if TYPE_CHECKING:
    from edgekit.export.formats.base import Format
    from edgekit.export.models.base import Architecture
    from edgekit.export.quantize import Scheme

#: Binds a format to a model and the options of an export; raises as `base.Format` does.
Writer = Callable[["Architecture", "Scheme", FormatOptions], "Format"]

_APPLE, _X86, _ARM = ("Darwin", "arm64"), ("Linux", "x86_64"), ("Linux", "aarch64")
_BY_NVRTC = {"lacking": "edgekit.export.formats.tvm.nvrtc:lacking", "extra": "export-tvm-cuda"}
_FLOAT_OR_INT8 = ("float", "int8")
_LACKS_FLOATS = "its NPU has no floats, which norms take; --format native runs on its processor"
ROWS = (
    FormatRow(
        "native",
        writer="edgekit.export.formats.native.writer:NativeFormat",
        layout="native-1",
        needs=("torch",),
        extra="export",
        distributions=("torch",),
    ),
    FormatRow(
        "onnx",
        writer="edgekit.export.formats.onnx.writer:OnnxFormat",
        layout="onnx-3",
        needs=("torch", "onnx", "onnxscript"),
        extra="export-onnx",
        distributions=("torch", "onnx", "onnxscript"),
    ),
    FormatRow(
        "onnx-gpu",
        writer="edgekit.export.formats.onnx.writer:OnnxGpuFormat",
        layout="onnx-gpu-1",
        needs=("torch", "onnx", "onnxscript"),
        extra="export-onnx",
        distributions=("torch", "onnx", "onnxscript"),
    ),
    FormatRow(
        "tvm",
        writer="edgekit.export.formats.tvm.writer:TvmFormat",
        layout="tvm-1",
        needs=("torch", "tvm", "ziglang"),
        extra="export-tvm",
        distributions=("torch", "apache-tvm", "ziglang"),
        devices={
            name: DeviceRow(device.summary, **(_BY_NVRTC if device.cuda else {}))
            for name, device in DEVICES.items()
        },
        device_advice=ADVICE,
    ),
    FormatRow(
        "mlx",
        writer="edgekit.export.formats.mlx.writer:MlxFormat",
        layout="mlx-2",
        needs=("torch", "mlx"),
        extra="mac",
        systems=Systems((_APPLE, _X86, _ARM), "Apple silicon and Linux"),
        distributions=("torch", "mlx"),
        precisions=PRECISIONS,
    ),
    FormatRow(
        "coreml",
        writer="edgekit.export.formats.coreml.writer:CoremlFormat",
        layout=layout_of("coreml"),
        needs=("torch", "coremltools"),
        extra="ios",
        systems=Systems((_APPLE, ("Darwin", "x86_64"), _X86), "macOS and Linux on x86-64"),
        distributions=("torch", "coremltools"),
        precisions=PRECISIONS,
        activations=_FLOAT_OR_INT8,
        packages=True,
        # Functions, compressed constants and attention need 18. What runs there is the same for all versions.
        versions={"18": "15", "26": "26"},
    ),
    FormatRow(
        "coreai",
        writer="edgekit.export.formats.coreai.writer:CoreaiFormat",
        layout=layout_of("coreai"),
        needs=("torch", "coreai"),
        extra="ios",
        systems=Systems((_APPLE, _X86), "macOS 26 on Apple silicon and Linux on x86-64"),
        distributions=("torch", "coreai-core"),
        precisions=PRECISIONS,
        activations=_FLOAT_OR_INT8,
        packages=True,
        versions={"27": "27"},
    ),
    FormatRow(
        "qnn",
        writer="edgekit.export.formats.qnn.writer:QnnFormat",
        layout=layout_of("qnn"),
        needs=("torch", "onnx", "onnxscript"),
        extra="export-qnn",
        distributions=("torch", "onnx", "onnxscript"),
        precisions=("float32",),
        activations=("int16",),
        packages=True,
        socs={name: soc.title for name, soc in SOCS.items()},
        refused_socs=dict.fromkeys(WITHOUT_FLOATS, _LACKS_FLOATS),
        calibrates=True,
    ),
)
FORMATS = Registry("format", "edgekit.formats", FormatRow, {row.name: row for row in ROWS})


def get(name: str) -> FormatRow:
    """The row of a format.

    Raises:
        ExportError: there is no such format. BrokenPlugin: its distribution cannot give it.
    """
    row = FORMATS.find(name)
    if row is None:
        raise ExportError(unknown("format", name, FORMATS))
    return row


def load(name: str) -> Writer:
    """Import a format's writer, which binds the format to a model and to the options of an export.

    Raises:
        ExportError: there is no such format, or its packages are not installed, cannot be loaded, or are of
            versions that it does not know. BrokenPlugin: its distribution cannot give it.
    """
    row = get(name)
    quiet = logging.root.manager.disable
    logging.disable(logging.WARNING)  # coremltools tells everybody what it cannot do outside of macOS
    try:
        writer: type[Format] = resolve(row.writer)
    except ImportError as error:
        if (error.name or "").startswith("edgekit"):
            raise
        if isinstance(error, ModuleNotFoundError):
            why = row.lacks((error.name or row.name).partition(".")[0])
        else:
            anew = f"pip install --force-reinstall '{row.install}'"
            why = f"cannot load its packages; install them anew: {anew} ({one_line(error)})"
        raise ExportError(f"format {row.name} {why}") from error
    finally:
        logging.disable(quiet)
    writer.check_versions()
    return functools.partial(writer, row)
