"""Provenance of a checkpoint: origin, licence, and the texts that have to travel with its weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import CheckpointError
from edgekit.export.checkpoint.text_files import read_file, stays_inside
from edgekit.flashload.files import write_atomic
from edgekit.flashload.portable_names import clashing, portable_fault
from edgekit.runtime.bundle.model_card import CARD, SOURCE_CARD, is_legal
from edgekit.runtime.hub.repository import origin

#: Larger files are no texts of this kind.
_MOST_BYTES = 8 << 20

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_LICENCE = re.compile(
    r"""^license:[ \t]*(?:\r?\n[ \t]*-[ \t]*)?["']?([A-Za-z0-9][\w.+-]{0,60})""", re.MULTILINE
)
_NAMED = re.compile(r"""^(license_name|license_link):[ \t]*["']?([^\s"'][^\r\n"']{0,199})""", re.MULTILINE)


def legal_files(source: Path) -> dict[str, Path]:
    """Licence, notices and model card of the checkpoint in folder `source`: name in the bundle -> path.

    Links that leave the folder are left out, see `stays_inside`, and names that not every system takes, see
    `portable_fault`; of names that differ in capital letters alone there is the first.
    """
    found: dict[str, Path] = {}
    for path in sorted(source.iterdir()):
        if is_legal(path.name) and not portable_fault(path.name) and clashing([*found, path.name]) is None:
            found[path.name] = path
    found[SOURCE_CARD] = source / CARD
    return {
        name: path
        for name, path in found.items()
        if path.is_file() and 0 < path.stat().st_size <= _MOST_BYTES and stays_inside(path, source)
    }


def copy_legal_files(source: Path, target: Path) -> list[str]:
    """Put them into folder `target`; returns the names written. Raises CheckpointError or WriteFailed."""
    files = legal_files(source)
    for name, path in files.items():
        write_atomic(target / name, read_file(path, _MOST_BYTES, CheckpointError))
    return list(files)


def provenance(source: Path) -> dict[str, Any]:
    """The provenance of the checkpoint in folder `source`: `repository` (owner/name) and `revision` (commit)
    where it came from the hub, `license` (an identifier), `license_name` and `license_link` where its model
    card says so.
    """
    known: dict[str, Any] = {}
    if (came := origin(source)) is not None:
        known |= {"repository": came[0]} if came[0] else {}
        known["revision"] = came[1]
    card = legal_files(source).get(SOURCE_CARD)
    if card is None:
        return known
    front = _FRONT_MATTER.match(card.read_text(encoding="utf-8", errors="replace"))
    if front is not None:
        if licence := _LICENCE.search(front[1]):
            known["license"] = licence[1].lower()
        known |= {key: value.strip() for key, value in _NAMED.findall(front[1])}
    return known
