"""Passes of several segments: a sequence is the same alone and in company, copied, cropped and replaced."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.budgets import tight
from support.golden_tokens import family_bundle
from support.native_bundles import native_bundle
from support.watched import run_watched

from edgekit.export.checkpoint.hub import SHIPPED_MODELS
from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import BudgetExceeded, EdgekitError, InvalidRequest
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.generation import Generator, Settings, sampler_model
from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Done,
    Draft,
    HeadOutput,
    HeadRequest,
    InvalidOption,
    PhiloxNoise,
    drive,
)
from edgekit.runtime.session import (
    SeenRows,
    Segment,
    Sequence,
    Session,
    SessionOptions,
    Together,
    open_session,
)

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
ALL = HeadRequest(logits=True)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Causal prefix, sliding windows, experts and self-conditioning."""
    return family_bundle(tmp_path_factory.mktemp("gemma"), "diffusion_gemma")


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family_bundle(tmp_path_factory.mktemp("llada"), "llada")


@pytest.fixture
def session(gemma: Path) -> Iterator[Session]:
    with Session(gemma, SessionOptions(sequences=4)) as opened:
        yield opened


def same(a: HeadOutput | None, b: HeadOutput | None) -> None:
    assert a is not None and b is not None
    for name, found in vars(a).items():
        if found is not None:
            np.testing.assert_array_equal(found, getattr(b, name), name)


def logits(answer: HeadOutput | None) -> np.ndarray:
    assert answer is not None and answer.logits is not None
    return answer.logits


def alone(session: Session, pieces: list[np.ndarray], segment: Segment) -> HeadOutput:
    """What a session that holds nothing else says of a canvas behind these pieces."""
    session.reset()
    for ids in pieces:
        session.prefill(ids)
    assert segment.ids is not None and segment.request is not None
    return session.denoise(segment.ids, segment.request, segment.soft)


def request(draw: np.random.Generator, rows: int, vocab: int) -> HeadRequest:
    chosen = None if draw.random() < 0.5 else draw.integers(0, rows, draw.integers(0, rows + 1))
    count = rows if chosen is None else len(chosen)
    noise = PhiloxNoise(int(draw.integers(100))).gumbel(count, vocab) if draw.random() < 0.5 else None
    kinds: dict[str, Any] = {"soft": draw.random() < 0.5, "top_k": int(draw.integers(4))}
    return HeadRequest(chosen, float(draw.uniform(0.5, 2)), noise, logits=bool(draw.random() < 0.5), **kinds)


@pytest.mark.parametrize("resident", [None, 0])
@pytest.mark.parametrize("seed", range(4))
def test_sequences_are_the_same_in_company(gemma: Path, seed: int, resident: int | None) -> None:
    """Texts grow, branch, are cropped and ask in passes of up to four segments; every answer is that of a
    session with another number of threads that holds this text alone."""
    draw = np.random.default_rng(seed)
    options = SessionOptions(positions=400, canvas=40, sequences=4, resident_bytes=resident, threads=2)
    with Session(gemma, options) as session, Session(gemma, SessionOptions(threads=1)) as other:
        vocab, texts, asked = session.vocab_size, [session.sequence, session.open_sequence()], 0
        for _ in range(30):
            if len(texts) < 4 and draw.random() < 0.3:
                texts.append(texts[draw.integers(len(texts))].copy())
            elif len(texts) > 2 and draw.random() < 0.2:
                texts.pop(1 + draw.integers(len(texts) - 1)).close()
            segments = []
            for text in draw.permutation(np.array(texts, object))[: 1 + draw.integers(len(texts))]:
                ids = draw.integers(0, vocab, 1 + draw.integers(session.prefill_rows))
                if draw.random() < 0.5:
                    segments.append(Segment(text, ids, causal=True, keep_at=text.prefix_length))
                    continue
                soft = draw.normal(size=(len(ids), session.hidden_size)).astype(np.float32)
                asks = request(draw, len(ids), vocab)
                segments.append(Segment(text, ids, asks, soft if draw.random() < 0.5 else None))
            for segment, answer in zip(segments, session.run_pass(segments), strict=True):
                if not segment.causal:
                    same(answer, alone(other, segment.sequence.pieces, segment))
                    asked += 1
            if draw.random() < 0.2:
                text = texts[draw.integers(len(texts))]
                text.crop(max(0, text.prefix_length - int(draw.integers(4))))
    assert asked > 10


