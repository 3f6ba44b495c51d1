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

#: Text in which `[[12]]` is a hole of twelve tokens; or pieces one after the other: text, token ids, and
#: integers for holes.
Template: TypeAlias = str | Iterable[str | int | Iterable[int]]
_HOLE: Final = re.compile(r"\[\[([0-9]+)\]\]")
_WANTED: Final = "text with holes such as [[12]], or a list of text, token ids and numbers of open tokens"
#: Tokens of a template: half of what options may hold as a list.
MOST_TOKENS: Final = 1 << 19


def what(revise: bool) -> str:
    """The name of a template in messages."""
    return "the answer to start from" if revise else "the answer to fill in"


def places(template: Template, tokenizer: Tokenizer, revise: bool = False) -> list[int | None]:
    """The tokens of an answer, None where it is open. Pieces are encoded each by itself, as what goes on.

    Raises InvalidPrompt for what is no template, and one without a token or with too many.
    """
    found: list[int | None] = []
    for piece in _pieces(template, what(revise)):
        if isinstance(piece, int):
            found += [None] * piece
        else:
            found += tokenizer.encode_behind(piece) if isinstance(piece, str) else piece
        if len(found) > MOST_TOKENS:
            raise InvalidPrompt(
                f"{what(revise)} has {len(found)} tokens and more; {MOST_TOKENS} are the most, shorten it"
            )
    if not found:
        raise InvalidPrompt(f"{what(revise)} has no token; give {_WANTED}")
    return found


def _pieces(template: Template, name: str) -> list[str | int | list[int]]:
    if isinstance(template, str):
        check_spelled(template, name)
        parts = _HOLE.split(template)  # text and numbers of tokens in turns
        pieces: list[Any] = [_hole(part, name) if number % 2 else part for number, part in enumerate(parts)]
        return [piece for piece in pieces if piece != ""]
    if isinstance(template, bytes | Mapping) or not isinstance(template, Iterable):
        raise InvalidPrompt(f"{name} is {shown(template)}; give {_WANTED}")
    return [_piece(piece, f"piece {number} of {name}") for number, piece in enumerate(template)]


def _hole(digits: str, name: str) -> int:
    # Python refuses to make a number of thousands of digits.
    count = int(digits) if len(digits) < 20 else MOST_TOKENS + 1
    if count > MOST_TOKENS:
        raise InvalidPrompt(f"{name} has a hole of {shown(digits)} tokens; {MOST_TOKENS} are the most")
    return count


def _piece(piece: Any, where: str) -> str | int | list[int]:
    if isinstance(piece, str):
        check_spelled(piece, where)
        return piece
    if hasattr(piece, "__index__") and not isinstance(piece, bool):
        count = int(piece)
        if not 0 <= count <= MOST_TOKENS:
            raise InvalidPrompt(f"{where} is {shown(count)}; a hole has 0 to {MOST_TOKENS} tokens")
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
            f"{what(revise)} has {len(given)} tokens, a canvas of this model {length}; shorten it"
        )
    canvas = [-1 if token is None else token for token in given] + [-1] * (length - len(given))
    fixed = [] if revise else [place for place, token in enumerate(given) if token is not None]
    return {"canvas": canvas, "fixed": fixed}
