"""The entropy-bound loop against transformers' `generate`, token for token, with the same random numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_denoiser import FakeDenoiser, head
from support.native_floats import pointer
from support.native_testing import library
from support.philox_torch import drawing
from support.sampler_runs import committed, finish, run, section, settled
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    EntropyBoundSampler,
    EntropyBoundSamplerConfig,
    LinearTemperatureScheduleLogitsProcessor,
)

from edgekit.runtime.sampling import (
    Committed,
    Done,
    Draft,
    Event,
    InvalidOption,
    InvalidPrompt,
    NonFiniteLogits,
    generate,
)
from edgekit.runtime.sampling.types import Floats, HeadOutput, HeadRequest, Ids

FAMILY = "diffusion_gemma"

VOCAB = 64
CANVAS = 8
PROMPT = [2, 9, 33, 12, 50, 7, 18, 21, 40, 5]

# The generation_config.json of the published checkpoint, with transformers' own keys around it.
PUBLISHED = {
    "bos_token_id": 2,
    "eos_token_id": [1, 106, 50],
    "pad_token_id": 0,
    "max_new_tokens": 256,
    "max_denoising_steps": 48,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "cache_implementation": None,
    "transformers_version": "5.8.0.dev0",
}


def tiny_model(spread: float, contrast: float) -> DiffusionGemmaForBlockDiffusion:
    """Random weights: `spread` of the layers, `contrast` of the embeddings. With a small spread the residual
    stream is the canvas itself and the model predicts what it is shown; a large one stirs everything up."""
    config = DiffusionGemmaConfig(
        text_config={
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 8,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
            "num_global_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16, "sliding_window": 8,
            "num_experts": 4, "top_k_experts": 2, "max_position_embeddings": 512,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision_config={
            "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4,
        },
        canvas_length=CANVAS, boi_token_id=60, eoi_token_id=61, image_token_id=62,
    )  # fmt: skip
    model = DiffusionGemmaForBlockDiffusion._from_config(config, attn_implementation="eager").eval().float()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * values)
            elif "embed_tokens" in name:
                parameter.copy_(contrast * values)
            else:
                parameter.copy_(spread * values)
    return model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The matrices are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def stirring() -> DiffusionGemmaForBlockDiffusion:
    return tiny_model(0.4, 0.6)


@pytest.fixture(scope="module")
def echoing() -> DiffusionGemmaForBlockDiffusion:
    return tiny_model(0.001, 1.5)


class TransformersDenoiser:
    """transformers' encoder and decoder behind the interface of the loops."""

    vocab_size = VOCAB

    def __init__(self, model: DiffusionGemmaForBlockDiffusion) -> None:
        self.model = model
        self.hidden_size = int(model.config.get_text_config().hidden_size)
        self.embeddings = model.model.decoder.embed_tokens.weight.detach().numpy()
        self.reset()

    def reset(self) -> None:
        self.uncached: Ids = np.empty(0, np.int64)
        self.cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        self.prefix_length = 0
        self.prefills: list[Ids] = []
        self.pieces = self.prefills
        self.last: tuple[Floats, torch.Tensor] | None = None

    @torch.no_grad()
    def prefill(self, ids: Ids) -> None:
        tokens = torch.from_numpy(ids)[None]
        end = self.prefix_length + ids.shape[0]
        positions = torch.arange(self.prefix_length, end, dtype=torch.int32)[None]
        masks = self.model.model.encoder.create_masks_for_generate(
            config=self.model.config,
            inputs_embeds=torch.empty(1, ids.shape[0], 0),
            attention_mask=torch.ones(1, end, dtype=torch.bool),
            past_key_values=self.cache,
            position_ids=positions,
        )
        self.model.model.encoder(
            input_ids=tokens, attention_mask=masks, past_key_values=self.cache, position_ids=positions
        )
        self.prefix_length = end
        self.prefills.append(ids.copy())
        self.last = None

    @torch.no_grad()
    def denoise(self, ids: Ids, request: HeadRequest, soft: Floats | None = None) -> HeadOutput:
        canvas = torch.from_numpy(ids)[None]
        end = self.prefix_length + ids.shape[0]
        conditioning = None
        if soft is not None:
            # transformers takes the scores and forms softmax(z) @ E itself: the loop has to hand back the
            # expected embeddings of exactly the previous step.
            assert self.last is not None
            np.testing.assert_array_equal(soft, self.last[0])
            conditioning = self.last[1]
        logits = self.model(
            decoder_input_ids=canvas,
            self_conditioning_logits=conditioning,
            decoder_attention_mask=self.model.model.decoder.create_diffusion_decoder_attention_mask(
                config=self.model.config,
                inputs_embeds=canvas[..., None],
                past_key_values=self.cache,
                decoder_attention_mask=torch.ones(1, end, dtype=torch.bool),
            ),
            past_key_values=self.cache,
            decoder_position_ids=torch.arange(self.prefix_length, end, dtype=torch.int32)[None],
        ).logits
        output = head(logits[0].numpy(), request, self.embeddings)
        if output.soft is not None:
            self.last = (output.soft, logits / np.float32(request.temperature))
        return output


