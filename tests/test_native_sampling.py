"""The loops of the native core against the Python loops: same tokens, events, counters and error texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_checkpoint
from fake_denoiser import FakeDenoiser, ProjectingDenoiser
from hypothesis import given, settings
from hypothesis import strategies as st
from native_sampler import (
    INVALID_ARGUMENT,
    NOT_FINITE,
    OK,
    UNSUPPORTED_BUNDLE,
    core,
    native,
    python,
)
from reference_denoiser import ReferenceDenoiser

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from edgekit.runtime.sampling import SAMPLERS
from edgekit.runtime.sampling.types import Floats

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
        "steps": blocks * draw(st.integers(1, length + 2)),
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


def assert_same(case: Case) -> None:
    family, model, prompt, options, seed = case
    expected = python(family, denoiser(*model), prompt, options, seed)
    found = native(family, denoiser(*model), prompt, options, seed)
    assert found.message == expected.message
    assert (found.status == OK) == (not expected.message)
    assert found.events == expected.events
    assert found.answer == expected.answer
    if found.status == OK:
        assert found.events[-1] == ("done", found.stats)
        assert core(family, denoiser(*model), prompt, options, seed).events == expected.events
        saved = 1 + seed % (len(expected.events) - 1)
        assert core(family, denoiser(*model), prompt, options, seed, saved=saved).events == expected.events


@given(gemma_cases())
@settings(max_examples=150)
def test_diffusion_gemma_has_the_events_of_python(case: Case) -> None:
    assert_same(case)


@given(llada_cases())
@settings(max_examples=150)
def test_llada_has_the_events_of_python(case: Case) -> None:
    assert_same(case)


@given(dream_cases())
@settings(max_examples=150)
def test_dream_has_the_events_of_python(case: Case) -> None:
    assert_same(case)


def test_early_stop_happens_in_these_tests() -> None:
    options = {"max_new_tokens": 16, "canvas_length": 8, "max_denoising_steps": 12, "entropy_bound": 50}
    case = ("diffusion_gemma", (EchoDenoiser, 1, 1.0, bias_of(0, 0)), [1], options, 3)
    assert_same((*case[:3], options | {"confidence_threshold": 1.0}, 3))
    stats = native(case[0], denoiser(*case[1]), [1], options | {"confidence_threshold": 1.0}, 3).stats
    assert stats is not None and 2 <= stats["denoising_steps"] < 24


@pytest.mark.parametrize("cfg", [0.0, 0.7])
@pytest.mark.parametrize("rows", [3, 40])
def test_noise_of_a_large_vocabulary_comes_in_the_same_pieces(cfg: float, rows: int) -> None:
    vocab = 9001
    options = {
        "mask_token_id": 0, "gen_length": 24, "block_length": 24, "steps": 2, "temperature": 1.0,
        "cfg_scale": cfg, "logits_eos_inf": True, "eos_token_ids": [5],
        "logits_budget_bytes": 4 * vocab * rows,
    }  # fmt: skip
    expected = python("llada", ProjectingDenoiser(vocab), [1, 2], options, 4)
    assert native("llada", ProjectingDenoiser(vocab), [1, 2], options, 4).events == expected.events


@pytest.mark.parametrize("alg", ["maskgit_plus", "entropy", "topk_margin"])
def test_nucleus_larger_than_the_candidates(alg: str) -> None:
    vocab = 700
    bias = np.zeros(vocab, np.float32)
    bias[MASK] = -60
    options = {
        "mask_token_id": MASK, "max_new_tokens": 6, "steps": 3, "alg": alg, "temperature": 1.0,
        "top_p": 0.95, "logits_budget_bytes": 4 * vocab * 2,
    }  # fmt: skip
    for kind in (ProjectingDenoiser, TiedDenoiser):
        expected = python("dream", kind(vocab, scale=0.6, bias=bias), [3, 1], options, 7)
        found = native("dream", kind(vocab, scale=0.6, bias=bias), [3, 1], options, 7)
        assert found.events == expected.events
        assert found.stats is not None and found.stats["projections"] > 0


@pytest.mark.parametrize("family", ["diffusion_gemma", "llada", "dream"])
def test_the_reference_model_gives_the_same_answer_to_both(family: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, family)
    source = Checkpoint.open(tmp_path)
    arch = architecture(source.config)
    model = ReferenceModel(arch, load_float_weights(arch, source)).eval()
    options: dict[str, Any] = {
        "diffusion_gemma": {"max_new_tokens": 16, "canvas_length": 8, "max_denoising_steps": 3},
        "llada": {"gen_length": 8, "block_length": 4, "steps": 4, "temperature": 0.5, "mask_token_id": 3},
        "dream": {"max_new_tokens": 6, "steps": 3, "alg": "entropy", "top_p": 0.9, "mask_token_id": 3},
    }[family]
    hidden = model.embedding.shape[1]
    expected = python(family, ReferenceDenoiser(model), [1, 2, 5], options, 6)
    assert expected.events
    assert (
        native(family, ReferenceDenoiser(model), [1, 2, 5], options, 6, hidden=hidden).events
        == expected.events
    )


def test_a_kept_prefix_counts() -> None:
    options = {"max_length": 12, "canvas_length": 4, "max_denoising_steps": 1, "continue_prefix": True}
    outcomes = []
    for run in (python, native):
        model = ProjectingDenoiser(VOCAB)
        model.prefill(np.array([7, 8]))
        outcomes.append(run("diffusion_gemma", model, [1, 2], options).events)
        assert model.prefix[:4] == [7, 8, 1, 2]
    assert outcomes[0] == outcomes[1]


@given(cases, st.integers(1, 12))
@settings(max_examples=60)
def test_a_stop_leaves_the_state_of_that_moment(case: Case, stop: int) -> None:
    family, model, prompt, options, seed = case
    full = python(family, denoiser(*model), prompt, options, seed)
    if full.message or stop >= len(full.events):
        stop = len(full.events)
    expected = python(family, denoiser(*model), prompt, options, seed, stop_after=stop)
    found = native(family, denoiser(*model), prompt, options, seed, stop_after=stop)
    assert found.events == full.events[:stop] == expected.events
    assert found.answer == expected.answer
    if stop == len(full.events):  # done, or an error before the first event: nothing is left to stop
        assert found.message == full.message
        return
    assert found.stats is not None and found.stats | {"finish_reason": "cancelled"} == expected.stats


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("diffusion_gemma", {"canvas_length": 6}),
        ("llada", {"mask_token_id": MASK, "gen_length": 64, "block_length": 32}),
        ("dream", {"mask_token_id": MASK, "steps": 3, "alg": "entropy", "top_p": 0.5}),
    ],
)
def test_scores_that_are_not_finite_have_the_error_of_python(family: str, options: dict[str, Any]) -> None:
    bias = np.full(VOCAB, np.nan, np.float32)
    expected = python(family, ProjectingDenoiser(VOCAB, bias=bias), [1], options)
    found = native(family, ProjectingDenoiser(VOCAB, bias=bias), [1], options)
    assert "positions are not finite" in expected.message
    assert (found.message, found.status) == (expected.message, NOT_FINITE)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("extra", [{"cfg_scale": 1e38}, {"eos_token_ids": list(range(VOCAB))}])
def test_scores_that_options_break_have_the_error_of_python(extra: dict[str, Any]) -> None:
    options = {"mask_token_id": MASK, "gen_length": 4, "block_length": 4, "steps": 4, "eos_token_ids": [EOS]}
    options |= {"logits_eos_inf": True} | extra
    expected = python("llada", ProjectingDenoiser(VOCAB, scale=9), [1], options)
    found = native("llada", ProjectingDenoiser(VOCAB, scale=9), [1], options)
    assert "leave 4 of 4 positions without a finite score" in expected.message
    assert (found.message, found.status) == (expected.message, NOT_FINITE)


@pytest.mark.parametrize(
    ("family", "prompt", "options"),
    [
        ("diffusion_gemma", [], {}),
        ("diffusion_gemma", [3, VOCAB], {}),
        ("llada", [3, -1], {"mask_token_id": MASK}),
        ("llada", [3], {"mask_token_id": 126336}),
        ("llada", [3], {"mask_token_id": MASK, "eos_token_ids": [1, 77]}),
        ("dream", [3], {"mask_token_id": MASK, "eos_token_ids": [77]}),
        ("diffusion_gemma", [3], {"pad_token_id": VOCAB}),
        ("diffusion_gemma", [1, 2, 3], {"max_length": 3}),
    ],
)
def test_prompts_and_tokens_that_do_not_fit_have_the_error_of_python(
    family: str, prompt: list[int], options: dict[str, Any]
) -> None:
    expected = python(family, ProjectingDenoiser(VOCAB), prompt, options)
    found = native(family, ProjectingDenoiser(VOCAB), prompt, options)
    assert expected.message and not expected.events
    assert (found.message, found.status, found.events) == (expected.message, INVALID_ARGUMENT, [])


def test_unknown_sampler_lists_the_known_ones() -> None:
    found = native("mdlm", FakeDenoiser(VOCAB), [1], {})
    assert found.status == UNSUPPORTED_BUNDLE
    assert found.message == "no sampler for model family 'mdlm'; supported: " + ", ".join(SAMPLERS)
