"""Low-confidence remasking and Fast-dLLM's parallel decoding against procedures written on full scores."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.acceptance_reference import fast_dllm_factor
from support.fake_denoiser import FakeDenoiser, ProjectingDenoiser
from support.native_floats import pointer
from support.native_testing import library
from support.sampler_runs import committed, finish, section, settled
from support.sampler_runs import run as run_sampler

from edgekit.runtime.sampling import (
    Draft,
    Event,
    InvalidOption,
    InvalidPrompt,
    NonFiniteLogits,
    PhiloxNoise,
    generate,
)
from edgekit.runtime.sampling.types import Floats

FAMILY = "llada"
VOCAB = 40
MASK, EOS, EOT = 39, 38, 37
PROMPT = [3, 1, 4, 1, 5]


def no_mask_bias() -> Floats:
    """Scores of trained models never favour the mask token."""
    bias = np.zeros(VOCAB, np.float32)
    bias[MASK] = -60
    return bias


def options_of(vocab_size: int = VOCAB, **options: Any) -> dict[str, Any]:
    """Options that say all that the reference procedure goes by."""
    return vars(settled(FAMILY, vocab_size, **{"mask_token_id": MASK, "stop_at_eos": False} | options))


def reference(model: FakeDenoiser, prompt: list[int], given: dict[str, Any], noise: PhiloxNoise) -> list[int]:
    """The authors' procedure on all scores in float64: masks are found by their id, everything is torch."""
    options = SimpleNamespace(**given)
    x = torch.tensor(prompt + [options.mask_token_id] * options.max_new_tokens)
    parallel = options.threshold is not None or options.factor is not None
    for block in range(options.max_new_tokens // options.block_length):
        begin = len(prompt) + block * options.block_length
        end = begin + options.block_length
        steps = options.steps * options.block_length // options.max_new_tokens
        masked = int((x[begin:end] == options.mask_token_id).sum())
        counts = [masked // steps + (1 if i < masked % steps else 0) for i in range(steps)]
        i = 0
        while (x[begin:end] == options.mask_token_id).any():
            logits = torch.from_numpy(model.scores(x.numpy())).double()
            if options.cfg_scale > 0:
                blank = x.clone()
                blank[: len(prompt)] = options.mask_token_id
                other = torch.from_numpy(model.scores(blank.numpy())).double()
                logits = other + (options.cfg_scale + 1) * (logits - other)
            if options.logits_eos_inf:
                logits[:, list(options.eos_token_ids)] = -torch.inf
            eligible = x == options.mask_token_id
            eligible[end:] = False
            where = eligible.nonzero()[:, 0]
            noised = logits.exp()
            if options.temperature > 0:
                gumbel = noise.gumbel(len(where), model.vocab_size)(0, model.vocab_size).astype(np.float64)
                noised[where] /= torch.from_numpy(np.exp(-gumbel)) ** options.temperature
            proposal = noised.argmax(dim=-1)
            confidence = logits.softmax(dim=-1).gather(1, proposal[:, None])[:, 0]
            if options.remasking == "random":
                confidence[where] = torch.from_numpy(noise.uniform(len(where)))
            confidence = torch.where(eligible, confidence, -torch.inf)
            if options.confidence_eos_eot_inf:
                # Below every other open position, yet above everything that must not change.
                ends = (proposal == EOS) | (proposal == EOT)
                confidence = torch.where(ends & eligible, torch.tensor(-1.0).double(), confidence)
            ranked = confidence.argsort(descending=True, stable=True)
            if not parallel:
                count = counts[i]
            elif options.threshold is not None:
                count = max(1, int((confidence >= options.threshold).sum()))
            else:
                assert options.factor is not None
                shares = [value if value >= 0 else -np.inf for value in confidence[where].tolist()]
                count = fast_dllm_factor(shares, options.factor)
            x[ranked[:count]] = proposal[ranked[:count]]
            i += 1
    return x[len(prompt) :].tolist()


def run(
    model: FakeDenoiser, options: dict[str, Any], seed: int = 0, prompt: list[int] = PROMPT
) -> list[Event]:
    return run_sampler(FAMILY, model, prompt, options, seed)


@st.composite
def cases(draw: st.DrawFn) -> tuple[FakeDenoiser, dict[str, Any], int, list[int]]:
    blocks, length = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    mode = draw(st.sampled_from(["steps", "threshold", "factor"]))
    options: dict[str, Any] = {
        "gen_length": blocks * length,
        "block_length": length,
        "temperature": draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
        "cfg_scale": draw(st.sampled_from([0.0, 0.0, 1.5])),
        "logits_eos_inf": draw(st.booleans()),
        "confidence_eos_eot_inf": draw(st.booleans()),
        "eos_token_ids": (EOS,),
        "eot_token_ids": (EOT,),
    }
    if mode == "steps":
        options["steps"] = blocks * draw(st.integers(1, length + 2))
        options["remasking"] = draw(st.sampled_from(["low_confidence", "random"]))
    elif mode == "threshold":
        options["threshold"] = draw(st.sampled_from([0.05, 0.4, 0.9, 1.0]))
    else:
        options["factor"] = draw(st.sampled_from([0.2, 1.0, 2.5]))
    if draw(st.booleans()):
        options["logits_budget_bytes"] = 4 * VOCAB * draw(st.integers(1, 3))
    bias = no_mask_bias()
    bias[[EOS, EOT]] = draw(st.sampled_from([0.0, 4.0]))
    kind = draw(st.sampled_from([FakeDenoiser, ProjectingDenoiser]))
    model = kind(VOCAB, seed=draw(st.integers(0, 999)), scale=draw(st.sampled_from([1.0, 4.0])), bias=bias)
    prompt = draw(st.lists(st.integers(0, VOCAB - 2), max_size=6))
    return model, options_of(**options), draw(st.integers(0, 2**64 - 1)), prompt


# derandomize: scores in float32 and float64 may rank a near-tie differently, once in millions of comparisons.
@given(cases())
@settings(max_examples=60, derandomize=True)
def test_tokens_are_those_of_the_reference_procedure(
    case: tuple[FakeDenoiser, dict[str, Any], int, list[int]],
) -> None:
    model, options, seed, prompt = case
    events = run(model, options, seed, prompt)
    assert committed(events) == reference(model, prompt, options, PhiloxNoise(seed))
    assert model.resets == 1 and not model.prefills


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    "rule",
    [
        {"steps": 8},
        {"steps": 8, "remasking": "random"},
        {"steps": 8, "cfg_scale": 1.5},
        {"steps": 8, "logits_eos_inf": True},
        {"steps": 8, "confidence_eos_eot_inf": True},
        {"threshold": 0.3},
        {"factor": 1.2},
    ],
)
def test_each_rule_is_that_of_the_reference_procedure(
    rule: dict[str, Any], temperature: float, seed: int
) -> None:
    options = options_of(
        gen_length=32, block_length=16, temperature=temperature, eos_token_ids=(EOS,),
        eot_token_ids=(EOT,), **rule,
    )  # fmt: skip
    bias = no_mask_bias()
    bias[[EOS, EOT]] = 2
    model = FakeDenoiser(VOCAB, seed=seed, bias=bias)
    assert committed(run(model, options, seed)) == reference(model, PROMPT, options, PhiloxNoise(seed))


@pytest.mark.parametrize("cfg", [0.0, 0.7])
@pytest.mark.parametrize("rows", [3, 40])
def test_noise_of_a_large_vocabulary_is_that_of_the_reference_procedure(cfg: float, rows: int) -> None:
    vocab = 9001  # full scores get their noise in several pieces of the vocabulary, the last one shorter
    options = options_of(
        vocab, mask_token_id=0, gen_length=24, block_length=24, steps=2, temperature=1.0, cfg_scale=cfg,
        logits_eos_inf=True, eos_token_ids=(5,), logits_budget_bytes=4 * vocab * rows,
    )  # fmt: skip
    bias = np.zeros(vocab, np.float32)
    bias[0] = -60
    model = ProjectingDenoiser(vocab, bias=bias)
    assert committed(run(model, options, 4)) == reference(model, PROMPT, options, PhiloxNoise(4))


@given(cases())
@settings(max_examples=40)
def test_only_the_active_block_changes_and_what_is_committed_stays(
    case: tuple[FakeDenoiser, dict[str, Any], int, list[int]],
) -> None:
    model, options, seed, prompt = case
    events = run(model, options, seed, prompt)
    drafts = [event for event in events if isinstance(event, Draft)]
    before = np.full(options["max_new_tokens"], MASK)
    fixed = np.zeros(options["max_new_tokens"], dtype=bool)
    for draft in drafts:
        begin = draft.canvas_index * options["block_length"]
        block = np.arange(begin, begin + options["block_length"])
        assert draft.accepted.any()
        assert not (draft.accepted & fixed).any()
        assert set(np.flatnonzero(draft.accepted)) <= set(block.tolist())
        assert np.array_equal(draft.ids[~draft.accepted], before[~draft.accepted])
        fixed |= draft.accepted
        before = draft.ids
    assert fixed.all() and before.tolist() == committed(events)
    stats = finish(events).stats
    assert stats.denoising_steps == len(drafts)
    assert stats.committed_tokens == options["max_new_tokens"]
    assert stats.canvases == options["max_new_tokens"] // options["block_length"]
    assert stats.forwards == len(model.calls)
    for ids, request, soft in model.calls:
        assert soft is None and request.rows is not None and request.temperature == 1.0
        assert ids.shape[0] == len(prompt) + options["max_new_tokens"]
        assert (ids[request.rows] == MASK).all()
        assert (request.rows >= len(prompt)).all() and np.ptp(request.rows) < options["block_length"]


def count_by_factor(confidence: Floats, factor: float) -> int:
    core = library()
    core.ekt_count_by_factor.restype = ctypes.c_int64
    size = ctypes.c_int64(confidence.size)
    return int(core.ekt_count_by_factor(pointer(confidence), size, ctypes.c_double(factor)))


@given(st.integers(0, 500), st.integers(1, 100))
def test_schedule_sums_to_the_masked_positions(masked: int, steps: int) -> None:
    count = library().ekt_transfer_count
    count.restype = ctypes.c_int64
    counts = [count(*map(ctypes.c_int64, (masked, steps, step))) for step in range(steps)]
    assert sum(counts) == masked
    assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1


@pytest.mark.parametrize(
    ("confidence", "factor", "count"),
    [
        ([0.1, 0.1, 0.1], 0.5, 1),
        ([0.9, 0.8, 0.7, 0.95], 1.0, 4),
        ([0.9, 0.9, 0.9, 0.7], 1.0, 4),
        ([0.9, 0.9, 0.7, 0.7], 1.0, 2),
        ([0.99, 0.99, 0.99], 0.001, 1),
        ([0.2, 0.3], 3.0, 2),
        ([0.2, 0.3], 0.001, 2),
        ([0.5], 0.1, 1),
        ([-np.inf, -np.inf], 1.0, 1),
    ],
)
def test_factor_takes_what_passes_and_the_last_if_it_alone_fails(
    confidence: list[float], factor: float, count: int
) -> None:
    assert fast_dllm_factor(confidence, factor) == count
    assert count_by_factor(np.array(confidence, dtype=np.float32), factor) == count


SHARES = st.one_of(
    st.sampled_from([0.0, 0.5, 1 - 1 / 3, 0.75, 0.8, 1.0, -np.inf]), st.floats(0, 1, width=32)
).map(np.float32)


@settings(max_examples=500)
@given(
    confidence=st.lists(SHARES, min_size=1, max_size=8),
    factor=st.one_of(st.sampled_from([0.25, 0.5, 1.0, 3.0, 50.0]), st.floats(1e-6, 4)),
)
def test_factor_is_the_published_rule(confidence: list[np.float32], factor: float) -> None:
    expected = fast_dllm_factor([float(value) for value in confidence], factor)
    assert count_by_factor(np.array(confidence, dtype=np.float32), factor) == expected


def test_zero_temperature_is_without_chance() -> None:
    model = FakeDenoiser(VOCAB, bias=no_mask_bias())
    options = options_of(gen_length=12, block_length=4, steps=6)
    assert committed(run(model, options)) == committed(run(model, options, seed=99))


def test_same_seed_same_tokens_and_other_seed_other_tokens() -> None:
    model = FakeDenoiser(VOCAB, bias=no_mask_bias())
    options = options_of(gen_length=12, block_length=4, steps=6, temperature=1.0)
    assert committed(run(model, options, 5)) == committed(run(model, options, 5))
    assert committed(run(model, options, 5)) != committed(run(model, options, 6))


def test_model_that_predicts_masks_still_comes_to_an_end() -> None:
    bias = np.zeros(VOCAB, np.float32)
    bias[MASK] = 60
    for extra in ({"steps": 8}, {"threshold": 0.9}):
        options = options_of(gen_length=8, block_length=4, **extra)
        events = run(FakeDenoiser(VOCAB, bias=bias), options)
        assert committed(events) == [MASK] * 8


def with_end(seed: int, **options: Any) -> tuple[list[Event], list[Event]]:
    """The same generation with and without stopping; end tokens are frequent."""
    bias = no_mask_bias()
    bias[[EOS, EOT]] = 3
    common: dict[str, Any] = {
        "gen_length": 24, "block_length": 8, "steps": 24, "eos_token_ids": (EOS,), "eot_token_ids": (EOT,),
    } | options  # fmt: skip
    full = run(FakeDenoiser(VOCAB, seed=seed, bias=bias), options_of(**common))
    stopped = run(FakeDenoiser(VOCAB, seed=seed, bias=bias), options_of(stop_at_eos=True, **common))
    return full, stopped


@pytest.mark.parametrize("seed", range(12))
def test_stopping_at_eos_changes_nothing_before_it_and_saves_passes(seed: int) -> None:
    full, stopped = with_end(seed)
    tokens = committed(full)
    ends = [i for i, token in enumerate(tokens) if token in (EOS, EOT)]
    assert ends, "the bias makes end tokens certain"
    assert committed(stopped) == tokens[: ends[0] + 1]
    assert finish(stopped).stats.finish_reason == finish(full).stats.finish_reason == "eos"
    assert finish(stopped).stats.forwards < finish(full).stats.forwards
    assert finish(stopped).stats.committed_tokens == ends[0] + 1
    # It stopped at the first step after which nothing before the end token was open.
    drafts = [event.ids for event in stopped if isinstance(event, Draft)]
    assert all(MASK in draft[: ends[0] + 1] for draft in drafts[:-1])


def test_without_end_token_the_reason_is_length() -> None:
    options = options_of(gen_length=8, block_length=4, steps=4, eos_token_ids=(EOS,), stop_at_eos=True)
    bias = no_mask_bias()
    bias[EOS] = -60
    assert finish(run(FakeDenoiser(VOCAB, bias=bias), options)).stats.finish_reason == "length"


def test_guidance_costs_two_passes_and_end_tokens_can_be_forbidden() -> None:
    bias = no_mask_bias()
    bias[EOS] = 9
    options = options_of(
        gen_length=8, block_length=8, steps=8, cfg_scale=0.5, eos_token_ids=(EOS,), logits_eos_inf=True
    )
    events = run(FakeDenoiser(VOCAB, bias=bias), options)
    assert finish(events).stats.forwards == 16
    assert EOS not in committed(events)


@pytest.mark.parametrize("kind", [FakeDenoiser, ProjectingDenoiser])
def test_full_scores_are_asked_in_bounded_pieces(kind: type[FakeDenoiser]) -> None:
    options = options_of(
        gen_length=8, block_length=8, steps=1, eos_token_ids=(EOS,), logits_eos_inf=True,
        logits_budget_bytes=4 * VOCAB * 3,
    )  # fmt: skip
    model = kind(VOCAB, bias=no_mask_bias())
    stats = finish(run(model, options)).stats
    assert all(request.rows is not None and len(request.rows) <= 3 for _, request, _ in model.calls)
    if isinstance(model, ProjectingDenoiser):
        assert (stats.forwards, stats.projections) == (1, 2) == (len(model.calls), model.projections)
    else:
        assert (stats.forwards, stats.projections) == (3, 0)


def test_stopping_keeps_committed_blocks() -> None:
    options = options_of(gen_length=12, block_length=4, steps=12)
    model = FakeDenoiser(VOCAB, bias=no_mask_bias())
    events = generate(model, section(FAMILY), PROMPT, options=options)
    seen = [next(events) for _ in range(6)]
    events.close()
    assert len(committed(seen)) == 4 and len(model.calls) == 5


def test_generation_config_is_understood() -> None:
    config = {
        "mask_id": MASK,
        "eos_token_id": EOS,
        "max_new_tokens": 64,
        "block_length": 32,
        "bos_token_id": 1,
    }
    options = settled(FAMILY, VOCAB, config, steps=16)
    assert (options.max_new_tokens, options.steps, options.eos_token_ids) == (64, 16, (EOS,))
    assert settled(FAMILY, VOCAB, {"mask_id": 3}, gen_length=256).max_new_tokens == 256


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"threshold": 0.9, "factor": 1.0}, "threshold and factor"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"factor": 0}, "factor is 0"),
        ({"threshold": 0.9, "remasking": "random"}, "low_confidence"),
        ({"remasking": "entropy"}, "use one of: low_confidence, random"),
        ({"temperature": -1}, "temperature is -1"),
        ({"cfg_scale": float("inf")}, "cfg_scale is inf"),
        ({"steps": 0}, "steps is 0"),
        ({"stop_at_eos": True}, "stop_at_eos needs eos_token_ids"),
        ({"logits_eos_inf": True}, "logits_eos_inf needs eos_token_ids"),
        ({"block_size": 4}, "not a sampling option"),
    ],
)
def test_bad_option_is_refused_in_one_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        settled(FAMILY, VOCAB, {"mask_token_id": MASK}, **overrides)
    assert "\n" not in str(caught.value)


def test_missing_mask_token_is_refused() -> None:
    with pytest.raises(InvalidOption, match="mask_token_id is not set"):
        settled(FAMILY, VOCAB, {"steps": 4})


def test_mask_outside_the_vocabulary_and_bad_prompts_are_refused() -> None:
    with pytest.raises(InvalidOption, match="126336 is outside"):
        run(FakeDenoiser(VOCAB), {"mask_token_id": 126336})
    with pytest.raises(InvalidPrompt, match="token 40"):
        run(FakeDenoiser(VOCAB), options_of(), prompt=[40])


def test_scores_that_are_not_finite_end_the_generation() -> None:
    bias = np.full(VOCAB, np.nan, np.float32)
    with pytest.raises(NonFiniteLogits, match="32 of 32 positions"):
        run(FakeDenoiser(VOCAB, bias=bias), options_of())
