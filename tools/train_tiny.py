"""Train a tiny model on the task language and save it as a Hugging Face directory.

    python -m edgekit.tools.train_tiny gemma --steps 8000 --out build/tiny/tiny-gemma --threads 1
    ... the same with --resume after an interruption

The learning rate and the curriculum follow the share of `--steps` that is done, so that every budget ends
with a finished schedule. The state to resume from is kept beside the output, in `<out>.train.pt`, with the
random numbers and the stream of batches: a run that was interrupted and resumed ends with the weights, bit
for bit, of one that was not (with the same `--threads`, on the same machine). What is saved in `<out>` are
averaged weights (EMA) in bfloat16.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# Both are read when the libraries start. Batches come in few shapes; the matrix code of all of them stays
# cached.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import click
import torch
from safetensors.torch import save

from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import stored_tensors
from edgekit.flashload.files import write_atomic
from edgekit.tools.tiny import corpus, tokenizer
from edgekit.tools.tiny.evaluate import measure, subject_of, table
from edgekit.tools.tiny.fast_ops import training_operators
from edgekit.tools.tiny.models import CANVAS, MODELS
from edgekit.tools.tiny.objective import (
    BlockObjective,
    GemmaObjective,
    denoising_accuracy,
    objective,
    to_inputs,
)
from edgekit.tools.tiny.start import continue_from, initialise
from edgekit.tools.tiny.tasks import MEASURED

CANVASES = (8, 16, 24, 32, 48, 64, CANVAS)
# Until here few examples have the full canvas; from here on, many.
FULL_FROM = 0.7
FULL_SHARE = (0.02, 0.25)
LEVELS = (0.5, 1.0)


@dataclass(frozen=True)
class Settings:
    """The settings of a run; see the command's options."""

    family: str
    steps: int
    out: Path
    start: Path | None = None
    curriculum: str = "from-scratch"
    learning_rate: float = 2e-3
    tokens: int = 1536
    copies: int = 4
    seed: int = 0
    report_steps: int = 500
    device: str = "cpu"
    precision: str = "auto"


