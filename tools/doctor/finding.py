"""What was found, in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: It works; it works, but; it is not there, which is no fault of its own; it is there and broken.
State = Literal["works", "note", "lacks", "broken"]


@dataclass(frozen=True)
class Finding:
    """`about` a part of the machine or of edgekit; `mend` is the command or deed that mends it, if any.
    `facts` are for programs.
    """

    about: str
    state: State
    says: str
    mend: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For reports that people send: of paths the last part alone, since others may name a user."""
        return {
            "about": self.about,
            "state": self.state,
            "says": without_folders(self.says),
            "mend": without_folders(self.mend),
            "facts": dict(self.facts),
        }


#: Two parts at least: a single one is a unit, such as GB/s.
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][^\\/:\s'\",;()]+)+[\\/](?=[^\\/:\s'\",;()]+)")


def without_folders(text: str) -> str:
    """The text, with the folders of absolute paths left out."""
    return _FOLDERS.sub(".../", text)
