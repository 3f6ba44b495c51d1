"""Steps that are drafted ahead and verified: the tokens of one step a pass, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import native_generation
from support.budgets import tight
from support.bundles import make_bundle, quantized_reference
from support.cached_canvas import DreamLoop, LladaLoop
from support.drafted_steps import (
    Drafting,
    FreeDave,
    by_entropy,
    by_probability,
    shares_in_time,
    shares_of,
)
from support.hash_model import HashModel, HashSequence
from support.reference_denoiser import ReferenceDenoiser
from support.sampler_runs import committed, core_model, finish, plain, run, saved_run, settled

import edgekit
from edgekit.export.quantize import Scheme
from edgekit.flashload.errors import BudgetExceeded
from edgekit.runtime.generation import Generator, Settings, sampler_model
from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Denoise,
    Event,
    InvalidOption,
    SamplerModel,
    drive,
)
from edgekit.runtime.session import Session, SessionOptions, Together, open_session

VOCAB, MASK, EOS = 40, 39, 38
PROMPT = [3, 1, 4, 1, 5]
FAMILIES = ("llada", "dream")
#: Noises of the canvas: every draft is right, many are, few are.
NOISES = [0.0, 0.15, 2.0]


def model_of(noise: float, seed: int = 0) -> Drafting:
    return Drafting(VOCAB, seed, noise, never=[MASK])


def options_of(family: str, **options: Any) -> dict[str, Any]:
    own = {"mask_token_id": MASK, "eos_token_ids": [EOS], "stop_at_eos": False}
    return vars(settled(family, VOCAB, **own | options))


def told(events: list[Event]) -> list[tuple[Any, ...]]:
    """All of them but the counters of the last."""
    return [plain(event) for event in events[:-1]]


def same_tokens(
    family: str, model: Drafting, options: dict[str, Any], draft_steps: int, seed: int = 0
) -> tuple[int, int]:
    """Passes of one step each, and of drafted ones that tell the same."""
    one = run(family, model, PROMPT, options | {"draft_steps": 1}, seed)
    many = run(family, model, PROMPT, options | {"draft_steps": draft_steps}, seed)
    assert told(many) == told(one)
    before, after = finish(one).stats, finish(many).stats
    for name in ("denoising_steps", "committed_tokens", "canvases", "finish_reason"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.rows >= before.rows
    return before.forwards, after.forwards


RULES: list[dict[str, Any]] = [
    {"threshold": 0.4}, {"factor": 1.0}, {"entropy_bound": 0.6}, {"margin": 0.2}, {"persistence": 1},
    {"threshold": 0.7, "persistence": 2, "stability": 0.2}, {"early_commit": 0.05},
]  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, family: str) -> tuple[Drafting, dict[str, Any], int, int]:
    blocks, length = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    ends = draw(st.booleans())
    options: dict[str, Any] = {
        "max_new_tokens": blocks * length,
        "block_length": length,
        "temperature": draw(st.sampled_from([0.0, 0.0, 0.2, 1.0])),
        "stop_at_eos": ends,
    }
    if draw(st.booleans()):
        options |= draw(st.sampled_from(RULES))
    else:
        options["steps"] = blocks * draw(st.integers(1, length + 2))
        options["order"] = draw(st.sampled_from(["confidence", "logic"]))
        if family == "dream":
            options["alg_temp"] = draw(st.sampled_from([None, 0.5]))
        else:
            options["remasking"] = draw(st.sampled_from(["low_confidence", "random"]))
            options["trim"] = draw(st.sampled_from([None, 0.1, 0.5])) if ends else None
    if family == "dream":
        options["alg"] = draw(st.sampled_from(["entropy", "maskgit_plus", "topk_margin"]))
        options["top_k"] = draw(st.sampled_from([None, 3]))
        options["top_p"] = draw(st.sampled_from([None, 0.8]))
    else:
        options["confidence_eos_eot_inf"] = draw(st.booleans())
    if draw(st.booleans()):
        open_ = draw(st.lists(st.booleans(), min_size=blocks * length, max_size=blocks * length))
        options["canvas"] = [MASK if each else 7 for each in open_]
    model = model_of(draw(st.sampled_from(NOISES)), draw(st.integers(0, 999)))
    model.bias[EOS] = draw(st.sampled_from([0.0, 3.0]))
    return model, options_of(family, **options), draw(st.integers(2, 9)), draw(st.integers(0, 2**64 - 1))


@given(cases("llada"))
@settings(max_examples=50, deadline=None)
def test_llada_tells_what_one_step_a_pass_tells(case: tuple[Drafting, dict[str, Any], int, int]) -> None:
    model, options, draft_steps, seed = case
    before, after = same_tokens("llada", model, options, draft_steps, seed)
    assert after <= before


@given(cases("dream"))
@settings(max_examples=50, deadline=None)
def test_dream_tells_what_one_step_a_pass_tells(case: tuple[Drafting, dict[str, Any], int, int]) -> None:
    model, options, draft_steps, seed = case
    before, after = same_tokens("dream", model, options, draft_steps, seed)
    assert after <= before


def test_a_nucleus_beyond_the_candidates_takes_another_pass() -> None:
    """Nothing more can be asked of a pass of segments; the scores are the same."""
    model = Drafting(400, 3, 0.1, never=[MASK])
    for temperature in (0.0, 9.0):
        options = {"mask_token_id": MASK, "max_new_tokens": 6, "steps": 6, "alg": "maskgit_plus"}
        options |= {"top_p": 0.99, "temperature": temperature, "logits_budget_bytes": 1 << 12}
        before, after = same_tokens("dream", model, options, 3)
        assert (after > before) == (temperature > 0), "a flat distribution has a wide nucleus"


def block_run(
    model: HashModel, options: dict[str, Any], count: int, draft_steps: int, text: int = 1, seed: int = 0
) -> tuple[list[tuple[Any, ...]], Any, HashSequence]:
    section = {"name": "block", "config": {"mask_token_id": 12, "eos_token_id": [11], **options}}
    facts = SamplerModel(section, 13, 0, bundle="b", prefix_block=text, shift_logits=model.shift)
    sequence = HashSequence(model, text)
    given_options = {"draft_steps": draft_steps}
    sampler = CoreSampler(facts, PROMPT, seed=seed, max_new_tokens=count, options=given_options)
    events = list(drive(sampler, sequence))
    return told(events), finish(events).stats, sequence


@st.composite
def block_cases(draw: st.DrawFn) -> tuple[HashModel, dict[str, Any], int, int, int, int]:
    length = draw(st.sampled_from([2, 4, 8]))
    shift = draw(st.booleans())
    options: dict[str, Any] = {
        "block_length": length,
        "steps": draw(st.integers(1, length)),
        "temperature": draw(st.sampled_from([0.0, 0.0, 0.7])),
        "remasking": draw(st.sampled_from(["low_confidence", "sequential", "entropy"])),
        "threshold": draw(st.sampled_from([None, None, 0.6])),
        "small_block_length": draw(st.sampled_from([None, length // 2])),
        "top_k": draw(st.sampled_from([None, 4])),
        "ride": draw(st.booleans()),
        "stop_at_eos": draw(st.booleans()),
    }
    model = HashModel(
        noise=draw(st.sampled_from([0.0, 0.3, 1.0])), seed=draw(st.integers(0, 99)), shift=shift
    )
    text = length if shift else draw(st.sampled_from([1, length]))
    return model, options, draw(st.integers(1, 20)), draw(st.integers(2, 6)), text, draw(st.integers(0, 99))


@given(block_cases())
@settings(max_examples=50, deadline=None)
def test_blocks_are_those_of_one_step_a_pass(
    case: tuple[HashModel, dict[str, Any], int, int, int, int],
) -> None:
    model, options, count, draft_steps, text, seed = case
    before, one, plain_sequence = block_run(model, options, count, 1, text, seed)
    after, many, sequence = block_run(model, options, count, draft_steps, text, seed)
    assert after == before
    assert sequence.kept == plain_sequence.kept and sequence.text == plain_sequence.text
    assert many.denoising_steps == one.denoising_steps and many.forwards <= one.forwards
    assert many.forwards == len(sequence.passes)


# The published procedure.


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("draft_steps", [1, 2, 4, 7])
@pytest.mark.parametrize("blocks, steps", [(1, 16), (1, 6), (2, 8), (4, 4), (4, 3), (16, 1)])
def test_llada_drafts_as_published(noise: float, draft_steps: int, blocks: int, steps: int) -> None:
    """But for the last draft of a block: it is the canvas that the next one begins with, and is not computed
    twice.
    """
    length = 16 // blocks
    for seed in range(2):
        model = model_of(noise, seed)
        reference = FreeDave(model.forward, by_probability, MASK, draft_steps)
        canvas = PROMPT + [MASK] * 16
        for start in range(len(PROMPT), len(canvas), length):
            shares = shares_of(length, steps)
            canvas = reference.block(canvas, range(start, start + length), shares)
        options = options_of("llada", max_new_tokens=16, block_length=length, steps=blocks * steps)
        events = run("llada", model, PROMPT, options | {"draft_steps": draft_steps})
        assert committed(events) == canvas[len(PROMPT) :]
        stats = finish(events).stats
        again, last = sum(reference.finished[:-1]), reference.finished[-1]
        assert stats.forwards == reference.forwards - again
        assert stats.denoising_steps - stats.forwards == reference.accepted - last


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("draft_steps", [2, 3, 8])
@pytest.mark.parametrize("steps", [5, 12, 40])
def test_dream_drafts_as_published(noise: float, draft_steps: int, steps: int) -> None:
    """In one block, whose steps without tokens are left out."""
    for seed in range(2):
        model = model_of(noise, seed)

        def shifted(canvases: list[list[int]], model: Drafting = model) -> list[np.ndarray]:
            return [scores[[0, *range(len(scores) - 1)]] for scores in model.forward(canvases)]

        reference = FreeDave(shifted, by_entropy, MASK, draft_steps)
        canvas = PROMPT + [MASK] * 12
        canvas = reference.block(canvas, range(len(PROMPT), len(canvas)), shares_in_time(12, steps))
        options = options_of("dream", max_new_tokens=12, steps=steps)
        events = run("dream", model, PROMPT, options | {"draft_steps": draft_steps})
        assert committed(events) == canvas[len(PROMPT) :]
        stats = finish(events).stats
        assert stats.forwards == reference.forwards
        assert stats.denoising_steps - stats.forwards == reference.accepted - reference.finished[-1]


@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("draft_steps", [2, 3, 8])
@pytest.mark.parametrize("steps", [8, 3])
def test_blocks_draft_as_published(noise: float, draft_steps: int, steps: int) -> None:
    """Keys and values of a finished block are those of a pass of its own, or of the one that begins the next:
    so its canvas is never drafted.
    """
    for seed in range(2):
        model = HashModel(noise=noise, seed=seed)
        text, forwards, accepted = list(PROMPT), 0, 0
        for _ in range(3):
            before = model.text([], text, 0, 1)

            def forward(
                canvases: list[list[int]],
                model: HashModel = model,
                before: list[bytes] = before,
                at: int = len(text),
            ) -> list[np.ndarray]:
                return [model.rows(model.group(before, ids, at), at, causal=False) for ids in canvases]

            reference = FreeDave(forward, by_probability, 12, draft_steps)
            text += reference.block([12] * 8, range(8), shares_of(8, steps))
            forwards += reference.forwards
            accepted += reference.accepted - reference.finished[-1]
        options = {"block_length": 8, "steps": steps, "stop_at_eos": False}
        events, stats, _ = block_run(model, options, 24, draft_steps)
        assert [t for event in events if event[0] == "committed" for t in event[2]] == text[len(PROMPT) :]
        assert stats.forwards == forwards
        assert stats.denoising_steps - stats.forwards == accepted


# What it costs.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("draft_steps", [1, 2, 4, 8, 64])
def test_passes_fall_where_drafts_are_right_and_are_counted(family: str, draft_steps: int) -> None:
    model = model_of(0.0)
    options = options_of(family, max_new_tokens=24, block_length=24, steps=24, draft_steps=draft_steps)
    steps = len(shares_in_time(24, 24)) if family == "dream" else 24
    events = run(family, model, PROMPT, options)
    stats = finish(events).stats
    assert stats.denoising_steps == steps
    assert stats.forwards == 1 + -(-(steps - 1) // draft_steps)
    assert stats.forwards == len(model.calls) + len(model.passes)
    # Each of the canvases has been computed once.
    assert stats.rows == steps * (len(PROMPT) + 24)
    assert stats.rows == (len(model.calls) + sum(len(each) for each in model.passes)) * (len(PROMPT) + 24)
    assert max((len(each) for each in model.passes), default=1) <= draft_steps


def test_drafts_that_are_wrong_cost_rows_and_no_passes() -> None:
    model = model_of(50.0)
    options = options_of("llada", max_new_tokens=16, block_length=16, steps=16, draft_steps=4)
    stats = finish(run("llada", model, PROMPT, options)).stats
    assert stats.forwards == stats.denoising_steps == 16
    # One canvas, then four at a time, and no more than there are steps to come.
    assert stats.rows == (1 + 4 * 12 + 3 + 2 + 1) * (len(PROMPT) + 16)


def test_a_step_that_is_not_drafted_is_a_plain_pass() -> None:
    model = model_of(0.0)
    sampler = CoreSampler(core_model("llada", model), PROMPT, options=options_of("llada", draft_steps=4))
    sampler.next()
    assert isinstance(sampler.next(), Denoise)


# Generations that do not go straight on.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.3])
@pytest.mark.parametrize("way", ["save", "copy", "restore"])
def test_it_goes_on_from_anywhere(family: str, temperature: float, way: str) -> None:
    model = model_of(0.15, 1)
    options = options_of(family, max_new_tokens=12, block_length=6, steps=12, temperature=temperature)
    options["draft_steps"] = 3
    expected = told(run(family, model, PROMPT, options, 5))
    for stop in range(1, len(expected)):
        if way == "save":
            assert told(saved_run(family, model, PROMPT, options, 5, stop)) == expected
            continue
        sampler = CoreSampler(core_model(family, model), PROMPT, seed=5, options=options)
        running = drive(sampler, model)
        events = [plain(next(running)) for _ in range(stop)]
        running.close()
        sampler = sampler.copy()
        if way == "restore":
            sampler.restore()
        assert events + told(list(drive(sampler, model))) == expected


@pytest.mark.parametrize("way", ["save", "copy"])
def test_it_goes_on_with_a_pass_under_way(way: str) -> None:
    """Of several segments: a copy has its answer, a saved state begins the step again."""
    model = model_of(0.15, 2)
    options = options_of("llada", max_new_tokens=10, block_length=10, steps=10, draft_steps=4)
    expected = committed(run("llada", model, PROMPT, options))
    facts = core_model("llada", model)
    sampler, answer, stops = CoreSampler(facts, PROMPT, options=options), None, 0
    for _ in range(40):
        ask: Any = sampler.next(answer)
        answer = model.run_rows(ask.segments) if hasattr(ask, "segments") else None
        if isinstance(ask, Denoise):
            answer = model.denoise(ask.ids, ask.request)
        if answer is None:
            continue
        stops += 1
        beside = CoreSampler.load(facts, sampler.save()) if way == "save" else sampler.copy()
        assert committed(list(drive(beside, model))) == expected
        if stops == 4:
            return


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("passes", [1, 2, 3, 5])
def test_a_hurried_one_ends_in_time(family: str, noise: float, passes: int) -> None:
    model = model_of(noise)
    options = options_of(family, max_new_tokens=16, block_length=8, steps=16, draft_steps=3)
    sampler = CoreSampler(core_model(family, model), PROMPT, options=options)
    sampler.hurry(passes)
    answer = committed(list(drive(sampler, model)))
    assert len(answer) == 16 and MASK not in answer
    assert sampler.stats.forwards == len(model.calls) + len(model.passes) <= passes


@pytest.mark.parametrize("drawn", [{"remasking": "random"}, {"temperature": 0.6}])
def test_a_reseeded_one_draws_what_one_step_a_pass_draws(drawn: dict[str, Any]) -> None:
    """Answers to drafts that were computed with other noise are of no use then."""
    options = options_of("llada", max_new_tokens=12, block_length=12, steps=12, **drawn)
    changed = 0
    for seed in range(6):
        found = []
        for draft_steps, reseeded in ((1, True), (4, True), (1, False)):
            model = model_of(0.0, seed)
            own = options | {"draft_steps": draft_steps}
            sampler = CoreSampler(core_model("llada", model), PROMPT, options=own)
            running, events = drive(sampler, model), list[Event]()
            for _ in range(2):
                events.append(next(running))
            running.close()
            if reseeded:
                sampler.reseed(99)
            found.append(told([*events, *drive(sampler, model)]))
        assert found[0] == found[1]
        changed += found[0] != found[2]
    assert changed


# Refused.


@pytest.mark.parametrize(
    "family, options, words",
    [
        ("llada", {"draft_steps": 0}, "draft_steps is 0; use an integer from 1 to 64"),
        ("dream", {"draft_steps": 65}, "draft_steps is 65; use an integer from 1 to 64"),
        ("llada", {"cfg_scale": 1.0}, "draft_steps 2 goes with neither cfg_scale nor logits_eos_inf"),
        ("llada", {"logits_eos_inf": True}, "draft_steps 2 goes with neither cfg_scale nor logits_eos_inf"),
        ("dream", {"alg": "origin"}, "alg origin asks for a few at random; use 1, or alg entropy"),
        ("block", {"editing_threshold": 0.9}, "editing_threshold replaces it; use 1, or leave out"),
        ("block", {"mode": "autoregressive"}, "mode autoregressive has none; use 1, or mode diffusion"),
        ("block", {"mode": "speculative"}, "mode speculative has none; use 1, or mode diffusion"),
    ],
)
def test_what_it_does_not_go_with_is_refused(family: str, options: dict[str, Any], words: str) -> None:
    own = {"mask_token_id": MASK, "eos_token_ids": [EOS], "draft_steps": 2}
    with pytest.raises(InvalidOption, match=words):
        settled(family, VOCAB, **own | options)
    if "draft_steps" not in options:
        settled(family, VOCAB, **own | options | {"draft_steps": 1})


# Engines and budgets.


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small cost less than waking threads for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A random checkpoint as a native bundle and as the reference, by family."""
    found: dict[str, tuple[Path, Any]] = {}

    def of(family: str) -> tuple[Path, Any]:
        if family not in found:
            folder, scheme = tmp_path_factory.mktemp(family), Scheme("bf16")
            layers = {"llada": "n_layers", "dream": "num_hidden_layers"}[family]
            bundle = make_bundle(folder, family, scheme, 0, "native", dtype="bfloat16", **{layers: 2})
            found[family] = bundle, quantized_reference(folder / "checkpoint", scheme, "native")
        return found[family]

    return of