@dataclass
class Progress:
    """The progress of a run; `seconds` is training time over all resumptions."""

    step: int = 0
    seconds: float = 0.0
    positions: int = 0
    examples: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def learning_rate(share: float, step: int, peak: float) -> float:
    """Linear warm-up over 100 steps, then a cosine over all steps (share 0..1) down to 2 % of the peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    return peak * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * cosine)


def reduced_precision(device: str, precision: str) -> AbstractContextManager[Any]:
    """Products in bfloat16; with `auto` where the device multiplies it: other processors unpack it, ten times
    slower than float32.
    """
    able = device != "cpu" or any(torch.cpu.get_capabilities().get(n) for n in ("avx512_bf16", "amx_bf16"))
    enabled = able if precision == "auto" else precision == "bfloat16"
    return torch.autocast(device, torch.bfloat16, enabled=enabled)


class Trainer:
    """Model, optimizer and averaged weights of one run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.config, self.generation_config = MODELS[settings.family]
        torch.manual_seed(settings.seed)
        self.model = ReferenceModel.random(architecture(self.config, "bfloat16"), settings.seed)
        initialise(self.model, settings.seed)
        if settings.start is not None:
            continue_from(self.model, settings.start)
        self.model.to(settings.device)
        self.averaged = {n: w.detach().clone() for n, w in self.model.weights().items()}
        self.objective = objective(self.model, settings.copies, self.config.get("block_size", 1))
        matrices = [w for w in self.model.parameters() if w.ndim > 1]
        vectors = [w for w in self.model.parameters() if w.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.02}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
        self.encoder = corpus.Encoder(settings.family)
        self.progress = Progress()
        self.batches = corpus.Batches(self.encoder, self._batch_options(), settings.seed)

    @property
    def copies(self) -> int:
        """Answers that a batch counts for a prompt: noisy ones over one encoded prompt, or a clean and a
        noisy one in a sequence."""
        kind = type(self.objective)
        return self.settings.copies if kind is GemmaObjective else 2 if kind is BlockObjective else 1

    @property
    def state_path(self) -> Path:
        return self.settings.out.with_name(self.settings.out.name + ".train.pt")

    @property
    def share(self) -> float:
        """The part of the steps that is done."""
        return self.progress.step / self.settings.steps

    @property
    def _settled(self) -> dict[str, Any]:
        """The settings that decide what the weights become."""
        kept = ("family", "steps", "curriculum", "learning_rate", "tokens", "copies", "seed", "precision")
        return {name: value for name, value in asdict(self.settings).items() if name in kept}

    def resume(self) -> None:
        """Continue from the saved state. Raises click.ClickException when there is none, or one of another
        run."""
        if not self.state_path.exists():
            raise click.ClickException(f"{self.state_path}: nothing to resume; start without --resume")
        state = torch.load(self.state_path, weights_only=True)
        if state["tokenizer"] != tokenizer.build():
            raise click.ClickException(
                f"{self.state_path}: was trained with another vocabulary; train again without --resume"
            )
        for name, value in self._settled.items():
            if state["settings"][name] != value:
                raise click.ClickException(
                    f"{self.state_path}: the run had {name} {state['settings'][name]}, not {value}; resume "
                    "it with the same options, or train again without --resume"
                )
        with torch.no_grad():
            for name, weight in self.model.weights().items():
                weight.copy_(state["model"][name])
        self.averaged = {n: w.to(self.settings.device) for n, w in state["averaged"].items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.batches.state = state["batches"]
        torch.set_rng_state(state["random"])

    def save_state(self) -> None:
        state = {
            "model": {n: w.detach() for n, w in self.model.weights().items()},
            "averaged": self.averaged,
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
            "settings": self._settled,
            "batches": self.batches.state,
            "random": torch.get_rng_state(),
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
        write_atomic(out / "model.safetensors", save(halves, metadata={"format": "pt"}))
        for name, content in (
            ("config.json", self.config),
            ("generation_config.json", self.generation_config),
        ):
            (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        tokenizer.save(out, self.settings.family)

    def _batch_options(self) -> corpus.BatchOptions:
        """Tasks by the curriculum, and canvases: from mostly short ones to many of full length."""
        return corpus.BatchOptions(
            CANVASES,
            tokens=self.settings.tokens,
            answer_copies=self.copies,
            full_share=FULL_SHARE[self.share >= FULL_FROM],
            weights=corpus.mixture(self.share, corpus.CURRICULA[self.settings.curriculum]),
        )

    def next_batch(self) -> corpus.Batch:
        self.batches.options = self._batch_options()
        return next(self.batches)

    def step(self, batch: corpus.Batch) -> float:
        """One update; returns the loss."""
        rate = learning_rate(self.share, self.progress.step, self.settings.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with reduced_precision(self.settings.device, self.settings.precision):
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
            _, batch = corpus.held_out(self.encoder, task, per_task, CANVAS // 2)
            inputs = to_inputs(batch, self.settings.device)
            with reduced_precision(self.settings.device, self.settings.precision):
                found[task] = {level: denoising_accuracy(self.objective, inputs, level) for level in LEVELS}
        self.swap()
        return {
            "levels": {str(x): round(sum(f[x] for f in found.values()) / len(found), 4) for x in LEVELS},
            "tasks": {task: [round(f[x], 2) for x in LEVELS] for task, f in found.items()},
        }

    def run(self) -> None:
        """Train until the steps are done, saving and reporting now and then."""
        progress, every = self.progress, self.settings.report_steps
        loss, since = 0.0, (time.perf_counter(), progress.positions)
        while progress.step < self.settings.steps:
            start = time.perf_counter()
            value = self.step(self.next_batch())
            progress.seconds += time.perf_counter() - start
            loss = value if not loss else 0.98 * loss + 0.02 * value
            if not math.isfinite(value):
                raise click.ClickException(
                    f"step {progress.step}: the loss is {value}; start again with a lower --learning-rate"
                )
            if progress.step % 50 == 0:
                now = (time.perf_counter(), progress.positions)
                rate = (now[1] - since[1]) / (now[0] - since[0])
                click.echo(
                    f"{progress.seconds / 60:6.1f} min  step {progress.step}  loss {loss:.4f}  "
                    f"{rate:.0f} tokens/s  {progress.examples} examples"
                )
                since = now
            if progress.step % every == 0 or progress.step == self.settings.steps:
                entry = {
                    "minutes": round(progress.seconds / 60, 1),
                    "step": progress.step,
                    "loss": round(loss, 4),
                }
                entry |= self.report(16)
                progress.history.append(entry)
                click.echo(json.dumps(entry))
                self.save_state()
                self.save_model()
                # Reports are not training time.
                since = (time.perf_counter(), progress.positions)

    def final_report(self, per_task: int) -> None:
        """Held-out exact match with the product's samplers, on the averaged weights as they were saved."""
        self.swap()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(weight.to(torch.bfloat16))
        subject = subject_of(self.model, self.encoder, self.generation_config)
        click.echo(table(measure(subject, per_task)))


@click.command()
@click.argument("family", type=click.Choice(list(MODELS)))
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Updates of the whole run.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory to write."
)
@click.option(
    "--start",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Trained tiny model to start from in place of random weights.",
)
@click.option(
    "--curriculum",
    type=click.Choice(list(corpus.CURRICULA)),
    default="from-scratch",
    show_default=True,
    help="Which tasks, and when; the others are for weights to start from that know all but these.",
)
@click.option("--resume", is_flag=True, help="Continue a run that was interrupted.")
@click.option("--threads", type=int, default=0, help="CPU threads; 0 takes all.")
@click.option("--learning-rate", default=2e-3, show_default=True)
@click.option("--tokens", default=1536, show_default=True, help="Positions per batch.")
@click.option("--copies", default=4, show_default=True, help="Noisy canvases per encoded prompt (gemma).")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--precision",
    type=click.Choice(["auto", "bfloat16", "float32"]),
    default="auto",
    show_default=True,
    help="Of products; auto: bfloat16 where the processor multiplies it.",
)
@click.option(
    "--report-steps", default=500, show_default=True, help="Steps between reports and saved states."
)
@click.option(
    "--per-task", default=50, show_default=True, help="Held-out examples per task of the last report."
)
def main(
    family: str,
    steps: int,
    out: Path,
    start: Path | None,
    curriculum: str,
    resume: bool,
    threads: int,
    learning_rate: float,
    tokens: int,
    copies: int,
    seed: int,
    precision: str,
    report_steps: int,
    per_task: int,
) -> None:
    """Train the tiny model of a family."""
    if threads:
        torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = Settings(
        family, steps, out, start, curriculum, learning_rate, tokens, copies, seed, report_steps, device,
        precision,
    )  # fmt: skip
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
