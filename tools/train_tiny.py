"""Train a tiny model on the task language and save it as a Hugging Face directory.

    python -m edgekit.tools.train_tiny gemma --minutes 55 --out build/tiny/tiny-gemma [--threads 1] [--resume]

The learning rate and the curriculum follow the share of `--minutes` that has passed, so that every budget
ends with a finished schedule. What is saved are averaged weights (EMA) in bfloat16. The state to resume from
is kept beside the output, in `<out>.train.pt`.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Both are read when the libraries start. Batches come in few shapes; the matrix code of all of them stays
# cached.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import click
import torch
from safetensors.torch import save_file

from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import stored_tensors
from edgekit.tools.tiny import corpus, tokenizer
from edgekit.tools.tiny.evaluate import measure, reference_subject, table
from edgekit.tools.tiny.fast_ops import training_operators
from edgekit.tools.tiny.models import CANVAS, MODELS
from edgekit.tools.tiny.objective import denoising_accuracy, objective, to_inputs
from edgekit.tools.tiny.start import initialise
from edgekit.tools.tiny.tasks import MEASURED

SHORT_CANVASES = (8, 16, 24, 48)
# Until here few batches have the full canvas; from here on, half of them.
LONG_FROM = 0.7
LONG_SHARE = (0.04, 0.5)
LEVELS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Settings:
    """The settings of a run; see the command's options."""

    family: str
    minutes: float
    out: Path
    learning_rate: float = 2e-3
    tokens: int = 1536
    copies: int = 4
    seed: int = 0
    report_minutes: float = 5.0
    device: str = "cpu"


