"""The answers of `frontier`, and their file: a line each, continued after an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekit.flashload.errors import EdgekitError


@dataclass(frozen=True)
class Key:
    """What a line of the file answers: `options` are those of the procedure as JSON, `resident` are the bytes
    of weights that stayed in memory of one that ran alone.
    """

    options: str
    task: str
    index: int
    resident: int | None = None


@dataclass(frozen=True)
class Answer:
    """An answer and what it took. `tokens` are those that are no padding, `read` are bytes of one that ran
    alone.
    """

    right: bool
    text: str
    steps: int
    forwards: int
    rows: int
    head_rows: int
    tokens: int
    read: int = 0


class Answers:
    """The file of answers. Its first line says of what they are; answers of anything else are refused."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.found = path, dict[Key, Answer]()
        about = json.loads(json.dumps(about))
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            path.write_text(json.dumps(about) + "\n")
        elif (there := json.loads(lines[0])) != about:
            changed = [name for name in about if there.get(name) != about[name]]
            raise EdgekitError(
                f"{path}: has answers of another {', '.join(changed)}; name another file with --answers, "
                "or remove it"
            )
        for line in lines[1:]:
            try:
                read = json.loads(line)
            except ValueError:
                continue  # cut off by an interruption
            self.found[Key(**read["key"])] = Answer(**read["answer"])
        if lines and not path.read_text().endswith("\n"):
            self._write("\n")

    def add(self, key: Key, answer: Answer) -> None:
        self.found[key] = answer
        self._write(json.dumps({"key": vars(key), "answer": vars(answer)}) + "\n")

    def _write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)
