"""Names that people type: what is said of one that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Characters of a wrong name that a message repeats.
_MOST_SHOWN = 60
#: Characters of it that are compared: the time grows with their square.
_MOST_COMPARED = 200
#: The least likeness of two names, 0..1 by difflib, that is worth a question.
_NEAR = 0.6


def nearest(given: object, known: Iterable[str], least: float = _NEAR) -> str:
    """The names that `near` finds, as messages say them: "int4 or int8"; empty if none is near."""
    return " or ".join(near(given, known, least))


def near(given: object, known: Iterable[str], least: float = _NEAR) -> list[str]:
    """The known name that `given` was probably meant to be, or two that are equally near, upper and lower
    case being alike: those that begin with it, else of a likeness of at least `least`, 0..1.
    """
    text, known = _compared(given) if isinstance(given, str) else "", list(known)
    begun = [name for name in known if _compared(name).startswith(text)] if len(text) > 2 else []
    if 0 < len(begun) <= 2:
        return begun
    ratios = {name: difflib.SequenceMatcher(None, text, _compared(name)).ratio() for name in known}
    best = max(ratios.values(), default=0.0)
    close = [name for name, ratio in ratios.items() if ratio == best >= least]
    return close if len(close) <= 2 else []


def either(names: Iterable[str]) -> str:
    """One or more names as alternatives: `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _compared(name: str) -> str:
    """What tells it from others: not the mark of options and commands, which all of them begin with."""
    return name.lower().lstrip("-/")[:_MOST_COMPARED]


def unknown(what: str, given: object, known: Iterable[str], of: str = "") -> str:
    """`unknown target 'isos'; did you mean ios? supported: host, mac, ios`; with `of` also what the names
    belong to.
    """
    owner = f" for {of}" if of else ""
    return f"unknown {what} {shown(given)}{owner}; {supported(given, known)}"


def supported(given: object, known: Iterable[str]) -> str:
    """`did you mean ios? supported: host, mac, ios`, without the question where nothing is near."""
    names = list(known)
    # macos and mac, ios17 and ios: too different in length to count as near.
    text = given.lower() if isinstance(given, str) else ""
    begun = [name for name in names if len(name) > 2 and text.startswith(name.lower())]
    close = nearest(given, names) or (begun[0] if len(begun) == 1 else "")
    return (f"did you mean {close}? " if close else "") + f"supported: {', '.join(names)}"


def shown(given: object) -> str:
    """A wrong name or value as messages repeat it: in one line, text in quotes, cut where it is too long to
    help.
    """
    try:
        text = repr(given)
    except Exception:  # an integer of very many digits, lists without end, objects with a fault of their own
        text = f"a value of type {type(given).__name__}"
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
