"""Making the digests of an edited bundle anew, as somebody may who is not its author."""

from __future__ import annotations

from pathlib import Path


def seal(bundle: Path) -> None:
    raise NotImplementedError