@pytest.mark.parametrize("seed", range(3))
def test_a_draft_sees_what_is_verified_beside_it(gemma: Path, seed: int) -> None:
    """A block that is encoded and a canvas behind a part of it, in one pass: layer by layer the canvas sees
    the rows of the block as if they were kept already."""
    draw = np.random.default_rng(seed)
    prefix, block, canvas = (draw.integers(0, 60, n) for n in (37, 9, 12))
    with Session(gemma, SessionOptions(sequences=3)) as session:
        text = session.open_sequence()
        text.prefill(prefix)
        for accepted in (0, 4, 9):
            length, request = text.prefix_length, HeadRequest(soft=True, logits=True)
            verify = Segment(text, block, ALL, causal=True, keep_at=length)
            draft = Segment(
                text, canvas, request, positions=length + accepted + np.arange(12),
                seen=[SeenRows(None, 0, length), SeenRows(0, 0, accepted)],
            )  # fmt: skip
            _, drafted = session.run_pass([verify, draft])
            text.crop(length + accepted)
            same(drafted, alone(session, [prefix, block[:accepted]], draft))
            same(text.denoise(canvas, request), drafted)
            text.crop(length)


def test_causal_scores_do_not_see_what_follows(session: Session) -> None:
    ids = np.arange(20) % 13
    (whole,) = session.run_pass([Segment(session.sequence, ids, ALL, causal=True)])
    (start,) = session.run_pass([Segment(session.sequence, ids[:7], ALL, causal=True)])
    assert whole is not None and start is not None and whole.logits is not None and start.logits is not None
    np.testing.assert_array_equal(whole.logits[:7], start.logits)
    canvas = session.denoise(ids, ALL)
    assert canvas.logits is not None and not np.array_equal(canvas.logits[:7], start.logits)
    assert session.prefix_length == 0


def test_kept_rows_are_replaced(session: Session) -> None:
    """By the same ids nothing changes; by others it does, for this sequence and not for its copy."""
    text, ids, canvas = session.open_sequence(), np.arange(11) % 7, np.arange(8)
    text.prefill(ids)
    copy, before = text.copy(), text.denoise(canvas, ALL)
    for replaced, equal in ((ids[8:11], True), (ids[7:10] + 9, False), (ids[7:10], True)):
        at = 8 if len(replaced) and replaced[0] == ids[8] else 7
        session.run_pass([Segment(text, replaced, causal=True, keep_at=at)])
        after = text.denoise(canvas, ALL)
        assert text.prefix_length == 11
        assert after.logits is not None and before.logits is not None
        assert np.array_equal(after.logits, before.logits) == equal
        same(copy.denoise(canvas, ALL), before)
    session.run_pass([Segment(text, ids[:6], causal=True, keep_at=9)])
    assert text.prefix_length == 15


def test_project_asks_the_last_pass_of_its_sequence(session: Session) -> None:
    first, second = session.open_sequence(), session.open_sequence()
    a = first.denoise(np.arange(9), HeadRequest())
    second.denoise(np.arange(5), HeadRequest())
    copy = first.copy()
    projected = session.run_pass(
        [Segment(second, np.arange(7), ALL), Segment(first, None, ALL), Segment(copy, None, ALL)]
    )
    same(projected[1], projected[2])
    assert projected[1] is not None
    np.testing.assert_array_equal(projected[1].log_z, a.log_z)
    same(second.project(ALL), projected[0])


def events(told: list[Any]) -> list[Any]:
    return [(type(e).__name__, e.ids.tolist()) for e in told if isinstance(e, Committed | Draft)]


