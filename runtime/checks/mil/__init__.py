"""Evaluates Core ML programs (ML Programs in saved `.mlpackage` folders) with numpy, on any system.

    from edgekit.runtime.checks.mil import Evaluator

    evaluator = Evaluator("layer.mlpackage")
    outputs = evaluator.run({"x": x})

See README.md in this folder for what is covered and what the numbers mean.
"""

from __future__ import annotations

from edgekit.runtime.checks.mil.errors import (
    CoremltoolsMissing,
    EvaluationFailed,
    InvalidInput,
    MalformedBlob,
    MalformedPackage,
    MilError,
    NotAPackage,
    TruncatedBlob,
    UnknownFunction,
    UnsupportedOps,
    UnsupportedPackage,
)
from edgekit.runtime.checks.mil.evaluate import Evaluator
from edgekit.runtime.checks.mil.features import Feature
from edgekit.runtime.checks.mil.package import Package, Signature
from edgekit.runtime.checks.mil.program import Function, Operation, Reference, Value
from edgekit.runtime.checks.mil.table import covered_ops, table
from edgekit.runtime.checks.mil.values import Constant

__all__ = [
    "Constant", "CoremltoolsMissing", "EvaluationFailed", "Evaluator", "Feature", "Function", "InvalidInput",
    "MalformedBlob", "MalformedPackage", "MilError", "NotAPackage", "Operation", "Package", "Reference",
    "Signature", "TruncatedBlob", "UnknownFunction", "UnsupportedOps", "UnsupportedPackage", "Value",
    "covered_ops", "table",
]  # fmt: skip