class Recorder:
    """A streamer that keeps every draft."""

    def __init__(self) -> None:
        self.drafts: list[list[int]] = []

    def put(self, value: torch.Tensor) -> None: ...

    def end(self) -> None: ...

    def put_draft(self, value: torch.Tensor) -> None:
        self.drafts.append(value[0].tolist())


def theirs(
    model: Any, seed: int, config: dict[str, Any], prompt: list[int] = PROMPT
) -> tuple[list[int], float, list[list[int]]]:
    recorder = Recorder()
    # generate() takes absent ids from the model's own config; these tests say what they want.
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    arguments = {k: v for k, v in config.items() if k not in ("sampler_config", "canvas")}
    if "canvas" in config:
        arguments["decoder_input_ids"] = torch.tensor([config["canvas"]])
    if "sampler_config" in config:
        bound = config["sampler_config"]["entropy_bound"]
        arguments["sampler_config"] = EntropyBoundSamplerConfig(entropy_bound=bound)
    with drawing(seed):
        output = model.generate(torch.tensor([prompt]), streamer=recorder, **arguments)
    return output.sequences[0, len(prompt) :].tolist(), float(output.tokens_per_forward[0]), recorder.drafts


def ours(model: Any, seed: int, config: dict[str, Any]) -> tuple[list[Event], TransformersDenoiser]:
    denoiser = TransformersDenoiser(model)
    own = generate(denoiser, section(FAMILY, config), PROMPT, seed=seed, canvas_length=CANVAS)
    return list(own), denoiser


