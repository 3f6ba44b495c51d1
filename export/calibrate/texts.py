"""Texts of a user's own for a model to run on, as token ids by its own tokenizer and chat template."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from edgekit.export.calibrate.canvases import Plan
from edgekit.export.errors import ExportError
from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgekit.runtime.api import Prompt

#: Pieces of texts that a model runs on at most: what they take of time grows with them.
MOST_PIECES = 64
#: Characters of a text that are tokenized, for each token that is still wanted: tokens are shorter.
_MOST_LETTERS = 64


@dataclass(frozen=True)
class Text:
    """Text or messages, which go through the chat template where there is one, and what is answered to them.
    With `raw` text is taken as it is.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    answer: str = ""
    raw: bool = False


@dataclass(frozen=True)
class Texts:
    """Texts that are called `name`; equal digests are of equal ones."""

    name: str
    each: Sequence[Text]
    digest: str

    @classmethod
    def of(cls, name: str, prompts: Iterable[str | Sequence[Mapping[str, Any]]]) -> Texts:
        """Texts, or the messages of chats."""
        each = [Text(prompt) for prompt in prompts]
        whole = json.dumps([text.prompt for text in each], sort_keys=True)
        return cls(name, each, hashlib.sha256(whole.encode()).hexdigest())


@dataclass(frozen=True)
class Samples:
    """Pieces [prompt + canvas] of texts, and what manifests say of them."""

    pieces: Sequence[Tensor]
    facts: Mapping[str, Any]

    @property
    def plan(self) -> Plan:
        """Canvases of all pieces, some several times where there are few."""
        return dataclasses.replace(Plan(), count=max(Plan().count, len(self.pieces)))

    @property
    def note(self) -> str:
        """Where ranges came from, as a sentence."""
        texts, tokens = self.facts["texts"], self.facts["tokens"]
        several = f"{texts} texts" if texts > 1 else "a text"
        return f"ranges of activations came from {tokens} tokens of {several} of {self.facts['file']}"


def samples(texts: Texts, tokenizer: Tokenizer, vocab_size: int) -> Samples:
    """The first tokens of texts, one behind the other, in at most `MOST_PIECES` pieces. These are shuffled:
    neighbours in the file would be noised alike.

    Raises:
        ExportError: the tokenizer or its chat template refuses a text, or there are too few tokens.
    """
    plan = Plan()
    width = plan.prompt + plan.canvas
    ids, used = list[int](), 0
    for own in _encoded(texts, tokenizer, MOST_PIECES * width):
        ids, used = ids + own, used + bool(own)
        if len(ids) >= MOST_PIECES * width:
            break
    count = min(len(ids) // width, MOST_PIECES)
    if not count:
        raise ExportError(
            f"{texts.name}: has {len(ids)} tokens, and ranges of activations take at least {width}; give "
            "--calibrate more text"
        )
    if max(ids) >= vocab_size:
        raise ExportError(
            f"{texts.name}: token {max(ids)} of the tokenizer is none of the model's {vocab_size}; the files "
            "of the checkpoint do not belong together"
        )
    pieces = torch.tensor(ids[: count * width]).view(count, width)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(plan.seed))
    facts = {"file": texts.name, "sha256": texts.digest, "texts": used, "tokens": count * width}
    return Samples(list(pieces[order]), facts)


def _encoded(texts: Texts, tokenizer: Tokenizer, most: int) -> Iterator[list[int]]:
    """The ids of each text. Raises ExportError."""
    for number, text in enumerate(texts.each, 1):
        try:
            yield _ids(text, tokenizer, most)
        except EdgekitError as error:
            raise ExportError(f"{texts.name}: text {number}: {error}") from error


def _ids(text: Text, tokenizer: Tokenizer, most: int) -> list[int]:
    from edgekit.runtime.api.prompt import encode, held, messages_of

    prompt: Prompt = text.prompt
    if isinstance(prompt, str):
        prompt = prompt[: most * _MOST_LETTERS]
    answer = text.answer[: most * _MOST_LETTERS]
    if text.raw or not answer:
        return encode(tokenizer, prompt, None, text.raw, None)
    if isinstance(prompt, str) and not tokenizer.chat_templates:
        return encode(tokenizer, prompt + answer, None, False, None)
    said = [*(messages_of(held(prompt)) or ()), {"role": "assistant", "content": answer}]
    return encode(tokenizer, said, None, False, {"add_generation_prompt": False})
