"""Reading the sections of a manifest: what is missing or of another type is told in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a number"}


class Wrong(Exception):
    """What is wrong with a section, for a reader that says in which file."""


def value(table: Any, key: str, kind: type, at: str = "programs") -> Any:
    """`table[key]`, which must be of a type that JSON has; `at` says where the table is.

    Raises Wrong.
    """
    found = table.get(key) if isinstance(table, Mapping) else None
    # bool is an int to Python, but no size.
    if not isinstance(found, kind) or isinstance(found, bool):
        what = "is missing" if found is None else f"is {str(found)[:40]!r}"
        raise Wrong(f"{at}: {key} {what}, expected {_NAMES[kind]}")
    return found
