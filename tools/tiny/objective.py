"""Training losses of the two families, and how well noise is taken back: in PyTorch, batched.

Both draw a noise level t per answer, stratified over the batch so that every batch sees all levels, and
corrupt each position of the answer independently with probability t: DiffusionGemma's canvas gets uniformly
random tokens, LLaDA's answer gets the mask token. In generation noise is not independent: what follows from
what is known comes first. So half of the rows are what generation makes of such a canvas: DiffusionGemma's
after one step of its sampler, LLaDA's with a block that is being unmasked, text before it and masks behind.
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
# The temperatures that the sampler's schedule passes through, and its bound on accepted entropies.
SOFT_TEMPERATURE = (0.4, 0.8)
ENTROPY_BOUND = 0.1
# The length of the blocks that LLaDA unmasks one after the other, and what a position behind the block of a
# row counts.
BLOCK = 32
BEHIND_WEIGHT = 0.2


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
        canvas = self._random(answer, level)
        kv, positions, mask = self.prefix(batch, self.copies)
        soft = torch.zeros(rows, width, self.model.architecture.hidden_size, device=device)
        with torch.no_grad():
            # Half of the rows go through a step of generation first: its estimate, and the canvas that it
            # leaves.
            chosen = torch.randperm(rows, device=device)[: rows // 2]
            logits = self.model.denoise(
                canvas[chosen],
                [(k[chosen], v[chosen]) for k, v in kv],
                None,
                positions[chosen],
                mask[chosen],
            )
            low, high = SOFT_TEMPERATURE
            z = logits.float() / (low + (high - low) * torch.rand(len(chosen), 1, 1, device=device))
            soft[chosen] = self.soft(z, 1.0).to(soft.dtype)
            canvas[chosen] = _step(z)
        logits = self.model.denoise(canvas, kv, soft, positions, mask)
        weight = _position_weights(batch).repeat_interleave(self.copies, 0) * torch.where(
            canvas != answer, 1.0, KEPT_WEIGHT
        )
        each = F.cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="none")
        return (each * weight.flatten()).sum() / weight.sum()

    @staticmethod
    def _random(answer: Tensor, level: Tensor) -> Tensor:
        """The answer with each position replaced by a random token with its row's probability."""
        noisy = torch.rand(answer.shape, device=answer.device) < level[:, None]
        return torch.where(noisy, torch.randint_like(answer, vocabulary.VOCAB_SIZE), answer)

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


def _step(z: Tensor) -> Tensor:
    """The canvases [B, A] that a step of DiffusionGemma's sampler leaves for scores z [B, A, V]: sampled
    tokens where the entropies are lowest, in sum below the bound, and random ones elsewhere."""
    log_p = torch.log_softmax(z, -1)
    entropy, order = (-(log_p.exp() * log_p).sum(-1)).sort(-1)
    accepted = torch.zeros_like(order, dtype=torch.bool).scatter(
        -1, order, entropy.cumsum(-1) - entropy <= ENTROPY_BOUND
    )
    sample = (z - torch.empty_like(z).exponential_().log()).argmax(-1)
    return torch.where(accepted, sample, torch.randint_like(sample, vocabulary.VOCAB_SIZE))


