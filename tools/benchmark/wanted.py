"""What is wanted of the process that measures a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgekit.tools.benchmark.cases import Case
from edgekit.tools.benchmark.question import Question


@dataclass(frozen=True)
class Wanted:
    """A case, measured `runs` times after `warmups` that do not count, with the first `spans` of each (None:
    enough for two denoising passes); or the `questions` of a user, each asked once; or one `start`, "cold" or
    "warm", to the first draft alone; or with `only_check` nothing but whether the questions can be asked.
    `limits`: what the machine can do at most, for the report.
    """

    case: Case
    runs: int
    warmups: int
    spans: int | None = 0
    limits: dict[str, Any] | None = None
    questions: Sequence[Question] = ()
    start: str = ""
    only_check: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Wanted:
        """What `as_dict` gave, also by way of JSON."""
        questions = [Question(**each) for each in given["questions"]]
        return cls(**{**given, "case": Case.of(given["case"]), "questions": questions})
