"""An answer as verifiers see it, finished or on its way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from edgekit.runtime.sampling import Committed, Draft, Event

#: Text of token ids.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Attempt:
    """The answer of a branch, up to its first end token.

    `text` is the answer, with holes such as `[[3]]` for three open tokens, as `infill` takes them; `ids` are
    its tokens, the model's mask token where it is open. `final`: it is finished; otherwise it is the state
    after `step` denoising steps, of which nothing is certain.
    """

    text: str
    ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    final: bool
    branch: int
    step: int
    mask_id: int | None = None

    @property
    def open(self) -> int:
        """How many of its tokens are open."""
        return self.ids.count(self.mask_id) if self.mask_id is not None else 0


def tokens_so_far(told: Iterable[Event]) -> list[int]:
    """The tokens of an answer as its latest event leaves them."""
    committed: list[int] = []
    draft: Draft | None = None
    text: list[int] = []
    for event in told:
        if isinstance(event, Committed):
            text = committed + (event.ids if event.text is None else event.text).tolist()
            committed += event.ids.tolist()
            draft = None
        elif isinstance(event, Draft):
            draft = event
    if draft is None:
        return text
    return committed[: max(0, draft.start)] + draft.ids.tolist()[max(0, -draft.start) :]


def before_end(ids: Sequence[int], ends: Collection[int]) -> list[int]:
    """What stands before the first end token."""
    return list(ids[: next((i for i, token in enumerate(ids) if token in ends), len(ids))])


def text_with_holes(ids: Sequence[int], mask_id: int | None, decode: Decode) -> str:
    """Text of tokens, `[[n]]` for n open ones."""
    pieces = [(is_open, list(run)) for is_open, run in groupby(ids, lambda token: token == mask_id)]
    return "".join(f"[[{len(run)}]]" if is_open else decode(run) for is_open, run in pieces)
