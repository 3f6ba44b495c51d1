"""Dream's four orders against a procedure written on full, shifted scores."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_denoiser import FakeDenoiser, ProjectingDenoiser
from support.native_floats import pointer
from support.native_testing import library
from support.sampler_runs import committed, finish, section, settled
from support.sampler_runs import run as run_sampler

from edgekit.runtime.sampling import Committed, Draft, Event, InvalidOption, PhiloxNoise, generate
from edgekit.runtime.sampling.types import Floats

FAMILY = "dream"
ORDERS = ("origin", "maskgit_plus", "topk_margin", "entropy")
VOCAB = 40
MASK, EOS = 39, 38
PROMPT = [3, 1, 4, 1, 5]


def bias(eos: float = 0.0, vocab: int = VOCAB) -> np.ndarray:
    values = np.zeros(vocab, np.float32)
    values[MASK], values[EOS] = -60, eos
    return values


def options_of(vocab_size: int = VOCAB, **options: Any) -> dict[str, Any]:
    """Options that say all that the reference procedure goes by."""
    common = {"mask_token_id": MASK, "alg": "origin", "stop_at_eos": False}
    return vars(settled(FAMILY, vocab_size, **common | options))


def filtered_probabilities(logits: torch.Tensor, options: SimpleNamespace) -> torch.Tensor:
    """Temperature, nucleus, top-k, softmax: float64 [R, V]."""
    if options.temperature > 0:
        logits = logits / options.temperature
    if options.top_p is not None and options.top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(1, index, before > options.top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    if options.top_k is not None:
        lowest = logits.topk(min(options.top_k, logits.shape[1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    return logits.softmax(dim=-1)


def propose(
    logits: torch.Tensor, options: SimpleNamespace, noise: PhiloxNoise
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, vocab = logits.shape
    has_filter = options.top_k is not None or (options.top_p is not None and options.top_p < 1)
    probabilities = filtered_probabilities(logits, options)
    if options.temperature == 0:
        tokens = probabilities.argmax(dim=-1)
    elif has_filter:
        # The inverse of the cumulative distribution, most probable token first.
        ordered, index = probabilities.sort(dim=-1, descending=True, stable=True)
        uniform = torch.from_numpy(noise.uniform(rows))[:, None]
        tokens = index.gather(1, (ordered.cumsum(dim=-1) < uniform).sum(dim=-1, keepdim=True))[:, 0]
    else:
        gumbel = torch.from_numpy(noise.gumbel(rows, vocab)(0, vocab).astype(np.float64))
        tokens = (logits / options.temperature + gumbel).argmax(dim=-1)
    if options.alg == "topk_margin":
        best = probabilities.sort(dim=-1, descending=True).values
        return tokens, best[:, 0] - best[:, 1]
    if options.alg == "entropy":
        return tokens, (probabilities * (probabilities + 1e-10).log()).sum(dim=-1)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0]


def reference(model: FakeDenoiser, prompt: list[int], given: dict[str, Any], noise: PhiloxNoise) -> list[int]:
    options = SimpleNamespace(**given)
    x = torch.tensor(prompt + [MASK] * options.max_new_tokens)
    t = torch.linspace(1, options.eps, options.steps + 1)
    for i in range(options.steps):
        where = (x == MASK).nonzero()[:, 0]
        if not len(where):
            break
        logits = torch.from_numpy(model.scores(x.numpy())).double()
        logits = torch.cat([logits[:1], logits[:-1]])
        last = i == options.steps - 1
        if options.alg == "origin":
            share = 1.0 if last else float(1 - t[i + 1] / t[i])
            where = where[torch.from_numpy(noise.uniform(len(where)) < share)]
            if len(where):
                x[where], _ = propose(logits[where], options, noise)
            continue
        count = len(where) if last else int(torch.tensor(float(len(where))) * (1 - t[i + 1] / t[i]))
        if not count:
            continue
        tokens, confidence = propose(logits[where], options, noise)
        if options.alg_temp:
            # Drawing one after the other without replacement is what the largest of these are.
            uniform = torch.from_numpy(noise.uniform(len(where)))
            confidence = confidence / options.alg_temp - torch.log(-torch.log(uniform))
        picked = confidence.argsort(descending=True, stable=True)[:count]
        x[where[picked]] = tokens[picked]
    return x[len(prompt) :].tolist()


def run(
    model: FakeDenoiser, options: dict[str, Any], seed: int = 0, prompt: list[int] = PROMPT
) -> list[Event]:
    return run_sampler(FAMILY, model, prompt, options, seed)


@st.composite
def cases(draw: st.DrawFn) -> tuple[FakeDenoiser, dict[str, Any], int, list[int]]:
    options = options_of(
        max_new_tokens=draw(st.integers(1, 12)),
        steps=draw(st.integers(1, 20)),
        # With these no count is a whole number before it is cut to one, so rounding cannot matter.
        eps=draw(st.sampled_from([1e-3, 0.137])),
        alg=draw(st.sampled_from(ORDERS)),
        alg_temp=draw(st.sampled_from([None, 0.0, 0.1, 1.0])),
        temperature=draw(st.sampled_from([0.0, 0.2, 1.0])),
        top_p=draw(st.sampled_from([None, 0.3, 0.9, 0.95, 1.0])),
        top_k=draw(st.sampled_from([None, None, 1, 2, 7, 100])),
        logits_budget_bytes=4 * VOCAB * draw(st.sampled_from([1, 4, 1000])),
    )
    kind = draw(st.sampled_from([FakeDenoiser, ProjectingDenoiser]))
    model = kind(VOCAB, seed=draw(st.integers(0, 999)), scale=draw(st.sampled_from([0.5, 2.0])), bias=bias())
    prompt = draw(st.lists(st.integers(0, VOCAB - 2), max_size=4))
    return model, options, draw(st.integers(0, 2**64 - 1)), prompt


# derandomize: scores in float32 and float64 may rank a near-tie differently, once in millions of comparisons.
@given(cases())
@settings(max_examples=120, derandomize=True)
def test_tokens_are_those_of_the_reference_procedure(
    case: tuple[FakeDenoiser, dict[str, Any], int, list[int]],
) -> None:
    model, options, seed, prompt = case
    events = run(model, options, seed, prompt)
    assert committed(events) == reference(model, prompt, options, PhiloxNoise(seed))
    assert model.resets == 1 and not model.prefills


@given(cases())
@settings(max_examples=40)
def test_what_is_committed_stays_and_rows_are_shifted_by_one(
    case: tuple[FakeDenoiser, dict[str, Any], int, list[int]],
) -> None:
    model, options, seed, prompt = case
    events = run(model, options, seed, prompt)
    before = np.full(options["max_new_tokens"], MASK)
    fixed = np.zeros(options["max_new_tokens"], dtype=bool)
    drafts = [event for event in events if isinstance(event, Draft)]
    for draft in drafts:
        assert draft.accepted.any() and not (draft.accepted & fixed).any()
        assert np.array_equal(draft.ids[~draft.accepted], before[~draft.accepted])
        fixed |= draft.accepted
        before = draft.ids
    assert fixed.all() and before.tolist() == committed(events)
    stats = finish(events).stats
    assert stats.denoising_steps == len(drafts) <= options["steps"]
    assert stats.forwards == len(model.calls)
    for ids, request, _ in model.calls:
        assert request.rows is not None
        predicted = request.rows + 1
        if not prompt and (request.rows == 0).any():
            # Position 0 has no row before it and keeps its own.
            assert ids[0] == MASK or ids[1] == MASK
            predicted = predicted[request.rows > 0]
        assert (ids[predicted] == MASK).all()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.8}, {"top_k": 5}, {"top_p": 0.9, "top_k": 3}])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("alg", ORDERS)
def test_each_order_is_that_of_the_reference_procedure(
    alg: str, temperature: float, filters: dict[str, Any], seed: int
) -> None:
    options = options_of(max_new_tokens=20, steps=8, alg=alg, temperature=temperature, **filters)
    model = FakeDenoiser(VOCAB, seed=seed, bias=bias())
    assert committed(run(model, options, seed)) == reference(model, PROMPT, options, PhiloxNoise(seed))


@pytest.mark.parametrize("alg", ORDERS[1:])
def test_nucleus_larger_than_the_candidates_is_exact(alg: str) -> None:
    vocab = 700
    options = options_of(
        vocab, max_new_tokens=6, steps=3, alg=alg, temperature=1.0, top_p=0.95,
        logits_budget_bytes=4 * vocab * 2,
    )  # fmt: skip
    flat = ProjectingDenoiser(vocab, scale=0.3, bias=bias(vocab=vocab))
    events = run(flat, options)
    assert committed(events) == reference(flat, PROMPT, options, PhiloxNoise(0))
    stats = finish(events).stats
    # The 6, then 5, then 3 open rows are all unresolved and come two at a time.
    assert stats.forwards == stats.denoising_steps and stats.projections >= 5
    assert all(not request.logits for _, request, _ in flat.calls)
    peaked = ProjectingDenoiser(vocab, scale=3.0, bias=bias(vocab=vocab))
    assert finish(run(peaked, options)).stats.projections == 0


def timesteps(steps: int, eps: float) -> tuple[Floats, Floats]:
    """The times and, for each step, the share of open positions that it unmasks."""
    times, shares = np.empty(steps + 1, np.float32), np.empty(steps, np.float32)
    library().ekt_timesteps(ctypes.c_int64(steps), ctypes.c_double(eps), pointer(times), pointer(shares))
    return times, shares


@given(st.integers(1, 1100), st.floats(1e-6, 0.5))
@settings(max_examples=100)
def test_times_are_those_of_torch(steps: int, eps: float) -> None:
    # One unit in the last place: torch's own values depend on the width of the processor's vectors.
    times, _ = timesteps(steps, eps)
    np.testing.assert_allclose(times, torch.linspace(1, eps, steps + 1).numpy(), rtol=0, atol=1.2e-7)
    assert times.dtype == np.float32 and times[0] == 1 and times[-1] == np.float32(eps)


@pytest.mark.parametrize("steps", [8, 64, 100, 256, 512])
@pytest.mark.parametrize("length", [1, 64, 100, 512])
def test_schedule_unmasks_the_share_of_its_times_and_everything_at_the_end(steps: int, length: int) -> None:
    _, shares = timesteps(steps, 1e-3)
    exact = np.linspace(1, 1e-3, steps + 1)
    left = length
    for i in range(steps - 1):
        count = int(np.float32(left) * shares[i])
        wanted = left * (1 - exact[i + 1] / exact[i])
        assert count == int(wanted) or abs(wanted - round(wanted)) < 1e-3
        left -= count
    assert left >= 0 and shares[steps - 1] == 1


@pytest.mark.parametrize("alg", ORDERS)
def test_steps_that_unmask_nothing_run_no_pass(alg: str) -> None:
    options = options_of(max_new_tokens=6, steps=60, alg=alg)
    model = FakeDenoiser(VOCAB, bias=bias())
    stats = finish(run(model, options)).stats
    assert stats.denoising_steps == stats.forwards == len(model.calls) <= 6


def test_zero_temperature_repeats_and_seeds_decide_otherwise() -> None:
    model = FakeDenoiser(VOCAB, bias=bias())
    still = options_of(max_new_tokens=12, steps=12, alg="entropy", top_p=0.9)
    assert committed(run(model, still, 1)) == committed(run(model, still, 2))
    warm = options_of(max_new_tokens=12, steps=12, alg="entropy", temperature=1.0)
    assert committed(run(model, warm, 1)) == committed(run(model, warm, 1))
    assert committed(run(model, warm, 1)) != committed(run(model, warm, 2))


def test_statistics_of_the_head_suffice_without_filters() -> None:
    for alg in ORDERS:
        model = FakeDenoiser(VOCAB, bias=bias())
        run(model, options_of(max_new_tokens=6, steps=6, alg=alg, temperature=0.5))
        assert all(not r.logits and r.top_k == (2 if alg == "topk_margin" else 0) for _, r, _ in model.calls)


@pytest.mark.parametrize("seed", range(8))
def test_stopping_at_eos_changes_nothing_before_it(seed: int) -> None:
    common: dict[str, Any] = {
        "max_new_tokens": 16, "steps": 16, "alg": "maskgit_plus", "eos_token_ids": (EOS,),
    }  # fmt: skip
    model = FakeDenoiser(VOCAB, seed=seed, bias=bias(eos=4.0))
    full = run(model, options_of(**common))
    stopped = run(model, options_of(stop_at_eos=True, **common))
    tokens = committed(full)
    assert committed(stopped) == tokens[: tokens.index(EOS) + 1]
    assert finish(stopped).stats.finish_reason == finish(full).stats.finish_reason == "eos"
    assert finish(stopped).stats.forwards <= finish(full).stats.forwards


def test_stopping_commits_nothing() -> None:
    model = FakeDenoiser(VOCAB, bias=bias())
    events = generate(
        model, section(FAMILY), PROMPT, options=options_of(max_new_tokens=8, steps=4, alg="entropy")
    )
    seen = [next(events) for _ in range(3)]
    events.close()
    assert len(model.calls) == 3 and not any(isinstance(event, Committed) for event in seen)


def test_generation_config_is_understood() -> None:
    config = {"mask_token_id": MASK, "eos_token_id": EOS, "temperature": 0.2, "top_p": 0.95}
    options = settled(FAMILY, VOCAB, config, alg="entropy", steps=32)
    assert (options.temperature, options.top_p, options.alg, options.steps) == (0.2, 0.95, "entropy", 32)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"alg": "random"}, "use one of: origin, maskgit_plus, topk_margin, entropy"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_k": 0}, "top_k is 0"),
        ({"eps": 0}, "eps is 0"),
        ({"alg_temp": -1}, "alg_temp is -1"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"temperature": "warm"}, "temperature is 'warm'"),
        ({"stop_at_eos": True}, "stop_at_eos needs eos_token_ids"),
        ({"algorithm": "entropy"}, "not a sampling option"),
    ],
)
def test_bad_option_is_refused_in_one_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        settled(FAMILY, VOCAB, {"mask_token_id": MASK}, **overrides)
    assert "\n" not in str(caught.value)
