"""Events of a sampler as the callers of a model see them."""

from __future__ import annotations

from collections.abc import Sequence

from edgekit.runtime.api.answer import Answer, Committed, Done, Draft, Event, Statistics
from edgekit.runtime.sampling import events as inner
from edgekit.runtime.sampling.options import Lengths
from edgekit.runtime.tokenizer import Tokenizer


class Told:
    """Makes the events of one generation, one after the other. Its answer is cut at `limit` tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        lengths: Lengths | None,
        limit: int | None = None,
    ) -> None:
        self._prompt, self._lengths, self._limit = tuple(prompt_ids), lengths, limit
        self._answer: list[int] = []
        self._text = tokenizer.stream()
        self._pieces: list[str] = []

    def event(self, event: inner.Event, bytes_read: int) -> Event:
        """The next one; so many bytes have been read since the generation began."""
        lengths = self._lengths
        if isinstance(event, inner.Draft):
            assert lengths is not None, "it has begun, so its prompt fits"
            return Draft(
                canvas=event.canvas_index,
                canvases=lengths.canvases,
                step=event.step,
                steps=lengths.steps,
                start=event.start,
                ids=tuple(event.ids.tolist()),
                accepted=tuple(event.accepted.tolist()),
                bytes_read=bytes_read,
            )
        if isinstance(event, inner.Committed):
            kept = (event.ids if event.text is None else event.text).tolist()
            kept = kept if self._limit is None else kept[: self._limit - len(self._answer)]
            self._answer += kept
            self._pieces.append(self._text.push(kept))
            return Committed(event.canvas_index, tuple(kept), self._pieces[-1])
        self._pieces.append(self._text.finish())
        found = statistics_of(event.stats, len(self._prompt), len(self._answer))
        return Done(Answer("".join(self._pieces), tuple(self._answer), self._prompt, found))


def statistics_of(stats: inner.Stats, prompt_tokens: int, tokens: int) -> Statistics:
    """The costs of a generation, as the engine and its sampler count them."""
    engine = stats.engine
    return Statistics(
        steps=stats.denoising_steps,
        forwards=stats.forwards,
        prefills=stats.prefills,
        rows=stats.rows,
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        reused_tokens=engine["reused_tokens"],
        canvases=stats.canvases,
        finish_reason="eos" if stats.finish_reason == "eos" else "length",
        seconds=engine["seconds"],
        compute_seconds=engine["compute_seconds"],
        wait_seconds=engine["io_wait_seconds"],
        bytes_read=engine["bytes_read"],
        bytes_per_step=engine["streamed_bytes_per_step"],
        resident_bytes=engine["pinned_bytes"],
        peak_bytes=engine["peak_bytes"],
        memory_bytes=engine["memory_bytes"],
    )
