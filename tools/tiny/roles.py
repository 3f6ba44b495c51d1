"""Logical roles of the tokens of an answer, from what is known of the task that it answers (LogicDiff, arXiv
2603.26771, names the roles).

An answer is a list of items, in order, with connectives between them:

    chain     a = 2, b = 4, ..., k = 5     items: the digits; connectives: " = " and ", "; premises: the names
    sorting   Ben black ... snail          items: the words; nothing connects them

- premise: what the prompt says, whatever else the answer says: the names of a chain, and the first item. A
  chain gives its first digit in the prompt; a sorted list begins with a word that no other decides.
- connective: what stands between.
- derived: the items between the first and the last, which follow from those before them.
- conclusion: the last item, which follows from all.
- filler: the end of the turn and what fills the canvas behind it.

An answer of one item is its conclusion. A token has the role of the first of its characters that is no space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edgekit.runtime.sampling.types import ROLES
from edgekit.tools.tiny.tasks import Example

PREMISE, CONNECTIVE, DERIVED, CONCLUSION, FILLER = range(len(ROLES))
#: Tasks whose answers have roles, with the shares that training draws them by.
SHARES = {"chain": 0.35, "sorting": 0.35, "short-chain": 0.15, "short-sorting": 0.15}


def character_roles(example: Example) -> list[int]:
    """The role of each character of an example's answer; spaces between words are connectives. The task is
    one of `SHARES`.
    """
    roles = [CONNECTIVE] * len(example.answer)
    items = list(re.finditer(r"\d" if example.task.endswith("chain") else r"\S+", example.answer))
    for i, item in enumerate(items):
        role = CONCLUSION if i == len(items) - 1 else PREMISE if i == 0 else DERIVED
        roles[item.start() : item.end()] = [role] * len(item[0])
    if example.task.endswith("chain"):
        for name in re.finditer(r"[a-z]", example.answer):
            roles[name.start()] = PREMISE
    return roles


def token_roles(example: Example, spans: Sequence[tuple[int, int]], length: int) -> list[int]:
    """The roles of `length` positions that hold an answer whose tokens are the characters `spans` of it."""

    def each() -> Iterator[int]:
        by_character = character_roles(example)
        for start, stop in spans:
            text = example.answer[start:stop]
            first = start + len(text) - len(text.lstrip())
            yield by_character[first if first < stop else start]

    return [*each(), *[FILLER] * (length - len(spans))]
