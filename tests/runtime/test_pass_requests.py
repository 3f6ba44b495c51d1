"""What segments of one sequence ask for in one pass, and what they may look at."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.native_bundles import native_bundle
from support.watched import run_watched

from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import BudgetExceeded, EdgekitError, InvalidRequest
from edgekit.runtime.generation import sampler_model
from edgekit.runtime.sampling import (
    CoreSampler,
    Denoise,
    Draft,
    Encode,
    HeadOutput,
    HeadRequest,
    Ids,
    Tell,
)
from edgekit.runtime.sampling.answers import FilledOutput
from edgekit.runtime.session import SeenRows, Segment, Sequence, Session, SessionOptions

ALL = HeadRequest(logits=True)
IDS = np.arange(3)


def logits(answer: HeadOutput | None) -> np.ndarray:
    assert answer is not None and answer.logits is not None
    return answer.logits


@pytest.mark.parametrize("lengths", [(3, 200), (200, 3), (5, 5)])
def test_the_last_of_two_requests_to_a_sequence_is_projected_again(
    session: Session, lengths: tuple[int, int]
) -> None:
    first, second = (Segment(session.sequence, np.arange(n) % 50, ALL) for n in lengths)
    answers = [logits(a) for a in session.run_pass([first, second])]
    np.testing.assert_array_equal(answers[0], logits(session.run_pass([first])[0]))
    np.testing.assert_array_equal(answers[1], logits(session.run_pass([second])[0]))
    session.run_pass([first, second])
    np.testing.assert_array_equal(logits(session.sequence.project(ALL)), answers[1])


def test_a_projection_beside_new_rows_asks_the_pass_before(session: Session) -> None:
    text = session.sequence
    before = text.denoise(np.arange(9), ALL)
    again, new = session.run_pass([Segment(text, None, ALL), Segment(text, np.arange(12) + 20, ALL)])
    np.testing.assert_array_equal(logits(again), logits(before))
    (behind,) = session.run_pass([Segment(text, np.arange(12) + 20, ALL)])
    np.testing.assert_array_equal(logits(behind), logits(new))
    text.denoise(np.arange(9), ALL)
    _, after = session.run_pass([Segment(text, np.arange(12) + 20, ALL), Segment(text, None, ALL)])
    np.testing.assert_array_equal(logits(after), logits(before))


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        (lambda t: [Segment(t, IDS, ALL, seen=[SeenRows(None, 0, 4)] * 2)],
         "segment 0 sees row 0 of what is kept twice"),
        (lambda t: [Segment(t, IDS, ALL, seen=[SeenRows(None, 3, 5), SeenRows(None, 0, 4)])],
         "segment 0 sees row 3 of what is kept twice"),
        (lambda t: [Segment(t, IDS), Segment(t, IDS, ALL, seen=[SeenRows(0, 0, 2), SeenRows(0, 1, 2)])],
         "segment 1 sees row 1 of an earlier segment twice"),
        (lambda t: [Segment(t, IDS, HeadRequest(temperature=1e-30))], "temperature 1e-30; it must be 1e-20"),
        (lambda t: [Segment(t, IDS, ALL, positions=IDS + 1022)], "position 1024 is beyond those .*, 0..1023"),
        (lambda t: [Segment(t, np.arange(1100) % 50, ALL)], "position 1024 is beyond"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    session: Session, segments: Callable[[Sequence], list[Segment]], words: str
) -> None:
    text = session.open_sequence()
    text.prefill(np.arange(8))
    with pytest.raises(InvalidRequest, match=words):
        session.run_pass(segments(text))
    halves = [SeenRows(None, 0, 4), SeenRows(None, 4, 4)]
    (found,) = session.run_pass([Segment(text, IDS, ALL, seen=halves)])
    np.testing.assert_array_equal(logits(found), logits(text.denoise(IDS, ALL)))


def test_no_text_is_encoded_beyond_the_positions_of_the_model(session: Session) -> None:
    session.prefill(np.arange(1000) % 50)
    with pytest.raises(InvalidRequest, match="position 1024 is beyond"):
        session.prefill(np.arange(25))
    session.prefill(np.arange(24))
    assert session.prefix_length == 1024


RUN = """
import json, sys
import numpy as np
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import SeenRows, Segment, Session, SessionOptions
bundle, memory = sys.argv[1], int(sys.argv[2]) or None
sums = []
with Session(bundle, SessionOptions(memory, positions=512, canvas=128, sequences=4)) as session:
    text, ids = session.sequence, np.arange(128) % 50
    text.prefill(np.arange(128) % 50)
    for _ in range(4):
        segments = []
        for i in range(4):
            seen = [SeenRows(None, 0, 128), *(SeenRows(k, 0, 128) for k in range(i))]
            places = 128 * (i + 1) + np.arange(128)
            request = HeadRequest(rows=np.array([0]))
            segments.append(Segment(text, ids, request, causal=True, positions=places, seen=seen))
        sums.append([float(a.log_z.sum()) for a in session.run_pass(segments)])
    print(json.dumps({"sums": sums, "engine": session.statistics()}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_budget_holds_for_rows_of_earlier_segments(tmp_path: Path) -> None:
    """Each segment looks at all before it, and nothing is kept: masks, keys and values are counted."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_global_key_value_heads": 8}
    bundle = native_bundle(
        tmp_path, "diffusion_gemma", Scheme("int8"), head_dim=64, global_head_dim=64, **heads
    )
    resident, _ = run_watched(RUN, bundle, 0)
    with Session(bundle, SessionOptions(positions=512, canvas=128, sequences=4)) as session:
        plan = session.plan
    budget = plan.least_memory_bytes - plan.process + resident["engine"]["process_bytes"] + (4 << 20)
    streamed, peak = run_watched(RUN, bundle, budget)
    assert streamed["sums"] == resident["sums"]
    assert peak <= budget, f"{peak / 1e6:.0f} MB used of {budget / 1e6:.0f} MB"
    with Session(
        bundle, SessionOptions(plan.least_memory_bytes + (16 << 20), positions=128, canvas=64, sequences=4)
    ) as small:
        ids = np.arange(64) % 50
        small.prefill(np.arange(100) % 50)
        segments = [Segment(small.sequence, ids, causal=True)]
        segments.append(Segment(small.sequence, ids, seen=[SeenRows(None, 0, 100), SeenRows(0, 0, 40)]))
        message = "not for 64 after 140; open the session with canvas = 64, positions = 140"
        with pytest.raises(BudgetExceeded, match=re.escape(message)):
            small.run_pass(segments)


def test_a_window_hides_old_rows_wherever_they_stand(bundle: Path) -> None:
    """Rows of an earlier segment whose positions descend: named at once, one by one, and in order."""
    with Session(bundle, SessionOptions(sequences=8)) as session:
        text, window = session.sequence, min(each.window or 1 << 20 for each in session.model.layers)
        last = 25 + window // 2
        places = np.arange(last, last - window, -1)
        ids = np.arange(window) % 50
        found = []
        for rows in ([SeenRows(0, 0, window)], [SeenRows(0, i, 1) for i in range(window)]):
            block = Segment(text, ids, positions=places, seen=[])
            draft = Segment(text, IDS, ALL, positions=last + 4 + IDS, seen=rows)
            found.append(logits(session.run_pass([block, draft])[1]))
        np.testing.assert_array_equal(*found)


def test_a_segment_that_sees_nothing_may_stand_anywhere(session: Session) -> None:
    session.prefill(np.arange(900) % 50)
    near, far = (
        session.run_pass([Segment(session.sequence, IDS, ALL, positions=place, seen=[])])[0]
        for place in (IDS, IDS + 300)
    )
    assert logits(near).shape == logits(far).shape


def test_segments_may_be_made_one_by_one(session: Session) -> None:
    """Of sequences that nobody else holds."""

    def made() -> Iterator[Segment]:
        for first in (1, 7):
            text = session.open_sequence()
            yield Segment(text, IDS + first, ALL, causal=True, keep_at=0)

    found = [logits(answer) for answer in session.run_pass(made())]
    kept = [session.open_sequence() for _ in range(3)]
    for first, expected in zip((1, 7), found, strict=True):
        with kept.pop() as text:
            (alone,) = session.run_pass([Segment(text, IDS + first, ALL, causal=True, keep_at=0)])
        np.testing.assert_array_equal(logits(alone), expected)
    assert [text.prefix_length for text in kept] == [0]


def test_an_answer_has_the_rows_of_the_pass_that_gives_it(session: Session) -> None:
    """Also where another pass comes between counting them and asking for them."""
    text = session.sequence
    text.denoise(np.arange(2), HeadRequest())

    class Late:
        """Rows that are made by another pass."""

        def __array__(self, *given: object, **more: object) -> np.ndarray:
            text.denoise(np.arange(200) % 50, HeadRequest())
            return np.arange(0, dtype=np.int64)

    with pytest.raises(InvalidRequest, match="a request for all 2 rows of a pass that has 200"):
        session.run_pass([Segment(text, None, ALL), Segment(text, IDS, HeadRequest(rows=Late()))])  # type: ignore[arg-type]
    fresh = session.open_sequence()
    with pytest.raises(InvalidRequest, match="project needs a denoise before it"):
        fresh.project(ALL)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.denoise(IDS, None), "the request is None; pass a HeadRequest"),
        (lambda s: s.project(None), "the request is None; pass a HeadRequest"),
        (lambda s: s.denoise(None, ALL), "no token ids are given; for more of the last pass call project"),
        (
            lambda s: s.run_pass([Segment(s.sequence, IDS, seen=5)]),
            "the rows that a segment sees are 5; pass a list of them",
        ),
    ],
)
def test_what_is_no_pass_is_told_so(session: Session, call: Callable[[Session], object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        call(session)


def test_an_answer_is_taken_as_it_was_filled_only_while_it_is_that(session: Session) -> None:
    """Its arrays may be replaced, and answers be copied, pickled and made anew."""
    model = sampler_model(session.bundle)
    asking = CoreSampler(model, [3, 4], max_new_tokens=8, steps=3)
    ask = asking.next()
    while not isinstance(ask, Denoise):
        if isinstance(ask, Encode):
            session.prefill(ask.ids)
        ask = asking.next()
    answer = session.denoise(ask.ids, ask.request)
    assert isinstance(answer, FilledOutput) and "struct" not in vars(answer)
    others = [
        copy.copy(answer), copy.deepcopy(answer), pickle.loads(pickle.dumps(answer)), replace(answer),
        replace(answer, argmax=answer.argmax.copy()), HeadOutput(**vars(answer)),
    ]  # fmt: skip

    def told(given: HeadOutput) -> Ids:
        sampler = asking.copy()
        sampler.next()  # a copy asks for the pass again
        tell = sampler.next(given)
        assert isinstance(tell, Tell) and isinstance(tell.event, Draft)
        return tell.event.ids

    for other in others:
        np.testing.assert_array_equal(told(other), told(answer))
    answer.others = np.full_like(answer.others, np.nan)
    with pytest.raises(EdgekitError, match="others holds NaN"):
        told(answer)
    answer.others = np.zeros(3, np.float32)
    with pytest.raises(InvalidRequest, match=r"HeadOutput.others is float32\[3\]"):
        told(answer)
