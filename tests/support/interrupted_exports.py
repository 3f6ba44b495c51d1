"""Exports that are killed at a step, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for a signal: nothing may catch it."""


def record_steps(
    patch: pytest.MonkeyPatch, watched: Sequence[tuple[Any, str]], kill_at: int | None
) -> list[str]:
    """Record the calls of `watched`, functions by owner and name, in a list; killed before call `kill_at`."""
    seen: list[str] = []

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            if kill_at is not None and len(seen) >= kill_at:
                raise Killed
            seen.append(name)
            return real(*args, **kwargs)

        patch.setattr(owner, name, step)

    for owner, name in watched:
        watch(owner, name)
    return seen


def all_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by relative path."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