def sampler(session: Session, prompt: list[int], seed: int, **settings: Any) -> CoreSampler:
    return CoreSampler(sampler_model(session.bundle), np.array(prompt), seed=seed, **settings)


PROMPTS = [[5, 9, 11], [7] * 40, [2, 3, 5, 7, 11, 13], [1]]
ENGINES = [
    ("tiny-llada", "native"), ("tiny-gemma", "native"), ("tiny-llada", "onnx"), ("tiny-gemma", "onnx"),
    ("tiny-llada", "mlx"), ("tiny-gemma", "mlx"), ("tiny-llada", "coreml"), ("tiny-llada", "coreai"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "written"), ENGINES, ids="-".join)
def test_generations_share_their_passes(
    shipped_bundle: Callable[..., Path], model: str, written: str
) -> None:
    """Events are those of generations alone, on every engine; one joins late, one leaves early."""
    bundle = shipped_bundle(model, written)
    executor = MilExecutor() if written == "coreml" else None
    options = SessionOptions(positions=128, canvas=64, sequences=5)
    few: dict[str, Any] = {"max_new_tokens": 16, "steps": 4}
    with open_session(bundle, options, executor=executor) as session:
        expected = []
        for i, prompt in enumerate(PROMPTS):
            expected.append(events(list(drive(sampler(session, prompt, i, **few), session))))
        together, told = Together(session), [[] for _ in PROMPTS]
        for i in (0, 1, 2):
            together.join(i, sampler(session, PROMPTS[i], i, **few), session.open_sequence())
        passes = 0
        while len(together):
            for key, event in together.step():
                told[key].append(event)
            passes += 1
            if passes == 2:
                together.leave(0)
                together.join(3, sampler(session, PROMPTS[3], 3, **few), session.open_sequence())
        assert [events(each) for each in told[1:]] == expected[1:]
        assert events(told[0]) == expected[0][: len(events(told[0]))]


def test_a_pass_reads_the_weights_once(llada: Path) -> None:
    """Four sequences read what one reads."""
    with Session(llada, SessionOptions(resident_bytes=0, sequences=4)) as session:
        read = []
        for count in (1, 4):
            texts = [session.open_sequence() for _ in range(count - 1)] + [session.sequence]
            session.idle()
            before = session.statistics()["bytes_read"]
            session.run_pass([Segment(text, np.arange(16), ALL) for text in texts])
            session.idle()
            read.append(session.statistics()["bytes_read"] - before)
            for text in texts[:-1]:
                text.close()
        plan = session.plan
    # What was read ahead for a pass that did not come is at most the ring.
    assert max(read) - min(read) <= plan.ring_bytes and min(read) >= plan.streamed_bytes > 0


@pytest.mark.parametrize("model", SHIPPED_MODELS)
def test_many_prompts_take_turns(shipped_bundle: Callable[..., Path], model: str) -> None:
    """Two at a time: the next prompt joins when one is done. One that the model does not take ends alone."""
    settings = Settings(max_new_tokens=16, steps=4, seed=3)
    prompts: list[Any] = ["Copy this: cat", PROMPTS[0], [10**6], PROMPTS[1], PROMPTS[2]]
    with Generator(shipped_bundle(model, "native")) as generator:
        expected = {
            i: events(list(generator.generate(prompt, settings)))
            for i, prompt in enumerate(prompts)
            if i != 2
        }
        told: dict[int, list[Any]] = {}
        for number, event in generator.generate_many(prompts, settings, at_once=2):
            told.setdefault(number, []).append(event)
        assert "token 1000000" in str(told.pop(2)[0])
        assert {i: events(each) for i, each in told.items()} == expected
        assert all(isinstance(each[-1], Done) for each in told.values())
        assert not list(generator.generate_many([], settings))
        with pytest.raises(InvalidOption, match="at_once is 0; use an integer from 1"):
            list(generator.generate_many(prompts, settings, at_once=0))


