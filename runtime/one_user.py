"""One thread at a time, and no waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class OneUser:
    """Lets one call at a time in. A lock that is tried may stay taken where a signal comes before its result
    is noted, and a `with` block of a generator where one comes before its end is: this one is free again
    wherever it comes.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._user: object | None = None

    def call(self, function: Callable[[], T], refusal: Callable[[], Exception]) -> T:
        """What `function` returns. Raises the `refusal` while another call is within, in this thread too."""
        token = object()
        try:
            with self._gate:
                if self._user is not None:
                    raise refusal()
                self._user = token
            return function()
        finally:
            if self._user is token:
                self._user = None
