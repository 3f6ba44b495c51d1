"""Golden results: what a bundle gives where it is right, to compare with elsewhere.

File golden.json of a bundle:

    {"version": 2, "by": {"engine": "native", ...},
     "passes": [{"prefix": [ids], "canvas": [ids], "soft": false, "argmax": [ids], "log_z": [...],
                 "entropy": [...]}],
     "generation": {"prompt": [ids], "tokens": [ids]}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from edgekit.flashload.errors import MalformedFile
from edgekit.flashload.names import shown

GOLDEN_FILE = "golden.json"
_VERSION = 2
_MOST = 1e9


@dataclass(frozen=True)
class Pass:
    """A canvas behind a prefix, and what the head says of every row: the most probable token, log-sum-exp of
    the scores, and entropy in nats. `soft`: it is given the soft embeddings of the pass before, which has the
    same prefix.
    """

    prefix: list[int]
    canvas: list[int]
    soft: bool = False
    argmax: list[int] = field(default_factory=list)
    log_z: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Golden:
    """Passes with their results, and the tokens of an answer. `by` says what gave them."""

    passes: list[Pass]
    prompt: list[int]
    tokens: list[int]
    by: dict[str, Any] = field(default_factory=dict)

    def dumps(self) -> bytes:
        """The content of golden.json."""
        table = {
            "version": _VERSION,
            "by": self.by,
            "passes": [vars(each) for each in self.passes],
            "generation": {"prompt": self.prompt, "tokens": self.tokens},
        }
        return (json.dumps(table) + "\n").encode()


def loads(data: bytes, where: str) -> Golden:
    """The golden results of a file; messages begin with `where`. Raises MalformedFile."""
    try:
        table = json.loads(data)
        if table["version"] != _VERSION:
            raise MalformedFile(
                f"{where}: version {shown(table['version'])}, known is {_VERSION}; record it again"
            )
        passes = [
            Pass(
                _whole(each["prefix"]),
                _whole(each["canvas"]),
                _truth(each["soft"]),
                _whole(each["argmax"]),
                _numbers(each["log_z"]),
                _numbers(each["entropy"]),
            )
            for each in table["passes"]
        ]
        prompt, tokens = (_whole(table["generation"][name]) for name in ("prompt", "tokens"))
        found = Golden(passes, prompt, tokens, dict(table["by"]))
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedFile(f"{where}: is no file of golden results ({type(error).__name__})") from None
    for each in passes:
        if not each.canvas or not len(each.canvas) == len(each.argmax) == len(each.log_z) == len(
            each.entropy
        ):
            raise MalformedFile(f"{where}: a pass has results of other lengths than its canvas")
    for before, each in zip([Pass([], []), *passes], passes, strict=False):
        fits = (before.prefix, len(before.canvas)) == (each.prefix, len(each.canvas))
        if each.soft and not fits:
            raise MalformedFile(f"{where}: a pass takes soft embeddings of a pass that does not fit")
    return found


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _numbers(values: Any) -> list[float]:
    """Raises ValueError for what nothing can be compared with: the scores of models are far smaller."""
    found = [float(x) for x in values]
    if not all(abs(x) < _MOST for x in found):
        raise ValueError
    return found


def _whole(values: Any) -> list[int]:
    if not all(type(value) is int for value in values):
        raise TypeError
    return list(values)
