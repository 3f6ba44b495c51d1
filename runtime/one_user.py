"""One thread at a time, and no waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OneUser:
    """Lets one thread at a time into a block. A lock that is tried may stay taken where a signal comes before
    its result is noted; this one is free again wherever it comes.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._user: object | None = None

    @contextmanager
    def using(self, refusal: Callable[[], Exception]) -> Iterator[None]:
        """Raises the `refusal` while another block is entered, in this thread too."""
        token = object()
        try:
            with self._gate:
                if self._user is not None:
                    raise refusal()
                self._user = token
            yield
        finally:
            if self._user is token:
                self._user = None
