"""The scores of a tiny model: held-out exact match per task, and denoising accuracy over noise levels.

    python -m edgekit.tools.tiny.evaluate MODEL_OR_BUNDLE [--per-task 100] [--json]

MODEL_OR_BUNDLE is a Hugging Face directory, run by the reference model in batches, or a bundle, run by its
engine. Both are sampled with the product's own loops and the options of the model's generation config; a
directory of a block-causal model is decoded by the reference loops of `blocks`, in the chosen mode.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from edgekit.runtime.sampling import Committed, Denoiser, Done, Event, HeadRequest, generate
from edgekit.tools.intervals import wilson
from edgekit.tools.tiny import tokenizer as vocabulary
from edgekit.tools.tiny.corpus import Encoder
from edgekit.tools.tiny.models import CANVAS
from edgekit.tools.tiny.tasks import MEASURED, Example, examples

LEVELS = (0.25, 0.5, 0.75, 1.0)
# Generations that run side by side: enough to fill the matrix products of so small a model.
BATCH = 50
Result = TypeVar("Result")
Runner = Callable[[Sequence[Callable[[Denoiser], Any]]], list[Any]]


#: Names of `tokenizer.FAMILIES` by family of `Architecture`.
FAMILY_NAMES = {"diffusion_gemma": "gemma", "llada": "llada", "nemotron_labs_diffusion": "block"}
MODES = ("diffusion", "autoregressive", "speculative")


@dataclass(frozen=True)
class Answered:
    """An answer, and what it took: denoising steps, forward passes, and tokens that are no padding."""

    text: str
    steps: int
    forwards: int
    tokens: int


# Prompts as ids and the seed of the first one's noise to answers; prompt i draws its noise from seed + i.
Answerer = Callable[[Sequence[list[int]], int], list[Answered]]


@dataclass(frozen=True)
class Subject:
    """A model to be measured: how jobs on a denoiser are run, how prompts are answered, what encodes its
    text, and the positions that a pass denoises at once.
    """

    encoder: Encoder
    run: Runner
    answers: Answerer
    width: int = CANVAS

    @property
    def family(self) -> str:
        """The name in `FAMILIES`."""
        return self.encoder.family.name


@dataclass
class Report:
    """Shares 0..1. `interval` holds the bounds of `exact_match` that 95 % of samples would keep (`wilson`).
    `steps` and `forwards` are means per answer, `tokens_per_forward` is over all answers of a task.
    `denoising` maps a noise level to the share of corrupted answer positions that one pass restores."""

    exact_match: dict[str, float] = field(default_factory=dict)
    interval: dict[str, tuple[float, float]] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    forwards: dict[str, float] = field(default_factory=dict)
    tokens_per_forward: dict[str, float] = field(default_factory=dict)
    denoising: dict[str, dict[str, float]] = field(default_factory=dict)
    mean_denoising: dict[str, float] = field(default_factory=dict)
    per_task: int = 0
    seconds: float = 0.0


def sampled(encoder: Encoder, run: Runner, begin: Callable[..., Iterator[Event]]) -> Answerer:
    """Answers by `begin`, which is `generate` of the samplers with a model's section and options."""

    def job(seed: int, ids: list[int]) -> Callable[[Denoiser], Answered]:
        def answer(denoiser: Denoiser) -> Answered:
            tokens: list[int] = []
            for event in begin(denoiser, prompt=ids, seed=seed):
                if isinstance(event, Committed):
                    tokens += event.ids.tolist()
                elif isinstance(event, Done):
                    stats = event.stats
            return Answered(
                encoder.text(tokens), stats.denoising_steps, stats.forwards, stats.committed_tokens
            )

        return answer

    return lambda prompts, seed: _in_batches(run, [job(seed + i, ids) for i, ids in enumerate(prompts)])


def _in_batches(run: Runner, jobs: Sequence[Callable[[Denoiser], Any]]) -> list[Any]:
    return [out for start in range(0, len(jobs), BATCH) for out in run(jobs[start : start + BATCH])]


