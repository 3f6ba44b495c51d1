"""What functions that the core calls have raised: it cannot cross the core, so it is kept until whoever
made the call raises it again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from edgekit.runtime.errors import EngineFailed

T = TypeVar("T")
#: Generators are between an engine and those who hear of its exceptions; these would end them.
ENDS = StopIteration, GeneratorExit


def told(owner: object, function: str, error: BaseException, advice: str) -> BaseException:
    """What is said of an exception that a function of `owner` has raised."""
    if isinstance(error, ENDS):
        raised = f"{type(owner).__name__}.{function} raised {type(error).__name__}"
        return EngineFailed(f"{raised}, which ends loops; {advice}")
    return error


class KeptErrors:
    """The exceptions of one table of functions."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._later: BaseException | None = None
        self._signal: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """For the call under way. The first one is what went wrong; one that ends the program is more."""
        if self._error is None or not isinstance(error, Exception):
            self._error = error

    def keep_for_later(self, error: BaseException) -> None:
        """Where memory or a package was given back, which the core takes for done: for `raise_later`, or a
        call that fails before it.
        """
        self._later = self._later or error

    def raise_later(self) -> None:
        """Raise what was kept for later, once."""
        error, self._later = self._later, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame

    def within(self, call: Callable[[], T], otherwise: Callable[[Exception], BaseException | None]) -> T:
        """What a call into the core returns. Raises what was kept within it, else what `otherwise` makes of
        the core's own exception, else that. A signal is raised whatever the core says.
        """
        self._error = self._signal = None
        # A signal that arrives while the core computes is raised where Python goes on, which may be at the
        # entry of a function of the table, before anything there can catch it.
        before = sys.unraisablehook
        try:
            if threading.current_thread() is threading.main_thread():
                sys.unraisablehook = lambda told: self._hear(told) or before(told)
            made = call()
        except Exception as own:
            error = self._error or self._later or otherwise(own)
            self._error = self._later = None
            if error is not None:
                try:
                    raise error from None
                finally:
                    del error
            raise
        finally:
            sys.unraisablehook = before
        error, self._signal = self._signal, None
        if error is None and not isinstance(self._later, Exception):
            error, self._later = self._later, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return made

    def _hear(self, told: Any) -> bool:
        """Whether what Python cannot raise is a signal's, at the entry of a function of a table."""
        signal = threading.current_thread() is threading.main_thread() and told.exc_value is not None
        if not signal or "ctypes callback" not in (told.err_msg or ""):
            return False
        self._signal = told.exc_value
        self.keep(told.exc_value)
        return True