class LladaObjective:
    """Masked prediction, prompt and answer in one bidirectional sequence (arXiv 2502.09992, algorithm 2)."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model

    def logits(self, batch: Inputs, answer: Tensor) -> Tensor:
        """Logits [B, A, V] of the answer positions."""
        return self.model.head(self.hidden(batch, answer)[:, -answer.shape[1] :])

    def hidden(self, batch: Inputs, answer: Tensor) -> Tensor:
        """Final hidden states [B, P + A, H] of prompt and answer."""
        width = answer.shape[1]
        behind = batch.lengths[:, None] + torch.arange(width, device=answer.device)
        return self.model.hidden(
            torch.cat((batch.prompt, answer), 1),
            positions=torch.cat((batch.positions, behind), 1),
            mask=F.pad(batch.prompt_mask, (0, width)),
        )

    def masks(self, batch: Inputs, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Which positions of the answers [B, A] are masked, which of these lie behind the block that their
        row is unmasking, and the noise levels [B, 1].
        """
        rows, width = batch.answer.shape
        device = batch.answer.device
        level = noise_levels(rows, device, generator)[:, None]
        # Where the row's block begins; a row without blocks is one that reaches over the whole answer.
        blocks = (batch.ends + BLOCK - 1) // BLOCK
        begin = (torch.rand(rows, device=device, generator=generator) * blocks).long()[:, None] * BLOCK
        whole = torch.rand(rows, 1, device=device, generator=generator) < 0.5
        index = torch.arange(width, device=device)
        before, behind = (index < begin) & ~whole, (index >= begin + BLOCK) & ~whole
        noise = torch.rand(batch.answer.shape, device=device, generator=generator)
        return ((noise < level) | behind) & ~before, behind, level

    def loss(self, batch: Inputs) -> Tensor:
        masked, behind, level = self.masks(batch)
        logits = self.logits(batch, batch.answer.masked_fill(masked, vocabulary.MDM_MASK))
        weight = _position_weights(batch)
        each = F.cross_entropy(logits.flatten(0, 1), batch.answer.flatten(), reduction="none").view_as(weight)
        factor = torch.where(behind, BEHIND_WEIGHT, 1 / level.clamp(min=LOWEST_LEVEL))
        return (each * weight * masked * factor).sum() / weight.sum()

    def corrupted_logits(
        self, batch: Inputs, level: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Logits at one noise level, and which positions were masked."""
        masked = torch.rand(batch.answer.shape, generator=generator).to(batch.answer.device) < level
        return self.logits(batch, batch.answer.masked_fill(masked, vocabulary.MDM_MASK)), masked


class BlockObjective:
    """Next tokens and denoised blocks from the same weights: one pass over prompt, answer and noisy answer.

    Rows of prompt and answer are causal, and the logits at a position are of the next one. Rows of the noisy
    answer see each other within a block, and the clean rows before their block; their logits are of their own
    position (arXiv 2503.09573, the two copies of its training mask).
    """

    def __init__(self, model: ReferenceModel, block: int) -> None:
        self.model, self.block = model, block

    def logits(self, batch: Inputs, noisy: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, A, V] of the answer's positions: causal ones, and those of `noisy`. The first block of a
        row has `phase` [B] positions less than the others."""
        width, device = noisy.shape[1], noisy.device
        index = torch.arange(width, device=device)
        block = (index + phase[:, None]) // self.block
        begin = block * self.block - phase[:, None]  # of each position's block, in the answer
        shown = batch.prompt_mask[:, 0] == 0  # [B, 1, P]
        causal = torch.ones(2 * [batch.prompt.shape[1]], dtype=torch.bool, device=device).tril() & shown
        rows = len(noisy)
        nothing = torch.zeros(rows, *causal.shape[1:], dtype=torch.bool, device=device)
        to_prompt = shown.expand(-1, width, -1)
        prompt_rows = torch.cat((causal, nothing[:, :, :1].expand(-1, -1, 2 * width)), 2)
        clean = (index <= index[:, None]).expand(rows, -1, -1)
        clean_rows = torch.cat((to_prompt, clean, torch.zeros_like(clean)), 2)
        before, same = index < begin[..., None], block[:, None] == block[..., None]
        noisy_rows = torch.cat((to_prompt, before, same), 2)
        allowed = torch.cat((prompt_rows, clean_rows, noisy_rows), 1)
        behind = batch.lengths[:, None] + index
        hidden = self.model.hidden(
            torch.cat((batch.prompt, batch.answer, noisy), 1),
            positions=torch.cat((batch.positions, behind, behind), 1),
            mask=torch.zeros(allowed.shape, device=device).masked_fill(~allowed, MASKED)[:, None],
        )
        first = batch.prompt.shape[1] - 1
        return self.model.head(hidden[:, first : first + width]), self.model.head(hidden[:, -width:])

    def loss(self, batch: Inputs) -> Tensor:
        rows, width = batch.answer.shape
        device = batch.answer.device
        level = noise_levels(rows, device)[:, None]
        # Half of the rows as blocks are denoised, from the prompt's end; half as they are drafted: anywhere,
        # their first token known and often all others masked.
        drafted = torch.rand(rows, device=device) < 0.5
        phase = torch.where(drafted, torch.randint(0, self.block, (rows,), device=device), 0)
        level = torch.where(drafted[:, None] & (torch.rand(rows, 1, device=device) < 0.7), 1.0, level)
        masked = torch.rand(batch.answer.shape, device=device) < level
        index = torch.arange(width, device=device)
        first = (index + phase[:, None]) % self.block == 0
        masked &= ~(first & drafted[:, None])
        causal, noisy = self.logits(batch, batch.answer.masked_fill(masked, vocabulary.MDM_MASK), phase)
        weight = _position_weights(batch)
        each = (
            F.cross_entropy(z.flatten(0, 1), batch.answer.flatten(), reduction="none").view_as(weight)
            for z in (causal, noisy)
        )
        next_token, denoised = each
        factor = masked / level.clamp(min=LOWEST_LEVEL)
        return ((next_token + denoised * factor) * weight).sum() / weight.sum()

    def corrupted_logits(
        self, batch: Inputs, level: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Logits at one noise level in blocks from the prompt's end, and which positions were masked."""
        masked = torch.rand(batch.answer.shape, generator=generator).to(batch.answer.device) < level
        noisy = batch.answer.masked_fill(masked, vocabulary.MDM_MASK)
        return self.logits(batch, noisy, torch.zeros_like(batch.lengths))[1], masked


Objective = GemmaObjective | LladaObjective | BlockObjective


def objective(model: ReferenceModel, copies: int = 3, block: int = 16) -> Objective:
    """The objective of the model's family; `copies` noisy canvases per prompt where a canvas is denoised over
    an encoded prompt, blocks of `block` positions where blocks are."""
    if model.architecture.family == "diffusion_gemma":
        return GemmaObjective(model, copies)
    if model.architecture.causal_prefix:
        return BlockObjective(model, block)
    return LladaObjective(model)


@torch.no_grad()
def denoising_accuracy(chosen: Objective, batch: Inputs, level: float, seed: int = 0) -> float:
    """Share of corrupted positions, end of turn included and fill not, where the likeliest token is the right
    one."""
    logits, corrupted = chosen.corrupted_logits(batch, level, torch.Generator().manual_seed(seed))
    index = torch.arange(batch.answer.shape[1], device=batch.answer.device)
    counted = corrupted & (index < batch.ends[:, None])
    right = (logits.argmax(-1) == batch.answer) & counted
    return float(right.sum() / counted.sum().clamp(min=1))
