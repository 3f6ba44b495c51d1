"""Bundles on disk: opening one, choosing one of a set, and the sections of the manifest."""

from edgekit.runtime.bundle.bundle import Bundle, Layer, Model, Table

__all__ = ["Bundle", "Layer", "Model", "Table"]
