"""Reading fields of a config.json: a missing or unusable one is an error that names it, never a default
that hides it.
"""

from __future__ import annotations

from typing import Any

from edgekit.export.errors import UnsupportedModel


def require(config: dict[str, Any], name: str, where: str = "config.json") -> Any:
    """The value of a field that has no safe default."""
    if config.get(name) is None:
        raise UnsupportedModel(
            f"{where}: {name} is missing; a checkpoint's own value is needed, there is no safe default"
        )
    return config[name]


def positive(config: dict[str, Any], name: str, where: str = "config.json") -> int:
    """A positive integer field."""
    value = require(config, name, where)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UnsupportedModel(f"{where}: {name} is {value!r}; expected a positive integer")
    return value


def unsupported_unless(config: dict[str, Any], name: str, value: object, where: str = "config.json") -> None:
    """Refuse a setting that would change the model; an absent field or null means the usual value."""
    found = config.get(name)
    if found is not None and found != value:
        raise UnsupportedModel(f"{where}: {name} is {found!r}; only {value!r} is supported")


def rope_theta(config: dict[str, Any], where: str = "config.json") -> float:
    """`rope_theta`, at the top level or inside `rope_parameters` (transformers 5)."""
    parameters = config.get("rope_parameters") or {}
    if parameters.get("rope_type", "default") != "default":
        raise UnsupportedModel(
            f"{where}: rope_type is {parameters['rope_type']!r}; only 'default' is supported"
        )
    return float(parameters.get("rope_theta") or require(config, "rope_theta", where))