def test_the_page_runs_several(shipped_bundle: Callable[..., Path], tmp_path: Path) -> None:
    """In a process of its own, whose memory the example's budget is for."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "generate_many" in block)
    (tmp_path / "llada").symlink_to(shipped_bundle("tiny-llada", "native"), target_is_directory=True)
    run = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert {line.split()[0] for line in run.stdout.splitlines() if line} >= {"0", "1", "2"}


def test_one_that_fails_leaves_the_others(session: Session) -> None:
    class Broken:
        def next(self, answer: HeadOutput | None = None) -> Any:
            raise EdgekitError("this one is broken")

        def copy(self) -> Broken:
            return self

    together, told = Together(session), {}
    together.join("a", Broken(), session.open_sequence())
    together.join("b", sampler(session, [3, 4], 0, max_new_tokens=8, steps=2), session.sequence)
    with pytest.raises(InvalidRequest, match="takes part already"):
        together.join("c", Broken(), session.sequence)
    while len(together):
        for key, event in together.step():
            told.setdefault(key, []).append(event)
    assert [str(e) for e in told["a"]] == ["this one is broken"]
    assert events(told["b"]) == events(
        list(drive(sampler(session, [3, 4], 0, max_new_tokens=8, steps=2), session))
    )


@pytest.mark.parametrize("family", ["gemma", "llada"])
def test_a_generation_goes_on_in_a_copy_and_from_disk(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In the middle of a canvas: as a copy of sampler and sequence, and saved and loaded by a session with
    another number of threads and another budget."""
    bundle = request.getfixturevalue(family)
    settings: dict[str, Any] = {"max_new_tokens": 40, "steps": 6}
    with Session(bundle, SessionOptions(threads=2, sequences=2)) as session:
        expected = events(list(drive(sampler(session, [3, 4, 5], 1, **settings), session)))
        own, told = sampler(session, [3, 4, 5], 1, **settings), []
        running = drive(own, session)
        while len(told) < len(expected) // 2:
            told.append(next(running))
        copy, branch, state = own.copy(), session.sequence.copy(), own.save()
        rest = events(list(running))
        assert events(told) + rest == expected
        assert events(list(drive(copy, branch))) == rest
        least = session.plan.least_memory_bytes
        model = sampler_model(session.bundle)
    (tmp_path / "state").write_bytes(state)
    with Session(bundle, SessionOptions(memory_bytes=least + (8 << 20), threads=1)) as session:
        loaded = CoreSampler.load(model, (tmp_path / "state").read_bytes())
        assert events(list(drive(loaded, session))) == rest


def test_the_budget_knows_how_many_fit(gemma: Path) -> None:
    lengths: dict[str, int] = {"positions": 64, "canvas": 16}
    with Session(gemma, SessionOptions(**lengths)) as session:
        budget = session.plan.least_memory_bytes + (12 << 20)
    with Session(gemma, SessionOptions(budget, **lengths)) as session:
        most = session.plan.most_sequences
        with pytest.raises(
            BudgetExceeded,
            match=r"1 sequence, not for 2; open the session with sequences = 2",
        ):
            session.open_sequence()
        with pytest.raises(BudgetExceeded, match=r"planned for 1 segment of a pass, not for 2"):
            session.run_pass([Segment(session.sequence, np.arange(4), ALL)] * 2)
    assert most > 1
    with pytest.raises(BudgetExceeded, match="is too small") as refused:
        Session(gemma, SessionOptions(budget, sequences=8 * most, **lengths))
    with Session(
        gemma, SessionOptions(refused.value.needed_bytes + (4 << 20), sequences=8 * most, **lengths)
    ) as many:
        texts = [many.open_sequence() for _ in range(8 * most - 1)]
        with pytest.raises(BudgetExceeded, match=rf"{8 * most} sequences, not for {8 * most + 1}"):
            many.open_sequence()
        texts.pop().close()
        many.sequence.copy()


