"""Errors of packages and of their use. Every message is one line."""

from __future__ import annotations

from edgekit.flashload.errors import EdgekitError


class MilError(EdgekitError):
    """Base of the errors of this package."""


class CoremltoolsMissing(MilError):
    """The protobuf definitions, which come with coremltools, are not installed or do not load."""


class NotAPackage(MilError):
    """The path is something else: a compiled model, a bare model file, a folder without manifest, nothing."""


class MalformedPackage(MilError):
    """The manifest, the model file or the program in it does not follow its format."""


class MalformedBlob(MalformedPackage):
    """A weight file or one of its records does not follow the format, or is not what the program declares."""


class TruncatedBlob(MalformedBlob):
    """A weight file ends before the bytes that a record or the program promises."""


class UnsupportedPackage(MilError):
    """The package is whole, but not an ML Program of a known version with arrays as inputs and outputs."""


class UnsupportedOps(MilError):
    """The program uses operations that are not covered."""


class UnknownFunction(MilError):
    """The package has no function of that name."""


class InvalidInput(MilError):
    """An input or a state is missing, surplus, or not of the declared type and shape."""


class EvaluationFailed(MilError):
    """An operation met values that it is not defined for, or gave another shape than the program declares."""
