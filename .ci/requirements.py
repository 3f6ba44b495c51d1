"""Prints what edgekit with the given extras requires, one requirement a line, from pyproject.toml alone.

`pip install -e` would fetch these first and compile afterwards; the Makefile does both at once.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OWN = re.compile(r"edgekit\[([^]]*)\]")


def requirements(project: dict[str, Any], extras: list[str]) -> Iterator[str]:
    """The dependencies of the project, then those of every extra and of the extras that it names."""
    yield from project["dependencies"]
    wanted, seen = list(extras), set[str]()
    while wanted:
        extra = wanted.pop(0).strip()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            if own := OWN.fullmatch(requirement):
                wanted += own[1].split(",")
            else:
                yield requirement


if __name__ == "__main__":
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    print(*requirements(tomllib.loads(text)["project"], sys.argv[1:]), sep="\n")
