"""Saved `.mlpackage` folders.

    Manifest.json                             names the items of the folder, and which of them is the model
    Data/com.apple.CoreML/model.mlmodel       protobuf: description of inputs and outputs, the program
    Data/com.apple.CoreML/weights/weight.bin  what the program calls @model_path/weights/weight.bin

What goes in and out is described twice, for apps and in the program itself; the two must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from edgekit.runtime.checks.mil.blob import BlobFile
from edgekit.runtime.checks.mil.errors import (
    MalformedBlob,
    MalformedPackage,
    NotAPackage,
    UnknownFunction,
    UnsupportedPackage,
)
from edgekit.runtime.checks.mil.features import Feature, features
from edgekit.runtime.checks.mil.program import Function, Value, parse_function
from edgekit.runtime.checks.mil.schema import parse_model

#: Versions of the specification whose ML Programs are read: iOS 15 to iOS 26.
VERSIONS = range(6, 11)
_MODEL_PATH = "@model_path/"


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs and states of a function, in the order of the package."""

    inputs: Mapping[str, Feature]
    outputs: Mapping[str, Feature]
    states: Mapping[str, Feature]


class Package:
    """A saved ML Program. Opening reads the model file; weights are read when they are used.

    Raises:
        NotAPackage, MalformedPackage, UnsupportedPackage: see errors.py; one line each.
        CoremltoolsMissing: the protobuf definitions are not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._model_file = _find_model(self.path)
        try:
            model = parse_model(self._model_file.read_bytes(), str(self._model_file))
        except OSError as error:
            raise MalformedPackage(f"{self._model_file} cannot be read: {error.strerror}") from error
        self.specification_version = int(model.specificationVersion)
        kind = model.WhichOneof("Type")
        if kind is None:
            raise MalformedPackage(f"{self._model_file} describes no model")
        if kind != "mlProgram":
            raise UnsupportedPackage(f"{self.path} holds a {kind}, not an ML Program")
        if self.specification_version not in VERSIONS:
            raise UnsupportedPackage(
                f"{self.path} has specification version {self.specification_version}; "
                f"known are {VERSIONS[0]} (iOS 15) to {VERSIONS[-1]} (iOS 26)"
            )
        self._program, self._blobs = model.mlProgram, dict[str, BlobFile]()
        self._parsed = dict[str, Function]()
        self.functions, self.default_function = self._signatures(model.description)

    def function(self, name: str | None = None) -> Function:
        """The parsed function, by default the package's default one: operations, constants, types.

        Raises:
            UnknownFunction: there is none of that name.
            MalformedPackage: the program is inconsistent, or does not fit the description or the weight file.
            UnsupportedPackage: it has values other than tensors.
        """
        name = self.default_function if name is None else name
        if name not in self.functions:
            raise UnknownFunction(f"{self.path} has no function '{name}', only {', '.join(self.functions)}")
        if name not in self._parsed:
            where = f"{self.path}: function '{name}'"
            function = parse_function(name, self._program.functions[name], self.blob, where)
            self._check_signature(function, where)
            self._parsed[name] = function
        return self._parsed[name]

    def blob(self, file_name: str) -> BlobFile:
        """The weight file that the program calls `file_name`, such as "@model_path/weights/weight.bin".

        Raises:
            MalformedBlob, TruncatedBlob: it is missing, outside of the package, or not a weight file.
        """
        if file_name not in self._blobs:
            relative = PurePosixPath(file_name.removeprefix(_MODEL_PATH))
            if not file_name.startswith(_MODEL_PATH) or ".." in relative.parts or relative.is_absolute():
                raise MalformedBlob(f"{self.path}: weight file '{file_name}' is not below {_MODEL_PATH}")
            self._blobs[file_name] = BlobFile(self._model_file.parent / relative)
        return self._blobs[file_name]

    def _signatures(self, description: Any) -> tuple[dict[str, Signature], str]:
        """Of several functions, or of the only one, which is then described at the top level."""
        described = {f.name: f for f in description.functions} or {"main": description}
        default = description.defaultFunctionName or "main"
        programs = set(self._program.functions)
        if set(described) != programs:
            raise MalformedPackage(
                f"{self.path} describes the functions {sorted(described)} and has {sorted(programs)}"
            )
        if default not in described:
            raise MalformedPackage(f"{self.path} has no function '{default}', which is to be the default")
        signatures = {}
        for name, function in described.items():
            where = f"{self.path}: function '{name}'"
            signatures[name] = Signature(
                features(function.input, f"{where}: input"),
                features(function.output, f"{where}: output"),
                features(function.state, f"{where}: state"),
            )
        return signatures, default

    def _check_signature(self, function: Function, where: str) -> None:
        """The description, which apps see, must be of the program, which runs."""
        signature = self.functions[function.name]
        given = {True: list(signature.states.values()), False: list(signature.inputs.values())}
        for is_state, described in given.items():
            values = {value.name: value for value in function.inputs if value.is_state is is_state}
            kind = "state" if is_state else "input"
            if values.keys() != {feature.name for feature in described}:
                raise MalformedPackage(
                    f"{where} describes the {kind}s {sorted(f.name for f in described)} "
                    f"and takes {sorted(values)}"
                )
            for feature in described:
                _check_feature(feature, values[feature.name], f"{where}: {kind} '{feature.name}'")
        for name, feature in signature.outputs.items():
            if name not in function.outputs:
                raise MalformedPackage(
                    f"{where} describes the output '{name}', which the program does not give"
                )
            _check_feature(feature, Value(name, function.types[name]), f"{where}: output '{name}'")


def _check_feature(feature: Feature, value: Value, where: str) -> None:
    if feature.dtype is not value.type.dtype:
        raise MalformedPackage(f"{where} is described as {feature.dtype} and declared {value.type}")
    for shape in feature.examples():
        # Outputs without a described shape are those whose shape follows from the inputs, and scalars.
        if shape and not value.type.fits(shape):
            raise MalformedPackage(f"{where} is described with shape {list(shape)} and declared {value.type}")


def _find_model(path: Path) -> Path:
    """The model file, as the manifest names it."""
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise NotAPackage(f"{path} {found}; expected the folder of a saved .mlpackage")
    manifest = path / "Manifest.json"
    if not manifest.is_file():
        compiled = (path / "coremldata.bin").exists()
        hint = "; it is a compiled model, open the .mlpackage that it was compiled from" if compiled else ""
        raise NotAPackage(f"{path} has no Manifest.json{hint}")
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        root = content["rootModelIdentifier"]
        item = content["itemInfoEntries"][root]["path"]
        relative = PurePosixPath(item)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MalformedPackage(f"{manifest} does not name a model: {type(error).__name__} {error}") from error
    if relative.is_absolute() or ".." in relative.parts:
        raise MalformedPackage(f"{manifest} names the model '{item}', which is not inside of the package")
    model = path / "Data" / relative
    if not model.is_file():
        raise MalformedPackage(f"{manifest} names the model '{item}', which does not exist")
    return model