TINY_MASKS = {"llada": 2, "dream": 4}


def tiny_prompt(seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(6, 384, 7)]


def tiny_options(family: str, cache: str, draft_steps: int) -> dict[str, Any]:
    return {
        "cache": cache, "canvas": [TINY_MASKS[family]] * 16, "block_length": 8, "steps": 16,
        "stop_at_eos": False, "draft_steps": draft_steps,
    }  # fmt: skip


def whole(family: str, reference: Any, facts: SamplerModel, seed: int) -> list[int]:
    """The answer of one step a pass over the whole canvas of the reference model."""
    sampler = CoreSampler(facts, tiny_prompt(seed), options=tiny_options(family, "none", 1))
    return committed(list(drive(sampler, ReferenceDenoiser(reference))))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_engine_and_reference_agree_with_every_cache(
    made: Callable[[str], tuple[Path, Any]], family: str, cache: str
) -> None:
    bundle, reference = made(family)
    loops = {"llada": LladaLoop, "dream": DreamLoop}
    passes = dict.fromkeys((1, 4), 0)
    with Generator(bundle) as generator:
        for seed in range(2):
            if cache == "none":
                expected = whole(family, reference, sampler_model(generator.bundle), seed)
            else:
                loop = loops[family](reference, cache, TINY_MASKS[family], block_length=8, steps=16)
                expected = loop.run(tiny_prompt(seed), [TINY_MASKS[family]] * 16)
            for draft_steps in passes:
                own = Settings(options=tiny_options(family, cache, draft_steps))
                events = list(generator.generate(tiny_prompt(seed), own))
                assert committed(events) == expected
                passes[draft_steps] += finish(events).stats.forwards
    assert passes[4] < passes[1]


