"""The file of `edgekit export --calibrate`: lines as `edgekit bench --prompts` takes them, or plain text."""

from __future__ import annotations

import codecs
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.files import read_table
from edgekit.tools.benchmark.prompts_file import MOST_QUESTIONS, read_questions
from edgekit.tools.prompts import MOST_PROMPT_BYTES, decoded

if TYPE_CHECKING:
    from edgekit.export.calibrate.texts import Texts


class NoTexts(EdgekitError):
    """A file has no text."""


def read_texts(path: Path) -> Texts:
    """The texts of a file: of every line where its first character begins a JSON object, else all of it as it
    is. Raises NoTexts, and as `read_questions` does.
    """
    from edgekit.export.calibrate.texts import Text, Texts

    data = read_table(path, MOST_PROMPT_BYTES, "file of texts that is looked at", "give a file of texts")
    text = decoded(data.removeprefix(codecs.BOM_UTF8), str(path))
    if not text.strip():
        raise NoTexts(f"{path}: has no text; give a file of texts like those that the model is for")
    each = [Text(text, raw=True)]
    if text.lstrip().startswith("{"):
        asked = read_questions(path, MOST_QUESTIONS)
        each = [Text(one.prompt, one.answer if isinstance(one.answer, str) else "") for one in asked]
    return Texts(path.name, each, hashlib.sha256(data).hexdigest())
