"""Procedures that decode block by block, over a model that shows what every row has seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.hash_model import HashModel, HashSequence

from edgekit.runtime.sampling import (
    Committed,
    CoreSampler,
    Done,
    InvalidOption,
    PhiloxNoise,
    SamplerModel,
    drive,
)

MASK, EOS = 12, 11


def settings(**options: Any) -> dict[str, Any]:
    return {"name": "block", "config": {"mask_token_id": MASK, "eos_token_id": [EOS], **options}}


def sampler(
    model: HashModel, prompt: list[int], block: int, count: int, seed: int = 0, **options: Any
) -> CoreSampler:
    facts = SamplerModel(
        settings(**options), model.vocabulary, 0, bundle="b", prefix_block=block, shift_logits=model.shift
    )
    return CoreSampler(facts, prompt, seed=seed, max_new_tokens=count)


def generated(
    model: HashModel, prompt: list[int], block: int, count: int, **options: Any
) -> tuple[list[int], Done, HashSequence]:
    sequence = HashSequence(model, block)
    tokens: list[int] = []
    for event in drive(sampler(model, prompt, block, count, **options), sequence):
        if isinstance(event, Committed):
            assert event.text is None, "all of it is text, and none of it the prompt's"
            tokens += event.ids.tolist()
        elif isinstance(event, Done):
            done = event
    return tokens, done, sequence


def until_end(tokens: list[int], count: int) -> list[int]:
    tokens = tokens[:count]
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def probabilities(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def filtered(
    logits: np.ndarray, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> np.ndarray:
    """Probabilities that SDAR's generate.py draws from: the likeliest, and of these the nucleus."""
    z = logits.astype(np.float64) / temperature
    if top_k:
        least = np.sort(z, -1)[:, -min(top_k, z.shape[1]), None]
        z = np.where(z < least, -np.inf, z)
    if top_p is not None and top_p < 1:
        order = np.argsort(-z, -1, kind="stable")
        p = probabilities(np.take_along_axis(z, order, -1))
        drop = np.zeros(z.shape, bool)
        np.put_along_axis(drop, order, p.cumsum(-1) - p > top_p, -1)
        z = np.where(drop, -np.inf, z)
    return probabilities(z)