RUN = """
import json, sys
import numpy as np
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Segment, Session, SessionOptions
bundle, memory = sys.argv[1], int(sys.argv[2]) or None
options = SessionOptions(memory, positions=256, canvas=64, sequences=6)
with Session(bundle, options) as session:
    texts = [session.sequence] + [session.open_sequence() for _ in range(5)]
    sums = []
    for step in range(16):
        ids = np.arange(step, step + 16) % 50
        session.run_pass([Segment(t, ids, causal=True, keep_at=16 * step) for t in texts])
        canvases = [Segment(t, np.arange(32) % 50, HeadRequest(soft=True, top_k=8)) for t in texts]
        sums.append([float(a.log_z.sum()) for a in session.run_pass(canvases)])
    print(json.dumps({"sums": sums, "engine": session.statistics()}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_budget_holds_for_several(tmp_path: Path) -> None:
    """Of what they keep, six times 256 positions, and of their passes."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_global_key_value_heads": 8}
    bundle = native_bundle(
        tmp_path, "diffusion_gemma", Scheme("int8"), head_dim=64, global_head_dim=64, **heads
    )
    resident, _ = run_watched(RUN, bundle, 0)
    with Session(bundle, SessionOptions(positions=256, canvas=64, sequences=6)) as session:
        plan = session.plan
    assert plan.prefix > 10 << 20
    budget = plan.least_memory_bytes - plan.process + resident["engine"]["process_bytes"] + (4 << 20)
    streamed, peak = run_watched(RUN, bundle, budget)
    assert streamed["sums"] == resident["sums"]
    assert peak <= budget, f"{peak / 1e6:.0f} MB used of {budget / 1e6:.0f} MB"


