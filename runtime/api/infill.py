"""Answers that are partly given: text with holes, and the settings with which a sampler fills these."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from edgekit.flashload.names import shown
from edgekit.runtime.api.prompt import ids_of
from edgekit.runtime.prompt_text import check_spelled
from edgekit.runtime.sampling.errors import InvalidPrompt
from edgekit.runtime.tokenizer import Tokenizer
from edgekit.runtime.tokenizer.tokenizer import LINE_END

#: Text in which `[[12]]` is a hole of twelve tokens; or pieces one after the other: text, token ids, and
#: integers for holes.
Template: TypeAlias = str | Iterable[str | int | Iterable[int]]
_HOLE: Final = re.compile(r"\[\[([0-9]{1,7})\]\]")
_WANTED: Final = "text with holes such as [[12]], or a list of text, token ids and numbers of open tokens"


def places(template: Template, tokenizer: Tokenizer) -> list[int | None]:
    """The tokens of an answer, None where it is open. Pieces are encoded each by itself, as a line begins.

    Raises InvalidPrompt for what is no template, and one without a token.
    """
    found: list[int | None] = []
    for piece in _pieces(template):
        if isinstance(piece, int):
            found += [None] * piece
        else:
            found += tokenizer.encode_behind(piece, LINE_END) if isinstance(piece, str) else piece
    if not found:
        raise InvalidPrompt(f"the answer to fill in is empty; give {_WANTED}")
    return found


def _pieces(template: Template) -> list[str | int | list[int]]:
    if isinstance(template, str):
        check_spelled(template, "the answer to fill in")
        parts = _HOLE.split(template)  # text and numbers of tokens in turns
        pieces: list[Any] = [int(part) if number % 2 else part for number, part in enumerate(parts)]
        return [piece for piece in pieces if piece != ""]
    if isinstance(template, bytes | Mapping) or not isinstance(template, Iterable):
        raise InvalidPrompt(f"the answer to fill in is {shown(template)}; give {_WANTED}")
    return [_piece(piece, number) for number, piece in enumerate(template)]


def _piece(piece: Any, number: int) -> str | int | list[int]:
    where = f"piece {number} of the answer to fill in"
    if isinstance(piece, str):
        check_spelled(piece, where)
        return piece
    if hasattr(piece, "__index__") and not isinstance(piece, bool):
        count = int(piece)
        if not 0 <= count < 10**7:
            raise InvalidPrompt(f"{where} is {count}; a hole has 0 to 9999999 tokens")
        return count
    if isinstance(piece, bytes | Mapping) or not isinstance(piece, Iterable):
        raise InvalidPrompt(f"{where} is {shown(piece)}; give text, token ids or a number of open tokens")
    return ids_of(list(piece), where, "token ids")


def settings_for(given: list[int | None], declared: Mapping[str, Any], revise: bool) -> dict[str, Any]:
    """The settings with which a sampler fills in what is open, or with `revise` starts from what is given.
    `declared` are its settings by name.

    Raises InvalidPrompt where nothing is open, the answer is longer than a canvas, or the sampler revises or
    fills in nothing.
    """
    if "canvas" not in declared:
        raise InvalidPrompt("this model writes block after block: it fills no holes and revises no answer")
    if not revise and None not in given:
        raise InvalidPrompt(f"the answer to fill in has no hole; give {_WANTED}")
    mask = declared.get("mask_token_id")
    if mask is not None:
        if revise:
            raise InvalidPrompt(
                "this model fills open places and revises no other; leave holes where it may write"
            )
        # Before an end token, so that the model sees where the answer ends.
        ends = declared.get("eot_token_ids") or declared["eos_token_ids"]
        return {"canvas": [mask if token is None else token for token in given] + [*ends[:1]]}
    length = declared["canvas_length"]
    if len(given) > length:
        raise InvalidPrompt(
            f"the answer to fill in has {len(given)} tokens, a canvas of this model {length}; shorten it"
        )
    canvas = [-1 if token is None else token for token in given] + [-1] * (length - len(given))
    fixed = [] if revise else [place for place, token in enumerate(given) if token is not None]
    return {"canvas": canvas, "fixed": fixed}
