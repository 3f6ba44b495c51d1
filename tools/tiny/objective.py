"""Training losses of the two families, and how well noise is taken back: in PyTorch, batched.

Both draw a noise level t per answer, stratified over the batch so that every batch sees all levels, and
corrupt each position of the answer independently with probability t: DiffusionGemma's canvas gets uniformly
random tokens, LLaDA's answer gets the mask token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgekit.export.reference import MASKED, PrefixKV, ReferenceModel
from edgekit.tools.tiny import tokenizer as vocabulary
from edgekit.tools.tiny.corpus import Batch

# Positions after the end of turn are many and easy; an untouched position only has to be repeated.
FILL_WEIGHT = 0.1
KEPT_WEIGHT = 0.2
# LLaDA weights a masked position by 1/t; below this level the weight stays, or single batches would rule the
# gradient.
LOWEST_LEVEL = 0.2
# The temperatures that the sampler's schedule passes through.
SOFT_TEMPERATURE = (0.4, 0.8)


@dataclass(frozen=True)
class Inputs:
    """A batch as tensors. `prompt_mask` is additive, [B, 1, 1, P]; `positions` [B, P] count from the first
    real token."""

    prompt: Tensor
    positions: Tensor
    prompt_mask: Tensor
    lengths: Tensor  # [B] prompt lengths
    answer: Tensor  # [B, A]
    ends: Tensor  # [B] answer lengths, end of turn included


def to_inputs(batch: Batch, device: torch.device | str = "cpu") -> Inputs:
    prompt = torch.from_numpy(batch.prompt).to(device)
    lengths = torch.from_numpy(batch.prompt_lengths).to(device)
    positions = torch.arange(prompt.shape[1], device=device) - (prompt.shape[1] - lengths)[:, None]
    mask = torch.zeros(prompt.shape, device=device).masked_fill(positions < 0, MASKED)
    answer, ends = (
        torch.from_numpy(batch.answer).to(device),
        torch.from_numpy(batch.answer_lengths).to(device),
    )
    return Inputs(prompt, positions.clamp(min=0), mask[:, None, None], lengths, answer, ends)


def noise_levels(rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
    """One level in (0, 1] per row, in random order: one from each of `rows` equal intervals."""
    spread = torch.rand(rows, device=device, generator=generator)
    return (torch.randperm(rows, device=device, generator=generator) + 1 - spread) / rows


def _position_weights(inputs: Inputs) -> Tensor:
    """[B, A]: one up to the end of turn, FILL_WEIGHT after it."""
    index = torch.arange(inputs.answer.shape[1], device=inputs.answer.device)
    return torch.where(index < inputs.ends[:, None], 1.0, FILL_WEIGHT)


class GemmaObjective:
    """Canvas denoising over a causally encoded prompt. Every prompt is encoded once for `copies` noisy
    canvases."""

    def __init__(self, model: ReferenceModel, copies: int = 3) -> None:
        self.model, self.copies = model, copies

    def prefix(self, inputs: Inputs, copies: int) -> tuple[PrefixKV, Tensor, Tensor]:
        """Prefix KV of the prompts repeated `copies` times, with positions and mask of canvases behind it."""
        kv = self.model.encode(inputs.prompt, positions=inputs.positions, mask=inputs.prompt_mask)
        kv = [(k.repeat_interleave(copies, 0), v.repeat_interleave(copies, 0)) for k, v in kv]
        width = inputs.answer.shape[1]
        positions = inputs.lengths[:, None] + torch.arange(width, device=inputs.prompt.device)
        mask = F.pad(inputs.prompt_mask, (0, width))
        return kv, positions.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)

    def soft(self, logits: Tensor, temperature: Tensor | float) -> Tensor:
        """The soft embeddings that self-conditioning is fed: softmax(z / temperature) @ E."""
        return torch.softmax(logits.float() / temperature, -1) @ self.model.embedding

    def loss(self, batch: Inputs) -> Tensor:
        answer = batch.answer.repeat_interleave(self.copies, 0)
        rows, width = answer.shape
        device = answer.device
        level = noise_levels(rows, device)
        draw, random = (
            torch.rand(rows, width, device=device),
            torch.randint(0, vocabulary.VOCAB_SIZE, answer.shape, device=device),
        )
        noisy = draw < level[:, None]
        canvas = torch.where(noisy, random, answer)
        kv, positions, mask = self.prefix(batch, self.copies)
        soft = torch.zeros(rows, width, self.model.architecture.hidden_size, device=device)
        with torch.no_grad():
            # Half of the rows get the estimate of a first pass. Its canvas is at least as noisy, as in
            # generation, where the estimate is one step older than the canvas.
            chosen = torch.randperm(rows, device=device)[: rows // 2]
            earlier = torch.maximum(level, torch.rand(rows, device=device))[chosen]
            older = torch.where(draw[chosen] < earlier[:, None], random[chosen], answer[chosen])
            logits = self.model.denoise(
                older, [(k[chosen], v[chosen]) for k, v in kv], None, positions[chosen], mask[chosen]
            )
            low, high = SOFT_TEMPERATURE
            temperature = low + (high - low) * torch.rand(len(chosen), 1, 1, device=device)
            soft[chosen] = self.soft(logits, temperature).to(soft.dtype)
        logits = self.model.denoise(canvas, kv, soft, positions, mask)
        weight = _position_weights(batch).repeat_interleave(self.copies, 0) * torch.where(
            noisy, 1.0, KEPT_WEIGHT
        )
        each = F.cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="none")
        return (each * weight.flatten()).sum() / weight.sum()

    def corrupted_logits(
        self, batch: Inputs, level: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Logits at one noise level without self-conditioning, and which positions were corrupted."""
        noisy = torch.rand(batch.answer.shape, generator=generator).to(batch.answer.device) < level
        random = torch.randint(0, vocabulary.VOCAB_SIZE, batch.answer.shape, generator=generator).to(
            batch.answer.device
        )
        kv, positions, mask = self.prefix(batch, 1)
        return self.model.denoise(torch.where(noisy, random, batch.answer), kv, None, positions, mask), noisy


