"""Which process made an object whose work is done by threads."""

from __future__ import annotations

import os

from edgekit.flashload.errors import InvalidRequest


class OwnerProcess:
    """Remembers the process that made it.

    A child of fork has a copy of an object's memory and none of its threads, so that it would wait for them
    for ever. It can neither use the object nor end it.
    """

    def __init__(self) -> None:
        self._made_by = os.getpid()

    @property
    def here(self) -> bool:
        return os.getpid() == self._made_by

    def check(self, what: str) -> None:
        """Raises InvalidRequest in another process."""
        if not self.here:
            raise InvalidRequest(
                f"{what} was opened before fork(), and its threads stayed in the parent process; open one of "
                "its own in each process"
            )
