"""Rules of every sampler of the core: saved anywhere it goes on, and what it cannot run it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_denoiser import FakeDenoiser, ProjectingDenoiser
from support.sampler_runs import committed, finish, plain, run, saved_run, section

from edgekit.flashload.errors import UnsupportedBundle
from edgekit.runtime.sampling import Event, InvalidOption, InvalidPrompt, NonFiniteLogits, generate
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids

VOCAB = 40
MASK, EOS, EOT = 39, 38, 37

Case = tuple[str, Any, list[int], dict[str, Any], int]


class TiedDenoiser(ProjectingDenoiser):
    """Scores that are equal or one unit in the last place apart, so that every rule for ties is needed."""

    def scores(self, ids: Any, soft: Floats | None = None) -> Floats:
        fine = super().scores(ids, soft)
        coarse = np.round(fine)
        return np.where(fine * 8 % 1 < 0.3, np.nextafter(coarse, np.float32(np.inf)), coarse)


class EchoDenoiser(ProjectingDenoiser):
    """Favours what it is shown, so that canvases settle before their last step."""

    def scores(self, ids: Any, soft: Floats | None = None) -> Floats:
        scores = super().scores(np.zeros_like(ids), None)
        scores[np.arange(len(ids)), ids] += 6
        return scores


def bias_of(mask: float, end: float) -> Floats:
    bias = np.zeros(VOCAB, np.float32)
    bias[MASK] = mask
    bias[[EOS, EOT]] = end
    return bias


def denoiser(kind: Any, seed: int, scale: float, bias: Floats) -> Any:
    return kind(VOCAB, seed=seed, scale=scale, bias=bias)


@st.composite
def models(draw: st.DrawFn) -> tuple[Any, int, float, Floats]:
    kind = draw(st.sampled_from([ProjectingDenoiser, TiedDenoiser, TiedDenoiser]))
    bias = bias_of(draw(st.sampled_from([-60.0, -60.0, 1.0])), draw(st.sampled_from([-60.0, 0.0, 3.0])))
    return kind, draw(st.integers(0, 999)), draw(st.sampled_from([0.3, 1.0, 4.0])), bias


seeds = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1))
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)


@st.composite
def gemma_cases(draw: st.DrawFn) -> Case:
    options: dict[str, Any] = {
        "max_new_tokens": draw(st.integers(1, 24)),
        "canvas_length": draw(st.integers(1, 9)),
        "max_denoising_steps": draw(st.integers(1, 6)),
        "entropy_bound": draw(st.sampled_from([0.001, 0.1, 1.0, 3.0, 50])),
        "t_min": draw(st.sampled_from([0, 0.1, 0.4])),
        "t_max": draw(st.sampled_from([0.5, 0.8, 2])),
        "stability_threshold": draw(st.sampled_from([None, 0, 1, 2, 3])),
        "confidence_threshold": draw(st.sampled_from([None, 0.005, 0.5, 2.0, 100])),
        "eos_token_ids": draw(st.sampled_from([[], [EOS], [EOS, 3]])),
        "pad_token_id": draw(st.sampled_from([None, 0])),
    }
    if options["stability_threshold"] is None:
        del options["confidence_threshold"]  # without the other one it changes nothing, and is refused
    elif options["confidence_threshold"] is None:
        del options["stability_threshold"]
    if draw(st.booleans()):
        options["max_length"] = draw(st.integers(7, 30))
        if draw(st.booleans()):
            del options["max_new_tokens"]
    kind, seed, scale, bias = draw(models())
    kind = draw(st.sampled_from([kind, EchoDenoiser]))
    return "diffusion_gemma", (kind, seed, scale, bias), draw(prompts), options, draw(seeds)


@st.composite
def llada_cases(draw: st.DrawFn) -> Case:
    blocks, length = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    options: dict[str, Any] = {
        "mask_token_id": MASK,
        "gen_length": blocks * length,
        "block_length": length,
        "temperature": draw(st.sampled_from([0.0, 0, 0.3, 1.0])),
        "cfg_scale": draw(st.sampled_from([0.0, 0, 1.5])),
        "logits_eos_inf": draw(st.booleans()),
        "confidence_eos_eot_inf": draw(st.booleans()),
        "stop_at_eos": draw(st.booleans()),
        "eos_token_ids": [EOS],
        "eot_token_ids": draw(st.sampled_from([[], [EOT]])),
        "logits_budget_bytes": 4 * VOCAB * draw(st.sampled_from([1, 2, 3, 1000])),
    }
    mode = draw(st.sampled_from(["steps", "random", "threshold", "factor"]))
    if mode in ("steps", "random"):
        options["steps"] = blocks * draw(st.integers(1, length + 2))
    if mode == "random":
        options["remasking"] = "random"
    elif mode == "threshold":
        options["threshold"] = draw(st.sampled_from([0.05, 0.25, 0.4, 0.9, 1]))
    elif mode == "factor":
        options["factor"] = draw(st.sampled_from([0.2, 1, 2.5]))
    return "llada", draw(models()), draw(prompts), options, draw(seeds)


@st.composite
def dream_cases(draw: st.DrawFn) -> Case:
    options: dict[str, Any] = {
        "mask_token_id": MASK,
        "max_new_tokens": draw(st.integers(1, 12)),
        "steps": draw(st.integers(1, 20)),
        "eps": draw(st.sampled_from([1e-3, 0.137])),
        "alg": draw(st.sampled_from(["origin", "maskgit_plus", "topk_margin", "entropy"])),
        "alg_temp": draw(st.sampled_from([None, 0.0, 0.1, 1])),
        "temperature": draw(st.sampled_from([0.0, 0.2, 1])),
        "top_p": draw(st.sampled_from([None, 0.3, 0.9, 0.95, 1])),
        "top_k": draw(st.sampled_from([None, None, 1, 2, 7, 100])),
        "eos_token_ids": [EOS],
        "stop_at_eos": draw(st.booleans()),
        "logits_budget_bytes": 4 * VOCAB * draw(st.sampled_from([1, 4, 1000])),
    }
    return "dream", draw(models()), draw(prompts), options, draw(seeds)


cases = st.one_of(gemma_cases(), llada_cases(), dream_cases())


def events_of(case: Case, kind: Any = None) -> list[Event]:
    family, (own, *model), prompt, options, seed = case
    return run(family, denoiser(kind or own, *model), prompt, options, seed)


@given(cases)
@settings(max_examples=200)
def test_saved_after_any_event_it_goes_on_to_the_same(case: Case) -> None:
    family, model, prompt, options, seed = case
    try:
        expected = [plain(event) for event in events_of(case)]
    except InvalidOption as error:
        assert "max_length" in str(error)
        return
    saved = 1 + seed % (len(expected) - 1)
    assert [
        plain(event) for event in saved_run(family, denoiser(*model), prompt, options, seed, saved)
    ] == expected
    drafts = [event for event in expected if event[0] == "draft"]
    stats = expected[-1][1]
    assert stats["denoising_steps"] == len(drafts) and all(any(draft[5]) for draft in drafts)


@given(st.one_of(llada_cases(), dream_cases()))
@settings(max_examples=60)
def test_a_model_that_keeps_no_hidden_states_gives_the_same_tokens(case: Case) -> None:
    # The pass is asked for again in place of another projection.
    case = case[0], (ProjectingDenoiser, *case[1][1:]), *case[2:]
    expected, found = events_of(case), events_of(case, FakeDenoiser)
    assert committed(found) == committed(expected)
    own, theirs = finish(found).stats, finish(expected).stats
    assert own.projections == 0 and own.forwards == theirs.forwards + theirs.projections


def test_early_stop_happens_in_these_tests() -> None:
    options = {"max_new_tokens": 16, "canvas_length": 8, "max_denoising_steps": 12, "entropy_bound": 50}
    model = (EchoDenoiser, 1, 1.0, bias_of(0, 0))
    events = events_of(("diffusion_gemma", model, [1], options | {"confidence_threshold": 1.0}, 3))
    assert 2 <= finish(events).stats.denoising_steps < 24


@pytest.mark.parametrize("alg", ["maskgit_plus", "entropy", "topk_margin"])
def test_tied_candidates_of_a_large_nucleus_are_settled(alg: str) -> None:
    vocab = 700
    bias = np.zeros(vocab, np.float32)
    bias[MASK] = -60
    options = {
        "mask_token_id": MASK, "max_new_tokens": 6, "steps": 3, "alg": alg, "temperature": 1.0,
        "top_p": 0.95, "logits_budget_bytes": 4 * vocab * 2,
    }  # fmt: skip
    events = run("dream", TiedDenoiser(vocab, scale=0.6, bias=bias), [3, 1], options, 7)
    assert finish(events).stats.projections > 0 and len(committed(events)) == 6


@pytest.mark.parametrize("by_config", [False, True])
def test_a_kept_prefix_counts(by_config: bool) -> None:
    options = {"max_length": 12, "canvas_length": 4, "max_denoising_steps": 1, "continue_prefix": True}
    config, wishes = (options, {}) if by_config else ({}, options)
    model = ProjectingDenoiser(VOCAB)
    model.prefill(np.array([7, 8]))
    events = list(generate(model, section("diffusion_gemma", config), [1, 2], options=wishes))
    assert model.prefix[:4] == [7, 8, 1, 2] and len(committed(events)) == 8


def test_an_error_of_the_denoiser_comes_through() -> None:
    class Failing(ProjectingDenoiser):
        def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
            if len(self.calls) == 5:
                raise OSError("the disk is gone")
            return super().denoise(ids, request, soft)

    options = {"mask_token_id": MASK, "gen_length": 12, "block_length": 4, "steps": 12}
    full = run("llada", ProjectingDenoiser(VOCAB, bias=bias_of(-60, 0)), [1], options)
    seen = []
    with pytest.raises(OSError, match="the disk is gone"):
        for event in generate(Failing(VOCAB, bias=bias_of(-60, 0)), section("llada"), [1], options=options):
            seen.append(plain(event))
    assert seen == [plain(event) for event in full[:6]]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("diffusion_gemma", {"canvas_length": 6}),
        ("llada", {"mask_token_id": MASK}),
        ("dream", {"mask_token_id": MASK, "steps": 3, "alg": "entropy", "top_p": 0.5}),
    ],
)
def test_scores_that_are_not_finite_are_refused(family: str, options: dict[str, Any]) -> None:
    bias = np.full(VOCAB, np.nan, np.float32)
    with pytest.raises(NonFiniteLogits, match="positions are not finite"):
        run(family, ProjectingDenoiser(VOCAB, bias=bias), [1], options)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("extra", [{"cfg_scale": 1e38}, {"eos_token_ids": list(range(VOCAB))}])
def test_scores_that_options_break_are_refused(extra: dict[str, Any]) -> None:
    options = {"mask_token_id": MASK, "gen_length": 4, "block_length": 4, "steps": 4, "eos_token_ids": [EOS]}
    options |= {"logits_eos_inf": True} | extra
    with pytest.raises(NonFiniteLogits, match="leave 4 of 4 positions without a finite score"):
        run("llada", ProjectingDenoiser(VOCAB, scale=9), [1], options)


@pytest.mark.parametrize(
    ("family", "prompt", "options", "error"),
    [
        ("diffusion_gemma", [], {}, InvalidPrompt),
        ("diffusion_gemma", [3, VOCAB], {}, InvalidPrompt),
        ("llada", [3, -1], {"mask_token_id": MASK}, InvalidPrompt),
        ("llada", [2**63], {"mask_token_id": MASK}, InvalidPrompt),
        ("llada", [2**70], {"mask_token_id": MASK}, InvalidPrompt),
        ("llada", ["a"], {"mask_token_id": MASK}, InvalidPrompt),
        ("llada", [3], {"mask_token_id": 126336}, InvalidOption),
        ("llada", [3], {"mask_token_id": MASK, "eos_token_ids": [1, 77]}, InvalidOption),
        ("dream", [3], {"mask_token_id": MASK, "eos_token_ids": [77]}, InvalidOption),
        ("diffusion_gemma", [3], {"pad_token_id": VOCAB}, InvalidOption),
        ("diffusion_gemma", [1, 2, 3], {"max_length": 3}, InvalidOption),
    ],
)
def test_prompts_and_tokens_that_do_not_fit_are_refused(
    family: str, prompt: list[Any], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        run(family, ProjectingDenoiser(VOCAB), prompt, options)
    assert "\n" not in str(refused.value)


def test_unknown_sampler_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedBundle, match="'mdlm'; supported: diffusion_gemma, llada, dream"):
        run("mdlm", FakeDenoiser(VOCAB), [1], {})