def test_a_budget_has_room_for_the_drafts_or_refuses_them(made: Callable[[str], tuple[Path, Any]]) -> None:
    bundle, _ = made("llada")
    prompt, length = tiny_prompt(0), 7 + 16
    least = tight(bundle, canvas=length, segments=4).memory_bytes
    answers = []
    for memory, draft_steps in ((None, 1), (least, 4)):
        with Generator(bundle, memory_bytes=memory) as generator:
            own = Settings(options=tiny_options("llada", "none", draft_steps))
            answers.append(committed(list(generator.generate(prompt, own))))
            assert generator.session.options.segments == (4 if draft_steps > 1 else 0)
    assert answers[0] == answers[1]
    plans = [Generator(bundle).plan(SessionOptions(canvas=length, segments=n)) for n in (0, 64)]
    low = plans[0].least_memory_bytes + (plans[1].least_memory_bytes - plans[0].least_memory_bytes) // 2
    with Generator(bundle, memory_bytes=low) as generator, pytest.raises(BudgetExceeded):
        next(generator.generate(prompt, Settings(options=tiny_options("llada", "none", 64))))


def test_a_session_drafts_no_more_than_it_has_segments(made: Callable[[str], tuple[Path, Any]]) -> None:
    """As self-speculation does; without a budget it has any number."""
    bundle, _ = made("llada")
    found = []
    for lengths in ({}, {"segments": 2}, {"segments": 4}, None):
        options = SessionOptions() if lengths is None else tight(bundle, canvas=23, **lengths)
        with Session(bundle, options) as session:
            own = tiny_options("llada", "none", 8)
            outcome = native_generation.generate(session, tiny_prompt(0), options=own)
            assert outcome.status == 0 and outcome.stats is not None, outcome.message
            found.append((outcome.answer, outcome.stats["denoising_steps"], outcome.stats["forwards"]))
    answers, steps, passes = zip(*found, strict=True)
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert set(steps) == {16}
    assert passes[0] == 16 > passes[1] >= passes[2] >= passes[3]


