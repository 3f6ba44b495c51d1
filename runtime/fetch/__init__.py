"""Bundles from servers and folders into a folder: transports for `edgekit.flashload.fetch`, and threads that
use them.
"""

from __future__ import annotations

from edgekit.runtime.fetch.download import Arrived, discard, fetch

__all__ = ["Arrived", "discard", "fetch"]
