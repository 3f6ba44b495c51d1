"""Bundles on disk: opening one, choosing one of a set, and the sections of the manifest."""

from edgekit.runtime.bundle.bundle import Bundle, Model, Table
from edgekit.runtime.bundle.layer import Layer

__all__ = ["Bundle", "Layer", "Model", "Table"]
