"""Train the role head of a tiny model on chains and sorting, for the option `order=logic` (LogicDiff, arXiv
2603.26771).

    python -m edgekit.tools.train_roles MODEL_DIR [--out FOLDER] [--steps 800] [--seed 0] [--json]

The model stays as it is: the head reads its hidden states at masked positions, over random noise levels,
half of the rows with a block that is being unmasked between text and masks. Labels follow from the task
(`edgekit.tools.tiny.roles`). Writes `role_head.safetensors` (`edgekit.export.role_head`), which an export
takes when it lies beside the weights, and prints by role how many held-out positions the head gets right.

The same arguments and number of threads give the same bytes. It takes minutes on a processor.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import click
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.role_head import RoleHead, width_of
from edgekit.export.weights import load_float_weights
from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.sampling.types import ROLES
from edgekit.tools.tiny import roles
from edgekit.tools.tiny import tokenizer as vocabulary
from edgekit.tools.tiny.corpus import Encoder, collate
from edgekit.tools.tiny.models import CANVAS
from edgekit.tools.tiny.objective import Inputs, LladaObjective, to_inputs
from edgekit.tools.tiny.tasks import Example, draw, examples

#: What a position behind the end of the turn counts: there are many, and all alike.
FILL_WEIGHT = 0.1
PEAK_RATE = 2e-3


@dataclass(frozen=True)
class Measured:
    """Of held-out positions: how many have the role, and the share of them that the head gets right."""

    role: str
    count: int
    right: float


class Features:
    """Hidden states of a frozen model at masked positions of its own noise, with the roles of the tokens that
    they predict.
    """

    def __init__(self, model: ReferenceModel, encoder: Encoder, canvas: int = CANVAS) -> None:
        self.objective, self.encoder, self.canvas = LladaObjective(model), encoder, canvas
        # Row j of such a model predicts position j + 1.
        self.ahead = 1 if model.architecture.shift_logits else 0

    def batch(self, chosen: Sequence[Example]) -> tuple[Inputs, Tensor]:
        """Examples as tensors, and the roles [B, A] of their answers."""
        prompts = self.encoder.prompts([self.encoder.family.prompt([], e.prompt) for e in chosen])
        answers = self.encoder.answers([e.answer for e in chosen])
        tasks, width = [e.task for e in chosen], max(map(len, prompts))
        inputs = to_inputs(collate(tasks, prompts, answers, self.encoder.family, width, self.canvas))
        spans = [self.encoder.spans(e.answer) for e in chosen]
        found = [roles.token_roles(e, s, self.canvas) for e, s in zip(chosen, spans, strict=True)]
        return inputs, torch.tensor(found)

    @torch.no_grad()
    def __call__(
        self, chosen: Sequence[Example], generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states [N, H], roles [N] and weights [N] of the masked positions."""
        inputs, labels = self.batch(chosen)
        masked, _, _ = self.objective.masks(inputs, generator)
        noisy = inputs.answer.masked_fill(masked, vocabulary.MDM_MASK)
        hidden = self.objective.hidden(inputs, noisy)
        stop = hidden.shape[1] - self.ahead
        rows = hidden[:, stop - self.canvas : stop]
        inside = torch.arange(self.canvas) < inputs.ends[:, None]
        weight = torch.where(inside, 1.0, FILL_WEIGHT)
        return rows[masked], labels[masked], weight[masked]


