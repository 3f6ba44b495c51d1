"""JSON as the file formats use it: no duplicate keys, no NaN, errors that name the file."""

from __future__ import annotations

import json
from typing import Any

from edgekit.flashload.errors import MalformedFile


def loads_strict(raw: bytes, where: str) -> Any:
    """Parse UTF-8 JSON. `where` names the file and the part in messages.

    Raises MalformedFile for bad UTF-8, bad JSON, duplicate keys, NaN or Infinity, numbers too long to
    convert and nesting too deep to parse.
    """

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise MalformedFile(f"{where}: the name {key!r} appears twice; export the file again")
                seen.add(key)
        return table

    def no_constant(text: str) -> Any:
        raise MalformedFile(f"{where}: {text} is not a JSON number; export the file again")

    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except RecursionError as error:
        raise MalformedFile(f"{where}: nested too deeply to be one of our files") from error
    except ValueError as error:
        # json.JSONDecodeError, UnicodeDecodeError and Python's limit on integer digits are all ValueErrors.
        raise MalformedFile(
            f"{where}: not valid JSON ({error}); export or download the file again"
        ) from error
