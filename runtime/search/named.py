"""Verifiers by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from edgekit.flashload.names import shown
from edgekit.runtime.errors import one_line
from edgekit.runtime.sampling import InvalidOption
from edgekit.runtime.search.attempt import Attempt
from edgekit.runtime.search.judge import Judge
from edgekit.runtime.search.verifier import Function, Json, Matches, OwnModel, Verifier

KNOWN: Final = "json, regex:PATTERN, likelihood, confidence, python:MODULE.FUNCTION or bundle:FOLDER"


def verifier_of(given: Any) -> Verifier:
    """The verifier that is meant by one, by a function of an `Attempt`, or by text. Raises InvalidOption, and
    for a bundle what opening it raises.
    """
    if isinstance(given, Verifier):
        return given
    if isinstance(given, str):
        return _named(given)
    if callable(given) and not isinstance(given, type):
        return Function(given)
    raise InvalidOption(f"the verifier is {shown(given)}; use a function of an attempt, or {KNOWN}")


def _named(text: str) -> Verifier:
    kind, _, rest = text.partition(":")
    if text == "json":
        return Json()
    if text in ("likelihood", "confidence"):
        return OwnModel(text)
    if kind == "regex" and rest:
        return Matches(rest)
    if kind == "python" and rest:
        return Function(_imported(rest), text)
    if kind == "bundle" and rest:
        return Judge(rest)
    raise InvalidOption(f"the verifier is {shown(text)}; use {KNOWN}")


def _imported(path: str) -> Callable[[Attempt], float]:
    module, _, name = path.rpartition(".")
    if not module:
        raise InvalidOption(f"the verifier python:{path} names no module; use python:MODULE.FUNCTION")
    return function_in(lambda: import_module(module), name, f"the verifier python:{path}", "an attempt")


def function_in(bring: Callable[[], ModuleType], name: str, what: str, arguments: str) -> Callable[..., Any]:
    """A function by its name in a module that `bring` imports. Raises InvalidOption, which begins with
    `what`, for whatever its author's code raises, and for what is no function of `arguments`.
    """
    try:
        found = getattr(bring(), name)
    except (Exception, SystemExit) as error:
        raise InvalidOption(
            f"{what} cannot be imported: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not callable(found):
        raise InvalidOption(f"{what} is {shown(found)}; name a function of {arguments}")
    function: Callable[..., Any] = found
    return function