def drawn(p: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """A token of each row by the inverse of its cumulative distribution, the likeliest first."""
    order = np.argsort(-p, -1, kind="stable")
    index = (np.take_along_axis(p, order, -1).cumsum(-1) < uniform[:, None]).sum(-1)
    return np.take_along_axis(order, index[:, None], -1)[:, 0]


def denoised(
    model: HashModel,
    before: list[bytes],
    tokens: list[int],
    at: int,
    *,
    threshold: float | None,
    steps: int,
    small: int | None = None,
    entropy_bound: float | None = None,
    noise: PhiloxNoise | None = None,
    draw: dict[str, Any] | None = None,
    causal_start: bool = False,
) -> tuple[list[int], int]:
    """A block without its masks, and the passes that took: generate.py of LLaDA2.0, SDAR and Fast_dLLM v2;
    with a bound the `entropy_bounded` of JetEngine, whose entropies are those of rows.
    """
    tokens, passes, length = list(tokens), 0, len(tokens)
    # The first token of a block is no mask where text is causal and gives it.
    masks = tokens.count(MASK) if causal_start else length
    share = [masks // steps + (i < masks % steps) for i in range(steps)]
    while MASK in tokens:
        logits = model.rows(model.group(before, tokens, at), at, causal=False)
        if model.shift:
            logits = np.concatenate([logits[:1], logits[:-1]])
        p = probabilities(logits)
        candidates = logits.argmax(-1)
        open_rows = [i for i, token in enumerate(tokens) if token == MASK]
        if small:
            first = open_rows[0] // small * small
            open_rows = [i for i in open_rows if i < first + small]
        confidence = p.max(-1)
        if draw is not None:
            assert noise is not None
            p = filtered(logits, **draw)
            candidates[open_rows] = drawn(p[open_rows], noise.uniform(len(open_rows)))
            confidence = p[np.arange(length), candidates]
        if entropy_bound is not None:
            entropies = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
            order = sorted(open_rows, key=lambda i: entropies[i])
            sums = np.cumsum(entropies[order])
            for i in order[: max(1, int(np.searchsorted(sums, entropy_bound)))]:
                tokens[i] = int(candidates[i])
            passes += 1
            continue
        need = min(max(1, share[passes] if passes < steps else 1), len(open_rows))
        high = [i for i in open_rows if threshold is not None and confidence[i] > threshold]
        if len(high) < need:
            high = sorted(open_rows, key=lambda i: -confidence[i])[:need]
        for i in high:
            tokens[i] = int(candidates[i])
        passes += 1
    return tokens, passes


def by_blocks(
    model: HashModel,
    prompt: list[int],
    block: int,
    length: int,
    count: int,
    causal_start: bool = False,
    **rule: Any,
) -> tuple[list[int], int]:
    """An answer by blocks whose text is encoded in blocks of `block`, everything encoded anew for each."""
    text, passes, answer = list(prompt), 0, 0
    while answer < count and EOS not in text[len(prompt) :]:
        start = len(text) if block == 1 else len(text) // length * length
        before = model.text([], text[:start], 0, block)
        tokens = text[start:] + [MASK] * (length - len(text[start:]))
        if model.shift and len(text) == start:
            tokens[0] = int(model.rows(before, 0, causal=False)[-1].argmax())
        if causal_start:
            tokens[0] = int(model.rows(before, 0, causal=True)[-1].argmax())
        tokens, used = denoised(model, before, tokens, start, causal_start=causal_start, **rule)
        passes += used
        text = text[:start] + tokens
        answer = len(text) - len(prompt)
    return until_end(text[len(prompt) :], count), passes


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ride", [True, False])
@pytest.mark.parametrize(
    ("block", "start", "small", "threshold", "steps"),
    [
        (4, "masks", None, 0.5, 4),
        (4, "masks", None, None, 2),
        (8, "masks", None, 0.6, 3),
        (8, "shifted", 4, 0.6, 8),
        (8, "shifted", None, None, 8),
        (1, "masks", None, 0.5, 6),
        (1, "masks", None, None, 3),
        (1, "causal", None, 0.5, 6),
        (1, "causal", None, None, 3),
        (1, "causal", 3, None, 6),
    ],
)
def test_blocks_are_those_of_the_scripts(
    seed: int, ride: bool, block: int, start: str, small: int | None, threshold: float | None, steps: int
) -> None:
    rng = np.random.default_rng(seed)
    length = 6 if block == 1 else block
    shift, causal_start = start == "shifted", start == "causal"
    model = HashModel(noise=float(rng.choice([0.5, 2.0])), seed=seed, shift=shift)
    for size in (1, length - 1, length, 2 * length, 2 * length + 3):
        prompt = rng.integers(0, EOS, size).tolist()
        count = int(rng.integers(1, 4 * length))
        rule: dict[str, Any] = {"threshold": threshold, "steps": steps, "small": small}
        rule["causal_start"] = causal_start
        expected, passes = by_blocks(model, prompt, block, length, count, **rule)
        options = {"threshold": threshold, "steps": steps, "block_length": length, "ride": ride}
        options["causal_start"] = causal_start
        tokens, done, sequence = generated(model, prompt, block, count, **options, small_block_length=small)
        assert tokens == expected
        assert done.stats.denoising_steps <= passes
        held = [*sequence.text, *sequence.uncached.tolist()]
        assert held == [*prompt, *expected], "a conversation goes on behind what was said"
        kept = model.text([], sequence.text, 0, block)
        assert sequence.kept == kept, "what is kept is what encoding the text gives"
        if len(expected) > 2 * length:
            rides = any(len(segments) == 2 for segments in sequence.passes)
            assert rides == (ride and start == "masks"), "the first token is there before the block begins"


#: top_k, top_p: of those alone, and together as in SDAR's generation_config.json.
FILTERS: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 5, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.95},
]


@pytest.mark.parametrize("draw", [None, *FILTERS], ids=str)
@pytest.mark.parametrize("entropy_bound", [None, 0.35, 1.5])
def test_what_is_drawn_is_what_sdar_draws(draw: dict[str, Any] | None, entropy_bound: float | None) -> None:
    rule: dict[str, Any] = {"threshold": 0.6, "steps": 4, "entropy_bound": entropy_bound, "draw": draw}
    options: dict[str, Any] = {"threshold": 0.6, "steps": 4, "block_length": 4, **(draw or {})}
    if entropy_bound is not None:
        options |= {"remasking": "entropy", "entropy_bound": entropy_bound}
    answers, greedy = [], []
    for seed in range(8):
        model, prompt = HashModel(noise=1.0, seed=seed), [1, 2, 3, 4, 5, 6]
        plain = {"threshold": 0.6, "steps": 4, "entropy_bound": entropy_bound}
        expected, passes = by_blocks(model, prompt, 4, 4, 13, **rule, noise=PhiloxNoise(seed))
        tokens, done, _ = generated(model, prompt, 4, 13, seed=seed, **options)
        assert tokens == expected
        assert done.stats.denoising_steps <= passes
        answers.append(expected)
        greedy.append(by_blocks(model, prompt, 4, 4, 13, **plain)[0])
    assert (answers == greedy) == (draw is None)


