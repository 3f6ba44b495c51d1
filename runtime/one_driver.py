"""Objects that one driver at a time may use."""

from __future__ import annotations

import weakref


class OneDriver:
    """Knows who drives it, as long as that lives: nobody else may."""

    _driver: weakref.ref[object] | None = None

    @property
    def driver(self) -> object | None:
        """None: nobody does."""
        return None if self._driver is None else self._driver()

    @driver.setter
    def driver(self, driver: object | None) -> None:
        self._driver = None if driver is None else weakref.ref(driver)
