"""The decoding of LLaDA2.0, 2.1 and 2.2 at temperature 0, as their own `generate` does it: without a cache,
and every rule in plain loops.

`Forward` takes all tokens up to the end of a block, and gives the logits [block, V] of that block, each row
of which sees its block and everything before it.

Two things the published code leaves open, and both are settled here as servers settle them. Of equally sure
positions the earlier one goes first. And where a block of 2.2 would be one that was there before, the changed
position of lowest confidence takes its next best token, not a random one (`escape`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Forward = Callable[[list[int]], np.ndarray]


@dataclass(frozen=True)
class Decoding:
    """The numbers of a procedure: `editing` None is 2.0, without `delete` and `insert` 2.1, with them 2.2."""

    mask: int
    eos: Sequence[int] = ()
    block: int = 32
    steps: int = 32
    threshold: float = 0.95
    editing: float | None = None
    max_post_steps: int = 16
    delete: int | None = None
    insert: int | None = None
    max_steps: int = 1000  # of a block of 2.2


@dataclass
class Answer:
    """New tokens up to the first that ends the text, and what each pass was given."""

    tokens: list[int]
    passes: list[list[int]] = field(default_factory=list)


class Unresolved(Exception):
    """A block of 2.2 that keeps changing for `max_steps` passes."""


def generate(forward: Forward, prompt: Sequence[int], new_tokens: int, how: Decoding) -> Answer:
    """The answer to a prompt: blocks are counted from the prompt's first token, the one that its end is in is
    the first that is decoded.
    """
    size, count = how.block, -(-(len(prompt) + new_tokens) // how.block)
    ids = [*prompt, *[how.mask] * (count * size - len(prompt))]
    answer = Answer([])
    decode = _edit if how.editing is not None and how.delete is None else _levenshtein
    decode = _fill if how.editing is None else decode
    end = len(prompt) + new_tokens
    for first in range(len(prompt) // size * size, count * size, size):
        before, own = ids[:first], ids[first : first + size]
        fixed = [first + i < len(prompt) for i in range(size)]

        def look(block: list[int], before: list[int] = before) -> np.ndarray:
            answer.passes.append(list(block))
            logits = forward(before + block)
            assert len(logits) == size
            return logits

        ids[first : first + size] = decode(look, own, fixed, how)
        written = ids[len(prompt) : first + size]
        if any(token in how.eos for token in written) and how.mask not in written:
            break
    answer.tokens = ids[len(prompt) : end]
    for i, token in enumerate(answer.tokens):
        if token in how.eos:
            answer.tokens = answer.tokens[: i + 1]
            break
    return answer


def schedule(count: int, steps: int, step: int) -> int:
    """How many of `count` positions are due in a step: as even as possible, the larger numbers first."""
    return count // steps + (step < count % steps)


Look = Callable[[list[int]], np.ndarray]


def _fill(look: Look, block: list[int], fixed: list[bool], how: Decoding) -> list[int]:
    """LLaDA2.0: what is written stays."""
    for step in range(how.steps):
        masked = [i for i, token in enumerate(block) if token == how.mask]
        if not masked:
            break
        best, sure = candidates(look(block))
        due = schedule(how.block, how.steps, step)
        block = list(block)
        for i in _chosen(masked, sure, how.threshold, due):
            block[i] = best[i]
    return block


def _edit(look: Look, block: list[int], fixed: list[bool], how: Decoding) -> list[int]:
    """LLaDA2.1: tokens are written over while there are masks, and for some passes after the last."""
    assert how.editing is not None
    post = 0
    while True:
        masked = [i for i, token in enumerate(block) if token == how.mask]
        if not masked:
            post += 1
        if post > how.max_post_steps:
            return block
        best, sure = candidates(look(block))
        filled = _chosen(masked, sure, how.threshold, 1)
        edited = [
            i
            for i, token in enumerate(block)
            if token != how.mask and not fixed[i] and sure[i] > how.editing and best[i] != token
        ]
        block = list(block)
        for i in [*filled, *edited]:
            block[i] = best[i]
        if not masked and not edited:
            return block


def _levenshtein(look: Look, block: list[int], fixed: list[bool], how: Decoding) -> list[int]:
    """LLaDA2.2: a token may also say that its position goes, or that one comes before it."""
    assert how.editing is not None
    original = [token == how.mask and not fixed[i] for i, token in enumerate(block)]
    initial = sum(original)
    if initial == 0:
        return block
    seen: set[tuple[int, ...]] = set()
    post = 0
    for step in range(how.max_steps):
        old = list(block)
        masked = [i for i, token in enumerate(old) if token == how.mask and not fixed[i]]
        open_ = [i for i in masked if original[i]]
        post = 0 if open_ else post + 1
        if not masked and post > how.max_post_steps:
            return block
        logits = look(old)
        best, sure = candidates(logits)
        filled = list(masked)
        if step < how.steps:
            due = schedule(initial, how.steps, step) + len(masked) - len(open_)
            filled = _chosen(masked, sure, how.threshold, due)
        edited = [
            i
            for i, token in enumerate(old)
            if token != how.mask and not fixed[i] and sure[i] > how.editing and best[i] != token
        ]
        last = post >= how.max_post_steps
        if how.max_post_steps == 0:
            last = bool(open_) and set(open_) <= set(filled)
        if last:
            filled = list(masked)
            for i in [*filled, *edited]:
                if best[i] in (how.delete, how.insert):
                    best[i] = _best_but(logits[i], how.delete, how.insert)
        block = list(old)
        for i in [*filled, *edited]:
            block[i] = best[i]
        if not last and (filled or edited):
            block = escape(block, old, logits, sure, seen)
        seen.add(tuple(block))
        block, original = apply_edits(block, old, original, how)
        if block == old and how.mask not in block:
            return block
    raise Unresolved(f"a block that changes for {how.max_steps} passes")


def escape(
    block: list[int], old: list[int], logits: np.ndarray, sure: np.ndarray, seen: set[tuple[int, ...]]
) -> list[int]:
    """A block that was there before, with another token at up to five of the positions that changed."""
    block = list(block)
    for _ in range(5):
        changed = [i for i, token in enumerate(block) if token != old[i]]
        if tuple(block) not in seen or not changed:
            break
        i = min(changed, key=lambda i: sure[i])
        block[i] = _best_but(logits[i], block[i])
    return block


def apply_edits(
    block: list[int], old: list[int], original: list[bool], how: Decoding
) -> tuple[list[int], list[bool]]:
    """The block without what deletes and inserts, and which of its positions were masks at its start. Where
    something is inserted stands a mask, and behind it what stood there before.
    """
    out: list[tuple[int, bool]] = []
    for token, before, first in zip(block, old, original, strict=True):
        if token == how.delete:
            continue
        if token == how.insert:
            out += [(how.mask, False), (before, first)]
        else:
            out.append((token, first))
    out += [(how.mask, False)] * (len(block) - len(out))
    tokens, tracked = zip(*out[: len(block)], strict=True)
    return list(tokens), list(tracked)


def candidates(logits: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The best token of each row, and its probability."""
    wide = logits.astype(np.float32)
    p = np.exp(wide - wide.max(1, keepdims=True))
    return wide.argmax(1).tolist(), (p.max(1) / p.sum(1)).astype(np.float32)


def _chosen(masked: list[int], sure: np.ndarray, threshold: float, due: int) -> list[int]:
    """Masked positions that are sure enough, or where those are fewer than are due, as many of the surest."""
    high = [i for i in masked if sure[i] > threshold]
    return high if len(high) >= due else sorted(masked, key=lambda i: -sure[i])[:due]


def _best_but(row: np.ndarray, *forbidden: int | None) -> int:
    row = row.astype(np.float32).copy()
    row[[token for token in forbidden if token is not None]] = -np.inf
    return int(row.argmax())
