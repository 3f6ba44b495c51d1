"""Passes of all kinds, for engines that are to give equal answers."""

from __future__ import annotations

import numpy as np

from edgekit.runtime.sampling import HeadOutput, HeadRequest, PhiloxNoise
from edgekit.runtime.session import SeenRows, Segment, Session


def request(vocabulary: int, seed: int = 3, rows: int = 7) -> HeadRequest:
    noise = PhiloxNoise(seed).gumbel(rows, vocabulary)
    return HeadRequest(soft=True, top_k=5, logits=True, temperature=0.8, gumbel=noise)


def texts(session: Session, causal: bool) -> list[HeadOutput]:
    """Passes of all kinds: several sequences, kept and replaced rows, rows of other segments, copies, crops,
    the head once more, and soft embeddings as an earlier step gives them.
    """
    answers: list[HeadOutput | None] = []
    vocabulary, ids = session.vocab_size, np.arange(300) * 7 % session.vocab_size
    own = session.sequence

    soft = np.random.default_rng(5).standard_normal((9, session.hidden_size)).astype(np.float32)

    if not causal:
        for step in range(3):
            answers.append(session.denoise(ids[step : step + 12], request(vocabulary, step, 12)))
            answers.append(session.project(HeadRequest(rows=np.array([5, 1, 1]), logits=True)))
        return [each for each in answers if each is not None]

    session.prefill(ids[:41])
    answers.append(session.denoise(ids[50:57], request(vocabulary)))
    answers.append(session.denoise(ids[50:57], request(vocabulary, 4), soft[:7]))
    answers.append(session.project(HeadRequest(rows=np.array([6, 0, 0, 2]), logits=True, soft=True)))
    other = own.copy()
    answers.append(other.project(HeadRequest(logits=True)))
    for start in range(100, 150, 10):  # layers with a window move what they keep
        text, more = ids[start : start + 9], ids[start : start + 3]
        seen = [SeenRows(None, 0, other.prefix_length), SeenRows(0, 0, 9)]
        answers += session.run_pass(
            [
                Segment(own, text, HeadRequest(logits=True), causal=True, keep_at=own.prefix_length),
                Segment(other, ids[start + 5 : start + 12], request(vocabulary), seen=seen),
                Segment(other, more, causal=True, keep_at=other.prefix_length),
            ]
        )
    other.crop(45)
    # Rows that replace kept ones, of a sequence that nobody shares them with.
    answers += session.run_pass(
        [
            Segment(own, ids[200:205], causal=True, keep_at=own.prefix_length - 7),
            Segment(other, ids[210:213], HeadRequest(rows=np.array([2, 0])), seen=[SeenRows(0, 1, 3)]),
        ]
    )
    for first in (36, 37):  # the same positions, and masks of the same size
        seen, positions = [SeenRows(None, first, 8)], np.arange(42, 46)
        wanted = HeadRequest(logits=True)
        answers += session.run_pass(
            [Segment(other, ids[:4], wanted, causal=True, positions=positions, seen=seen)]
        )
    for sequence in (own, other):
        answers.append(sequence.denoise(ids[220:229], HeadRequest(logits=True)))
        answers.append(sequence.denoise(ids[220:229], HeadRequest(logits=True), soft))
    other.close()
    return [each for each in answers if each is not None]


def assert_equal(found: list[HeadOutput], expected: list[HeadOutput], only: tuple[str, ...] = ()) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        for name in only or vars(a):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
