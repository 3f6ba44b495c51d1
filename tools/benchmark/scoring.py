"""How good an answer is: the same as the expected one, or what a function of the user's says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from edgekit.flashload.names import shown
from edgekit.runtime.sampling.errors import InvalidOption
from edgekit.runtime.search.named import function_in
from edgekit.runtime.search.verifier import VerifierFailed, checked
from edgekit.tools.benchmark.asked import MOST_SCORE
from edgekit.tools.benchmark.prompts_file import NoPrompts
from edgekit.tools.benchmark.question import Question


class Score(Protocol):
    """Scores answers; `name` is what reports call it."""

    name: str

    def wants(self, question: Question) -> bool:
        """Whether answers to it have a score."""

    def of(self, question: Question, text: str) -> float:
        """The score of an answer to one that it `wants`, 1 for one that is right. Raises VerifierFailed for a
        function that raises, or returns what is no score.
        """


class SameText:
    """1 for the expected answer, white space apart, else 0."""

    name = "answer"

    def __init__(self, questions: Sequence[Question]) -> None:
        """Raises NoPrompts for an expected answer that no text is equal to."""
        for each in questions:
            if isinstance(each.answer, bool) or not isinstance(each.answer, str | int | float | None):
                raise NoPrompts(
                    f"the answer in line {each.line} is {shown(each.answer)}; give text or a number, or "
                    "compare it by a function: --score FILE.py:NAME"
                )

    def wants(self, question: Question) -> bool:
        return question.answer is not None

    def of(self, question: Question, text: str) -> float:
        return float(text.split() == str(question.answer).split())


class Judged:
    """What a function of the prompt, the answer and what is expected (None: nothing) returns."""

    def __init__(self, function: Callable[[Any, str, Any], Any], name: str) -> None:
        self._function, self.name = function, name

    def wants(self, question: Question) -> bool:
        return True

    def of(self, question: Question, text: str) -> float:
        asked = question.prompt, text, question.answer
        with redirect_stdout(sys.stderr):  # stdout is the table's
            (score,) = checked(f"the score {self.name}", lambda: [self._function(*asked)])
        if abs(score) > MOST_SCORE:
            raise VerifierFailed(f"the score {self.name} returned {score:g}; use at most {MOST_SCORE:g}")
        return score


def score_of(given: str | None, questions: Sequence[Question]) -> Score:
    """What scores the answers: the function that FILE.py:NAME means, or the expected answers. Raises
    InvalidOption and NoPrompts.
    """
    return SameText(questions) if given is None else loaded(given)


def loaded(given: str) -> Judged:
    """The function that is meant by FILE.py:NAME. Raises InvalidOption."""
    file, _, name = given.rpartition(":")
    path, what = Path(file), f"the score {given}"
    if not file or not name or path.suffix != ".py":
        raise InvalidOption(f"the score is {shown(given)}; name a function of a file: FILE.py:NAME")
    if not path.is_file():
        raise InvalidOption(f"{what}: there is no file {path}")
    function = function_in(lambda: _executed(path), name, what, "(prompt, answer, expected)")
    return Judged(function, f"{path.name}:{name}")


def _executed(path: Path) -> ModuleType:
    # Under a name of its own: a file may be called as a module is that others import.
    spec = spec_from_file_location(f"edgekit_score_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    module = sys.modules[spec.name] = module_from_spec(spec)
    # As for a program: it may import what lies beside it, also when its function is called.
    sys.path.insert(0, str(path.resolve().parent))
    with redirect_stdout(sys.stderr):
        spec.loader.exec_module(module)
    return module