@dataclass
class Progress:
    """The progress of a run; `seconds` is training time over all resumptions."""

    step: int = 0
    seconds: float = 0.0
    positions: int = 0
    examples: int = 0
    resumed: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def learning_rate(share: float, step: int, peak: float) -> float:
    """Linear warm-up over 100 steps, then a cosine over the time budget (share 0..1) down to 2 % of the
    peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    return peak * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * cosine)


class Trainer:
    """Model, optimizer and averaged weights of one run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.config, self.generation_config = MODELS[settings.family]
        torch.manual_seed(settings.seed)
        self.model = ReferenceModel.random(architecture(self.config, "bfloat16"), settings.seed)
        initialise(self.model, settings.seed)
        self.model.to(settings.device)
        self.averaged = {n: w.detach().clone() for n, w in self.model.weights().items()}
        self.objective = objective(self.model, settings.copies)
        matrices = [w for w in self.model.parameters() if w.ndim > 1]
        vectors = [w for w in self.model.parameters() if w.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.02}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
        self.encoder = corpus.Encoder(settings.family)
        self.progress = Progress()

    @property
    def copies(self) -> int:
        """Noisy answers per prompt: more than one only where the prompt is encoded apart from the answer."""
        return self.settings.copies if self.model.architecture.causal_prefix else 1

    @property
    def state_path(self) -> Path:
        return self.settings.out.with_name(self.settings.out.name + ".train.pt")

    @property
    def share(self) -> float:
        """The part of the time budget that is used up."""
        return self.progress.seconds / (60 * self.settings.minutes)

    def resume(self) -> None:
        """Continue from the saved state. Raises click.ClickException when there is none."""
        if not self.state_path.exists():
            raise click.ClickException(f"{self.state_path}: nothing to resume; start without --resume")
        state = torch.load(self.state_path, weights_only=True)
        if state["tokenizer"] != tokenizer.build():
            raise click.ClickException(
                f"{self.state_path}: was trained with another vocabulary; train again without --resume"
            )
        with torch.no_grad():
            for name, weight in self.model.weights().items():
                weight.copy_(state["model"][name])
        self.averaged = {n: w.to(self.settings.device) for n, w in state["averaged"].items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.progress.resumed += 1

    def save_state(self) -> None:
        state = {
            "model": {n: w.detach() for n, w in self.model.weights().items()},
            "averaged": self.averaged,
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
            "tokenizer": tokenizer.build(),
        }
        partial = self.state_path.with_suffix(".partial")
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, partial)
        partial.replace(self.state_path)

    def save_model(self) -> None:
        """Write the averaged weights and everything beside them that a Hugging Face directory has."""
        out = self.settings.out
        out.mkdir(parents=True, exist_ok=True)
        tensors = stored_tensors(self.model.architecture, self.averaged)
        halves = {n: t.detach().to("cpu", torch.bfloat16).contiguous() for n, t in sorted(tensors.items())}
        save_file(halves, out / "model.safetensors.partial", metadata={"format": "pt"})
        (out / "model.safetensors.partial").replace(out / "model.safetensors")
        for name, content in (
            ("config.json", self.config),
            ("generation_config.json", self.generation_config),
        ):
            (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        tokenizer.save(out, self.settings.family)

    def batches(self) -> Iterator[corpus.Batch]:
        """Batches by the curriculum: of tasks, and from mostly short canvases to half of them full length."""
        rng = random.Random(self.settings.seed + 1000 * self.progress.resumed)
        while True:
            weights = corpus.mixture(self.share)
            short, full = (
                corpus.batches(
                    self.encoder,
                    corpus.BatchOptions(
                        canvases,
                        tokens=self.settings.tokens,
                        answer_copies=self.copies,
                        weights=weights,
                    ),
                    rng.randrange(2**32),
                )
                for canvases in (SHORT_CANVASES, (CANVAS,))
            )
            while corpus.mixture(self.share) is weights:
                yield next(full if rng.random() < LONG_SHARE[self.share >= LONG_FROM] else short)

    def step(self, batch: corpus.Batch) -> float:
        """One update; returns the loss."""
        rate = learning_rate(self.share, self.progress.step, self.settings.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.settings.device, torch.bfloat16):
            loss = self.objective.loss(to_inputs(batch, self.settings.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        # Early averages would be ruled by the random start.
        decay = min(0.999, (1 + self.progress.step) / (20 + self.progress.step))
        with torch.no_grad():
            names = list(self.averaged)
            current = self.model.weights()
            torch._foreach_lerp_([self.averaged[n] for n in names], [current[n] for n in names], 1 - decay)
        self.progress.step += 1
        self.progress.positions += batch.prompt.size + self.copies * batch.answer.size
        self.progress.examples += len(batch.tasks)
        return float(loss.detach())

    def swap(self) -> None:
        """Exchange the trained and the averaged weights."""
        with torch.no_grad():
            for name, weight in self.model.weights().items():
                trained = weight.clone()
                weight.copy_(self.averaged[name])
                self.averaged[name].copy_(trained)

    def report(self, per_task: int) -> dict[str, Any]:
        """Denoising accuracy of the averaged weights on held-out examples: by level, and by task at full
        noise."""
        self.swap()
        found: dict[str, dict[float, float]] = {}
        for task in MEASURED:
            chosen, batch = corpus.held_out(self.encoder, task, per_task, 48 if task == "story" else 32)
            inputs = to_inputs(batch, self.settings.device)
            with torch.autocast(self.settings.device, torch.bfloat16):
                found[task] = {level: denoising_accuracy(self.objective, inputs, level) for level in LEVELS}
        self.swap()
        return {
            "levels": {str(x): round(sum(f[x] for f in found.values()) / len(found), 4) for x in LEVELS},
            "tasks": {task: [round(f[x], 2) for x in LEVELS] for task, f in found.items()},
        }

    def run(self) -> None:
        """Train until the budget is used up, saving and reporting every few minutes."""
        source, progress = self.batches(), self.progress
        last = time.perf_counter()
        line, reported = last, last
        loss, since = 0.0, progress.positions
        while self.share < 1.0:
            value = self.step(next(source))
            now = time.perf_counter()
            progress.seconds += now - last
            last = now
            loss = value if not loss else 0.98 * loss + 0.02 * value
            if not math.isfinite(value):
                raise click.ClickException(
                    f"step {progress.step}: the loss is {value}; start again with a lower --learning-rate"
                )
            if now - line >= 20:
                rate = (progress.positions - since) / (now - line)
                click.echo(
                    f"{progress.seconds / 60:6.1f} min  step {progress.step}  loss {loss:.4f}  "
                    f"{rate:.0f} tokens/s  {progress.examples} examples"
                )
                line, since = now, progress.positions
            if now - reported >= 60 * self.settings.report_minutes:
                entry = {
                    "minutes": round(progress.seconds / 60, 1),
                    "step": progress.step,
                    "loss": round(loss, 4),
                }
                entry |= self.report(24)
                progress.history.append(entry)
                click.echo(json.dumps(entry))
                self.save_state()
                self.save_model()
                # Reports are not training time.
                last = reported = line = time.perf_counter()
                since = progress.positions
        self.save_state()
        self.save_model()

    def final_report(self, per_task: int) -> None:
        """Held-out exact match with the product's samplers, on the averaged weights as they were saved."""
        self.swap()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(weight.to(torch.bfloat16))
        subject = reference_subject(self.model, self.encoder, self.generation_config)
        click.echo(table(measure(subject, per_task)))


@click.command()
@click.argument("family", type=click.Choice(list(MODELS)))
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), required=True, help="Training time.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory to write."
)
@click.option("--resume", is_flag=True, help="Continue a run that was interrupted.")
@click.option("--threads", type=int, default=0, help="CPU threads; 0 takes all.")
@click.option("--learning-rate", default=2e-3, show_default=True)
@click.option("--tokens", default=1536, show_default=True, help="Positions per batch.")
@click.option("--copies", default=4, show_default=True, help="Noisy canvases per encoded prompt (gemma).")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--report-minutes", default=5.0, show_default=True, help="Time between reports and saved states."
)
@click.option(
    "--per-task", default=50, show_default=True, help="Held-out examples per task of the last report."
)
def main(
    family: str,
    minutes: float,
    out: Path,
    resume: bool,
    threads: int,
    learning_rate: float,
    tokens: int,
    copies: int,
    seed: int,
    report_minutes: float,
    per_task: int,
) -> None:
    """Train the tiny model of a family."""
    if threads:
        torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = Settings(family, minutes, out, learning_rate, tokens, copies, seed, report_minutes, device)
    trainer = Trainer(settings)
    if resume:
        trainer.resume()
    count = sum(w.numel() for w in trainer.model.parameters())
    click.echo(f"tiny-{family}: {count} parameters on {device}, {torch.get_num_threads()} threads")
    with training_operators():
        trainer.run()
        if per_task:
            trainer.final_report(per_task)


if __name__ == "__main__":
    main()
