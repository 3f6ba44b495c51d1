"""How probable a model finds an answer.

likelihood: log-probability of the answer given the prompt, per token. Of models with a causal pass it is
exact. Of masked models it is the published estimate of LLaDA (`get_log_likelihood`, arXiv 2502.09992): some
of the answer's tokens are masked, their log-probabilities are summed and divided by the share that was
masked, and the mean of several masks is taken. Here the masks are fixed: answers of a length get the same
ones.

confidence: mean log-probability of the answer's tokens where the model is shown the whole answer. It is no
likelihood; of models that denoise random tokens there is no other.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.sampling import HeadRequest, Ids, InvalidOption, PhiloxNoise
from edgekit.runtime.session import Segment, Session
from edgekit.runtime.session.sequence import Sequence

Kind = Literal["masked", "causal", "shown"]
#: Masks of an answer. The published estimate takes 128, whose spread is four times smaller.
MASKS: Final = 8
#: Scores that are held at a time.
LOGIT_BYTES: Final = 16 << 20


def kind_of(bundle: Bundle, name: str) -> Kind:
    """How a model gives its "likelihood" or "confidence". Raises InvalidOption for one that has none."""
    family = bundle.manifest.sampler["name"]
    if name == "likelihood":
        if family in ("llada", "dream"):
            return "masked"
        if family == "block" and bundle.model.prefix_block == 1:
            return "causal"
        other = "; use confidence" if family == "diffusion_gemma" else ""
        raise InvalidOption(f"{bundle.path}: a model of this kind has no likelihood of an answer{other}")
    if family != "diffusion_gemma":
        raise InvalidOption(
            f"{bundle.path}: confidence is for models that denoise random tokens; use likelihood"
        )
    return "shown"


@dataclass(eq=False)
class Scorer:
    """Scores answers to a prompt within a session. `texts` are sequences whose hidden states passes may
    replace; `own` is one of the scorer alone, for models with a causal prefix.
    """

    session: Session
    prompt: Ids
    texts: Items[Sequence]
    own: Sequence | None = None

    def scores(self, name: str, answers: Items[Items[int]]) -> list[float]:
        """Mean log-probabilities of tokens of answers, open ones left out; 0 for none. Raises
        InvalidOption.
        """
        bundle = self.session.bundle
        kind = kind_of(bundle, name)
        ids = [np.array(answer, np.int64) for answer in answers]
        if kind == "masked":
            mask = bundle.manifest.sampler["config"]["mask_token_id"]
            found = []
            for start in range(0, len(ids), len(self.texts)):
                found += self._masked(ids[start : start + len(self.texts)], mask)
            return found
        score = self._causal if kind == "causal" else self._shown
        return [float(np.mean(score(each))) if each.size else 0.0 for each in ids]

    def _masked(self, answers: list[Ids], mask: int) -> list[float]:
        known = [np.flatnonzero(answer != mask) for answer in answers]
        masks = [_masks(len(places)) for places in known]
        sums = np.zeros(len(answers))
        ahead = 1 if self.session.shift_logits else 0
        for number in range(MASKS):
            work: list[_Rows] = []
            shares, whose = [], []
            for i, (answer, places) in enumerate(zip(answers, known, strict=True)):
                if not len(places):
                    continue
                hidden = np.sort(places[masks[i][number]])
                canvas = np.concatenate([self.prompt, answer])
                canvas[len(self.prompt) + hidden] = mask
                segment = Segment(self.texts[i], canvas, seen=[], adapter=self.session.adapter)
                rows = len(self.prompt) + hidden - ahead
                work.append(_Rows(segment, rows[rows >= 0], answer[hidden][rows >= 0]))
                shares.append(len(hidden) / len(places))
                whose.append(i)
            for i, share, found in zip(whose, shares, self._log_probabilities(work), strict=True):
                sums[i] += found.sum() / share
        return [
            float(total / MASKS / len(places)) if len(places) else 0.0
            for total, places in zip(sums, known, strict=True)
        ]

    def _causal(self, answer: Ids) -> NDArray[np.float64]:
        own, session = self._prompted(self.prompt[:-1]), self.session
        text = np.concatenate([self.prompt, answer])
        at, found = own.prefix_length, []
        # The first token of a text has nothing before it that predicts it.
        while at < len(text) - 1:
            ids = text[at : min(at + session.prefill_rows, len(text) - 1)]
            segment = Segment(own, ids, causal=True, keep_at=at, adapter=session.adapter)
            (part,) = self._log_probabilities(
                [_Rows(segment, np.arange(len(ids)), text[at + 1 : at + 1 + len(ids)])]
            )
            found.append(part)
            at += len(ids)
        return np.concatenate(found) if found else np.zeros(1)

    def _shown(self, answer: Ids) -> NDArray[np.float64]:
        own, session = self._prompted(self.prompt), self.session
        length = session.model.canvas_length or len(answer)
        found = []
        for start in range(0, len(answer), length):
            ids = answer[start : start + length]
            segment = Segment(own, ids, adapter=session.adapter)
            (part,) = self._log_probabilities([_Rows(segment, np.arange(len(ids)), ids)])
            found.append(part)
            if start + length < len(answer):
                own.prefill(ids)
        return np.concatenate(found)

    def _prompted(self, prompt: Ids) -> Sequence:
        """The own sequence, with the prompt and nothing else."""
        assert self.own is not None, "models with a causal prefix have one"
        try:
            self.own.crop(min(len(prompt), self.own.prefix_length))
        except InvalidRequest:  # layers with a window no longer have it
            self.own.reset()
        if self.own.prefix_length < len(prompt):
            self.own.reset()
            self.own.prefill(prompt)
        return self.own

    def _log_probabilities(self, work: list[_Rows]) -> list[NDArray[np.float64]]:
        """Of the tokens of each, by one pass."""
        if not work:
            return []
        at_once = max(1, LOGIT_BYTES // (4 * self.session.vocab_size * len(work)))
        parts = [each.request(0, at_once) for each in work]
        segments = [replace(each.segment, request=part) for each, part in zip(work, parts, strict=True)]
        found = []
        for each, answer in zip(work, self.session.run_pass(segments), strict=True):
            assert answer is not None, "it was asked for"
            values = [each.values(0, answer.logits, answer.log_z)]
            for start in range(at_once, len(each.rows), at_once):
                more = each.segment.sequence.project(each.request(start, at_once))
                values.append(each.values(start, more.logits, more.log_z))
            found.append(np.concatenate(values))
        return found


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a segment, and the tokens whose log-probabilities they give."""

    segment: Segment
    rows: Ids
    tokens: Ids

    def request(self, start: int, count: int) -> HeadRequest:
        return HeadRequest(rows=self.rows[start : start + count], logits=True)

    def values(self, start: int, logits: object, log_z: NDArray[np.float32]) -> NDArray[np.float64]:
        assert isinstance(logits, np.ndarray), "they were asked for"
        tokens = self.tokens[start : start + len(log_z)]
        return logits[np.arange(len(tokens)), tokens].astype(np.float64) - log_z


def _masks(length: int) -> list[Ids]:
    """Places of an answer of so many tokens to mask: numbers of them from all lengths alike, as
    `forward_process` of LLaDA takes them, and random places.
    """
    if not length:
        return []
    noise = PhiloxNoise(length)
    first = int(noise.integers(length, 1)[0]) + 1
    counts = np.round(np.linspace(first, first + (MASKS - 1) * length / MASKS, MASKS)).astype(np.int64)
    return [np.argsort(noise.uniform(length), kind="stable")[: (count - 1) % length + 1] for count in counts]