IDS = np.arange(3)


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        (lambda t: [], "a pass of 0 segments; it must have 1"),
        (lambda t: [Segment(t, IDS, keep_at=4)], "position 4 of a sequence that keeps 0"),
        (lambda t: [Segment(t, IDS, keep_at=0)] * 2, "two segments .* the same sequence"),
        (lambda t: [Segment(t, IDS, keep_at=0, positions=IDS + 1)], "that follow it: row 0 has 1"),
        (lambda t: [Segment(t, IDS, keep_at=0, keep_count=4)], "keep_count is 4 of a segment of 3 rows; use"),
        (lambda t: [Segment(t, IDS, keep_count=2)], "keep_count is 2 of .* rows without keep_at"),
        (lambda t: [Segment(t, IDS, positions=np.arange(4))], r"shape \(4,\); this segment takes \(3,\)"),
        (lambda t: [Segment(t, IDS, positions=-IDS)], "position -1 of a row"),
        (lambda t: [Segment(t, IDS, seen=[SeenRows(0, 0, 1)])], "sees segment 0; only earlier ones"),
        (lambda t: [Segment(t, IDS, seen=[SeenRows(None, 0, 1)])], "sees 1 rows from 0 of 0"),
        (lambda t: [Segment(t, IDS), Segment(t, IDS, seen=[SeenRows(0, 2, 2)])], "2 rows from 2 of 3"),
        (lambda t: [Segment(t, None, ALL)], "project needs a denoise before it"),
        (lambda t: [Segment(t, None)], "a request to the vocabulary head and nothing else"),
        (lambda t: [Segment(t, IDS + 10**6)], "token 1000000 at position 0 is outside"),
        (lambda t: [Segment(t, IDS[:0])], "token ids of shape"),
        (lambda t: [Segment(t, IDS, HeadRequest(np.array([3])))], "row 3 is outside the 3 positions"),
        (lambda t: [Segment(t, IDS, ALL, soft=np.zeros((2, 2)))], "soft embeddings of shape"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    session: Session, segments: Callable[[Sequence], list[Segment]], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        session.run_pass(segments(session.open_sequence()))
    session.denoise(IDS, ALL)


def test_a_model_without_a_prefix_encodes_no_text(llada: Path) -> None:
    with Session(llada) as session, pytest.raises(InvalidRequest, match="encodes no prefix"):
        session.run_pass([Segment(session.sequence, IDS, causal=True)])


def test_rows_of_a_canvas_are_kept_in_any_order(llada: Path) -> None:
    """A pass of the rest of a canvas behind rows of it that were kept, whichever came first."""
    ids, logits, draw = np.arange(9, 20), HeadRequest(logits=True), np.random.default_rng(3)
    order = draw.permutation(len(ids))
    with Session(llada) as session:
        (expected,) = session.run_pass([Segment(session.sequence, ids, logits)])
        text = session.open_sequence()
        for keeps, at in ((4, 0), (3, 4)):
            session.run_pass([
                Segment(text, ids[order[at:]], positions=order[at:], keep_at=at, keep_count=keeps)
            ])  # fmt: skip
            assert text.prefix_length == at + keeps
            (found,) = session.run_pass([
                Segment(text, ids[order[at + keeps:]], logits, positions=order[at + keeps:])
            ])  # fmt: skip
            assert found.logits is not None and expected.logits is not None
            np.testing.assert_allclose(found.logits, expected.logits[order[at + keeps :]], atol=2e-3)


def test_the_first_rows_of_a_text_are_kept(session: Session) -> None:
    ids, more = np.arange(4, 13), np.arange(3)
    one, other = session.open_sequence(), session.open_sequence()
    session.run_pass([Segment(one, ids, causal=True, keep_at=0, keep_count=5)])
    session.run_pass([Segment(other, ids[:5], causal=True, keep_at=0)])
    assert one.prefix == other.prefix
    answers = session.run_pass([Segment(text, more, HeadRequest(logits=True)) for text in (one, other)])
    np.testing.assert_allclose(answers[0].logits, answers[1].logits, atol=1e-4)


def test_rows_of_a_canvas_are_kept_where_the_budget_has_room(llada: Path) -> None:
    def keep(**more: int) -> np.ndarray:
        with Session(llada, tight(llada, positions=16, canvas=16, **more)) as session:
            session.run_pass([Segment(session.sequence, IDS, keep_at=0)])
            rest = np.arange(len(IDS))[-2:]
            seen = [SeenRows(None, 0, len(IDS) - 2)]
            [answer] = session.run_pass(
                [Segment(session.sequence, IDS[rest], ALL, positions=rest, seen=seen)]
            )
            return logits(answer)

    with pytest.raises(BudgetExceeded, match=rf"open the session with canvas = 16, cached = {len(IDS)}"):
        keep()
    with Session(llada) as session:
        np.testing.assert_allclose(keep(cached=16), logits(session.denoise(IDS, ALL))[-2:], atol=1e-4)


def test_sequences_end_with_their_session(gemma: Path, llada: Path) -> None:
    with Session(gemma) as session, Session(llada) as other:
        text, left, foreign = session.open_sequence(), session.open_sequence(), other.open_sequence()
        text.close()
        text.close()
        with pytest.raises(InvalidRequest, match="the sequence is closed"):
            text.prefill(IDS)
        with pytest.raises(InvalidRequest, match="belongs to another session"):
            session.run_pass([Segment(foreign, IDS, ALL)])
    with pytest.raises(InvalidRequest, match="closed"):
        left.denoise(IDS, ALL)


def test_too_far_back_is_refused(gemma: Path) -> None:
    """Layers with a window let go of what nobody sees; the longest segment can be taken back."""
    with Session(gemma, SessionOptions(canvas=1, sequences=2)) as session:
        text, piece = session.open_sequence(), session.prefill_rows
        for start in range(0, 12 * piece, piece):
            text.prefill((start + np.arange(piece)) % 50)
        text.crop(11 * piece)
        with pytest.raises(InvalidRequest, match="is too far back: layers with a window of"):
            text.crop(1)
        with pytest.raises(
            InvalidRequest, match=f"position {11 * piece + 1} of a sequence that keeps {11 * piece}"
        ):
            text.crop(11 * piece + 1)
        text.crop(0)
        assert text.prefix_length == 0 and text.pieces == []
