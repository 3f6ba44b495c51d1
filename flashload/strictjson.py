"""JSON as the file formats use it: no duplicate keys, no NaN, no number past a float, errors that name the
file.
"""

from __future__ import annotations

import json
import math
from typing import Any

from edgekit.flashload.errors import MalformedFile, cut, quoted

#: Commas, colons and opening brackets of a text: a few bytes of it can take a hundred of memory. The flash
#: file's header of a model with 3840 experts has 315,000. The core has the same limit.
MAX_MARKS = 1 << 20
#: An integer of as many characters is less than any that a float has no room for.
_SURE_CHARACTERS = 308


def marks(raw: bytes) -> int:
    """The most values that a text can have, told without parsing it."""
    return sum(map(raw.count, (b",", b":", b"[", b"{")))


def loads_strict(raw: bytes, where: str) -> Any:
    """Parse UTF-8 JSON. `where` names the file and the part in messages.

    Raises MalformedFile for bad UTF-8, bad JSON, duplicate keys, NaN or Infinity, numbers too large for a
    float or too long to convert, nesting too deep to parse and more than MAX_MARKS.
    """
    if marks(raw) > MAX_MARKS:
        raise MalformedFile(
            f"{where}: has more values than any of our files (over {MAX_MARKS} marks of JSON)"
        )

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise MalformedFile(
                        f"{where}: the name {quoted(key)} appears twice; export the file again"
                    )
                seen.add(key)
        return table

    def no_constant(text: str) -> Any:
        raise MalformedFile(f"{where}: {text} is not a JSON number; export the file again")

    def too_large(text: str) -> MalformedFile:
        return MalformedFile(f"{where}: the number {cut(text, 20)} is too large; export the file again")

    def finite(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            raise too_large(text)
        return value

    def whole(text: str) -> int:
        value = int(text)
        if len(text) > _SURE_CHARACTERS:
            try:
                float(value)
            except OverflowError as error:
                raise too_large(text) from error
        return value

    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=no_duplicates,
            parse_constant=no_constant,
            parse_float=finite,
            parse_int=whole,
        )
    except RecursionError as error:
        raise MalformedFile(f"{where}: nested too deeply to be one of our files") from error
    except ValueError as error:
        # json.JSONDecodeError, UnicodeDecodeError and Python's limit on integer digits are all ValueErrors.
        raise MalformedFile(
            f"{where}: not valid JSON ({error}); export or download the file again"
        ) from error


def record_of(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line of a journal; None for anything else, such as a line that was torn."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
