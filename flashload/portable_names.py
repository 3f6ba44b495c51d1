"""Names of files that every system takes as they are, as `portable_names` of the core has the rule.

The core refuses other names when it reads a manifest; here what is written is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST_PART_LETTERS = 255
_MOST_PATH_LETTERS = 1024
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|clock\$|(com|lpt)[0-9]) *(\..*)?", re.IGNORECASE)
_OTHER_LETTERS = re.compile(r'[^ -~]|[<>:"\\|?*]')


def portable_fault(path: str) -> str:
    """What keeps a relative path with forward slashes from being such a name, for people; empty where nothing
    does.
    """
    if len(path) > _MOST_PATH_LETTERS:
        return "it has more than 1024 letters"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return "it has empty parts or dots between its slashes"
        if _OTHER_LETTERS.search(part):
            return r'it has other letters than those of ASCII, or one of <>:"\|?*'
        if part[-1] in ". ":
            return "a part of it ends with a dot or a blank"
        if len(part) > _MOST_PART_LETTERS:
            return "a part of it has more than 255 letters"
        if _DEVICE.fullmatch(part):
            return "Windows takes it for a device"
    return ""


def clashing(paths: Iterable[str]) -> tuple[str, str] | None:
    """The first path that cannot lie beside one before where capital letters do not count, and that one."""
    parts: dict[tuple[int, str], tuple[int, str, str, bool]] = {}  # number, name, the path that it came with
    for path in paths:
        folder, rest = 0, path
        while rest:
            part, slash, rest = rest.partition("/")
            key = folder, part.lower()
            if key not in parts:
                parts[key] = len(parts) + 1, part, path, not slash
                folder = len(parts)
                continue
            folder, name, first, is_file = parts[key]
            if is_file or not slash or name != part:
                return path, first
    return None