def trained(
    features: Features, steps: int, rows: int, seed: int, told: Callable[[int, float], None]
) -> RoleHead:
    """A head after so many steps of so many examples each; `told` gets every step and its loss."""
    hidden = features.objective.model.architecture.hidden_size
    generator, rng = torch.Generator().manual_seed(seed), random.Random(f"roles {seed}")
    width = width_of(hidden)
    down, up = nn.Linear(hidden, width), nn.Linear(width, len(ROLES))
    with torch.no_grad():
        for layer in (down, up):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * layer.in_features**-0.5)
            layer.bias.zero_()
    weights = {
        f"{name}.{part}": value
        for name, layer in (("down", down), ("up", up))
        for part, value in layer.named_parameters()
    }
    head = RoleHead(weights)
    optimizer = torch.optim.AdamW(weights.values(), lr=PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps, pct_start=0.1)
    names, shares = list(roles.SHARES), list(roles.SHARES.values())
    for step in range(steps):
        chosen = [draw(task, rng) for task in rng.choices(names, shares, k=rows)]
        x, labels, weight = features(chosen, generator)
        each = F.cross_entropy(head.scores(x), labels, reduction="none")
        # Every role counts alike: an answer has one conclusion among many steps.
        of_role = torch.zeros(len(ROLES)).index_add(0, labels, weight)
        loss = (each * weight / of_role[labels]).sum() / (of_role > 0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        told(step + 1, loss.item())
    return RoleHead({name: value.detach().clone() for name, value in weights.items()})


@torch.no_grad()
def measured(features: Features, head: RoleHead, per_task: int, seed: int) -> list[Measured]:
    """The head on held-out examples of every task, in noise of all levels; what fills a canvas counts up to
    the end of the turn alone.
    """
    generator = torch.Generator().manual_seed(seed)
    right, count = np.zeros(len(ROLES), np.int64), np.zeros(len(ROLES), np.int64)
    for task in roles.SHARES:
        held = examples(task, per_task, seed)
        for start in range(0, per_task, 32):
            x, labels, weight = features(held[start : start + 32], generator)
            found = head.scores(x).argmax(-1)
            for role in range(len(ROLES)):
                own = (labels == role) & (weight == 1)
                count[role] += int(own.sum())
                right[role] += int((found[own] == role).sum())
    return [
        Measured(name, int(n), float(r / n) if n else 0.0)
        for name, n, r in zip(ROLES, count, right, strict=True)
    ]


def opened(folder: Path) -> Features:
    """The features of a tiny model's folder. Raises EdgekitError for one that unmasks no canvas."""
    checkpoint = Checkpoint.open(folder)
    model = ReferenceModel(
        own := architecture(checkpoint.config, "float32"), load_float_weights(own, checkpoint)
    )
    if own.sampler not in ("llada", "dream"):
        raise EdgekitError(
            f"{folder}: is decoded by {own.sampler}; order=logic is an order of LLaDA's and Dream's masks"
        )
    if own.vocab_size != vocabulary.VOCAB_SIZE:
        raise EdgekitError(
            f"{folder}: has {own.vocab_size} tokens; roles are known of the tiny models' tasks alone"
        )
    return Features(model.requires_grad_(False), Encoder("llada", folder))


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for role_head.safetensors; the model's own if not given.",
)
@click.option("--steps", default=800, show_default=True, type=click.IntRange(1))
@click.option("--rows", default=16, show_default=True, type=click.IntRange(1), help="Examples a step.")
@click.option("--per-task", default=100, show_default=True, type=click.IntRange(1), help="Held-out examples.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--threads", type=click.IntRange(1), help="Of PyTorch.")
@click.option("--json", "as_json", is_flag=True, help="Print the shares by role as JSON.")
def main(
    model: Path,
    out: Path | None,
    steps: int,
    rows: int,
    per_task: int,
    seed: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Train the role head of the tiny model in the folder MODEL."""
    if threads is not None:
        torch.set_num_threads(threads)

    def tell(step: int, loss: float) -> None:
        if step == 1 or step % 10 == 0 or step == steps:
            click.echo(f"step {step}/{steps}: loss {loss:.3f}", err=True)

    try:
        features = opened(model)
        head = trained(features, steps, rows, seed, tell)
        folder = out or model
        folder.mkdir(parents=True, exist_ok=True)
        path = head.save(folder)
    except EdgekitError as error:
        raise click.ClickException(str(error)) from None
    found = measured(features, head, per_task, seed)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found]))
        return
    for each in found:
        click.echo(f"{each.role:10s} {each.right:6.1%} of {each.count} held-out positions")
    click.echo(f"wrote {path}", err=True)


if __name__ == "__main__":
    main()