def restored(
    subject: Subject,
    prompts: Sequence[list[int]],
    targets: Sequence[list[int]],
    level: float,
    seed: int = 0,
) -> float:
    """Share of corrupted answer positions (end of turn included, fill not) that one denoising pass gets
    right; of block-causal models in the first block."""
    family, width = subject.family, subject.width
    mask = None if family == "gemma" else vocabulary.MDM_MASK

    def job(index: int, prompt: list[int], target: list[int]) -> Callable[[Denoiser], tuple[int, int]]:
        def denoise(denoiser: Denoiser) -> tuple[int, int]:
            rng = np.random.default_rng([seed, index])
            clean = np.full(max(width, len(target)), subject.encoder.family.fill_id, np.int64)
            clean[: len(target)] = target
            clean = clean[:width]
            noisy = rng.random(width) < level
            random = rng.integers(0, vocabulary.VOCAB_SIZE, width)
            canvas = np.where(noisy, random if mask is None else mask, clean)
            denoiser.reset()
            if family == "llada":
                ids = np.concatenate([np.array(prompt, np.int64), canvas])
                rows = np.arange(len(prompt), len(ids))
                best = denoiser.denoise(ids, HeadRequest(rows=rows)).argmax
            else:
                denoiser.prefill(np.array(prompt, np.int64))
                best = denoiser.denoise(canvas, HeadRequest()).argmax
            counted = noisy & (np.arange(width) < len(target))
            return int(((best == clean) & counted).sum()), int(counted.sum())

        return denoise

    pairs = zip(prompts, targets, strict=True)
    counts = _in_batches(subject.run, [job(i, p, t) for i, (p, t) in enumerate(pairs)])
    return sum(right for right, _ in counts) / max(1, sum(total for _, total in counts))