def assert_same(model: Any, seed: int, config: dict[str, Any]) -> tuple[list[int], Done]:
    tokens, tokens_per_forward, drafts = theirs(model, seed, config)
    events, denoiser = ours(model, seed, config)
    done = finish(events)
    assert committed(events) == tokens
    assert [event.ids.tolist() for event in events if isinstance(event, Draft)] == drafts
    assert done.stats.denoising_steps == done.stats.forwards == len(drafts)
    # torch divides integers in float32.
    assert done.stats.tokens_per_forward == pytest.approx(tokens_per_forward, rel=1e-6)
    canvases = [event.ids.tolist() for event in events if isinstance(event, Committed)]
    assert [ids.tolist() for ids in denoiser.prefills] == [PROMPT, *canvases[:-1]]
    assert done.stats.prefills == done.stats.canvases == len(canvases)
    return tokens, done


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "config",
    [
        {"max_new_tokens": 17, "max_denoising_steps": 7},
        {"max_new_tokens": 8, "max_denoising_steps": 1},
        {
            "max_new_tokens": 24,
            "max_denoising_steps": 5,
            "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 2.0},
            "t_min": 0.1,
            "t_max": 1.5,
        },
        {"max_new_tokens": 16, "max_denoising_steps": 6, "stability_threshold": 3},
    ],
)
def test_random_model_gives_the_tokens_of_transformers(
    stirring: DiffusionGemmaForBlockDiffusion, seed: int, config: dict[str, Any]
) -> None:
    tokens, done = assert_same(stirring, seed, config)
    assert len(tokens) == -(-config["max_new_tokens"] // CANVAS) * CANVAS
    assert done.stats.finish_reason == "length"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("canvases", [1, 2])
def test_a_start_canvas_is_that_of_transformers(
    stirring: DiffusionGemmaForBlockDiffusion, canvases: int, seed: int
) -> None:
    canvas = np.random.default_rng(seed).integers(0, VOCAB, CANVAS).tolist()
    config: dict[str, Any] = {"max_new_tokens": canvases * CANVAS, "max_denoising_steps": 5}
    started, _ = assert_same(stirring, seed, config | {"canvas": canvas})
    assert started != assert_same(stirring, seed, config)[0]


@pytest.mark.parametrize("stability", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_stable_and_confident_stop_comes_at_the_step_of_transformers(
    echoing: DiffusionGemmaForBlockDiffusion, stability: int, seed: int
) -> None:
    config = {
        "max_new_tokens": 16,
        "max_denoising_steps": 12,
        "stability_threshold": stability,
        "confidence_threshold": 0.02,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 5.0},
    }
    _, done = assert_same(echoing, seed, config)
    assert 2 * (stability + 1) <= done.stats.denoising_steps < 24


def test_stability_alone_decides_when_confidence_is_always_enough(
    stirring: DiffusionGemmaForBlockDiffusion,
) -> None:
    config = {"max_new_tokens": 16, "max_denoising_steps": 6, "confidence_threshold": 100.0}
    _, never = assert_same(stirring, 1, config)
    assert never.stats.denoising_steps == 12
    _, at_once = assert_same(stirring, 1, {**config, "stability_threshold": 0})
    assert at_once.stats.denoising_steps == 2


@pytest.mark.parametrize("pad", [0, None])
@pytest.mark.parametrize("canvas", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_end_tokens_stop_and_pad_like_transformers(
    stirring: DiffusionGemmaForBlockDiffusion, pad: int | None, canvas: int, seed: int
) -> None:
    config: dict[str, Any] = {"max_new_tokens": 24, "max_denoising_steps": 4}
    plain, _ = assert_same(stirring, seed, config)
    part = plain[canvas * CANVAS : (canvas + 1) * CANVAS]
    eos = next(token for token in part if token not in plain[: canvas * CANVAS])
    absent = next(token for token in range(1, VOCAB) if token not in plain)
    config |= {"eos_token_id": [absent, eos], "pad_token_id": pad}
    tokens, done = assert_same(stirring, seed, config)
    assert done.stats.finish_reason == "eos"
    assert len(tokens) == (canvas + 1) * CANVAS
    if pad is not None:
        assert set(tokens[tokens.index(eos) + 1 :]) <= {pad}


@pytest.mark.parametrize(
    "limits",
    [
        {"max_length": len(PROMPT) + 12},
        {"max_length": len(PROMPT) + 8, "max_new_tokens": 24},
        {"max_length": len(PROMPT) + 100, "max_new_tokens": 9},
    ],
)
def test_max_length_counts_the_prompt_like_transformers(
    stirring: DiffusionGemmaForBlockDiffusion, limits: dict[str, int]
) -> None:
    assert_same(stirring, 0, {**limits, "max_denoising_steps": 2})


def linear_temperature(remaining: int, steps: int, low: float, high: float) -> np.float32:
    core = library()
    core.ekt_linear_temperature.restype = ctypes.c_float
    own = ctypes.c_int64(remaining), ctypes.c_int64(steps), ctypes.c_double(low), ctypes.c_double(high)
    return np.float32(core.ekt_linear_temperature(*own))


def accept_by_entropy(entropy: Floats, bound: float) -> np.ndarray:
    accepted = np.empty(entropy.size, np.uint8)
    size = ctypes.c_int64(entropy.size)
    library().ekt_accept_by_entropy(pointer(entropy), size, ctypes.c_double(bound), pointer(accepted))
    return accepted.astype(bool)


@given(st.integers(1, 300), st.floats(0, 2), st.floats(0.01, 2))
def test_temperature_schedule_has_the_bits_of_transformers(steps: int, low: float, width: float) -> None:
    high = low + width
    processor = LinearTemperatureScheduleLogitsProcessor(t_min=low, t_max=high, max_denoising_steps=steps)
    for remaining in {1, 2, (steps + 1) // 2, steps}:
        scores = torch.linspace(1, 3, 64)
        cur_step = torch.tensor(remaining, dtype=torch.int32)
        expected = processor(None, scores, cur_step=cur_step).numpy()
        temperature = linear_temperature(remaining, steps, low, high)
        np.testing.assert_array_equal(scores.numpy() / temperature, expected)


def test_published_temperature_schedule_has_the_bits_of_transformers() -> None:
    processor = LinearTemperatureScheduleLogitsProcessor(t_min=0.4, t_max=0.8, max_denoising_steps=48)
    ours_ = [linear_temperature(r, 48, 0.4, 0.8) for r in range(48, 0, -1)]
    for remaining, temperature in zip(range(48, 0, -1), ours_, strict=True):
        scores = torch.linspace(1, 3, 64)
        expected = processor(None, scores, cur_step=torch.tensor(remaining, dtype=torch.int32)).numpy()
        np.testing.assert_array_equal(scores.numpy() / temperature, expected)
    assert ours_[0] == np.float32(0.8) and ours_[-1] == pytest.approx(0.408333, abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(0.01, 20))
@settings(max_examples=60)
def test_accepted_positions_are_those_of_transformers(seed: int, length: int, bound: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    spread = 10 * torch.rand(length, 1, generator=generator)
    logits = (torch.randn(length, 20, generator=generator) * spread)[None]
    sampler = EntropyBoundSampler(EntropyBoundSamplerConfig(entropy_bound=bound), length, 20, 4)
    zeros, ones = torch.zeros(1, length, dtype=torch.long), torch.ones(1, length, dtype=torch.long)
    expected = sampler.accept_canvas(zeros, ones, logits, 1)[0].bool().numpy()
    entropy = torch.distributions.Categorical(logits=logits).entropy()[0].numpy()
    accepted = accept_by_entropy(entropy, bound)
    assert accepted.tolist() == expected.tolist()
    assert accepted[entropy.argmin()]


#: Options of a canvas in one step.
SHORT = {"max_new_tokens": 6, "canvas_length": 6, "max_denoising_steps": 1}


def fake_run(seed: int = 3, **overrides: Any) -> tuple[list[Event], FakeDenoiser]:
    settings_: dict[str, Any] = {
        "max_new_tokens": 12,
        "canvas_length": 6,
        "max_denoising_steps": 4,
        **overrides,
    }
    denoiser = FakeDenoiser(50, scale=3.0)
    return run(FAMILY, denoiser, [1, 2, 3], settings_, seed), denoiser


def test_same_seed_same_tokens_and_other_seed_other_tokens() -> None:
    assert committed(fake_run(3)[0]) == committed(fake_run(3)[0])
    assert committed(fake_run(3)[0]) != committed(fake_run(4)[0])


def test_last_step_asks_for_nothing_that_is_not_used() -> None:
    _, denoiser = fake_run()
    requests = [request for _, request, _ in denoiser.calls]
    assert [request.soft for request in requests] == [True, True, True, False] * 2
    assert [request.gumbel is not None for request in requests] == [True, True, True, False] * 2
    assert not any(request.logits or request.top_k for request in requests)
    assert [soft is not None for _, _, soft in denoiser.calls] == [False, True, True, True] * 2


def test_drafts_carry_the_best_guess_and_commit_is_the_last_one() -> None:
    events, denoiser = fake_run()
    drafts = [event for event in events if isinstance(event, Draft)]
    assert [(d.canvas_index, d.step, d.start) for d in drafts] == [
        (c, s, 6 * c) for c in (0, 1) for s in (1, 2, 3, 4)
    ]
    assert all(d.accepted.any() and d.accepted.shape == (6,) for d in drafts)
    last = [drafts[3].ids.tolist(), drafts[7].ids.tolist()]
    assert [e.ids.tolist() for e in events if isinstance(e, Committed)] == last
    assert [type(e) for e in events[4:6]] == [Committed, Draft]


def test_prefix_is_kept_only_on_request() -> None:
    for keep in (False, True):
        denoiser = FakeDenoiser(50)
        denoiser.prefill(np.array([7, 8]))
        run(FAMILY, denoiser, [1, 2], {**SHORT, "continue_prefix": keep})
        assert denoiser.prefix == ([7, 8, 1, 2] if keep else [1, 2])


@pytest.mark.parametrize("pad", [0, None])
@pytest.mark.parametrize("ends", [False, True])
def test_a_conversation_gives_the_tokens_of_transformers_for_its_whole_text(
    stirring: DiffusionGemmaForBlockDiffusion, ends: bool, pad: int | None
) -> None:
    """Three turns in one cache, each beside `generate` over all tokens before it at once."""
    config: dict[str, Any] = {"max_new_tokens": 16, "max_denoising_steps": 4, "pad_token_id": pad}
    denoiser, whole = TransformersDenoiser(stirring), []
    for turn in range(3):
        prompt = [*PROMPT[turn:], 3 + turn]
        if ends:  # in the second canvas, where the text before it is encoded already
            plain, *_ = theirs(stirring, turn, config | {"eos_token_id": None}, [*whole, *prompt])
            eos = next(t for t in plain[CANVAS:] if t not in plain[:CANVAS])
            config["eos_token_id"] = [eos]
        whole += prompt
        expected, *_ = theirs(stirring, turn, config, whole)
        options = {"continue_prefix": turn > 0, "canvas_length": CANVAS}
        found = committed(
            list(generate(denoiser, section(FAMILY, config), prompt, seed=turn, options=options))
        )
        assert found == expected
        whole += found[: found.index(eos) + 1] if ends else found
        encoded = np.concatenate([*denoiser.prefills, denoiser.uncached]).tolist()
        assert encoded == whole, "nothing is lost, and no padding is kept"


def test_a_conversation_keeps_what_was_committed_until_a_stop() -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "canvas_length": 6, "max_denoising_steps": 2}
    for stop in range(1, 7):
        denoiser, said = FakeDenoiser(50), [1]
        events = generate(denoiser, section(FAMILY), [1], options=options)
        for _ in range(stop):
            event = next(events)
            said += event.ids.tolist() if isinstance(event, Committed) else []
        events.close()
        assert [*denoiser.prefix, *denoiser.uncached.tolist()] == said
    run(FAMILY, denoiser, [2, 3], options | {"continue_prefix": True}, 1)
    assert denoiser.prefix[: len(said) + 2] == [*said, 2, 3]


def test_a_prefix_that_was_lost_takes_the_end_of_the_answer_with_it() -> None:
    class Failing(FakeDenoiser):
        def prefill(self, ids: Ids) -> None:
            if self.prefix:
                self.prefix = self.prefix[:kept]
                raise OSError("gone")
            super().prefill(ids)

    for kept in (0, 1):
        denoiser = Failing(50)
        run(FAMILY, denoiser, [1], SHORT)
        assert denoiser.uncached.size == 6
        with pytest.raises(OSError, match="gone"):
            run(FAMILY, denoiser, [2], SHORT | {"continue_prefix": True})
        assert denoiser.uncached.size == (6 if kept else 0)


def test_closing_the_generator_stops_the_model() -> None:
    denoiser = FakeDenoiser(50)
    options = {"max_new_tokens": 12, "canvas_length": 6, "max_denoising_steps": 4}
    events = generate(denoiser, section(FAMILY), [1], options=options)
    next(events)
    events.close()
    assert len(denoiser.calls) == 1


def test_published_generation_config_is_understood() -> None:
    assert settled(FAMILY, 256, PUBLISHED) == settled(FAMILY, 256, eos_token_ids=[1, 106, 50], pad_token_id=0)
    other = settled(FAMILY, 256, PUBLISHED, max_denoising_steps=8, confidence_threshold=None)
    assert other.steps == 8 and other.confidence_threshold is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"max_denoising_steps": 0}, "^max_denoising_steps is 0"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
        ({"canvas_length": True}, "canvas_length is true"),
        ({"entropy_bound": 0.0}, "above 0"),
        ({"entropy_bound": float("nan")}, "entropy_bound is nan"),
        ({"t_min": 0.9}, "t_max 0.8 is not above t_min 0.9"),
        ({"stability_threshold": -1}, "stability_threshold is -1"),
        ({"confidence_threshold": 0}, "confidence_threshold is 0"),
        ({"eos_token_ids": [1, "x"]}, "eos_token_ids is 'x'"),
        ({"max_length": 0}, "max_length is 0"),
        ({"continue_prefix": 1}, "use true or false"),
        ({"sampler": 3}, "not a sampling option"),
    ],
)
def test_bad_option_is_refused_in_one_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as caught:
        settled(FAMILY, 50, **overrides)
    assert "\n" not in str(caught.value)


