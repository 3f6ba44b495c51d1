"""Edits that did harm, kept in a file: a line of JSON for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from edgekit.tools.campaign.edits import Edit
from edgekit.tools.campaign.judge import Fault


def keep(file: Path, written: str, edit: Edit, sealed: bool, fault: Fault) -> None:
    """Append what an edit of a bundle in format `written` did."""
    row = {"format": written, "sealed": sealed, "edit": edit.as_dict()}
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(row | {"what": fault.what, "shown": fault.shown}) + "\n")


def kept(file: Path, written: str) -> Iterator[tuple[Edit, bool]]:
    """The edits of such a file that are of a format, each once."""
    seen = set()
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["format"] != written:
            continue
        key = json.dumps([row["edit"], row["sealed"]])
        if key not in seen:
            seen.add(key)
            yield Edit.from_dict(row["edit"]), row["sealed"]