def measure(
    subject: Subject,
    per_task: int = 100,
    seed: int = 0,
    tasks: Sequence[str] = tuple(MEASURED),
    levels: Sequence[float] = LEVELS,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Run everything on `per_task` held-out examples of each task; `progress` gets a line per finished
    task."""
    encoder, report, start = subject.encoder, Report(per_task=per_task), time.perf_counter()
    for task in tasks:
        chosen: list[Example] = examples(task, per_task, seed)
        prompts = encoder.prompts([encoder.family.prompt([], e.prompt) for e in chosen])
        found = subject.answers(prompts, seed)
        right = sum(e.check(f.text) for e, f in zip(chosen, found, strict=True))
        forwards = sum(f.forwards for f in found)
        report.exact_match[task], report.interval[task] = right / per_task, wilson(right, per_task)
        report.steps[task] = sum(f.steps for f in found) / per_task
        report.forwards[task] = forwards / per_task
        report.tokens_per_forward[task] = sum(f.tokens for f in found) / forwards
        targets = encoder.answers([e.answer for e in chosen])
        report.denoising[task] = {
            str(level): restored(subject, prompts, targets, level, seed) for level in levels
        }
        progress(f"{task}: {report.exact_match[task]:.0%} right, {report.steps[task]:.1f} steps")
    for level in map(str, levels):
        report.mean_denoising[level] = sum(r[level] for r in report.denoising.values()) / len(
            report.denoising
        )
    report.seconds = time.perf_counter() - start
    return report


def reference_subject(
    model: Any,
    encoder: Encoder,
    generation_config: dict[str, Any],
    steps: int | None = None,
    options: dict[str, Any] | None = None,
) -> Subject:
    """A reference model in memory, run in batches. `steps` and `options` as `generate` has them."""
    from edgekit.tools.tiny.lockstep import Lockstep

    section = {"name": encoder.family.sampler, "config": generation_config}
    canvas = model.architecture.canvas_length
    begin = partial(generate, section=section, steps=steps, options=options, canvas_length=canvas)
    run = Lockstep(model).run
    return Subject(encoder, run, sampled(encoder, run, begin))


def block_subject(
    model: Any, encoder: Encoder, generation_config: dict[str, Any], mode: str = "diffusion"
) -> Subject:
    """A block-causal reference model in memory, decoded by the loops of `blocks` in one of MODES."""
    from edgekit.tools.tiny.blocks import BlockDecoding
    from edgekit.tools.tiny.lockstep import Lockstep

    block = generation_config["block_length"]
    decoding = BlockDecoding(
        model,
        generation_config["mask_token_id"],
        frozenset(generation_config["eos_token_id"]),
        generation_config["max_new_tokens"],
        block,
    )

    def answers(prompts: Sequence[list[int]], seed: int) -> list[Answered]:
        decode = getattr(decoding, mode)
        found = [a for i in range(0, len(prompts), BATCH) for a in decode(prompts[i : i + BATCH])]
        return [Answered(encoder.text(a.ids), a.passes, a.passes, len(a.ids)) for a in found]

    return Subject(encoder, Lockstep(model).run, answers, block)


def subject_of(
    model: Any,
    encoder: Encoder,
    generation_config: dict[str, Any],
    steps: int | None = None,
    mode: str = "diffusion",
) -> Subject:
    """A reference model in memory, decoded as its family is."""
    if encoder.family.name == "block":
        return block_subject(model, encoder, generation_config, mode)
    return reference_subject(model, encoder, generation_config, steps)


def checkpoint_subject(path: Path, steps: int | None = None, mode: str = "diffusion") -> Subject:
    """A Hugging Face directory, run in batches. Raises EdgekitError when it cannot be read."""
    from edgekit.export.checkpoint import Checkpoint
    from edgekit.export.models import architecture
    from edgekit.export.reference import ReferenceModel
    from edgekit.export.weights import load_float_weights

    checkpoint = Checkpoint.open(path)
    arch = architecture(checkpoint.config, "bfloat16")
    model = ReferenceModel(arch, load_float_weights(arch, checkpoint))
    return subject_of(
        model, Encoder(FAMILY_NAMES[arch.family], path), checkpoint.generation_config, steps, mode
    )


def bundle_subject(path: Path, steps: int | None = None, memory_bytes: int | None = None) -> Subject:
    """A bundle, run by its engine one prompt at a time. Raises EdgekitError when it cannot be opened."""
    from edgekit.runtime.session import SessionOptions, open_session

    session = open_session(
        path, SessionOptions(memory_bytes=memory_bytes, positions=2 * CANVAS, canvas=2 * CANVAS)
    )
    model, section = session.bundle.model, session.bundle.manifest.sampler
    begin = partial(generate, section=section, steps=steps, canvas_length=model.canvas_length)
    encoder = Encoder(FAMILY_NAMES[model.family], session.bundle.tokenizer_files()[vocabulary.FILE])

    def run(jobs: Sequence[Callable[[Denoiser], Any]]) -> list[Any]:
        return [job(session) for job in jobs]

    return Subject(encoder, run, sampled(encoder, run, begin))


def table(report: Report) -> str:
    """The report as text: a row per task."""
    levels = list(report.mean_denoising)
    lines = [
        f"{'task':12s} {'exact':>6s} {'95 % interval':>15s} {'steps':>6s} {'passes':>6s} {'tokens/pass':>11s}"
        "   denoising at " + "  ".join(f"t={x:<4s}" for x in levels)
    ]
    for task, share in report.exact_match.items():
        cells = "  ".join(f"{report.denoising[task][x]:6.1%}" for x in levels)
        low, high = report.interval[task]
        lines.append(
            f"{task:12s} {share:6.1%} {f'{low:.1%}-{high:.1%}':>15s} {report.steps[task]:6.1f} "
            f"{report.forwards[task]:6.1f} {report.tokens_per_forward[task]:11.2f}                {cells}"
        )
    cells = "  ".join(f"{x:6.1%}" for x in report.mean_denoising.values())
    share = sum(report.exact_match.values()) / max(1, len(report.exact_match))
    lines.append(f"{'mean':12s} {share:6.1%} {'':41s}                {cells}")
    return "\n".join(lines)


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--per-task", default=100, show_default=True, help="Held-out examples per task.")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(MEASURED)), help="Only these tasks.")
@click.option("--steps", type=int, help="Denoising steps instead of the generation config's.")
@click.option("--mode", type=click.Choice(MODES), default="diffusion", help="Of block-causal directories.")
@click.option("--memory-bytes", type=int, help="Memory budget of a bundle's session.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
def main(
    model: Path,
    per_task: int,
    tasks: tuple[str, ...],
    steps: int | None,
    mode: str,
    memory_bytes: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure a tiny model or a bundle made of one."""
    if (model / "edgekit.json").exists():
        subject = bundle_subject(model, steps, memory_bytes)
    else:
        subject = checkpoint_subject(model, steps, mode)
    report = measure(
        subject, per_task, seed, tasks or tuple(MEASURED), progress=lambda line: click.echo(line, err=True)
    )
    click.echo(json.dumps({"model": str(model), **asdict(report)}) if as_json else table(report))


if __name__ == "__main__":
    main()
