"""Whether packages are what the manifest declares: read by what can read them on any system, without running
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import EdgekitError, MalformedFile
from edgekit.runtime.bundle.packages import Function, Package, Packages
from edgekit.runtime.engines.coreai import version as coreai_version
from edgekit.runtime.engines.onnx.programs import Refused
from edgekit.runtime.engines.qnn.programs import PLACES, WEIGHTS_FILE, check_program, model_file
from edgekit.runtime.errors import EngineUnavailable, one_line

_ARRAY = re.compile(r"NDArray \((\w+), (\d+(?: × \d+)*)\)")
#: A port as far as both sides can tell it: element type and shape.
_Described = Mapping[str, tuple[str, tuple[int, ...]]]
#: The functions of a package: what each takes and gives, by name.
_Functions = Mapping[str, tuple[_Described, _Described]]


def damage(bundle: Path, packages: Packages, package: Package) -> str:
    """Describe what is wrong with a package; empty for nothing. Its bytes must be as they were written: Core
    AI ends the process over an asset that it cannot parse.

    Raises:
        EngineUnavailable: what reads packages of the format is not installed, or does not read these.
    """
    path = bundle / package.path
    if packages.format == "coreai":
        complaint = coreai_version.complaint() or coreai_version.bundle_complaint(packages.written_by)
        if complaint:
            raise EngineUnavailable(complaint)
    try:
        found = _READERS.get(packages.format, _coreai)(path)
    except EngineUnavailable:
        raise
    except EdgekitError as error:
        return str(error)
    declared = {f.name: f for f in package.functions}
    if found.keys() != declared.keys():
        return f"has the functions {_some(found)}, the manifest declares {_some(declared)}"
    for name, function in declared.items():
        said = _difference(function, *found[name])
        if said:
            return f"function {name}: {said}"
    return ""


def _difference(function: Function, inputs: _Described, outputs: _Described) -> str:
    for side, ports, found in (
        ("input", function.inputs, inputs),
        ("output", function.outputs, outputs),
    ):
        names = {port.name for port in ports.values()}
        if names != found.keys():
            return f"has the {side}s {_some(found)}, the manifest declares {_some(names)}"
        for port in ports.values():
            dtype, shape = found[port.name]
            if (dtype, shape) != (port.dtype, port.shape):
                return (
                    f"{side} {port.name} is {dtype} {list(shape)}, declared {port.dtype} {list(port.shape)}"
                )
    return ""


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    return (", ".join(listed[:6]) or "none") + more


def _coreml(path: Path) -> _Functions:
    from edgekit.runtime.checks.mil import CoremltoolsMissing, Feature
    from edgekit.runtime.checks.mil import Package as Program

    def described(features: Mapping[str, Feature]) -> _Described:
        return {name: (f.dtype.numpy.name, f.shape) for name, f in features.items()}

    try:
        program = Program(path)
    except CoremltoolsMissing as error:
        raise EngineUnavailable(str(error)) from error
    for name in program.functions:
        program.function(name)  # its operations and their constants are read, and agree with what it says
    return {
        name: (described(signature.inputs), described(signature.outputs))
        for name, signature in program.functions.items()
    }


def _coreai(path: Path) -> _Functions:
    try:
        from coreai.authoring import AIModelAsset
    except ImportError as error:
        raise EngineUnavailable(f"reading packages of Core AI takes coreai-core ({error})") from error
    try:
        summary = AIModelAsset.load(path).summary(include_statistics=False)
    except RuntimeError as error:
        raise MalformedFile(f"{path} cannot be read: {one_line(error)}") from error
    if summary is None:
        raise MalformedFile(f"{path} holds no program")

    def described(rows: list[tuple[str, str]]) -> _Described:
        found = {}
        for name, text in rows:  # such as "NDArray (Float32, 128 × 192)"
            match = _ARRAY.fullmatch(text)
            if match is None:
                raise MalformedFile(f"{path}: {name} is {text}, no array of fixed size")
            found[name] = match[1].lower(), tuple(int(size) for size in match[2].split(" × "))
        return found

    return {
        name: (described(summary.function_inputs(name)), described(summary.function_outputs(name)))
        for name in summary.function_names
    }


def _qnn(path: Path) -> _Functions:
    try:
        import onnx
    except ImportError as error:
        raise EngineUnavailable(f"reading packages of ONNX takes onnx: pip install onnx ({error})") from error
    found, end = {}, (path / WEIGHTS_FILE).stat().st_size

    def described(values: Iterable[Any]) -> _Described:
        out = {}
        for value in values:
            tensor = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
            out[value.name] = dtype, tuple(int(size.dim_value) for size in tensor.shape.dim)
        return out

    for place in PLACES:
        for file in sorted(path.glob(model_file("*", place))):
            data = file.read_bytes()
            try:
                check_program(data, "qnn")
                graph = onnx.load_from_string(data).graph
            except Refused as error:
                raise MalformedFile(f"{file}: {error}") from None
            except Exception as error:  # protobuf's own kinds
                raise MalformedFile(f"{file} cannot be read: {one_line(error)}") from error
            for constant in graph.initializer:
                where = {entry.key: entry.value for entry in constant.external_data}
                if where and int(where["offset"]) + int(where["length"]) > end:
                    raise MalformedFile(f"{file}: {constant.name} lies behind the end of {WEIGHTS_FILE}")
            found[file.name.removesuffix(model_file("", place))] = (
                described(graph.input),
                described(graph.output),
            )
    return found


#: What reads the packages of a format, where that is not Core AI.
_READERS = {"coreml": _coreml, "qnn": _qnn}