def test_those_that_share_passes_draft_too(made: Callable[[str], tuple[Path, Any]]) -> None:
    bundle, _ = made("llada")
    cases = [("none", 4), ("dual", 2), ("none", 1), ("prefix", 3)]
    with open_session(bundle) as session:
        facts = sampler_model(session.bundle)
        wanted = [tiny_options("llada", *case) for case in cases]
        alone = [
            committed(list(drive(CoreSampler(facts, tiny_prompt(i), options=own), session)))
            for i, own in enumerate(wanted)
        ]
    found: dict[Any, list[int]] = {}
    with Session(bundle, SessionOptions(sequences=4)) as session, Together(session) as together:
        for i, own in enumerate(wanted):
            text = session.open_sequence() if i else session.sequence
            together.join(i, CoreSampler(facts, tiny_prompt(i), options=own), text)
        while len(together):
            for key, event in together.step():
                assert not isinstance(event, Exception), event
                if isinstance(event, Committed):
                    found.setdefault(key, []).extend(event.ids.tolist())
    assert [found[i] for i in range(len(cases))] == alone


def test_branches_of_a_search_draft_within_a_budget(shipped_bundle: Callable[..., Path]) -> None:
    """Each brings its drafts to the passes that they share."""
    found = []
    with edgekit.load(shipped_bundle("tiny-llada", "native"), memory="8GB") as model:
        for draft_steps in (1, 3):
            best = model.search(
                "Copy this: red 7", verifier="json", branches=3, temperature=0.7, seed=1,
                max_new_tokens=16, block_length=16, draft_steps=draft_steps,
            )  # fmt: skip
            found.append((best.answer.ids, best.score))
    assert found[0] == found[1]
