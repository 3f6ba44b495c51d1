"""Objects that hold a handle of the core."""

from __future__ import annotations

from typing import Any, NoReturn

from edgekit.flashload.errors import InvalidRequest


class OneOwner:
    """Refuses to be copied by `copy.copy` and to be pickled: two owners would close the same handle."""

    def __copy__(self) -> Any:
        self._refuse("copied")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse("pickled")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidRequest(f"a {type(self).__name__} cannot be {what}; open another one where it is needed")
