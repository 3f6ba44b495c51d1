"""The core's block decoding beside the published procedures of LLaDA2.0, 2.1 and 2.2 in plain loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_denoiser import head
from support.llada2_decoding import Answer, Decoding, Forward, Unresolved, apply_edits, generate

from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Crop,
    Encode,
    Forget,
    Pass,
    SamplerModel,
    Tell,
)

VOCAB, MASK, EOS, DELETE, INSERT = 24, 20, 19, 21, 22
V20 = Decoding(MASK, (EOS,), 8, 8, 0.95)
V21 = replace(V20, threshold=0.7, editing=0.5)
V22 = replace(V20, threshold=0.5, editing=0.0, delete=DELETE, insert=INSERT)


def options(how: Decoding, new_tokens: int) -> dict[str, Any]:
    given = {
        "mask_token_id": how.mask, "eos_token_ids": list(how.eos), "block_length": how.block,
        "steps": how.steps, "threshold": how.threshold, "editing_threshold": how.editing,
        "max_post_steps": None if how.editing is None else how.max_post_steps,
        "delete_token_id": how.delete, "insert_token_id": how.insert, "max_new_tokens": new_tokens,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def core(forward: Forward, prompt: list[int], new_tokens: int, how: Decoding) -> Answer:
    """What the core's sampler answers. What it keeps is what it was given in the pass that kept it."""
    model = SamplerModel({"name": "block", "config": {}}, VOCAB, 4, prefix_block=how.block)
    sampler = CoreSampler(model, prompt, options=options(how, new_tokens))
    found, kept, text, answer = Answer([]), list[int](), list(prompt), None
    while True:
        ask, answer = sampler.next(answer), None
        if isinstance(ask, Forget):
            kept = []
        elif isinstance(ask, Crop):
            kept = kept[: ask.length]
        elif isinstance(ask, Encode):
            assert len(kept) % how.block == 0 and len(ask.ids) % how.block == 0
            kept += ask.ids.tolist()
        elif isinstance(ask, Pass):
            answer, rows = [], list[list[int]]()
            for segment in ask.segments:
                ids = segment.ids.tolist()
                before = kept[: segment.at]
                if segment.seen is not None:
                    before = [
                        token
                        for seen in segment.seen
                        for token in (kept if seen.segment is None else rows[seen.segment])[seen.first :][
                            : seen.count
                        ]
                    ]
                assert len(before) == segment.at and segment.block in (0, how.block)
                rows.append(ids)
                if segment.request is not None:
                    found.passes.append(ids)
                    answer.append(head(forward(before + ids), segment.request))
                if segment.keep:
                    kept = kept[: segment.at] + ids
        elif isinstance(ask, Tell):
            if isinstance(ask.event, Committed):
                found.tokens += ask.event.ids.tolist()
                text += ask.event.ids.tolist()
            if ask.kept is not None:
                assert (kept + ask.kept.tolist())[: len(text)] == text[: len(kept) + len(ask.kept)]
            if type(ask.event).__name__ == "Done":
                assert kept == text[: len(kept)], "what is kept is final text"
                return found
        else:
            raise AssertionError(ask)


def both(forward: Forward, prompt: list[int], new_tokens: int, how: Decoding) -> Answer:
    """The core's answer, which must be the reference's, from the same passes up to its last block."""
    expected = generate(forward, prompt, new_tokens, how)
    found = core(forward, prompt, new_tokens, how)
    assert found.tokens == expected.tokens
    assert len(found.passes) <= len(expected.passes)
    if how.editing is not None:  # 2.0's last block may end once its answer is settled
        assert found.passes == expected.passes[: len(found.passes)]
    return found


def tables(seed: int, sharpness: float, edits: float = 0.0) -> Forward:
    """Logits that a position likes, and noise of the block that it stands in."""

    def forward(ids: list[int]) -> np.ndarray:
        rows = []
        for i in range(8):
            likes = np.random.default_rng([seed, len(ids), i]).standard_normal(VOCAB)
            heard = np.random.default_rng([seed, i, *ids]).standard_normal(VOCAB)
            row = sharpness * likes + 0.8 * heard
            row[MASK] = -40
            row[[DELETE, INSERT]] += edits
            rows.append(row)
        return np.array(rows, np.float32)

    return forward