class LladaObjective:
    """Masked prediction, prompt and answer in one bidirectional sequence (arXiv 2502.09992, algorithm 2)."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model

    def logits(self, batch: Inputs, answer: Tensor) -> Tensor:
        """Logits [B, A, V] of the answer positions."""
        width = answer.shape[1]
        behind = batch.lengths[:, None] + torch.arange(width, device=answer.device)
        hidden = self.model.hidden(
            torch.cat((batch.prompt, answer), 1),
            positions=torch.cat((batch.positions, behind), 1),
            mask=F.pad(batch.prompt_mask, (0, width)),
        )
        return self.model.head(hidden[:, -width:])

    def loss(self, batch: Inputs) -> Tensor:
        level = noise_levels(batch.answer.shape[0], batch.answer.device)[:, None]
        masked = torch.rand(batch.answer.shape, device=batch.answer.device) < level
        logits = self.logits(batch, batch.answer.masked_fill(masked, vocabulary.MDM_MASK))
        weight = _position_weights(batch)
        each = F.cross_entropy(logits.flatten(0, 1), batch.answer.flatten(), reduction="none").view_as(weight)
        return (each * weight * masked / level.clamp(min=LOWEST_LEVEL)).sum() / weight.sum()

    def corrupted_logits(
        self, batch: Inputs, level: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Logits at one noise level, and which positions were masked."""
        masked = torch.rand(batch.answer.shape, generator=generator).to(batch.answer.device) < level
        return self.logits(batch, batch.answer.masked_fill(masked, vocabulary.MDM_MASK)), masked


Objective = GemmaObjective | LladaObjective


def objective(model: ReferenceModel, copies: int = 3) -> Objective:
    """The objective of the model's family; `copies` noisy canvases per prompt where the prompt is encoded
    apart."""
    return GemmaObjective(model, copies) if model.architecture.causal_prefix else LladaObjective(model)


@torch.no_grad()
def denoising_accuracy(chosen: Objective, batch: Inputs, level: float, seed: int = 0) -> float:
    """Share of corrupted positions, end of turn included and fill not, where the likeliest token is the right
    one."""
    logits, corrupted = chosen.corrupted_logits(batch, level, torch.Generator().manual_seed(seed))
    index = torch.arange(batch.answer.shape[1], device=batch.answer.device)
    counted = corrupted & (index < batch.ends[:, None])
    right = (logits.argmax(-1) == batch.answer) & counted
    return float(right.sum() / counted.sum().clamp(min=1))
