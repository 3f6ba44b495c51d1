"""Bundles from servers and folders into a folder: the transports for `edgekit.flashload.fetch`, and the threads
that use them.
"""

from __future__ import annotations

from edgekit.runtime.fetch.download import Arrived, fetch

__all__ = ["Arrived", "fetch"]
