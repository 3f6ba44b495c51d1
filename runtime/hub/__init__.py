"""Repositories on the Hugging Face hub: checkpoints and bundles out of them, bundles into them.

huggingface_hub (the extra `hub`) is imported when a repository is opened, not before, and nowhere else: what
it reports to its makers is switched off here.
"""

from __future__ import annotations

from typing import Protocol

from edgekit.runtime.telemetry import switch_off

switch_off()


class Stages(Protocol):
    """Told how far work is; `done` and `total` are bytes."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...


class Progress(Stages, Protocol):
    """Told what a download or upload is doing, too."""

    def note(self, line: str) -> None: ...


class Silent:
    """A `Progress` that says nothing."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self, done: int, what: str) -> None: ...
    def note(self, line: str) -> None: ...