@pytest.mark.parametrize("how", [V20, V21, V22], ids=["2.0", "2.1", "2.2"])
def test_tokens_are_those_of_the_published_loop(how: Decoding) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.integers(0, 2**31), st.lists(st.integers(0, 15), max_size=20), st.integers(1, 20),
        st.sampled_from([1, 3, 8]), st.sampled_from([0, 1, 2, 16]), st.sampled_from([0.0, 0.3, 0.8]),
        st.sampled_from([0.3, 0.6, 0.95]), st.sampled_from([1.5, 3.0]), st.sampled_from([-40.0, 0.0, 1.0]),
    )  # fmt: skip
    def check(
        seed: int, prompt: list[int], new: int, steps: int, post: int, editing: float, threshold: float,
        sharpness: float, edits: float,
    ) -> None:  # fmt: skip
        own = replace(how, steps=steps, threshold=threshold, max_post_steps=post, max_steps=300)
        if how.editing is not None:
            own = replace(own, editing=editing)
        forward = tables(seed, sharpness, edits)
        try:
            both(forward, prompt, new, own)
        except Unresolved:  # the published loop gives up where the core's last pass settles the block
            assert len(core(forward, prompt, new, own).tokens) in range(1, new + 1)

    check()


# --- scripted -----------------------------------------------------------------------------------------------

Script = Callable[[list[int], int], list[tuple[int, float]]]


def scripted(script: Script) -> Forward:
    """A forward by what each position of a block says, token and probability, in pass number n."""
    passes: Iterator[int] = iter(range(10000))

    def forward(ids: list[int]) -> np.ndarray:
        said = script(ids[-8:], next(passes))
        logits = np.empty((8, VOCAB), np.float32)
        for row, (token, p) in zip(logits, said, strict=True):
            row[:] = np.log((1 - p) / (VOCAB - 1))
            row[token] = np.log(p)
        return logits

    return forward


TARGET = [3, 4, 5, 6, 7, 8, 9, 10]


def run(make: Callable[[], Script], how: Decoding, prompt: list[int] | None = None, new: int = 8) -> Answer:
    expected = generate(scripted(make()), prompt or [], new, how)
    found = core(scripted(make()), prompt or [], new, how)
    assert found.tokens == expected.tokens and found.passes == expected.passes
    return found


def fill(block: list[int], p: float = 0.9) -> list[tuple[int, float]]:
    return [(TARGET[i] if token == MASK else token, p) for i, token in enumerate(block)]


def test_the_schedule_of_2_0_is_of_the_whole_block() -> None:
    """Also of one that begins with the end of a prompt: 8 tokens in 3 steps are 3, 3, 2."""
    how = replace(V20, steps=3)
    found = run(lambda: lambda block, n: fill(block, 0.3), how, [1, 2, 3], 5)
    assert [block.count(MASK) for block in found.passes] == [5, 2]
    found = run(lambda: lambda block, n: fill(block, 0.3), replace(how, editing=0.9), [1, 2, 3], 5)
    assert [block.count(MASK) for block in found.passes] == [5, 4, 3, 2, 1, 0], "2.1 has no schedule"
    indel = replace(V22, steps=3, threshold=0.9)
    found = run(lambda: lambda block, n: fill(block, 0.3), indel, [1, 2, 3], 5)
    assert [block.count(MASK) for block in found.passes] == [5, 3, 1, 0], "2.2's is of the masks at its start"


def test_probabilities_have_to_pass_their_thresholds() -> None:
    how = replace(V21, threshold=0.5, editing=0.5)
    logits = np.zeros((8, VOCAB), np.float32)

    def at_half(ids: list[int]) -> np.ndarray:
        out = logits - 200
        for i, token in enumerate(ids[-8:]):
            out[i, [TARGET[i] if token == MASK else token, 1]] = 0  # both have exactly one half
        return out

    found, expected = core(at_half, [], 8, how), generate(at_half, [], 8, how)
    assert found.tokens == expected.tokens and found.passes == expected.passes
    assert [block.count(MASK) for block in found.passes][:3] == [8, 7, 6], "one at a time: none passed"