def test_other_sampler_class_is_refused() -> None:
    with pytest.raises(InvalidOption, match="EntropyBoundSamplerConfig"):
        settled(FAMILY, 50, {"sampler_config": {"_cls_name": "Confidence"}})


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([[1, 2]], "shape"),
        ([1.5], "float64"),
        ([3, 50], "token 50 at position 1"),
        ([-1], "token -1"),
    ],
)
def test_bad_prompt_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidPrompt, match=message):
        run(FAMILY, FakeDenoiser(50), prompt, {})


@pytest.mark.parametrize("new_tokens", [256, 9])
def test_prompt_beyond_max_length_is_refused(new_tokens: int) -> None:
    """transformers makes no canvas, or one that passes the limit: neither is an answer to what was asked."""
    options = {"max_length": 3, "max_new_tokens": new_tokens}
    with pytest.raises(InvalidOption, match="3 tokens and max_length is 3; use a max_length of at least 4"):
        run(FAMILY, FakeDenoiser(50), [1, 2, 3], options)


@pytest.mark.parametrize("tokens", [{"pad_token_id": 50}, {"eos_token_ids": (3, 50)}])
def test_tokens_outside_the_vocabulary_are_refused(tokens: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidOption, match=f"^{next(iter(tokens))} 50 is outside the model's vocabulary of 50"
    ):
        run(FAMILY, FakeDenoiser(50), [1], tokens)


def test_scores_that_are_not_finite_end_the_generation() -> None:
    bias = np.full(50, np.nan, np.float32)
    with pytest.raises(NonFiniteLogits, match="256 of 256 positions"):
        run(FAMILY, FakeDenoiser(50, bias=bias), [1], {})
