"""What was found, in one line."""

from __future__ import annotations

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
        return {
            "about": self.about,
            "state": self.state,
            "says": self.says,
            "mend": self.mend,
            "facts": dict(self.facts),
        }
