"""JSON of files that people name on the command line."""

from __future__ import annotations

from typing import Any

from edgekit.flashload.errors import MalformedFile
from edgekit.flashload.strictjson import loads_strict


def parsed(data: bytes, where: str) -> Any:
    """The value of UTF-8 text. Raises ValueError, which begins with `where` and gives no advice."""
    try:
        return loads_strict(data, where)
    except MalformedFile as error:
        # The reader's advice, behind the last semicolon, is about bundles.
        raise ValueError(str(error).rpartition(";")[0] or str(error)) from error
