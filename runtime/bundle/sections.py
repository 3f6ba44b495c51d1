"""Reading the sections of a manifest: what is missing, of another type or out of range is told in a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from edgekit.flashload.errors import quoted

_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a number", bool: "true or false"}
#: No size that a model has is larger; products of sizes stay far from what Python and numpy cannot hold.
MOST = 1 << 30
#: Texts that are shown, and names, are not longer.
_MOST_LETTERS = 4096


class Wrong(Exception):
    """A fault in a section, for a reader that says in which file."""


def value(table: Any, key: str, kind: type, at: str = "programs") -> Any:
    """`table[key]`, which must be of a type that JSON has; `at` says where the table is.

    Raises Wrong.
    """
    found = table.get(key) if isinstance(table, Mapping) else None
    # bool is an int to Python, but no size.
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        what = "is missing" if found is None else f"is {quoted(found, 40)}"
        raise Wrong(f"{at}: {key} {what}, expected {_NAMES[kind]}")
    if isinstance(found, str) and len(found) > _MOST_LETTERS:
        raise Wrong(f"{at}: {key} is a text of {len(found)} letters")
    return found


def number(table: Any, key: str, at: str, least: int = 0, most: int = MOST) -> int:
    """`table[key]`, a whole number in a range. Raises Wrong."""
    found: int = value(table, key, int, at)
    if not least <= found <= most:
        raise Wrong(f"{at}: {key} is {quoted(found, 40)}, expected {least} to {most}")
    return found


def finite(table: Any, key: str, at: str) -> float:
    """`table[key]`, a number that is whole or not, and fits 32 bits as one that is not. Raises Wrong."""
    found: Any = table.get(key) if isinstance(table, Mapping) else None
    if not is_finite(found):
        what = "is missing" if found is None else f"is {quoted(found, 40)}"
        raise Wrong(f"{at}: {key} {what}, expected a finite number")
    return float(found)


def is_finite(found: Any) -> TypeGuard[float]:
    """Whether a value is a number that a float of 32 bits can hold."""
    whole = isinstance(found, int) and not isinstance(found, bool)
    return (whole or (isinstance(found, float) and math.isfinite(found))) and abs(found) < 3e38


def each(table: Any, key: str, kind: type, at: str) -> list[Any]:
    """`table[key]`, a list of values of one type. Raises Wrong."""
    found = value(table, key, list, at)
    for item in found:
        value({key: item}, key, kind, at)
    return list(found)


def absent(table: Mapping[str, Any], key: str) -> bool:
    """Whether an optional value is not there."""
    return table.get(key) is None
