"""Errors of the export side; each is one line for the user."""

from __future__ import annotations

from edgekit.flashload.errors import EdgekitError


class UnsupportedModel(EdgekitError):
    """A model family, or a setting of a known family, that edgekit does not implement."""


class QuantizationError(EdgekitError):
    """A preset or override that does not exist, or cannot be applied to a tensor."""


class ExportError(EdgekitError):
    """An export that cannot start or go on: output folder in use, unknown format, settings changed on
    resume.
    """
