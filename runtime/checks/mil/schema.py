"""The protobuf classes of Core ML model files, as coremltools ships them."""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from edgekit.runtime.checks.mil.errors import CoremltoolsMissing, MalformedPackage

_PACKAGE = "_edgekit_coreml_proto"


def parse_model(data: bytes, where: str) -> Any:
    """The message `CoreML.Specification.Model` in these bytes; `where` begins the message of an error.

    Raises:
        MalformedPackage: the bytes are no such message.
        CoremltoolsMissing: the definitions are not installed.
    """
    model = _model_class()()
    # Through importlib: protobuf comes without types.
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    try:
        model.ParseFromString(data)
    except decode_error as error:
        raise MalformedPackage(f"{where} is not a Core ML model: {error}") from error
    return model


@functools.cache
def _model_class() -> Any:
    """The class of such messages.

    `import coremltools.proto` runs coremltools' own __init__ first, which imports torch where it is
    installed, registers hundreds of converters and logs what it cannot find: seconds and 300 MB for a few
    message definitions. These need nothing but protobuf and each other, by relative imports. So the folder
    coremltools/proto is imported as a package of another name. protobuf keeps one class per message type in
    a process: should the program import coremltools as well, before or after, both see the same classes.
    """
    try:
        if "coremltools.proto" not in sys.modules and _PACKAGE not in sys.modules:
            found = PathFinder.find_spec("coremltools")
            if found is None or not found.submodule_search_locations:
                raise ModuleNotFoundError("no module named 'coremltools'")
            package = ModuleType(_PACKAGE)
            package.__path__ = [f"{folder}/proto" for folder in found.submodule_search_locations]
            sys.modules[_PACKAGE] = package
        name = "coremltools.proto" if "coremltools.proto" in sys.modules else _PACKAGE
        return importlib.import_module(f"{name}.Model_pb2").Model
    except ModuleNotFoundError as error:
        raise CoremltoolsMissing(
            "reading Core ML packages takes the definitions of coremltools: "
            f"pip install 'edgekit[coreml]' ({error})"
        ) from error
    except (ImportError, TypeError) as error:  # TypeError: protobuf's complaint about older generated code
        raise CoremltoolsMissing(
            "the definitions of the installed coremltools do not load with the installed protobuf: "
            f"pip install --upgrade 'edgekit[coreml]' ({error})"
        ) from error
