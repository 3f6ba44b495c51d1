"""The scores of a tiny model: held-out exact match per task, and denoising accuracy over noise levels.

    python -m edgekit.tools.tiny.evaluate MODEL_OR_BUNDLE [--per-task 100] [--json]

MODEL_OR_BUNDLE is a Hugging Face directory, run by the reference model in batches, or a bundle, run by its
engine. Both are sampled with the product's own loops and the options of the model's generation config.
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
from edgekit.tools.tiny import tokenizer as vocabulary
from edgekit.tools.tiny.corpus import Encoder
from edgekit.tools.tiny.models import CANVAS
from edgekit.tools.tiny.tasks import MEASURED, Example, examples

LEVELS = (0.25, 0.5, 0.75, 1.0)
# Generations that run side by side: enough to fill the matrix products of so small a model.
BATCH = 50
Result = TypeVar("Result")
Runner = Callable[[Sequence[Callable[[Denoiser], Any]]], list[Any]]


@dataclass(frozen=True)
class Subject:
    """A model to be measured: how jobs on a denoiser are run, how one generates (as `generate` of the
    samplers, with the model's section and options), and what encodes its text.
    """

    encoder: Encoder
    run: Runner
    generate: Callable[..., Iterator[Event]]

    @property
    def family(self) -> str:
        """The name in `FAMILIES`."""
        return self.encoder.family.name


@dataclass
class Report:
    """Shares 0..1. `steps` is the mean number of denoising steps per answer, `denoising` maps a noise level
    to the share of corrupted answer positions that one pass restores."""

    exact_match: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    denoising: dict[str, dict[str, float]] = field(default_factory=dict)
    mean_denoising: dict[str, float] = field(default_factory=dict)
    per_task: int = 0
    seconds: float = 0.0


def answers(subject: Subject, prompts: Sequence[list[int]], seed: int = 0) -> list[tuple[str, int]]:
    """(answer text, denoising steps) for prompts given as ids. Prompt i draws its noise from seed + i."""

    def job(index: int, ids: list[int]) -> Callable[[Denoiser], tuple[str, int]]:
        def answer(denoiser: Denoiser) -> tuple[str, int]:
            tokens: list[int] = []
            steps = 0
            for event in subject.generate(denoiser, prompt=ids, seed=seed + index):
                if isinstance(event, Committed):
                    tokens += event.ids.tolist()
                elif isinstance(event, Done):
                    steps = event.stats.denoising_steps
            return subject.encoder.text(tokens), steps

        return answer

    return _in_batches(subject.run, [job(i, ids) for i, ids in enumerate(prompts)])


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
    right."""
    masked = subject.family == "llada"

    def job(index: int, prompt: list[int], target: list[int]) -> Callable[[Denoiser], tuple[int, int]]:
        def denoise(denoiser: Denoiser) -> tuple[int, int]:
            rng = np.random.default_rng([seed, index])
            clean = np.full(CANVAS, subject.encoder.family.fill_id, np.int64)
            clean[: len(target)] = target
            noisy = rng.random(CANVAS) < level
            random = rng.integers(0, vocabulary.VOCAB_SIZE, CANVAS)
            canvas = np.where(noisy, vocabulary.MDM_MASK if masked else random, clean)
            denoiser.reset()
            if masked:
                ids = np.concatenate([np.array(prompt, np.int64), canvas])
                rows = np.arange(len(prompt), len(ids))
                best = denoiser.denoise(ids, HeadRequest(rows=rows)).argmax
            else:
                denoiser.prefill(np.array(prompt, np.int64))
                best = denoiser.denoise(canvas, HeadRequest()).argmax
            counted = noisy & (np.arange(CANVAS) < len(target))
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
        found = answers(subject, prompts, seed)
        report.exact_match[task] = sum(e.check(t) for e, (t, _) in zip(chosen, found, strict=True)) / per_task
        report.steps[task] = sum(steps for _, steps in found) / per_task
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
    return Subject(encoder, Lockstep(model).run, begin)


def checkpoint_subject(path: Path, steps: int | None = None) -> Subject:
    """A Hugging Face directory, run in batches. Raises EdgekitError when it cannot be read."""
    from edgekit.export.checkpoint import Checkpoint
    from edgekit.export.models import architecture
    from edgekit.export.reference import ReferenceModel
    from edgekit.export.weights import load_float_weights

    checkpoint = Checkpoint.open(path)
    arch = architecture(checkpoint.config, "bfloat16")
    model = ReferenceModel(arch, load_float_weights(arch, checkpoint))
    family = "gemma" if arch.causal_prefix else "llada"
    return reference_subject(model, Encoder(family, path), checkpoint.generation_config, steps)


def bundle_subject(path: Path, steps: int | None = None, memory_bytes: int | None = None) -> Subject:
    """A bundle, run by its engine one prompt at a time. Raises EdgekitError when it cannot be opened."""
    from edgekit.runtime.session import SessionOptions, open_session

    session = open_session(
        path, SessionOptions(memory_bytes=memory_bytes, positions=2 * CANVAS, canvas=2 * CANVAS)
    )
    model, section = session.bundle.model, session.bundle.manifest.sampler
    begin = partial(generate, section=section, steps=steps, canvas_length=model.canvas_length)
    return Subject(
        Encoder(
            "gemma" if model.causal_prefix else "llada",
            session.bundle.tokenizer_files()[vocabulary.FILE],
        ),
        lambda jobs: [job(session) for job in jobs],
        begin,
    )


def table(report: Report) -> str:
    """The report as text: a row per task."""
    levels = list(report.mean_denoising)
    lines = [
        f"{'task':12s} {'exact':>6s} {'steps':>6s}   denoising at " + "  ".join(f"t={x:<4s}" for x in levels)
    ]
    for task, share in report.exact_match.items():
        cells = "  ".join(f"{report.denoising[task][x]:6.1%}" for x in levels)
        lines.append(f"{task:12s} {share:6.1%} {report.steps[task]:6.1f}                {cells}")
    cells = "  ".join(f"{x:6.1%}" for x in report.mean_denoising.values())
    share = sum(report.exact_match.values()) / max(1, len(report.exact_match))
    lines.append(f"{'mean':12s} {share:6.1%} {'':6s}                {cells}")
    return "\n".join(lines)


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--per-task", default=100, show_default=True, help="Held-out examples per task.")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(MEASURED)), help="Only these tasks.")
@click.option("--steps", type=int, help="Denoising steps instead of the generation config's.")
@click.option("--memory-bytes", type=int, help="Memory budget of a bundle's session.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
def main(
    model: Path,
    per_task: int,
    tasks: tuple[str, ...],
    steps: int | None,
    memory_bytes: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure a tiny model or a bundle made of one."""
    if (model / "edgekit.json").exists():
        subject = bundle_subject(model, steps, memory_bytes)
    else:
        subject = checkpoint_subject(model, steps)
    report = measure(
        subject, per_task, seed, tasks or tuple(MEASURED), progress=lambda line: click.echo(line, err=True)
    )
    click.echo(json.dumps({"model": str(model), **asdict(report)}) if as_json else table(report))


if __name__ == "__main__":
    main()