@pytest.mark.parametrize("draw", FILTERS, ids=str)
@pytest.mark.parametrize("mode", ["diffusion", "autoregressive"])
def test_tokens_come_as_often_as_sdars_probabilities_say(draw: dict[str, Any], mode: str) -> None:
    model, prompt, count = HashModel(noise=1.0, seed=5), [1, 2, 3], 1500
    if mode == "autoregressive":
        scores = model.rows(model.text([], prompt, 0, 1), 0, causal=True)[-1:]
    else:
        scores = model.rows(model.group(model.text([], prompt, 0, 1), [MASK], 3), 3, causal=False)
    expected = filtered(scores, **draw)[0]
    found = np.zeros(len(expected))
    for seed in range(count):
        tokens, _, _ = generated(model, prompt, 1, 1, seed=seed, mode=mode, block_length=1, **draw)
        found[tokens[0]] += 1
    assert not found[expected == 0].any()
    deviation = np.abs(found / count - expected) / np.sqrt(
        np.maximum(expected * (1 - expected), 1e-9) / count
    )
    assert deviation[expected > 0].max() < 4, (found / count, expected)


def test_filters_that_mean_nothing_here_are_refused() -> None:
    model, moves = HashModel(), {"delete_token_id": 3, "insert_token_id": 4, "editing_threshold": 0.5}
    for options, words in (
        ({**moves, "temperature": 1.0, "top_k": 5}, "top_k and top_p do not go with delete_token_id"),
        ({"editing_threshold": 0.5, "remasking": "entropy"}, "use remasking low_confidence"),
        ({"causal_start": True}, "no causal pass, its text is encoded in blocks of 4: leave it out"),
    ):
        with pytest.raises(InvalidOption, match=words):
            sampler(model, [1], 4, 4, block_length=4, **options)
    sampler(model, [1], 4, 4, block_length=4, **moves, top_k=5, top_p=0.9)  # nothing is drawn


#: Ways to decode, by the rows of text that see each other.
HURRIED: list[tuple[int, bool, dict[str, Any]]] = [
    (4, False, {"threshold": 0.9, "block_length": 4}),
    (4, False, {"threshold": 0.9, "block_length": 4, "ride": False}),
    (4, False, {"block_length": 4, "remasking": "entropy", "entropy_bound": 0.01}),
    (8, True, {"threshold": 0.9, "block_length": 8, "small_block_length": 4}),
    (4, False, {"threshold": 0.5, "block_length": 4, "editing_threshold": 0.4, "temperature": 0.7}),
    (6, False, {"block_length": 6, "editing_threshold": 0.0, "delete_token_id": 3, "insert_token_id": 4}),
    (1, False, {"threshold": 0.9, "block_length": 5, "causal_start": True}),
    (1, False, {"mode": "autoregressive", "block_length": 5}),
    (1, False, {"mode": "speculative", "block_length": 5, "ahead": 2}),
]


@pytest.mark.parametrize(("block", "shift", "options"), HURRIED, ids=str)
@pytest.mark.parametrize("saved", [False, True])
def test_a_hurried_one_ends_with_the_block_at_hand(
    block: int, shift: bool, options: dict[str, Any], saved: bool
) -> None:
    model, prompt = HashModel(noise=2.0, seed=3, shift=shift), [1, 2, 3, 4, 5]
    facts = SamplerModel(settings(), model.vocabulary, 0, bundle="b", prefix_block=block, shift_logits=shift)
    whole, done, _ = generated(model, prompt, block, 30, **options)
    for after in range(done.stats.forwards):
        for passes in (1, 2, 3):
            own, sequence, told = sampler(model, prompt, block, 30, **options), HashSequence(model, block), []
            events, before = 0, 0
            if after == 0:
                own.hurry(passes)
            running = drive(own, sequence)
            for event in running:
                events += 1
                if isinstance(event, Committed):
                    told += event.ids.tolist()
                if events == after:
                    before = own.stats.forwards
                    own.hurry(passes)
                    if saved:
                        running.close()
                        own, sequence = CoreSampler.load(facts, own.save()), HashSequence(model, block)
                        break
            if events == after and saved and after:
                for event in drive(own, sequence):
                    if isinstance(event, Committed):
                        told += event.ids.tolist()
            assert own.stats.forwards <= before + passes
            assert MASK not in told and (told or before)
            assert [*sequence.text, *sequence.uncached.tolist()] == [*prompt, *told]
            if passes >= done.stats.forwards:
                assert told == whole