def test_edits_come_before_the_last_mask_is_filled() -> None:
    def make() -> Script:
        def script(block: list[int], n: int) -> list[tuple[int, float]]:
            said = fill(block, 0.3)
            if n == 2 and block[0] != MASK:
                said[0] = (11, 0.9)
            return said

        return script

    found = run(make, replace(V21, max_post_steps=16))
    assert found.passes[3][0] == 11 and MASK in found.passes[3] and found.tokens[0] == 11


def test_what_never_settles_ends_after_the_post_steps() -> None:
    def make() -> Script:
        def script(block: list[int], n: int) -> list[tuple[int, float]]:
            said = fill(block)
            if MASK not in block:
                said[0] = (11 + n % 5, 0.9)
            return said

        return script

    for post in (0, 1, 3):
        assert len(run(make, replace(V21, max_post_steps=post)).passes) == 1 + post
        assert len(run(make, replace(V22, max_post_steps=post)).passes) == 1 + post


def test_a_position_is_deleted_and_one_is_inserted() -> None:
    def make(token: int, at: int) -> Callable[[], Script]:
        def made() -> Script:
            def script(block: list[int], n: int) -> list[tuple[int, float]]:
                said = [(t if t != MASK else 11, 0.9) for t in block] if n > 1 else fill(block)
                if n == 1:
                    said[at] = (token, 0.9)
                return said

            return script

        return made

    assert run(make(DELETE, 2), V22).tokens == [3, 4, 6, 7, 8, 9, 10, 11]
    assert run(make(INSERT, 2), V22).tokens == [3, 4, 11, 5, 6, 7, 8, 9], "the last token is cut off"
    assert run(make(INSERT, 2), replace(V22, delete=INSERT, insert=DELETE)).tokens == [
        3,
        4,
        6,
        7,
        8,
        9,
        10,
        11,
    ]


def test_the_last_round_neither_deletes_nor_inserts() -> None:
    def script(block: list[int], n: int) -> list[tuple[int, float]]:
        return [
            (DELETE if i == 3 and MASK not in block else token, p) for i, (token, p) in enumerate(fill(block))
        ]

    found = run(lambda: script, replace(V22, max_post_steps=2))
    assert len(found.tokens) == 8 and not {MASK, DELETE, INSERT} & set(found.tokens)


def test_masks_that_edits_make_do_not_bring_the_post_steps_back() -> None:
    """Only masks that the block began with do."""

    def make() -> Script:
        def script(block: list[int], n: int) -> list[tuple[int, float]]:
            said = [(t if t != MASK else 11 + n % 7, 0.9) for t in block] if n else fill(block)
            if n % 2:
                said[5] = (DELETE, 0.9)
            return said

        return script

    assert len(run(make, replace(V22, max_post_steps=6)).passes) == 7


def test_a_prompt_in_the_block_is_never_written_over() -> None:
    def make() -> Script:
        return lambda block, n: [(DELETE if i == 0 else 12, 0.9) for i in range(8)]

    for how in (V21, V22):
        assert run(make, how, [1, 2, 3], 5).tokens == [12] * 5


def test_an_end_that_is_edited_away_does_not_end_the_text() -> None:
    def make() -> Script:
        def script(block: list[int], n: int) -> list[tuple[int, float]]:
            said = fill(block)
            if n == 0:
                said[1] = (EOS, 0.9)
            if n == 1:
                said[1] = (12, 0.9)
            return said

        return script

    for how in (V21, V22):
        assert EOS not in run(make, how, new=8).tokens


def test_edits_are_applied_as_published() -> None:
    for block, original, expected in (
        ([1, DELETE, 3, 4], [False, False, True, False], ([1, 3, 4, MASK], [False, True, False, False])),
        ([1, INSERT, 3, 4], [False, True, False, False], ([1, MASK, 2, 3], [False, False, True, False])),
        ([DELETE, 2, INSERT, 4], [False] * 4, ([2, MASK, 3, 4], [False] * 4)),
    ):
        assert apply_edits(block, [1, 2, 3, 4], original, V22) == expected
