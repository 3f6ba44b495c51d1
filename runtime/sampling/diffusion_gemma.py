"""The denoising loop of DiffusionGemma: entropy-bounded acceptance over a canvas of random tokens.

A canvas starts as uniformly random tokens. Every step the model predicts all positions; those with the lowest
entropies keep a sampled token, all others, including ones accepted earlier, are drawn afresh. What is
committed is the argmax of the last step, not the sampled canvas. Same procedure and same order of random
draws as `DiffusionGemmaForBlockDiffusion.generate` of transformers for a batch of one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgekit.runtime.sampling import options as opt
from edgekit.runtime.sampling import portable
from edgekit.runtime.sampling.drive import encode
from edgekit.runtime.sampling.errors import InvalidOption, InvalidPrompt
from edgekit.runtime.sampling.events import CancelCheck, Committed, Done, Draft, Event, Stats
from edgekit.runtime.sampling.noise import Noise
from edgekit.runtime.sampling.passes import Passes, check_prompt, wanted
from edgekit.runtime.sampling.schedule import accept_by_entropy, linear_temperature
from edgekit.runtime.sampling.types import Denoiser, Floats, HeadRequest, Ids

_DEFAULT_MAX_NEW_TOKENS = 256
_SAMPLER_CLASS = "EntropyBoundSamplerConfig"
ALIASES = {"eos_token_id": "eos_token_ids"}
_NO_IDS: Ids = np.empty(0, np.int64)


@dataclass(frozen=True)
class DiffusionGemmaOptions:
    """Options of the entropy-bound sampler; the defaults are those of transformers.

    Whole canvases are produced: the answer has ceil(max_new_tokens / canvas_length) * canvas_length tokens
    unless an end token comes first. `max_length` counts the prompt too, which must be shorter; it takes the
    place of a `max_new_tokens` left at its default, and no canvas begins beyond it. Temperatures run linearly
    from t_max down to just above t_min. A canvas stops early when its argmax equals those of the last
    `stability_threshold` steps and its mean entropy is below `confidence_threshold` nats; None for either
    switches that off. With `pad_token_id`, what follows the first end token becomes padding.
    `continue_prefix` appends the prompt to the text that the denoiser holds, for a conversation whose earlier
    turns are in its KV cache: prompts and answers, the last one too, each up to its end token, without the
    padding behind it.

    Raises InvalidOption.
    """

    max_new_tokens: int = field(
        default=_DEFAULT_MAX_NEW_TOKENS,
        metadata=opt.integer("Length of the answer in tokens, rounded up to whole canvases.", 1),
    )
    max_length: int | None = field(
        default=None,
        metadata=opt.integer(
            "Prompt and answer together, in tokens; the answer is rounded up to whole canvases.",
            1,
            optional=True,
        ),
    )
    canvas_length: int = field(
        default=256, metadata=opt.integer("Positions of a canvas; the model has been trained for one.", 1)
    )
    max_denoising_steps: int = field(
        default=48, metadata=opt.integer("Denoising steps of a canvas, at most.", 1)
    )
    entropy_bound: float = field(
        default=0.1,
        metadata=opt.number(
            "Nats that the tokens accepted in one step may have together.", 0, exclusive=True
        ),
    )
    t_min: float = field(default=0.4, metadata=opt.number("Temperature that the last step comes near.", 0))
    t_max: float = field(default=0.8, metadata=opt.number("Temperature of the first step; above t_min.", 0))
    stability_threshold: int | None = field(
        default=1,
        metadata=opt.integer(
            "Steps without a change after which a confident canvas is done; null: never.", 0, optional=True
        ),
    )
    confidence_threshold: float | None = field(
        default=0.005,
        metadata=opt.number(
            "Mean entropy in nats below which a canvas is confident; null: never.",
            0,
            exclusive=True,
            optional=True,
        ),
    )
    eos_token_ids: tuple[int, ...] = field(default=(), metadata=opt.tokens("Tokens that end the answer."))
    pad_token_id: int | None = field(
        default=None,
        metadata=opt.integer("Token that fills a canvas behind its end token.", 0, optional=True),
    )
    continue_prefix: bool = field(
        default=False, metadata=opt.flag("Go on behind the text that is encoded already.")
    )
    ignored_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        opt.check_fields(self, "max_new_tokens", "canvas_length", "max_denoising_steps", "max_length")
        opt.check_fields(self, "entropy_bound", "t_min", "t_max")
        if self.t_max <= self.t_min:
            raise InvalidOption(
                f"t_max {self.t_max} is not above t_min {self.t_min}; the temperature must fall"
            )
        opt.check_fields(self, "stability_threshold", "confidence_threshold")
        opt.check_fields(self, "eos_token_ids", "pad_token_id", "continue_prefix")

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any], /, **overrides: Any) -> DiffusionGemmaOptions:
        """Options of a checkpoint's generation_config.json; keys of other samplers end up in `ignored_keys`.

        A null stands for the default, as in transformers. Raises InvalidOption.
        """
        flat = dict(config)
        sampler = flat.pop("sampler_config", None)
        if sampler is not None:
            if not isinstance(sampler, Mapping) or sampler.get("_cls_name", _SAMPLER_CLASS) != _SAMPLER_CLASS:
                raise InvalidOption(f"sampler_config is {sampler!r}; only {_SAMPLER_CLASS} is supported")
            flat["entropy_bound"] = sampler.get("entropy_bound")
        return cls(**opt.from_config(cls, flat, overrides, ALIASES))

    def extent(self) -> tuple[int, int]:
        """Canvases of a generation and denoising steps of each, at most."""
        return -(-self.max_new_tokens // self.canvas_length), self.max_denoising_steps

    def kept(self, ids: Ids) -> Ids:
        """What of committed ids [T] is text, and stays in a conversation: all up to the first end token."""
        ends = np.flatnonzero(np.isin(ids, list(self.eos_token_ids)))
        return ids[: ends[0] + 1] if ends.size else ids

    def lengths(self, prompt_length: int) -> opt.Lengths:
        """What a prompt of this length needs, earlier text counted with it. Raises InvalidOption."""
        canvases = _canvas_count(self, prompt_length)
        # The last canvas is never encoded.
        prefix = prompt_length + (canvases - 1) * self.canvas_length
        return opt.Lengths(canvases * self.canvas_length, prefix, self.canvas_length)

    def new_tokens_text(self, prompt_length: int) -> str:
        """How many tokens a prompt of this length gets, in words. Raises InvalidOption."""
        asked, rounded = _new_tokens(self, prompt_length), self.lengths(prompt_length).new_tokens
        if rounded == asked:
            return f"{asked} new tokens"
        return f"{asked} new tokens, rounded up to {rounded}, whole canvases of {self.canvas_length},"


def generate(
    denoiser: Denoiser,
    prompt_ids: Ids | Sequence[int],
    options: DiffusionGemmaOptions,
    noise: Noise,
    *,
    cancelled: CancelCheck | None = None,
) -> Generator[Event, None, None]:
    """Yields a Draft per step, a Committed per canvas and Done.

    The denoiser then holds the prompt and every committed token that options.kept() leaves: all but the last
    canvas in its prefix, that one as `uncached`. A generation that is stopped, closed or fails midway leaves
    what was encoded and committed until then.
    Draws, in this order: the canvas (integers); then per step the sample (gumbel) and the renoising
    (integers), both also in the last step, where nothing is done with them.
    Raises InvalidPrompt and InvalidOption at the first event, later NonFiniteLogits and what the denoiser
    raises.
    """
    vocab_size = denoiser.vocab_size
    prompt = check_prompt(prompt_ids, vocab_size)
    if not prompt.size:
        raise InvalidPrompt("the prompt is empty; this model needs at least its begin-of-sequence token")
    opt.check_within_vocabulary(options, vocab_size)
    if not options.continue_prefix:
        denoiser.reset()
        denoiser.uncached = _NO_IDS
    waiting = np.concatenate([denoiser.uncached, prompt])
    total = denoiser.prefix_length + waiting.shape[0]
    canvases = _canvas_count(options, total)

    stats = Stats()
    passes = Passes(denoiser, stats)
    for canvas_index in range(canvases):
        if cancelled is not None and cancelled():
            stats.finish_reason = "cancelled"
            break
        encode(denoiser, waiting)
        stats.prefills += 1
        stats.canvases += 1
        answer = yield from _denoise_canvas(passes, canvas_index, options, noise, stats, cancelled)
        if answer is None:
            stats.finish_reason = "cancelled"
            break
        kept = options.kept(answer)
        committed = _padded(kept, answer, options)
        # Before anybody hears of it: whoever stops here has it in the conversation.
        denoiser.uncached = waiting = kept
        # Tokens per forward are counted as in transformers: everything that is not the padding token.
        stats.committed_tokens += (
            committed.shape[0]
            if options.pad_token_id is None
            else int(np.count_nonzero(committed != options.pad_token_id))
        )
        total += committed.shape[0]
        yield Committed(canvas_index, committed)
        if kept.size and int(kept[-1]) in options.eos_token_ids:
            stats.finish_reason = "eos"
            break
        if options.max_length is not None and total >= options.max_length:
            break
    yield Done(stats)


def _denoise_canvas(
    passes: Passes,
    canvas_index: int,
    options: DiffusionGemmaOptions,
    noise: Noise,
    stats: Stats,
    cancelled: CancelCheck | None,
) -> Generator[Draft, None, Ids | None]:
    """Yields a Draft per step and returns the argmax canvas, int64 [C], or None when cancelled."""
    vocab_size = passes.vocab_size
    length, steps = options.canvas_length, options.max_denoising_steps
    canvas = noise.integers(vocab_size, length)
    history: list[Ids] = []
    soft: Floats | None = None
    best = canvas
    for remaining in range(steps, 0, -1):
        if cancelled is not None and cancelled():
            return None
        # The last step commits its argmax: neither its sample nor its expected embedding is ever looked at.
        last = remaining == 1
        gumbel = noise.gumbel(length, vocab_size)
        request = HeadRequest(
            temperature=linear_temperature(remaining, steps, options.t_min, options.t_max),
            gumbel=None if last else gumbel,
            soft=not last,
        )
        output = passes.run(canvas, request, soft)
        stats.denoising_steps += 1
        best = output.argmax
        accepted = accept_by_entropy(output.entropy, options.entropy_bound)
        fresh = noise.integers(vocab_size, length)
        yield Draft(canvas_index, steps - remaining + 1, canvas_index * length, best.copy(), accepted)
        if last or _stable_and_confident(best, history, output.entropy, options):
            break
        canvas = np.where(accepted, wanted(output.sample, "sample"), fresh)
        soft = wanted(output.soft, "soft")
    return best


def _stable_and_confident(
    best: Ids, history: list[Ids], entropy: Floats, options: DiffusionGemmaOptions
) -> bool:
    """The stopping rule; appends `best` to the history of this canvas."""
    needed = options.stability_threshold
    if needed is None or options.confidence_threshold is None:
        return False
    stable = len(history) >= needed and all(
        np.array_equal(best, earlier) for earlier in history[len(history) - needed :]
    )
    history.append(best)
    del history[: max(0, len(history) - needed)]
    return stable and float(portable.total(entropy)) / entropy.shape[0] < options.confidence_threshold


def _padded(kept: Ids, canvas: Ids, options: DiffusionGemmaOptions) -> Ids:
    """The canvas [C] with padding behind what is kept of it, where there is a padding token."""
    if options.pad_token_id is None or kept.shape == canvas.shape:
        return canvas
    padded = np.full_like(canvas, options.pad_token_id)
    padded[: kept.shape[0]] = kept
    return padded


def _new_tokens(options: DiffusionGemmaOptions, prompt_length: int) -> int:
    """Tokens that are asked for. Raises InvalidOption where the prompt leaves no room for one."""
    if options.max_length is None:
        return options.max_new_tokens
    if options.max_length <= prompt_length:
        raise InvalidOption(
            f"the prompt has {prompt_length} tokens and max_length is {options.max_length}; "
            f"use a max_length of at least {prompt_length + 1}"
        )
    by_default = options.max_new_tokens == _DEFAULT_MAX_NEW_TOKENS
    return options.max_length - prompt_length if by_default else options.max_new_tokens


def _canvas_count(options: DiffusionGemmaOptions, prompt_length: int) -> int:
    return -(-_new_tokens(options, prompt_length) // options.canvas_length)