def autoregressive(model: HashModel, prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    while len(text) - len(prompt) < count and (len(text) == len(prompt) or text[-1] != EOS):
        text.append(int(model.rows(model.text([], text, 0, 1), 0, causal=True)[-1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("noise", [0.0, 0.8, 2.0])
def test_speculation_gives_the_tokens_of_greedy_decoding(seed: int, ahead: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    model = HashModel(noise=noise, seed=seed)
    prompt = rng.integers(0, EOS, int(rng.integers(1, 9))).tolist()
    count = int(rng.integers(1, 30))
    expected = autoregressive(model, prompt, count)
    plain, done, sequence = generated(model, prompt, 1, count, mode="autoregressive", block_length=6)
    assert plain == expected
    assert [*sequence.text, *sequence.uncached.tolist()] == [*prompt, *expected]
    options = {"mode": "speculative", "block_length": 6, "ahead": ahead}
    tokens, fewer, sequence = generated(model, prompt, 1, count, **options)
    assert tokens == expected
    assert [*sequence.text, *sequence.uncached.tolist()] == [*prompt, *expected]
    assert sequence.kept == model.text([], sequence.text, 0, 1)
    assert fewer.stats.denoising_steps <= done.stats.denoising_steps
    if noise == 0 and ahead:
        assert fewer.stats.forwards <= len(expected) // 6 + 2, "everything drafted is taken"


@pytest.mark.parametrize(
    ("block", "shift", "options"),
    [
        (4, False, {"threshold": 0.6, "block_length": 4}),
        (4, False, {"threshold": 0.6, "block_length": 4, "ride": False}),
        (8, True, {"threshold": 0.6, "block_length": 8, "small_block_length": 4}),
        (4, False, {"threshold": 0.5, "block_length": 4, "editing_threshold": 0.4, "temperature": 0.7}),
        (
            6,
            False,
            {
                "threshold": 0.5,
                "block_length": 6,
                "editing_threshold": 0.0,
                "delete_token_id": 3,
                "insert_token_id": 4,
            },
        ),
        (1, False, {"threshold": 0.6, "block_length": 5, "temperature": 0.5}),
        (1, False, {"threshold": 0.6, "block_length": 5, "temperature": 0.5, "causal_start": True}),
        (1, False, {"threshold": 0.5, "block_length": 5, "editing_threshold": 0.4, "causal_start": True}),
        (1, False, {"mode": "autoregressive", "block_length": 5, "temperature": 0.5}),
        (1, False, {"mode": "speculative", "block_length": 5, "ahead": 2}),
    ],
)
def test_a_saved_sampler_goes_on_to_the_same_tokens(block: int, shift: bool, options: dict[str, Any]) -> None:
    model = HashModel(noise=1.0, seed=3, shift=shift)
    prompt, count = [1, 2, 3, 4, 5, 6, 7, 8, 9], 14
    expected, done, _ = generated(model, prompt, block, count, **options)
    facts = SamplerModel(settings(), model.vocabulary, 0, bundle="b", prefix_block=block, shift_logits=shift)
    passes = done.stats.forwards
    for stop in range(1, 3 * passes):
        own, sequence = sampler(model, prompt, block, count, **options), HashSequence(model, block)
        tokens = []
        for told, event in enumerate(drive(own, sequence), 1):
            if isinstance(event, Committed):
                tokens += event.ids.tolist()
            if told == stop:
                break
        if isinstance(event, Done):
            break
        other = CoreSampler.load(facts, own.save())
        for event in drive(other, HashSequence(model, block)):
            if isinstance(event, Committed):
                tokens += event.ids.tolist()
            if isinstance(event, Done):
                assert event.stats == done.stats
        assert tokens == expected
